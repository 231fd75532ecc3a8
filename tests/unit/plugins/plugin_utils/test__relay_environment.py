# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real environments through the relay: to other paths, and with their base interpreter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _release_states
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target
from ansible_collections.ddtree.fleet.tests.unit.agents import listing, releases
from ansible_collections.ddtree.fleet.tests.unit.environments import SYSTEM_PYTHON, build, managed_python, output
from ansible_collections.ddtree.fleet.tests.unit.hosts import altered, here, request, run, target

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forget_hashes")]

RunModule = Callable[..., Dict[str, Any]]


def environment(at: Path, python: Path) -> Path:
    """An environment with a module and a script."""
    build(at, python=python)
    (at / "lib" / python.name / "site-packages" / "tool.py").write_text(
        "import sys\n\n\ndef main():\n    print(sys.prefix)\n"
    )
    (at / "bin" / "tool").write_text(f"#!{at}/bin/python\nimport tool\n\ntool.main()\n")
    (at / "bin" / "tool").chmod(0o755)
    return at


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    return environment(tmp_path / "built" / "venv", SYSTEM_PYTHON)


@pytest.fixture(name="prefix")
def prefix_fixture(tmp_path: Path) -> Path:
    """A base interpreter in a directory of its own."""
    return managed_python(tmp_path / "pythons").resolve()


@pytest.fixture(name="managed")
def managed_fixture(tmp_path: Path, prefix: Path) -> Path:
    """An environment on that interpreter."""
    return environment(tmp_path / "built" / "venv", prefix / "bin" / SYSTEM_PYTHON.name)


@pytest.fixture(name="dest")
def dest_fixture(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    return tmp_path / "host" / "venv"


def lacking(interpreter: Path, code: str = "") -> Target:
    """A host where nothing below a path can be run."""
    lines = (
        "access = os.access\n"
        f"os.access = lambda path, mode: not os.fsdecode(path).startswith({str(interpreter)!r}) and access(path, mode)\n"
    )
    return target(here("t1", altered(lines + code)))


def prune(dest: Path) -> Dict[str, Any]:
    return _release_states.reach(_release_states.Request(str(dest), "pruned", check=False, keep=0))


def test_an_environment_works_at_another_path_and_is_known_there(src: Path, dest: Path, run_module: RunModule) -> None:
    targets = [target(here("t1"))]
    tree = run(request(src, dest), targets)
    verdict = targets[0].verdict
    assert (verdict.msg, verdict.digest) == ("", tree["digest"])
    assert verdict.installed_digest not in ("", verdict.digest)
    assert verdict.relocated["moves"] == [[str(src), str(dest)]]
    assert {"bin/activate", "bin/tool"} <= set(verdict.relocated["files"])
    assert verdict.relocated["leftovers"] == []
    release = Path(f"{dest}.releases") / verdict.release
    Store(str(dest)).activate(verdict.release)
    assert output(dest / "bin" / "tool") == [str(dest)]
    assert output(src / "bin" / "tool") == [str(src)]
    manifest = f"{dest}.releases/meta/{verdict.release}.sha256"
    verified = run_module("manifest_sha256", {"path": str(release), "manifest": manifest, "state": "verified"})
    assert (verified["rc"], verified.get("msg", "")) == (0, "")
    again = [target(here("t1"))]
    run(request(src, dest), again)
    assert (again[0].verdict.msg, again[0].verdict.changed, again[0].verdict.files_sent) == ("", False, 0)
    assert again[0].verdict.installed_digest == verdict.installed_digest
    assert again[0].verdict.digest == verdict.digest


def test_drift_of_a_relocated_release_is_found_and_repaired(src: Path, dest: Path) -> None:
    """In a file that was rewritten, and in one that was not."""
    paths = ("bin/activate", f"lib/{SYSTEM_PYTHON.name}/site-packages/tool.py")
    first = [target(here("t1"))]
    run(request(src, dest), first)
    release = Path(f"{dest}.releases") / first[0].verdict.release
    before = {path: (release / path).read_bytes() for path in paths}
    for path, data in before.items():
        (release / path).write_bytes(data + b"# by hand\n")
    refused = [target(here("t1"))]
    run(request(src, dest), refused)
    assert f"was changed after it was committed: changed {paths[0]}, changed {paths[1]};" in refused[0].verdict.msg
    assert refused[0].verdict.msg.startswith("t1: ")
    for changed in (True, False):
        repaired = [target(here("t1"))]
        run(request(src, dest, repair=True), repaired)
        assert (repaired[0].verdict.msg, repaired[0].verdict.changed) == ("", changed)
        assert repaired[0].verdict.installed_digest == first[0].verdict.installed_digest
        assert {path: (release / path).read_bytes() for path in paths} == before


def test_an_interpreter_is_shipped_kept_while_it_is_used_and_pruned_after(
    managed: Path, prefix: Path, dest: Path
) -> None:
    targets = [lacking(prefix)]
    run(request(managed, dest, ship=True), targets)
    verdict = targets[0].verdict
    assert verdict.msg == ""
    shipped = Path(f"{dest}.releases") / "interpreters" / verdict.interpreter
    release = Path(f"{dest}.releases") / verdict.release
    assert Path(os.path.realpath(release / "bin" / "python")) == shipped / "bin" / SYSTEM_PYTHON.name
    stream = verdict.interpreter_stream
    assert (stream["files_sent"], stream["bytes_sent"]) == tuple(stream["reused"]["sent"].values())
    assert 0 < stream["files_sent"] <= len([path for path in shipped.rglob("*") if path.is_file()])
    assert stream["wire_bytes"] > 0 and "receive" in stream["seconds"]
    away = prefix.with_name("away")
    prefix.rename(away)
    Store(str(dest)).activate(verdict.release)
    assert output(dest / "bin" / "tool") == [str(dest)]
    assert output(dest / "bin" / "python", "-c", "import sys; print(sys.base_prefix)") == [str(shipped)]
    away.rename(prefix)
    assert releases(dest) == [verdict.release]

    again = [lacking(prefix)]
    run(request(managed, dest, ship=True), again)
    assert (again[0].verdict.msg, again[0].verdict.changed, again[0].verdict.files_sent) == ("", False, 0)
    assert (prune(dest)["changed"], shipped.is_dir()) == (False, True)

    (managed / "new").write_text("new")
    newer = [lacking(prefix)]
    run(request(managed, dest, ship=True), newer)
    rewritten = len(newer[0].verdict.relocated["files"])  # for dest, so the release has not what the source has
    assert (newer[0].verdict.msg, newer[0].verdict.files_sent) == ("", 1 + rewritten)
    assert newer[0].verdict.interpreter == verdict.interpreter
    assert newer[0].verdict.interpreter_stream["files_sent"] == 0
    Store(str(dest)).activate(newer[0].verdict.release)
    assert prune(dest)["removed"] == [verdict.release]
    assert shipped.is_dir()
    Store(str(dest)).deactivate()
    assert prune(dest)["removed"] == [newer[0].verdict.release]
    assert not shipped.exists()


def test_nothing_is_shipped_where_the_interpreter_works(managed: Path, dest: Path) -> None:
    targets = [target(here("t1"))]
    run(request(managed, dest, ship=True), targets)
    verdict = targets[0].verdict
    assert (verdict.msg, verdict.interpreter, verdict.interpreter_stream) == ("", "", {})
    assert not Path(f"{dest}.releases/interpreters").exists()


def test_check_mode_says_what_would_be_shipped_and_writes_nothing(
    tmp_path: Path, managed: Path, prefix: Path, dest: Path
) -> None:
    before = listing(tmp_path)
    would, done = [lacking(prefix)], [lacking(prefix)]
    run(request(managed, dest, ship=True, check=True), would)
    assert listing(tmp_path) == before
    run(request(managed, dest, ship=True), done)
    for name in ("failed", "changed", "release", "interpreter", "files_sent", "bytes_sent", "msg"):
        assert getattr(would[0].verdict, name) == getattr(done[0].verdict, name)


def test_a_missing_interpreter_is_refused_with_the_way_out(managed: Path, prefix: Path, dest: Path) -> None:
    targets = [lacking(prefix)]
    run(request(managed, dest), targets)
    message = targets[0].verdict.msg
    assert message.startswith(f"t1: the base interpreter {prefix}/bin/{SYSTEM_PYTHON.name} (Python 3.")
    assert message.endswith("does not exist here; install it at that path, or set interpreter: ship")
    assert releases(dest) == []


def test_an_interpreter_that_cannot_be_shipped_is_refused_with_the_reason(src: Path, dest: Path) -> None:
    for ship in (False, True):
        targets = [lacking(SYSTEM_PYTHON)]
        run(request(src, dest, ship=ship), targets)
        message = targets[0].verdict.msg
        assert message.startswith(f"t1: the base interpreter {SYSTEM_PYTHON} (Python 3.")
        assert message.count("/usr holds other software, too; install python3") == 1
    assert releases(dest) == []


def test_an_interpreter_that_does_not_arrive_fails_the_target(managed: Path, prefix: Path, dest: Path) -> None:
    full = (
        "commit = target.Target.commit\n"
        "def fail(self, request):\n"
        "    if not request['environment']:\n"
        "        raise OSError(28, 'No space left on device')\n"
        "    return commit(self, request)\n"
        "target.Target.commit = fail\n"
    )
    targets = [lacking(prefix, full)]
    run(request(managed, dest, ship=True), targets)
    assert (targets[0].verdict.failed, targets[0].verdict.msg) == (True, "t1: No space left on device")
    assert releases(dest) == []
