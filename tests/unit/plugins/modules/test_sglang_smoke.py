# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a process: the server gate against replayed replies, with stand-ins for systemctl and journalctl."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.tests.unit.conftest import RunModule
from ansible_collections.ddtree.fleet.tests.unit.replayed import KEY, Server, failed

pytestmark = pytest.mark.slow  # a server of its own for each


def test_accepted_drafts_pass_in_check_mode_too(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    for check in (False, True):
        result = smoke(check=check, min_accept_length=7.5, min_accept_rate=0.9, model_path="/models/tiny-llama-const")
        assert result["rc"] == 0, result
        assert failed(result) == {}
    assert result["figures"]["accept_length"] == 8.0
    assert result["figures"]["accept_rate"] == 0.982
    assert [made["kind"] for made in result["figures"]["generations"]] == ["generate"] * 3 + ["stream"] * 3
    assert result["server"]["version"] == "0.5.11"
    assert result["server"]["speculative_algorithm"] == "DFLASH"
    assert result["server_info"]["api_key"] == "REDACTED"
    assert "SECRET123" not in json.dumps(result)
    assert result["not_verified"] == [
        "CUDA graphs: cuda_graphs is any; 0 decode passes in graphs, 48 without",
        "concurrent requests: concurrent is 0",
        "speed against a baseline: baseline is none",
    ]


def test_zero_acceptance_fails_though_the_accept_length_is_above_one(server: Server, smoke: RunModule) -> None:
    server.start("dflash_no_acceptance")
    result = smoke()
    assert failed(result) == {"accepted drafts": "reply 1, 2, 3, 4, 5, 6: 0 of 441"}
    lines = result["msg"].splitlines()
    assert lines[:4] == [
        f"server gate failed for sglang.service at http://127.0.0.1:{server.port}: 1 of 11 checks",
        "  check           | expected               | found",
        "  accepted drafts | above 0 in every reply | reply 1, 2, 3, 4, 5, 6: 0 of 441",
        "- accepted drafts: accept length reads 1.016, which proves nothing; drafter and model do not belong together, "
        "or the drafter's config is read differently than it was trained",
    ]
    assert lines[4:6] == ["not verified:", "  CUDA graphs: cuda_graphs is any; 0 decode passes in graphs, 378 without"]


def test_no_speculation_fails_unless_it_is_to_be_absent(server: Server, smoke: RunModule) -> None:
    server.start("plain")
    assert failed(smoke()) == {"speculation ran": "it did not run in 6 of 6 replies"}
    assert failed(smoke(speculation="absent")) == {}
    assert failed(smoke(speculation="any")) == {}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--new-names", "--reasoning"], {}),
        (["--speculate-first", "1"], {"speculation ran": "it did not run in 5 of 6 replies"}),
        (["--as-recorded"], {"generated text": "token 0 makes up 64 of 64 tokens", "chat completion": "empty text"}),
        (
            ["--degenerate"],
            {"generated text": "token 0 makes up 64", "chat completion": "'!' 16 times and nothing else"},
        ),
        (["--vary"], {}),
        (["--vary", "--deterministic"], {"same prompt twice": "' and '"}),
        (
            ["--html"],
            {
                "generations answered": "6 of 6 replies failed: reply 1, 2, 3, 4, 5, 6: content type text/html",
                "chat completion": "text/html",
            },
        ),
        (
            ["--refuse"],
            {
                "generations answered": "6 of 6 replies failed: reply 1, 2, 3, 4, 5, 6: HTTP 400",
                "chat completion": "HTTP 400",
            },
        ),
    ],
)
def test_bent_replies(server: Server, smoke: RunModule, flags: List[str], found: Dict[str, str]) -> None:
    server.start("dflash_accepted", *flags)
    result = failed(smoke())
    assert sorted(result) == sorted(found)
    for name, part in found.items():
        assert part in result[name]


def test_two_texts_for_one_prompt_are_a_remark(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--vary")
    result = smoke()
    assert result["rc"] == 0, result
    (remark,) = result["remarks"]
    assert remark.startswith("same prompt twice: expected the same text at temperature 0, found '")
    assert remark.endswith("; only enable_deterministic_inference promises the same")
    assert "same prompt twice" not in [check["name"] for check in result["checks"]]


def test_a_hanging_generation_ends_in_time(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--hang")
    result = smoke(request_timeout=1)
    assert "reply 1: no answer in time" in failed(result)["generations answered"]
    assert "server_info: not asked after a request broke off" in result["not_verified"]


def test_a_server_that_is_never_ready_ends_in_time(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--delay-ready", "100")
    result = smoke(ready_timeout=2)
    assert failed(result) == {"ready": "GET /health answered 503"}
    assert result["journal"][-1] == '"GET /health HTTP/1.1" 503 -'
    assert result["not_verified"] == [
        "generations, speculation and server_info: no request was answered",
        "speed against a baseline: baseline is none",
    ]


def test_a_server_that_becomes_ready_later_passes(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--delay-ready", "1.5")
    result = smoke()
    assert failed(result) == {}
    assert result["figures"]["ready_seconds"] >= 1


@pytest.mark.parametrize("flags", [["--exit-at-start"], ["--die-after", "1"]])
def test_a_server_that_dies_ends_the_gate_at_once_with_its_last_words(
    server: Server, smoke: RunModule, tmp_path: Path, flags: List[str]
) -> None:
    (tmp_path / "key").write_text(f"api-key: {KEY}\n")
    server.start("dflash_accepted", "--api-key", KEY, *flags)
    started = time.monotonic()
    result = smoke(api_key_file=str(tmp_path / "key"), ready_timeout=300, request_timeout=300)
    assert time.monotonic() - started < 8
    assert failed(result) == {"unit sglang.service": "failed (failed, result exit-code, exit status 3)"}
    assert "last lines of its journal:\n  server_args=ServerArgs(" in result["msg"]
    assert "api_key=REDACTED" in result["msg"]
    assert "as asked" in result["journal"][-1]


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ({"restarts": "3", "invocation": "2222"}, "was started anew while the gate ran (invocation 1111 became 2222)"),
        ({"restarts": "4", "invocation": "2222"}, "systemd restarted it while the gate ran (its 3 restarts became 4)"),
    ],
)
def test_a_restart_while_waiting_ends_the_gate(
    server: Server, smoke: RunModule, later: Dict[str, str], found: str
) -> None:
    server.start("dflash_accepted", "--delay-ready", "100", restarts="3")

    def restart() -> None:
        while "GET /health" not in (server.folder / "journal").read_text():
            time.sleep(0.02)
        server.describe(**later)

    restarting = threading.Thread(target=restart, daemon=True)
    restarting.start()
    started = time.monotonic()
    result = smoke(ready_timeout=60)
    assert time.monotonic() - started < 30
    assert found in failed(result)["unit sglang.service"]


def test_a_server_that_was_restarted_last_week_passes_unless_it_is_to_be_fresh(
    server: Server, smoke: RunModule
) -> None:
    server.start("dflash_accepted", restarts="3")
    assert failed(smoke()) == {}
    assert "systemd has restarted it 3 times since it was started" in failed(smoke(fresh=True))["unit sglang.service"]


@pytest.mark.parametrize(
    ("unit", "found"),
    [
        ({"active": "activating", "sub": "auto-restart"}, "activating (auto-restart"),
        ({"load": "not-found", "active": "inactive", "sub": "dead"}, "systemd knows no such unit"),
        ({"active": "inactive", "sub": "dead"}, "inactive (dead"),
    ],
)
def test_a_unit_that_is_not_up_fails_before_any_request(
    server: Server, smoke: RunModule, unit: Dict[str, str], found: str
) -> None:
    server.start("dflash_accepted", **unit)
    result = smoke()
    assert found in failed(result)["unit sglang.service"]
    assert len(result["checks"]) == 1
    assert "GET /health" not in (server.folder / "journal").read_text()


def test_a_foreign_server_on_the_port_is_named_and_never_gets_the_key(
    server: Server, smoke: RunModule, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY)
    server.start("dflash_accepted", group="/system.slice/sglang.service")
    result = smoke(api_key_file=str(tmp_path / "key"))
    found = failed(result)[f"listening on port {server.port}"]
    assert f"pid {server.process.pid} (" in found
    assert "replay_server.py" in found
    assert "POST" not in (server.folder / "journal").read_text()


def test_simulated_acceptance_is_refused(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", simulated="yes")
    assert failed(smoke()) == {"SGLANG_SIMULATE_ACC_LEN": f"3 in /proc/{server.process.pid}/environ"}


def test_a_key_is_used_and_never_shown(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    server.start("dflash_accepted", "--api-key", KEY)
    (tmp_path / "key").write_text(f"port: 1\napi-key: {KEY}\n")
    assert failed(smoke(api_key_file=str(tmp_path / "key"))) == {}
    without = failed(smoke())
    assert "HTTP 401" in without["generations answered"]
    assert "HTTP 401" in without["server_info"]


def test_a_key_in_an_error_body_is_redacted(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    server.start("dflash_accepted", "--api-key", KEY, "--refuse")
    (tmp_path / "key").write_text(KEY)
    assert "(the key is REDACTED)" in failed(smoke(api_key_file=str(tmp_path / "key")))["generations answered"]


def test_a_key_on_the_edge_of_what_is_shown_is_redacted(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    key = KEY * 40
    server.start("dflash_accepted", "--api-key", key, "--refuse")
    (tmp_path / "key").write_text(key)
    assert "CANARY" not in json.dumps(smoke(api_key_file=str(tmp_path / "key")))


def test_a_key_is_in_no_command_line_environment_or_file(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    key = f"{KEY}-{uuid.uuid4()}"  # other tests that run now have theirs on command lines
    (tmp_path / "key").write_text(key)
    # The server under test reads its key from its own command line, so it is started without one here.
    server.start("dflash_accepted", "--slow", "0.3")
    seen: List[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for process in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        if key.encode() in (process / name).read_bytes():
                            seen.append(f"{process}/{name}")
                    except OSError:
                        continue
            time.sleep(0.02)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        assert failed(smoke(api_key_file=str(tmp_path / "key"))) == {}
    finally:
        done.set()
        watcher.join()
    assert seen == []


def test_another_model_fails(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    assert failed(smoke(model_path="/models/other")) == {"model_path": "/models/tiny-llama-const"}


def test_short_replies_prove_nothing(server: Server, smoke: RunModule) -> None:
    server.start("plain")
    # One token a reply, as the recorded short reply has.
    result = smoke(max_new_tokens=1, speculation="absent")
    assert {made["completion_tokens"] for made in result["figures"]["generations"]} == {1}
    assert "below 8 no reply says anything" in smoke(max_new_tokens=1)["msg"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "127.0.0.1:30001"}, "is not of the form http://HOST:PORT"),
        ({"url": "http://127.0.0.1:many"}, "is not of the form http://HOST:PORT"),
        ({"url": "http://user:word@127.0.0.1:1"}, "must not hold credentials"),
        ({"python": "/nowhere/bin/python"}, "/nowhere/bin/python cannot be run: No such file or directory"),
        ({"api_key_file": "/nowhere/key"}, "api_key_file /nowhere/key cannot be read: No such file or directory"),
        ({"prompts": []}, "prompts is empty"),
        ({"ready_timeout": 0}, "ready_timeout must be above 0, not 0"),
        ({"unit": None, "url": ""}, "unit, url must not be empty for gate=server"),
        ({"gate": "environment"}, "gate is environment but all of the following are missing: dest"),
        ({"gate": "environment", "dest": ""}, "dest must not be empty for gate=environment"),
        ({"gate": "environment", "dest": "venv"}, "dest must be an absolute path, not venv"),
        ({"gate": "environment", "dest": "/nowhere"}, "/nowhere is no directory: there is no environment to look at"),
        ({"gate": "environment", "dest": "/", "command_line": ["--api-key=abc"]}, "command_line holds an API key"),
        ({"gate": "environment", "dest": "/", "timeout": -1}, "timeout must be above 0, not -1"),
    ],
)
def test_wrong_parameters_are_one_clear_error(
    server: Server, smoke: RunModule, changes: Dict[str, Any], message: str
) -> None:
    server.describe()
    result = smoke(**changes)
    assert result["failed"] is True
    assert message in result["msg"]
    assert "\n" not in result["msg"]


def test_an_interpreter_without_requests_is_one_clear_error(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    server.start("dflash_accepted")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    result = smoke(python=str(tmp_path / "bare" / "bin" / "python"))
    assert "the release has no usable requests package" in failed(result)["ready"]


def test_an_address_that_is_no_sglang_ends_at_once(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    result = smoke(url=f"http://127.0.0.1:{server.port}/base", ready_timeout=300)
    assert "GET /health answered 404" in failed(result)["ready"]


def test_a_host_without_systemd_is_one_clear_error(server: Server, smoke: RunModule) -> None:
    (server.folder / "fail").write_text("System has not been booted with systemd as init system")
    assert smoke()["msg"] == "systemctl show failed: System has not been booted with systemd as init system"


def test_the_environment_gate_fails_with_its_own_message(run_module: RunModule, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    result = run_module("sglang_smoke", {"gate": "environment", "dest": str(tmp_path / "venv"), "version": "0.5.11"})
    assert result["msg"].startswith(f"environment gate failed for {tmp_path}/venv: 6 of 6 checks\n- version: expected ")
    assert "- import sglang.srt.managers.scheduler: expected imports, found ModuleNotFoundError" in result["msg"]
    passed = run_module(
        "sglang_smoke",
        {"gate": "environment", "dest": str(tmp_path / "venv"), "distribution": "", "imports": ["json"]},
        check=True,
    )
    assert passed["rc"] == 0
    assert passed["environment"]["python"].startswith("3.")
