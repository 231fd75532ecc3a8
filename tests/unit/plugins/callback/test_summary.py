# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table as it is printed: at the end of a real run, and for results that no single machine can bring about."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.callback.summary import HEADINGS, CallbackModule
from ansible_collections.ddtree.fleet.tests.unit.rollouts import Rollout

pytestmark = pytest.mark.usefixtures("forget_hashes")

ROOT = Path(__file__).resolve().parents[4]
LOCAL = {"ansible_connection": "local"}


def table(printed: str) -> List[List[str]]:
    """The rows of the table, the heading left out, as host and result."""
    lines = printed.split("DDTREE FLEET", 1)[1].splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    assert re.split(" {2,}", lines[0]) == list(HEADINGS)
    return [re.split(" {2,}", line)[:2] for line in lines[1:end]]


def play(tmp_path: Path, hosts: Dict[str, Any], *tasks: Dict[str, Any]) -> str:
    """What a run of ``tasks`` on ``hosts`` prints."""
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    playbook = str(Path(sys.executable).parent / "ansible-playbook")
    done = subprocess.run(
        [playbook, "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_CALLBACKS_ENABLED": "ddtree.fleet.summary",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
        },
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_table_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "file").write_text("content")
    stream = {"src": str(tmp_path / "src"), "dest": str(tmp_path / "{{ inventory_hostname }}" / "venv")}
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {"steady": LOCAL, "rescued": LOCAL, "broken": LOCAL, "rolled": LOCAL, "gone": gone}
    for name in hosts:
        (tmp_path / name).mkdir()
    first = play(tmp_path, {"steady": LOCAL}, {"ddtree.fleet.venv_stream": stream})
    assert table(first) == [["steady", "changed"]]
    fail: Dict[str, Any] = {"ansible.builtin.fail": {"msg": "it broke"}}
    printed = play(
        tmp_path,
        hosts,
        {"ansible.builtin.raw": "true", "changed_when": False},
        {
            "block": [{**fail, "when": "inventory_hostname in ['rescued', 'rolled']"}],
            "rescue": [
                {"ansible.builtin.debug": {"msg": "the way back"}},
                {"ansible.builtin.fail": {"msg": "put back as it was"}, "when": "inventory_hostname == 'rolled'"},
            ],
        },
        {**fail, "when": "inventory_hostname == 'broken'"},
        {"ansible.builtin.fail": {"msg": "ignored"}, "ignore_errors": True},
        {"ddtree.fleet.venv_stream": stream},
    )
    assert table(printed) == [
        ["broken", "FAILED"],
        ["rolled", "FAILED"],
        ["gone", "FAILED, unreachable"],
        ["rescued", "changed"],
        ["steady", "unchanged"],
    ]
    reasons = printed.split("DDTREE FLEET", 1)[1]
    assert "\nbroken:\n  it broke\n" in reasons
    assert "\nrolled:\n  put back as it was\n" in reasons
    assert "\ngone:\n  unreachable: " in reasons
    assert "\nrescued:\n" not in reasons
    assert "ignored" not in reasons


def test_nothing_is_printed_for_a_playbook_that_streams_nothing(tmp_path: Path) -> None:
    changed = {"ansible.builtin.command": "true"}
    printed = play(tmp_path, {"one": LOCAL}, changed, {"ansible.builtin.fail": {"msg": "it broke"}})
    assert "failed=1" in printed
    assert "DDTREE FLEET" not in printed


def printed_by(rollout: Rollout, capsys: pytest.CaptureFixture[str]) -> str:
    """What the callback prints of a run, nothing where the run is not worth it."""
    run = rollout.end()
    capsys.readouterr()
    if rollout.recorder.worth_telling:
        CallbackModule().told(run)
    return capsys.readouterr().out


def test_each_host_has_its_own_verdict_of_a_stream_to_many(capsys: pytest.CaptureFixture[str]) -> None:
    run = Rollout()
    targets = {
        "a": {"changed": False, "failed": False, "release": "1111", "files_sent": 0, "bytes_sent": 0},
        "b": {"changed": True, "failed": False, "release": "1111", "files_sent": 1234, "bytes_sent": 3 << 20},
        "c": {"changed": True, "failed": True, "release": "", "msg": "c: no space"},
    }
    run.ok("a", "venv_stream", changed=True, targets=targets)
    run.failed("c", "assert", "c: no space")
    printed = printed_by(run, capsys)
    assert table(printed) == [["c", "FAILED"], ["b", "changed"], ["a", "unchanged"]]
    assert "1,234       3.0" in printed
    assert "\nc:\n  no space\n" in printed
    assert printed.endswith("\n3 hosts: 1 failed, 1 changed, 1 unchanged\n")


def test_what_ran_after_a_failure_counts_only_when_it_was_rescued(capsys: pytest.CaptureFixture[str]) -> None:
    run = Rollout()
    for host in ("failing", "rescued"):
        run.ok(host, "venv_stream", targets={host: {"changed": True, "release": "2222"}})
        run.ok(host, "patch_assert")
        run.failed(host, "sglang_smoke", "server gate failed", rescued=True)
        run.ok(host, "sglang_smoke", gate="server", figures={"accept_length": 7.25})
    run.failed("failing", "fail", "rolled back")
    failing, rescued = printed_by(run, capsys).splitlines()[3:5]
    assert failing.split()[:3] == ["failing", "FAILED", "2222"]
    assert "patches" in failing and "server" not in failing
    assert rescued.split()[:3] == ["rescued", "changed", "2222"]
    assert "patches, server  7.25" in rescued


def test_a_deployment_that_fails_before_it_streams_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = Rollout()
    run.ok("one", "gpu_host_info")
    run.failed("one", "assert", "port 30001 is held")
    assert table(printed_by(run, capsys)) == [["one", "FAILED"]]


def test_a_way_back_by_hand_is_told_and_looking_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    looking, going_back = Rollout(), Rollout()
    for run in (looking, going_back):
        run.ok("one", "service_release", active="1111")
    going_back.ok("one", "service_release", state="confirmed", active="0000")
    assert printed_by(looking, capsys) == ""
    assert table(printed_by(going_back, capsys)) == [["one", "served"]]


def test_one_reason_of_many_hosts_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = Rollout()
    run.ok("a", "venv_stream", targets={})
    for host in ("b", "a"):
        run.failed(host, "assert", f"{host}: the model is missing\nput it there")
    assert "\na, b:\n  the model is missing\n  put it there\n" in printed_by(run, capsys)
