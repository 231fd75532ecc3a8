# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task as a user runs it: ansible-playbook, with hosts that all are this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

pytestmark = pytest.mark.usefixtures("forget_hashes")

ROOT = Path(__file__).resolve().parents[4]


def stream(tmp_path: Path, hosts: Dict[str, Dict[str, Any]], **arguments: Any) -> Dict[str, Any]:
    """The result of one task that runs on the first of ``hosts``, with a small tree as src."""
    (tmp_path / "src").mkdir(exist_ok=True)
    (tmp_path / "src" / "file").write_text("content")
    asked = {"src": str(tmp_path / "src"), "dest": str(tmp_path / "venv"), **arguments}
    tasks = [
        {"ddtree.fleet.venv_stream": asked, "run_once": True, "ignore_errors": True, "register": "found"},
        {
            "ansible.builtin.copy": {"content": "{{ found | to_json }}", "dest": str(tmp_path / "found")},
            "run_once": True,
            "connection": "local",
            "vars": {"ansible_connection": "local", "ansible_become": False},
        },
    ]
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
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
            "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
        },
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Dict[str, Any] = json.loads((tmp_path / "found").read_text())
    return found


LOCAL: Dict[str, Any] = {"ansible_connection": "local"}
NO_STREAM: Dict[str, Any] = {"ansible_connection": "winrm"}


def test_a_target_that_no_stream_reaches_fails_alone(tmp_path: Path) -> None:
    hosts = {"one": LOCAL, "two": NO_STREAM}
    found = stream(tmp_path, hosts, source="one", targets=["two", "one"])
    assert found["failed"] is False
    assert list(found["targets"]) == ["two", "one"]
    assert found["targets"]["two"]["failed"] is True
    assert found["targets"]["two"]["msg"] == "two: a stream needs connection ssh or local, not winrm"
    assert (found["targets"]["one"]["failed"], found["targets"]["one"]["changed"]) == (False, True)
    assert (tmp_path / "venv.releases" / found["targets"]["one"]["release"] / "file").read_text() == "content"


def test_the_host_of_the_task_fails_the_task_when_no_stream_reaches_it(tmp_path: Path) -> None:
    found = stream(tmp_path, {"two": NO_STREAM, "one": LOCAL}, source="one")
    assert (found["failed"], found["changed"]) == (True, False)
    assert found["msg"] == "two: a stream needs connection ssh or local, not winrm"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "two", "targets": ["one"]}, "two: a stream needs connection ssh or local, not winrm"),
        ({"source": "one", "targets": ["one", "three"]}, "three is not in the inventory"),
    ],
)
def test_a_source_that_no_stream_reaches_and_an_unknown_name_fail_the_task(
    tmp_path: Path, arguments: Dict[str, Any], message: str
) -> None:
    found = stream(tmp_path, {"one": LOCAL, "two": NO_STREAM}, **arguments)
    assert found["failed"] is True
    assert message in found["msg"]
    assert not (tmp_path / "venv.releases").exists()


@pytest.mark.parametrize("become", [{}, {"ansible_become": True, "ansible_become_user": "nobody"}])
def test_another_name_of_the_source_may_not_get_a_release_in_what_is_read(
    tmp_path: Path, become: Dict[str, Any]
) -> None:
    hosts = {"one": {**LOCAL, **become}, "alias": {**LOCAL, **become}}
    found = stream(tmp_path, hosts, source="one", targets=["alias"], dest=str(tmp_path / "src" / "venv"))
    assert found["failed"] is True
    assert f"alias is the source, and dest {tmp_path}/src/venv overlaps src {tmp_path}/src" in found["msg"]
    assert sorted(path.name for path in (tmp_path / "src").iterdir()) == ["file"]
