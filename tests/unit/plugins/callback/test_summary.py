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
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest
from ansible.executor.stats import AggregateStats
from ansible_collections.ddtree.fleet.plugins.callback.summary import HEADINGS, CallbackModule

pytestmark = pytest.mark.usefixtures("forget_hashes")

ROOT = Path(__file__).resolve().parents[4]
LOCAL = {"ansible_connection": "local"}


def table(printed: str) -> List[List[str]]:
    """The rows of the table, the heading left out, as host and result."""
    lines = printed.split("DDTREE FLEET", 1)[1].splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    assert re.split(" {2,}", lines[0]) == list(HEADINGS)
    return [line.split()[:2] for line in lines[1:end]]


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
        ["gone", "FAILED"],
        ["rolled", "FAILED"],
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


class Run:
    """Results as the strategy hands them to the callback, and the statistics it keeps of them."""

    def __init__(self) -> None:
        self.stats = AggregateStats()
        self.callback = CallbackModule()

    def _result(self, host: str, action: str, found: Dict[str, Any]) -> Any:
        task = SimpleNamespace(action=action)
        return SimpleNamespace(host=SimpleNamespace(get_name=lambda: host), task=task, result=found)

    def ok(self, host: str, action: str, **found: Any) -> None:
        self.callback.v2_runner_on_ok(self._result(host, action, found))

    def failed(self, host: str, action: str, msg: str, counts_as: str = "failures") -> None:
        self.stats.increment(counts_as, host)
        self.callback.v2_runner_on_failed(self._result(host, action, {"msg": msg}))

    def printed(self, capsys: pytest.CaptureFixture[str]) -> str:
        capsys.readouterr()
        self.callback.v2_playbook_on_stats(self.stats)
        return capsys.readouterr().out


def test_each_host_has_its_own_verdict_of_a_stream_to_many(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    targets = {
        "a": {"changed": False, "failed": False, "release": "1111", "files_sent": 0, "bytes_sent": 0},
        "b": {"changed": True, "failed": False, "release": "1111", "files_sent": 1234, "bytes_sent": 3 << 20},
        "c": {"changed": True, "failed": True, "release": "", "msg": "c: no space"},
    }
    run.ok("a", "ddtree.fleet.venv_stream", changed=True, targets=targets)
    run.failed("c", "ansible.builtin.assert", "c: no space")
    printed = run.printed(capsys)
    assert table(printed) == [["c", "FAILED"], ["a", "unchanged"], ["b", "changed"]]
    assert "1,234       3.0" in printed
    assert "c:\n  c: no space" in printed


def test_what_ran_after_a_failure_counts_only_when_it_was_rescued(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    for host in ("failing", "rescued"):
        run.ok(host, "ddtree.fleet.venv_stream", targets={host: {"changed": True, "release": "2222"}})
        run.ok(host, "ddtree.fleet.patch_assert")
        run.failed(host, "ddtree.fleet.sglang_smoke", "server gate failed", "rescued")
        run.ok(host, "ddtree.fleet.sglang_smoke", gate="server", figures={"accept_length": 7.25})
    run.failed("failing", "ansible.builtin.fail", "rolled back")
    failing, rescued = run.printed(capsys).splitlines()[3:5]
    assert failing.split()[:3] == ["failing", "FAILED", "2222"]
    assert "patches" in failing and "server" not in failing
    assert rescued.split()[:3] == ["rescued", "changed", "2222"]
    assert "patches, server  7.25" in rescued


def test_a_deployment_that_fails_before_it_streams_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    run.ok("one", "ddtree.fleet.gpu_host_info")
    run.failed("one", "ansible.builtin.assert", "port 30001 is held")
    assert table(run.printed(capsys)) == [["one", "FAILED"]]
