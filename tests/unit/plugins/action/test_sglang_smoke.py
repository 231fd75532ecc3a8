# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task as a user runs it: ansible-playbook, the replaying server, stand-ins for systemctl and journalctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

ROOT = Path(__file__).resolve().parents[4]
KEY = "CANARY-81c2"


@pytest.fixture(name="port")
def port_fixture(tmp_path: Path) -> Iterator[int]:
    """A replaying server behind a key, and a unit that describes it; gives its port."""
    program = ROOT / "tests" / "replay" / "replay_server.py"
    folder = ROOT / "tests" / "recorded" / "dflash_accepted"
    (tmp_path / "key").write_text(f"api-key: {KEY}\n")
    with (tmp_path / "journal").open("w") as journal:
        process = subprocess.Popen(
            [sys.executable, str(program), str(folder), "--api-key", KEY], stdout=journal, stderr=journal
        )
    (tmp_path / "unit").write_text(f"pid={process.pid}\n")
    try:
        deadline = time.monotonic() + 10
        while "listening on" not in (tmp_path / "journal").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield int((tmp_path / "journal").read_text().split("listening on ")[1].split()[0])
    finally:
        process.kill()
        process.wait()


def play(tmp_path: Path, tasks: List[Dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    settled = [{"ignore_errors": True, "register": f"result_{number}", **task} for number, task in enumerate(tasks)]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": settled}]))
    return subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible-playbook"),
            "-i",
            "localhost,",
            "-c",
            "local",
            "-vvvv",
            str(tmp_path / "play.yml"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{ROOT / 'tests' / 'replay' / 'fake_systemd'}:{os.environ['PATH']}",
            "FAKE_SYSTEMD": str(tmp_path),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
        },
        timeout=120,
        check=False,
    )


def test_expectations_join_the_verdict_and_server_info_stays_out(tmp_path: Path, port: int) -> None:
    server = {
        "gate": "server",
        "unit": "sglang.service",
        "url": f"http://127.0.0.1:{port}",
        "python": sys.executable,
        "prompts": ["one"],
        "concurrent": 2,
        "api_key_file": str(tmp_path / "key"),
    }
    holds = [
        {"query": "speculative_algorithm", "equals": "DFLASH"},
        {"query": "api_key", "equals": "REDACTED", "name": "the key is not to be seen"},
    ]
    fails = [{"query": "speculative_algorithm", "equals": "DDTREE"}]
    malformed = [*holds, {"query": "internal_states[", "equals": 1}]
    copied = "{{ result_0.server_info is undefined and result_0.checks | length == 17 and result_0.verdict == 'passed' and not result_0.changed }}"
    done = play(
        tmp_path,
        [
            {"ddtree.fleet.sglang_smoke": {**server, "expect": holds}},
            {"ansible.builtin.assert": {"that": [copied[3:-3]]}, "ignore_errors": False},
            {"ddtree.fleet.sglang_smoke": {**server, "expect": fails}},
            {"ddtree.fleet.sglang_smoke": {**server, "expect": malformed}},
            {"ddtree.fleet.sglang_smoke": {"gate": "environment", "dest": "/nowhere", "expect": [{"query": "a["}]}},
            {"ddtree.fleet.sglang_smoke": {**server, "unit": "gone", "expect": holds, "url": "nonsense"}},
            {"ddtree.fleet.sglang_smoke": {**server, "expect": holds}, "check_mode": True},
        ],
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert KEY not in said
    assert "ok=7" in said
    assert "ignored=4" in said
    assert f"server gate failed for sglang.service at http://127.0.0.1:{port}: 1 of 16 checks" in said
    assert "check                 | expected | found" in said
    assert "speculative_algorithm | 'DDTREE' | 'DFLASH'" in said
    assert "speed against a baseline: baseline is none" in said
    assert "expect[2].query 'internal_states[' is no JMESPath expression: wrong at position 16" in said
    assert "expect[0] says nothing to compare with" in said
    assert "url 'nonsense' is not of the form http://HOST:PORT" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_baseline_is_recorded_of_a_server_that_meets_the_expectations_only(tmp_path: Path, port: int) -> None:
    path = tmp_path / "baseline.json"
    recording = {
        "gate": "server",
        "unit": "sglang.service",
        "url": f"http://127.0.0.1:{port}",
        "python": sys.executable,
        "prompts": ["one"],
        "concurrent": 0,
        "api_key_file": str(tmp_path / "key"),
        "baseline": "record",
        "baseline_file": str(path),
    }
    fails = {**recording, "expect": [{"query": "tp_size", "equals": 8}]}
    holds = {**recording, "expect": [{"query": "tp_size", "equals": 1}]}
    seen = {"ansible.builtin.stat": {"path": str(path)}}
    asked = (
        "result_0.verdict == 'failed' and not result_1.stat.exists and result_2.changed and not result_3.stat.exists"
    )
    done = play(
        tmp_path,
        [
            {"ddtree.fleet.sglang_smoke": fails},
            seen,
            {"ddtree.fleet.sglang_smoke": holds, "check_mode": True},
            seen,
            {"ddtree.fleet.sglang_smoke": holds},
            {
                "ansible.builtin.assert": {
                    "that": [f"{asked} and result_4.changed and result_4.figures.baseline is defined"]
                },
                "ignore_errors": False,
            },
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    assert len(json.loads(path.read_text())["entries"]) == 1
