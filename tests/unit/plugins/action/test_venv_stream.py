# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task as a user runs it: ansible-playbook, with hosts that all are this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest
import yaml
from ansible_collections.ddtree.fleet.plugins.action import venv_stream as action
from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from ansible_collections.ddtree.fleet.plugins.modules import venv_stream as module
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import EndpointError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Verdict
from ansible_collections.ddtree.fleet.tests.unit.agents import listing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forget_hashes")]

ROOT = Path(__file__).resolve().parents[4]
Results = List[Dict[str, Any]]


class Play(NamedTuple):
    """The results of tasks, one after the other, and what a user saw."""

    found: Results
    output: str


def play(tmp_path: Path, hosts: Dict[str, Dict[str, Any]], asked: Results, *options: str) -> Play:
    """Run tasks on the first of ``hosts``, with a small tree as src."""
    (tmp_path / "src").mkdir(exist_ok=True)
    if not (tmp_path / "src" / "file").exists():
        (tmp_path / "src" / "file").write_text("content")
    usual = {"src": str(tmp_path / "src"), "dest": str(tmp_path / "venv")}
    tasks: Results = [
        {
            "ddtree.fleet.venv_stream": {**usual, **arguments},
            "run_once": True,
            "ignore_errors": True,
            "register": f"found_{number}",
        }
        for number, arguments in enumerate(asked)
    ]
    names = ", ".join(f"found_{number}" for number in range(len(asked)))
    tasks.append(
        {
            "ansible.builtin.copy": {"content": f"{{{{ [{names}] | to_json }}}}", "dest": str(tmp_path / "found")},
            "run_once": True,
            "connection": "local",
            "check_mode": False,
            "diff": False,
            "vars": {"ansible_connection": "local", "ansible_become": False},
        }
    )
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    playbook = str(Path(sys.executable).parent / "ansible-playbook")
    done = subprocess.run(
        [playbook, "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.json"), *options],
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
    found: Results = json.loads((tmp_path / "found").read_text())
    return Play(found, done.stdout + done.stderr)


def stream(tmp_path: Path, hosts: Dict[str, Dict[str, Any]], **arguments: Any) -> Dict[str, Any]:
    """The result of one task."""
    return play(tmp_path, hosts, [arguments]).found[0]


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


@pytest.mark.parametrize(
    ("text", "ports"),
    [("0-0", (0, 0)), ("40000-40100", (40000, 40100)), (" 1-65535 ", (1, 65535)), ("40000-40000", (40000, 40000))],
)
def test_a_range_of_ports(text: str, ports: tuple[int, int]) -> None:
    assert action.port_range(text) == ports


@pytest.mark.parametrize("text", ["", "40000", "2-1", "0-5", "1-65536", "-1-5", "a-b", "1-2-3", "1,2", "40000-"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(EndpointError) as caught:
        action.port_range(text)
    assert str(caught.value) == (
        f"direct_ports must be a range of ports such as 40000-40100, or 0-0 for any, not {text}"
    )


@pytest.mark.parametrize(
    ("text", "rate"),
    [("0", 0), ("50M", 50 << 20), ("64K", 64 << 10), ("1.5G", 3 << 29), ("65536", 65536), ("400m", 400 << 20)],
)
def test_a_rate(text: str, rate: int) -> None:
    assert action.bytes_per_second(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "-50M", "63K", "1", "50 per second", "0.5K"])
def test_what_is_no_rate_or_would_take_for_ever_is_refused(text: str) -> None:
    with pytest.raises(EndpointError) as caught:
        action.bytes_per_second(text)
    assert str(caught.value) == (
        f"rate_limit must be bytes per second such as 50M (MiB), at least 64K, or 0 for no limit, not {text}"
    )


def test_wrong_arguments_are_named_before_anything_runs(tmp_path: Path) -> None:
    wrong: Dict[str, Dict[str, Any]] = {
        "seeds must be absolute paths of directories on the targets, not venv": {"seeds": ["/opt", "venv"]},
        "streams must be 0 (as many as the processors can use) to 16, not 17": {"streams": 17},
        "to 16, not -1": {"streams": -1},
        "Unsupported parameters": {"speed": 3},
        "dest must be an absolute path of a directory of its own, not venv": {"dest": "venv"},
        "src must be an absolute path of a directory of its own, not /": {"src": "/x/.."},
        "direct_ports must be a range": {"direct_ports": 40000},
        "rate_limit must be bytes per second": {"rate_limit": "fast"},
        "value of path must be one of: auto, relay, direct, got: bus": {"path": "bus"},
        "value of topology must be one of: auto, chain, star, got: ring": {"topology": "ring"},
        "value of compress must be one of: auto, zstd, none, got: lz4": {"compress": "lz4"},
        "argument 'timeout' is of type": {"timeout": "soon"},
    }
    done = play(tmp_path, {"one": LOCAL}, list(wrong.values()))
    for problem, found in zip(wrong, done.found):
        assert found["failed"] is True
        assert problem in found["msg"]
    assert "Traceback" not in done.output
    assert not (tmp_path / "venv.releases").exists()


def test_what_is_returned_is_what_is_documented(tmp_path: Path) -> None:
    documented = yaml.safe_load(module.RETURN)
    for_many, for_one = play(tmp_path, {"one": LOCAL}, [{"targets": ["one"]}, {}]).found
    ansibles_own = {"changed", "failed"}
    assert set(for_many) - ansibles_own == set(documented)
    assert set(for_many["tree"]) == set(documented["tree"]["contains"])
    verdict = for_many["targets"]["one"]
    assert set(verdict) == set(documented["targets"]["contains"])
    assert set(for_one) - ansibles_own == set(documented) | set(verdict) - {"failed", "changed"}
    assert {name: for_one[name] for name in for_one["targets"]["one"]} == for_one["targets"]["one"]
    kinds = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}
    for contents, values in ((documented, for_many), (documented["tree"]["contains"], for_many["tree"])):
        for name, about in contents.items():
            assert isinstance(values[name], kinds[about["type"]]), name
    for name, about in documented["targets"]["contains"].items():
        assert isinstance(verdict[name], kinds[about["type"]]), name


def test_the_documented_options_are_those_that_are_taken() -> None:
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    documented = {
        name: {key: value for key, value in about.items() if key != "description"} for name, about in options.items()
    }
    assert documented == action.ARGUMENTS


def test_check_mode_says_what_would_change_and_writes_nothing_anywhere(tmp_path: Path) -> None:
    hosts = {"one": LOCAL, "two": LOCAL}
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "file").write_text("content")
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "other").write_text("content")
    time.sleep(2.1)  # the hashes of files that have been quiet for less are not remembered
    ours = [Path(os.fsdecode(index_path(os.fsencode(tmp_path / name)))) for name in ("src", "venv.releases", "seed")]
    before = {name: listing(tmp_path / name) for name in ("src", "seed")}
    asked = {"source": "one", "targets": ["one", "two"], "seeds": [str(tmp_path / "seed")], "interpreter": "ship"}
    (found,) = play(tmp_path, hosts, [asked], "--check", "--diff").found
    assert (found["failed"], found["changed"]) == (False, True)
    for verdict in found["targets"].values():
        assert (verdict["changed"], verdict["files_sent"], verdict["path"]) == (True, 0, "")
        assert verdict["origins"] == {f"seed {tmp_path}/seed": {"files": 1, "bytes": 7}}
    assert {name: listing(tmp_path / name) for name in before} == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("venv")] == []
    assert [path for path in ours if path.exists()] == []
    play(tmp_path, hosts, [{**asked, "targets": ["one"]}])
    assert [path for path in ours if not path.exists()] == []


def test_a_diff_shows_what_a_release_changes_and_no_more_than_anybody_reads(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "old").write_text("old")
    first = {"targets": ["one"]}
    play(tmp_path, {"one": LOCAL}, [first])
    (src / "old").unlink()
    for number in range(70):
        (src / f"new-{number:02}").write_text("x" * 1234)
    (src / "link").symlink_to("file")
    done = play(tmp_path, {"one": LOCAL}, [first], "--diff")
    (diff,) = done.found[0]["diff"]
    header, *lines = diff["prepared"].splitlines()
    assert header.startswith(f"one: release {done.found[0]['targets']['one']['release']} against ")
    assert header.endswith("; 1 files, 1,234 bytes sent")  # all have the same content
    assert "+ new-00 (1,234 bytes)" in lines
    assert "- old" in lines
    assert "+ and 21 more added" in lines
    assert len(lines) == 52
    assert "+ new-00 (1,234 bytes)" in done.output


def test_a_diff_without_anything_before_says_so() -> None:
    changes = {"against": "", "counts": {"added": 1, "changed": 1, "removed": 0}, "sizes": {"a": 1}}
    verdict = Verdict("one", release="0" * 16, files_sent=1, bytes_sent=1)
    verdict.changes = {**changes, "added": ["a"], "changed": ["b"], "removed": []}
    assert action.difference(verdict) == {
        "prepared": f"one: release {'0' * 16} against nothing; 1 files, 1 bytes sent\n+ a (1 bytes)\n~ b\n"
    }


def test_what_did_not_go_as_asked_is_a_warning(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "program").write_text("x")
    (src / "program").chmod(0o4755)
    dropped, kept = ({"seeds": ["/none"]}, {"special_modes": "keep", "dest": str(tmp_path / "other")})
    done = play(tmp_path, {"one": LOCAL}, [{**dropped, "targets": ["one"]}, {**kept, "targets": ["one"]}])
    assert done.found[0]["targets"]["one"]["notices"] == ["one: there is no seed /none"]
    text = " ".join(done.output.split())
    assert "one: there is no seed /none" in text
    assert text.count("files have set-user-ID, set-group-ID or sticky bits, which are dropped, first program") == 1
    assert "set special_modes: keep to carry them" in text
    for found, mode in zip(done.found, (0o755, 0o4755)):
        dest = tmp_path / ("other" if mode == 0o4755 else "venv")
        release = Path(f"{dest}.releases") / found["targets"]["one"]["release"]
        assert (release / "program").stat().st_mode & 0o7777 == mode
