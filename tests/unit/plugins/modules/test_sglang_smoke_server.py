# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server gate as a process: requests at once and streamed, graphs, journal, baseline, TLS, and servers that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.tests.unit.conftest import RunModule
from ansible_collections.ddtree.fleet.tests.unit.replayed import KEY, Server, certificate, failed

pytestmark = pytest.mark.slow  # a server of its own for each
DECODED = "decode passes in CUDA graphs"


def journal(server: Server) -> str:
    return (server.folder / "journal").read_text()


def test_requests_alone_streamed_and_at_once_are_judged_and_timed(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--slow", "0.05")
    result = smoke(generations=4, concurrent=5, min_accept_length=7.5)
    assert failed(result) == {}
    assert (result["verdict"], result["changed"]) == ("passed", False)
    figures = result["figures"]
    kinds = [made["kind"] for made in figures["generations"]]
    assert (kinds.count("generate"), kinds.count("stream"), kinds.count("concurrent")) == (4, 3, 5)
    # With /server_info, chat and three looks at the counters.
    assert figures["requests"] == {"sent": 17, "errors": 0}
    assert 0.05 <= figures["time_to_first_token_seconds"] < 1
    assert 0 < figures["tokens_per_second"] < 64 / 0.05
    assert figures["tokens_per_second_concurrent"] > figures["tokens_per_second"]
    assert figures["cuda_graph_passes"] == {"decode_none": 12 * 8, "prefill_none": 12}
    assert abs(figures["verdict_time"] - time.time()) < 60
    names = [check["name"] for check in result["checks"]]
    for name in ("generations answered", "generated text", "speculation ran", "accepted drafts", "accept length"):
        assert {name, f"concurrent {name}"} <= set(names)
    # Alone means alone.
    said = journal(server)
    assert "5 generations at once" in said[said.index("2 generations at once") :]
    assert '"POST' in said[: said.index("2 generations at once")]


def test_requests_that_are_meant_to_run_alone_do(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--slow", "0.02")
    assert failed(smoke()) == {}
    assert "2 generations at once" not in journal(server)


def test_every_prompt_is_sent_however_few_generations_are_asked_for(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    kinds = [made["kind"] for made in smoke(generations=1, prompts=list("abcde"))["figures"]["generations"]]
    assert kinds.count("generate") == 6


def test_expected_texts(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    result = smoke(
        expected_texts=[{"prompt": "one", "matches": r"^\w+ "}, {"prompt": "The capital", "matches": "Paris|paris"}]
    )
    assert list(failed(result)) == ["text after 'The capital'"]
    (check,) = [check for check in result["checks"] if not check["passed"]]
    assert check["expected"] == "text that matches 'Paris|paris'"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--speculate-alone"], {"concurrent speculation ran": "it did not run in "}),
        (["--speculate-first", "6"], {"concurrent speculation ran": "it did not run in 4 of 4 replies"}),
        (["--no-acceptance"], {"accepted drafts": "0 of", "concurrent accepted drafts": "reply 7, 8, 9, 10: 0 of"}),
        (
            ["--cut-streams"],
            {"generations answered": "3 of 6 replies failed: reply 4, 5, 6: the stream broke off after 2"},
        ),
        (["--refuse-number", "2"], {"generations answered": "1 of 6 replies failed: reply 2: HTTP 400"}),
        (["--refuse-number", "8"], {"concurrent generations answered": "1 of 4 replies failed: reply"}),
        (
            ["--html"],
            {"generations answered": "content type text/html", "concurrent generations answered": "text/html"},
        ),
    ],
)
def test_what_shows_in_some_replies_only(
    server: Server, smoke: RunModule, flags: List[str], found: Dict[str, str]
) -> None:
    server.start("dflash_accepted", "--slow", "0.05", *flags)
    result = smoke(concurrent=4)
    said = {name: words for name, words in failed(result).items() if name != "chat completion"}
    assert sorted(said) == sorted(found)
    for name, part in found.items():
        assert part in said[name]
    assert result["verdict"] == "failed"


def test_errors_are_counted(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--refuse-number", "2", "--refuse-number", "3")
    result = smoke()
    assert result["figures"]["requests"] == {"sent": 11, "errors": 2}
    assert "reply 2, 3: HTTP 400" in failed(result)["generations answered"]


@pytest.mark.parametrize(("answered", "concurrent"), [(2, 0), (7, 4)])
def test_a_scheduler_that_hangs_after_some_requests_is_found_in_time(
    server: Server, smoke: RunModule, answered: int, concurrent: int
) -> None:
    server.start("dflash_accepted", "--slow", "0.05", "--hang-after", str(answered))
    started = time.monotonic()
    result = smoke(request_timeout=1, concurrent=concurrent)
    assert time.monotonic() - started < 10
    name = "concurrent generations answered" if concurrent else "generations answered"
    assert "no answer in time" in failed(result)[name]
    assert "server_info: not asked after a request broke off" in result["not_verified"]
    # What is given up is closed, and nothing else is asked of a scheduler that hangs.
    assert journal(server).count("the client has closed a connection that hung") == (3 if concurrent else 1)
    assert "GET /server_info" not in journal(server)


def test_probes_that_hang_are_closed_and_never_pile_up(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--health-hangs")
    result = smoke(ready_timeout=2)
    assert "no answer in time" in failed(result)["ready"]
    assert journal(server).count("the client has closed a connection that hung") <= 2


def test_the_time_for_all_requests_is_bounded(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--slow", "0.5")
    started = time.monotonic()
    result = smoke(gate_timeout=2, concurrent=8)
    assert time.monotonic() - started < 8
    assert "generations and then no time left" in failed(result)["gate_timeout"]
    assert any("generations: gate_timeout" in line for line in result["not_verified"])


def test_a_server_that_dies_at_once_under_concurrency(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--die-after", "8")
    result = smoke(concurrent=6)
    assert list(failed(result)) == ["unit sglang.service"]
    assert "RuntimeError: the replayed server dies as asked" in result["msg"]
    assert any("generations: the unit went down" in line for line in result["not_verified"])


@pytest.mark.parametrize(
    ("recorded", "flags", "wanted", "found"),
    [
        ("h200_dflash_graphs", [], "required", []),
        ("h200_dflash_no_graphs", [], "absent", []),
        ("h200_dflash_graphs", ["--eager"], "required", [DECODED]),
        (
            "h200_dflash_no_graphs",
            [],
            "required",
            ["disable_cuda_graph in server_info", "memory_usage.graph in server_info", DECODED],
        ),
        ("h200_dflash_graphs", ["--no-metrics"], "required", [DECODED]),
        ("h200_dflash_no_graphs", ["--no-metrics"], "absent", []),
        ("h200_dflash_graphs_no_acceptance", [], "required", ["accepted drafts", "concurrent accepted drafts"]),
    ],
)
def test_cuda_graphs_of_a_recorded_h200(
    server: Server, smoke: RunModule, recorded: str, flags: List[str], wanted: str, found: List[str]
) -> None:
    server.start(recorded, *flags)
    assert sorted(failed(smoke(concurrent=2, cuda_graphs=wanted))) == sorted(found)


def test_the_journal_is_held_against_expectations(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", "--say", "draft_window_size=2048, compact_cache=True, api_key=abc")
    wanted = [
        {"name": "window", "matches": "draft_window_size=2048.*compact_cache=True"},
        {"matches": "falling back to eager", "absent": True},
    ]
    result = smoke(log_expect=wanted)
    assert failed(result) == {}
    assert "log: window" in [check["name"] for check in result["checks"]]
    result = smoke(
        log_expect=[*wanted, {"matches": "NVLS"}, {"name": "no cache", "matches": "compact", "absent": True}]
    )
    found = failed(result)
    assert found.pop("log: NVLS").startswith("no such line among ")
    assert found == {"log: no cache": "draft_window_size=2048, compact_cache=True, api_key=REDACTED"}


def test_a_simulated_accept_length_in_an_environment_file_is_refused(
    server: Server, smoke: RunModule, tmp_path: Path
) -> None:
    (tmp_path / "server.env").write_text("SGLANG_SIMULATE_ACC_LEN=4 # for tests\n")
    server.start("dflash_accepted", environment_file=str(tmp_path / "server.env"))
    assert failed(smoke()) == {"SGLANG_SIMULATE_ACC_LEN": f"4 # for tests in {tmp_path}/server.env"}


def test_a_baseline_is_recorded_and_compared(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    asked: Dict[str, Any] = {"concurrent": 2, "baseline_file": str(path), "baseline_tolerance": 0.6}
    server.start("plain", "--slow", "0.06")
    result = smoke(**asked, baseline="record", speculation="absent")
    assert (result["changed"], failed(result), path.exists()) == (True, {}, True)
    server.stop()
    # The same server with a drafter.
    server.start("dflash_accepted", "--slow", "0.02")
    assert list(failed(smoke(**asked, baseline="compare"))) == ["baseline"]
    before = path.read_text()
    result = smoke(check=True, **asked, baseline="record")
    assert (result["changed"], path.read_text()) == (True, before)
    result = smoke(**asked, baseline="record")
    assert (result["changed"], path.read_text() != before) == (True, True)
    result = smoke(**asked, baseline="compare")
    assert (result["changed"], failed(result)) == (False, {})
    assert result["figures"]["baseline"]["version"] == "0.5.11"
    server.stop()
    server.start("dflash_accepted", "--slow", "0.2")
    result = smoke(**asked, baseline="compare")
    assert sorted(failed(result)) == [
        "baseline time_to_first_token_seconds",
        "baseline tokens_per_second",
        "baseline tokens_per_second_concurrent",
    ]


def test_the_speed_up_over_recorded_plain_decoding_is_a_figure(
    server: Server, smoke: RunModule, tmp_path: Path
) -> None:
    asked: Dict[str, Any] = {"baseline_file": str(tmp_path / "baseline.json"), "baseline": "record"}
    server.start("h200_plain_no_graphs", "--slow", "0.3")
    assert "speedup" not in smoke(**asked, speculation="absent")["figures"]
    server.stop()
    server.start("h200_dflash_no_graphs", "--slow", "0.1")
    result = smoke(**asked)
    assert 2 < result["figures"]["speedup"] < 4
    server.stop()
    server.start("dflash_accepted")
    result = smoke(**asked)
    assert result["figures"]["speedup"] is None
    assert "speed-up over plain decoding: none was recorded for this configuration" in result["not_verified"]


def test_a_gate_that_fails_records_nothing(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    server.start("dflash_no_acceptance")
    result = smoke(baseline="record", baseline_file=str(tmp_path / "baseline.json"))
    assert result["changed"] is False
    assert not (tmp_path / "baseline.json").exists()
    assert "baseline: not recorded, since the gate did not pass" in result["not_verified"]


def test_a_damaged_baseline_is_said_before_anything_is_asked(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text("{")
    server.start("dflash_accepted")
    for state in ("record", "compare"):
        message = smoke(baseline=state, baseline_file=str(tmp_path / "baseline.json"))["msg"]
        assert message.startswith(f"baseline_file {tmp_path}/baseline.json is damaged (")
        assert "\n" not in message
    assert "GET /health" not in journal(server)


def test_tls_with_its_own_authority_a_base_path_and_a_key(server: Server, smoke: RunModule, tmp_path: Path) -> None:
    public, both = certificate(tmp_path)
    (tmp_path / "key").write_text(KEY)
    server.start("dflash_accepted", "--certificate", str(both), "--base-path", "/llm", "--api-key", KEY)
    url = f"https://127.0.0.1:{server.port}/llm/"
    asked = {"url": url, "api_key_file": str(tmp_path / "key"), "concurrent": 2}
    assert failed(smoke(**asked, ca_file=str(public))) == {}
    result = smoke(**asked, validate_certs=False)
    assert failed(result) == {}
    assert "the server's certificate: validate_certs is false" in result["not_verified"]
    started = time.monotonic()
    result = smoke(**asked, ready_timeout=300)
    assert time.monotonic() - started < 10
    assert failed(result)["ready"].startswith("the certificate is not trusted: self")
    assert "ca_file, or set validate_certs to false" in failed(result)["ready"]


def test_a_foreign_server_that_asks_for_the_key_at_once_never_gets_it(
    server: Server, smoke: RunModule, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEY)
    flags = ("--base-path", "/llm", "--api-key", "another")
    server.start("dflash_accepted", *flags, group="/system.slice/sglang.service")
    url = f"http://127.0.0.1:{server.port}/llm"
    result = smoke(url=url, api_key_file=str(tmp_path / "key"))
    assert failed(result) == {"ready": 'GET /health answered 401: {"error": "Unauthorized"}'}
    assert journal(server).count("GET /llm/health") == 1
    server.describe()
    for more in ({"api_key_file": str(tmp_path / "key")}, {}):
        started = time.monotonic()
        assert "answered 401" in failed(smoke(url=url, ready_timeout=300, **more))["ready"]
        assert time.monotonic() - started < 10


def test_https_to_a_server_without_tls_ends_at_once(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted")
    result = smoke(url=f"https://127.0.0.1:{server.port}", ready_timeout=300)
    assert failed(result)["ready"] == "what listens there speaks no TLS; does its address begin with http://?"


def test_a_proxy_on_this_host_may_hold_the_port_when_it_is_said(server: Server, smoke: RunModule) -> None:
    server.start("dflash_accepted", group="/system.slice/sglang.service")
    assert list(failed(smoke())) == [f"listening on port {server.port}"]
    result = smoke(behind_proxy=True)
    assert failed(result) == {}
    assert (
        f"that http://127.0.0.1:{server.port} leads to sglang.service: behind_proxy is true" in result["not_verified"]
    )


@pytest.mark.parametrize("key", [KEY, KEY * 40, 'quo"ted\\' + KEY, "a/b+c=" + KEY])
def test_a_key_stays_in_however_it_is_spelled_and_wherever_it_is_cut(
    server: Server, smoke: RunModule, tmp_path: Path, key: str
) -> None:
    (tmp_path / "key").write_text(key)
    server.start("dflash_accepted", "--api-key", key, "--refuse", "--say", f"{'x' * 380}{key}")
    for changes in (
        {
            "concurrent": 2,
            "log_expect": [{"name": "said", "matches": "CANARY"}, {"name": "n", "matches": "x", "absent": True}],
        },
        {"url": f"http://127.0.0.1:{server.port}/nowhere"},
    ):
        said = json.dumps(smoke(api_key_file=str(tmp_path / "key"), **changes))
        assert "CANARY" not in said.replace("matches 'CANARY'", "")


# The key whole, on the edge of what a line may have, and on that of what is kept of all lines.
@pytest.mark.parametrize(("before", "after"), [(0, 0), (350, 0), (0, 16384 - 30)])
def test_a_key_in_the_traceback_of_a_client_that_crashes_stays_in(
    server: Server, smoke: RunModule, tmp_path: Path, before: int, after: int
) -> None:
    key = KEY * 5
    (tmp_path / "key").write_text(key)
    server.start("dflash_accepted")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "requests.py").write_text(
        textwrap.dedent(f"""
        import contextlib, types
        class RequestException(OSError): pass
        class exceptions:
            InvalidURL = InvalidSchema = MissingSchema = RequestException
        class Session:
            def __init__(self): self.headers = {{}}
            def __enter__(self): return self
            def __exit__(self, *error): return None
            def request(self, *arguments, **more):
                if "Authorization" in self.headers:
                    raise RuntimeError("x" * {before} + self.headers["Authorization"][7:] + "y" * {after})
                return contextlib.nullcontext(
                    types.SimpleNamespace(status_code=200, headers={{}}, iter_content=lambda size: [])
                )
        """)
    )
    result = smoke(python=str(tmp_path / "venv" / "bin" / "python"), api_key_file=str(tmp_path / "key"))
    assert "exit status 1" in failed(result)["generations answered"]
    assert "CANARY" not in json.dumps(result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generations": 0}, "generations must be above 0, not 0"),
        ({"concurrent": -1}, "concurrent must be 0 or more, not -1"),
        ({"gate_timeout": 0}, "gate_timeout must be above 0, not 0"),
        ({"baseline": "record"}, "baseline is record; baseline_file must say where the figures are kept"),
        ({"baseline_tolerance": 1.5}, "baseline_tolerance must be 0 or more and below 1, not 1.5"),
        ({"ca_file": "/nowhere/ca.pem"}, "ca_file /nowhere/ca.pem cannot be read: No such file or directory"),
        ({"ca_file": "/dev/null"}, "ca_file /dev/null holds no certificate in PEM form"),
        ({"log_expect": [{"matches": "["}]}, "log_expect[0].matches '[' is no regular expression"),
        (
            {"expected_texts": [{"prompt": "a", "matches": "("}]},
            "expected_texts[0].matches '(' is no regular expression",
        ),
        ({"gate": "environment", "dest": "/", "log_expect": [{"matches": "["}]}, "log_expect[0].matches '[' is no"),
        ({"cuda_graphs": "maybe"}, "value of cuda_graphs must be one of: required, absent, any"),
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
