# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as it lies in its folder after real runs: what is in it, when there is none, and what must never get in."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.tests.unit.replayed import KEY

pytestmark = pytest.mark.usefixtures("forget_hashes")

ROOT = Path(__file__).resolve().parents[4]
LOCAL = {"ansible_connection": "local"}
FAIL: Dict[str, Any] = {"ansible.builtin.fail": {"msg": "it broke"}}


class Playing:
    """``ansible-playbook`` with both callbacks in a folder of its own."""

    def __init__(self, folder: Path, hosts: Dict[str, Any], tasks: List[Dict[str, Any]], **play: Any) -> None:
        self.folder = folder
        self.reports = folder / "reports" / "here"
        (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        content = [{"hosts": "all", "gather_facts": False, "tasks": tasks, **play}]
        (folder / "play.json").write_text(json.dumps(content))

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.json", "play.json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CALLBACKS_ENABLED": "ddtree.fleet.summary,ddtree.fleet.report",
                "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
                "ANSIBLE_CONFIG": "none.cfg",
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "local"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                "ANSIBLE_REMOTE_TEMP": str(self.folder / "remote"),
                "DDTREE_REPORT_DIR": "reports/here",
                **environment,
            },
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        printed, _ = process.communicate(timeout=120)
        assert "Traceback" not in printed, printed
        return subprocess.CompletedProcess(process.args, process.returncode, printed)

    def report(self) -> Dict[str, Any]:
        found: Dict[str, Any] = json.loads((self.reports / "latest.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture(name="stream")
def stream_fixture(tmp_path: Path) -> Dict[str, Any]:
    """A task that streams a small tree to where the host says."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "file").write_text("content")
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    return {
        "ddtree.fleet.venv_stream": {
            "src": str(tmp_path / "src"),
            "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}/venv",
        }
    }


@pytest.mark.slow
def test_a_run_leaves_a_page_and_a_json_for_their_owner_alone(tmp_path: Path, stream: Dict[str, Any]) -> None:
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    playing = Playing(
        tmp_path,
        {"a": LOCAL, "b": LOCAL, "gone": gone},
        [{"ansible.builtin.raw": "true", "changed_when": False}, {**FAIL, "when": "inventory_hostname == 'b'"}, stream],
    )
    done = playing.run()
    assert done.returncode == 4  # as without a report: hosts were unreachable
    found = playing.report()
    assert found["schema_version"] == 1
    assert found["well"] is False
    assert found["counts"] == {"failed": 1, "unreachable": 1, "changed": 1}
    assert [(host["name"], host["outcome"]) for host in found["hosts"]] == [
        ("b", "failed"),
        ("gone", "unreachable"),
        ("a", "changed"),
    ]
    assert found["hosts"][0]["failure"]["reason"] == "it broke"
    assert found["hosts"][2]["transfer"]["files_sent"] == 1
    pages = sorted(playing.reports.glob("2*.html"))
    assert len(pages) == 1
    assert "it broke" in pages[0].read_text(encoding="utf-8")
    assert done.stdout.rstrip().splitlines()[-1] == f"Report: {pages[0].relative_to(tmp_path)}"
    assert (playing.reports / "latest.html").resolve() == pages[0]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in playing.reports.iterdir()}
    assert (modes, stat.S_IMODE(playing.reports.stat().st_mode)) == ({0o600}, 0o700)
    assert sorted(path.suffix for path in playing.reports.iterdir()) == [".html", ".html", ".json", ".json"]


@pytest.mark.slow
def test_a_run_that_a_whole_batch_or_an_error_ends_is_reported(tmp_path: Path, stream: Dict[str, Any]) -> None:
    playing = Playing(tmp_path, {"a": LOCAL, "b": LOCAL}, [stream, FAIL], any_errors_fatal=True)
    assert playing.run().returncode == 2
    assert playing.report()["counts"] == {"failed": 2}


@pytest.mark.slow
def test_a_run_that_is_interrupted_is_reported(tmp_path: Path, stream: Dict[str, Any]) -> None:
    waiting = tmp_path / "waiting"
    pause = {"ansible.builtin.raw": f"touch {waiting}; exec sleep 100"}
    process = Playing(tmp_path, {"a": LOCAL}, [stream, pause]).start()
    deadline = time.monotonic() + 60
    while not waiting.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    found = json.loads((tmp_path / "reports" / "here" / "latest.json").read_text(encoding="utf-8"))
    assert (found["run"]["finished"], found["hosts"][0]["outcome"]) == (False, "unfinished"), printed
    assert process.returncode == 99
    assert "Traceback" not in printed


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_one_warning(tmp_path: Path, stream: Dict[str, Any]) -> None:
    (tmp_path / "taken").write_text("")
    playing = Playing(tmp_path, {"a": LOCAL}, [stream])
    done = playing.run(DDTREE_REPORT_DIR="taken/reports")
    assert done.returncode == 0
    assert "no report was written to taken/reports" in done.stdout
    assert "1 host: 1 changed" in done.stdout
    assert playing.run(DDTREE_REPORT_DIR="").returncode == 0
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.slow
def test_other_playbooks_leave_no_report(tmp_path: Path) -> None:
    playing = Playing(tmp_path, {"a": LOCAL}, [{"ansible.builtin.raw": "true"}, FAIL])
    assert playing.run().returncode == 2
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
def test_no_secret_of_a_run_is_in_its_report(tmp_path: Path, stream: Dict[str, Any]) -> None:
    (tmp_path / "key").write_text(KEY)
    hidden = {"no_log": True, "ignore_errors": True}
    tasks: List[Dict[str, Any]] = [
        stream,
        {"ansible.builtin.set_fact": {"api_key": KEY, "ddtree_api_key": KEY}},
        {"ansible.builtin.set_fact": {"ddtree_run_id": KEY, "ddtree_rollout_stage": KEY}, "no_log": True},
        {"ansible.builtin.copy": {"content": KEY, "dest": str(tmp_path / "copied"), "mode": "0600"}, "diff": True},
        {"ansible.builtin.command": f"echo {KEY}", "changed_when": False},
        {"ansible.builtin.raw": f"echo {KEY}; exit 1", **hidden},
        {
            "name": "A hook that fails",
            "ansible.builtin.raw": f"false --api-key {KEY}",
            "environment": {"API_KEY": KEY},
            **hidden,
        },
        {
            "ansible.builtin.fail": {"msg": f"SGLang said api_key='{KEY}', Bearer {KEY} and --api-key {KEY}"},
            "ignore_errors": True,
        },
        {"ansible.builtin.fail": {"msg": f"{KEY}"}, "no_log": True},
    ]
    playing = Playing(tmp_path, {"a": {**LOCAL, "ddtree_api_key": KEY}}, tasks, vars={"secret": KEY})
    playing.run("-e", f"another={KEY}", "--diff")
    texts = [path.read_text(encoding="utf-8") for path in playing.reports.iterdir()]
    assert len(texts) == 4
    assert not any(KEY in text for text in texts)
    assert "hidden due to" in playing.report()["hosts"][0]["failure"]["reason"]
