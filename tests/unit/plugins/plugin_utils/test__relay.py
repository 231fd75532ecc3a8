# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP, PACKAGE
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay, Request, Target
from ansible_collections.ddtree.fleet.tests.unit.agents import listing, releases

pytestmark = pytest.mark.usefixtures("forget_hashes")

MIB = 1 << 20


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for number in range(30):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(MIB // 4))
    (src / "lib" / "deep" / "x").write_text("x")
    return src


def request(src: Path, dest: Any, **more: Any) -> Request:
    fields: Dict[str, Any] = {
        "src": str(src),
        "dest": str(dest),
        "exclude": [],
        "source": "source",
        "full": False,
        "repair": False,
    }
    fields.update({"bytecode": True, "check": False, "run": "run", "who": "me", "take_over": False, "idle": 10.0})
    return Request(**{**fields, **more})


def here(name: str, program: str = BOOTSTRAP) -> Endpoint:
    """A host that is this one, with the real agent or a ``program`` in its place."""
    return Endpoint(name, [sys.executable, "-c", program], 10)


def altered(code: str) -> str:
    """The real agent with some lines that run in it before it serves: to fail where a host may fail."""
    lines = f"import time\nfrom {PACKAGE} import _releases\nfrom {PACKAGE}._stream import source, target\n{code}\nagent.main("
    load = "exec(i.read(int(i.readline())))"
    assert load in BOOTSTRAP
    return BOOTSTRAP.replace(load, f"exec(i.read(int(i.readline())).replace(b'agent.main(', {lines.encode()!r}))")


def rooted(name: str, root: Path, code: str = "") -> Endpoint:
    """A host whose releases all are below ``root``, so that several hosts with the same dest fit on this one.

    It does not wait the two seconds after a commit that make its files old enough for the index.
    """
    root.mkdir(exist_ok=True)
    store = f"make = _releases.Store.__init__\n_releases.Store.__init__ = lambda self, dest: make(self, {str(root)!r} + dest)\ntarget.QUIET_NS = 0\n"
    return here(name, altered(store + code))


def target(endpoint: Endpoint) -> Target:
    return Target(endpoint, sys.executable)


def run(wanted: Request, targets: List[Target], source: Optional[Endpoint] = None) -> Dict[str, Any]:
    """Stream; fails when that hangs."""
    guard = threading.Timer(40, os._exit, [99])
    guard.start()
    try:
        return Relay(wanted, lambda line: None).run(source or here("source"), sys.executable, targets)
    finally:
        guard.cancel()


def verdicts(targets: List[Target]) -> Dict[str, Dict[str, Any]]:
    return {one.verdict.host: dataclasses.asdict(one.verdict) for one in targets}


def content(root: Path) -> Dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def hosts(tmp_path: Path, *names: str) -> List[Target]:
    return [target(rooted(name, tmp_path / name)) for name in names]


def test_one_source_feeds_two_targets_and_nothing_the_second_time(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv"), targets)
    found = verdicts(targets)
    for name in ("t1", "t2"):
        (release,) = releases(tmp_path / name / "venv")
        assert content(tmp_path / name / "venv.releases" / release) == content(src)
        assert (found[name]["failed"], found[name]["changed"], found[name]["msg"]) == (False, True, "")
        assert (found[name]["release"], found[name]["digest"]) == (release, tree["digest"])
        assert (found[name]["files_sent"], found[name]["bytes_sent"]) == (31, 30 * MIB // 4 + 1)
        assert found[name]["wire_bytes"] > found[name]["bytes_sent"]
    assert (tree["files"], tree["environment"]) == (31, {})
    before = listing(tmp_path)
    for check in (True, False):
        again = hosts(tmp_path, "t1", "t2")
        run(request(src, "/venv", check=check), again)
        for verdict in verdicts(again).values():
            assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, False, 0)
    after = listing(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} <= {
        str(tmp_path / name) for name in ("t1", "t2")
    }  # the lease


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path, src: Path) -> None:
    before = listing(src)
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", check=True), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, True, 31)
    assert listing(src) == before
    assert os.listdir(tmp_path / "t1") == []


FAILING = {
    "unreachable": (
        here("t2", "import sys; sys.exit('ssh: connect to host t2 port 22: No route to host')"),
        "t2: the connection ended before the agent started (exit status 1): ssh: connect to host t2 port 22: No route to host",
    ),
    "hangs": (
        here("t2", "import sys; print('ddtree-agent/1 3.12', flush=True); sys.stdin.read()"),
        "t2: nothing came for 1 s; the host or the network hangs",
    ),
    "killed": (
        "target.Receiver._repeat = lambda self: os.kill(os.getpid(), 9)",
        "t2: the connection ended before the work was done",
    ),
    "cannot write": (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))",
        "t2/venv.releases/staging/incoming/file: File too large; what arrived stays there",
    ),
}


@pytest.mark.parametrize(("failing", "problem"), FAILING.values(), ids=FAILING.keys())
def test_a_target_that_fails_does_not_stop_the_other(tmp_path: Path, src: Path, failing: Any, problem: str) -> None:
    bad = rooted("t2", tmp_path / "t2", failing) if isinstance(failing, str) else failing
    targets = [target(bad), *hosts(tmp_path, "t1")]
    run(request(src, "/venv", idle=1.2), targets)
    found = verdicts(targets)
    assert (found["t1"]["failed"], found["t1"]["msg"]) == (False, "")
    assert len(releases(tmp_path / "t1" / "venv")) == 1
    assert found["t2"]["failed"] is True
    assert found["t2"]["msg"].startswith("t2: ")
    assert problem in found["t2"]["msg"]
    assert releases(tmp_path / "t2" / "venv") == []


def test_a_dest_that_cannot_be_made_is_named(tmp_path: Path, src: Path) -> None:
    (tmp_path / "file").write_text("")
    targets = [target(here("t1"))]
    run(request(src, tmp_path / "file" / "venv"), targets)
    verdict = verdicts(targets)["t1"]
    assert verdict["failed"] is True
    assert f"t1: {tmp_path}/file" in verdict["msg"]


SOURCE_DIES = """
read = source.read_file
def dying(root, entry):
    if entry.path.endswith(b"20"):
        stdout.flush()
        os.kill(os.getpid(), 9)
    return read(root, entry)
source.read_file = dying
"""


def test_a_source_that_dies_fails_all_and_hangs_nothing(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    started = time.monotonic()
    with pytest.raises(LegError, match="^source: the connection ended before the work was done"):
        run(request(src, "/venv"), targets, here("source", altered(SOURCE_DIES)))
    assert time.monotonic() - started < 15
    for name in ("t1", "t2"):
        assert releases(tmp_path / name / "venv") == []
        assert not (tmp_path / name / "venv").exists()
        assert not (tmp_path / name / "venv.lock").exists()
        assert len(list((tmp_path / name / "venv.releases" / "staging" / "tree" / "lib").glob("[0-9]*"))) > 5
    again = hosts(tmp_path, "t1")
    run(request(src, "/venv", run="another", check=True), again)
    assert 0 < verdicts(again)["t1"]["files_sent"] < 26


def test_a_source_that_refuses_ends_the_stream(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1")
    with pytest.raises(LegError) as caught:
        run(request(Path("/nowhere"), "/venv"), targets)
    assert str(caught.value) == "source: src /nowhere does not exist"
    assert os.listdir(tmp_path / "t1") == []


SLOW = """
build = target.Receiver.build
def slow(self):
    for _ in range(8):
        time.sleep(0.2)
        self.channel.send("progress")
    build(self)
target.Receiver.build = slow
"""


def test_a_target_that_copies_for_long_is_waited_for(tmp_path: Path, src: Path) -> None:
    """Building from what is already there takes longer than ``idle``, while more than the pipes hold waits to be sent."""
    targets = [target(rooted("t1", tmp_path / "t1", SLOW))]
    run(request(src, "/venv", idle=1.0), targets)
    assert verdicts(targets)["t1"]["msg"] == ""
    assert len(releases(tmp_path / "t1" / "venv")) == 1


def test_a_held_lease_fails_that_target_only(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    Lease(str(tmp_path / "t2" / "venv")).acquire("other", "anna@control")
    run(request(src, "/venv", check=False), targets)
    found = verdicts(targets)
    assert found["t1"]["failed"] is False
    assert f"t2: {tmp_path}/t2/venv is being deployed to by anna@control" in found["t2"]["msg"]
