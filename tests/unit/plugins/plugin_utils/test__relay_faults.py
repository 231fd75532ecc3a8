# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams whose source or targets fail, garble, stop or refuse: who is named, and that nobody else is stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, Sequence

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import bundle
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import LegError
from ansible_collections.ddtree.fleet.tests.unit.agents import releases
from ansible_collections.ddtree.fleet.tests.unit.hosts import (
    DIES_AFTER,
    LOGS_READS,
    MANY_BYTES,
    MIB,
    altered,
    below,
    content,
    here,
    hosts,
    release_of,
    request,
    run,
    target,
    verdicts,
)

FAILING = {
    "unreachable": (
        here("t2", "import sys; sys.exit('ssh: connect to host t2 port 22: No route to host')"),
        "t2: the connection ended before the agent started (exit status 1): ssh: connect to host t2 port 22: No route to host",
    ),
    "hangs": (
        here("t2", "import sys; print('ddtree-agent/3 3.12 1', flush=True); sys.stdin.read()"),
        "t2: nothing came for 2 s; the host or the network hangs",
    ),
    "hangs later": (
        "receiver.Receiver._take = lambda self, data, zeros: time.sleep(60)",
        "t2: nothing came for 2 s; the host or the network hangs",
    ),
    "killed": (
        "target.Staging.repeat = lambda self, plan: os.kill(os.getpid(), 9)",
        "t2: the connection ended before the work was done",
    ),
    "cannot write": (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))",
        "File too large; what arrived stays there",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "problem"), FAILING.values(), ids=FAILING.keys())
def test_a_target_that_fails_does_not_stop_the_other(tmp_path: Path, src: Path, failing: Any, problem: str) -> None:
    bad = here("t2", below(tmp_path / "t2", failing)) if isinstance(failing, str) else failing
    targets = [target(bad), *hosts(tmp_path, "t1")]
    run(request(src, "/venv", idle=2.0), targets)
    found = verdicts(targets)
    assert (found["t1"]["failed"], found["t1"]["msg"]) == (False, "")
    assert len(releases(tmp_path / "t1" / "venv")) == 1
    assert found["t2"]["failed"] is True
    assert found["t2"]["msg"].startswith("t2: ")
    assert problem in found["t2"]["msg"]
    assert releases(tmp_path / "t2" / "venv") == []


# Lines of an agent that answers with something else than it should.
ANSWERS = """
send = target.Channel.send
def garble(self, op, **fields):
    if op == {op!r}:
        fields.update({fields!r})
    send(self, op, **fields)
target.Channel.send = garble
"""


CHANGES: Dict[str, Any] = {
    "against": "",
    "added": [],
    "changed": [],
    "removed": [],
    "counts": {"added": 0, "changed": 0, "removed": 0},
    "sizes": {},
}


CORRUPT = "t2: the stream is corrupt: an answer lacks or garbles {}"


NOTHING_CAME = "t2: the source ended without {} of the files that were asked for"


@pytest.mark.parametrize(
    ("op", "fields", "problem"),
    [
        ("unknown", {"want": ["x"]}, CORRUPT.format("want")),
        ("unknown", {"want": [0, -1]}, CORRUPT.format("want")),
        ("unknown", {"want": [0, 1, 2, 1 << 80]}, CORRUPT.format("want")),
        ("need", {"want": [2, "x"]}, CORRUPT.format("want")),
        ("need", {"want": [[2]]}, CORRUPT.format("")),
        ("need", {"want": [-1, 2]}, CORRUPT.format("want")),
        ("need", {"want": [2, 33]}, CORRUPT.format("want")),
        ("need", {"want": [0, 1]}, NOTHING_CAME.format(31)),
        ("need", {"partial": [[2, [["x", ""]]]]}, CORRUPT.format("partial")),
        ("need", {"partial": [[2, [[1, "", 3]]]]}, CORRUPT.format("")),
        ("need", {"partial": [[2, 7]]}, CORRUPT.format("")),
        ("need", {"bytes": "x"}, CORRUPT.format("")),
        ("need", {"changes": {"added": []}}, CORRUPT.format("'changed'")),
        (
            "need",
            {"changes": {**CHANGES, "counts": {"added": "x", "changed": 0, "removed": 0}}},
            CORRUPT.format("changes"),
        ),
        ("need", {"changes": {**CHANGES, "added": [3]}}, CORRUPT.format("changes")),
    ],
)
def test_a_target_that_asks_for_nonsense_does_not_stop_the_other(
    tmp_path: Path, op: str, fields: Dict[str, Any], problem: str
) -> None:
    src = tmp_path / "src"
    (src / "lib").mkdir(parents=True)
    for number in range(32):
        (src / "lib" / f"{number:02}").write_text(f"{number}")
    bad = target(here("t2", below(tmp_path / "t2", ANSWERS.format(op=op, fields=fields))))
    targets = [bad, *hosts(tmp_path, "t1")]
    run(request(src, "/venv"), targets)
    assert bad.verdict.msg.startswith(problem)
    assert targets[1].verdict.msg == ""
    assert content(release_of(tmp_path, "t1")) == content(src)
    assert releases(tmp_path / "t2" / "venv") == []


@pytest.mark.parametrize("fields", [{"digest": 7}, {"files": "x"}, {"environment": []}, {"special": None}])
def test_a_source_that_garbles_its_tree_is_named(tmp_path: Path, src: Path, fields: Dict[str, Any]) -> None:
    bad = here("source", altered(ANSWERS.replace("target.Channel", "source.Channel").format(op="tree", fields=fields)))
    targets = hosts(tmp_path, "t1")
    with pytest.raises(LegError, match="^source: the stream is corrupt: the source garbles what its tree is$"):
        run(request(src, "/venv"), targets, bad)
    assert releases(tmp_path / "t1" / "venv") == []


def test_a_dest_that_cannot_be_made_is_named(tmp_path: Path, src: Path) -> None:
    (tmp_path / "file").write_text("")
    targets = [target(here("t1"))]
    run(request(src, tmp_path / "file" / "venv"), targets)
    verdict = verdicts(targets)["t1"]
    assert verdict["failed"] is True
    assert f"t1: {tmp_path}/file" in verdict["msg"]


@pytest.mark.slow
def test_a_source_whose_targets_all_died_is_ended_early(tmp_path: Path, src: Path) -> None:
    log = tmp_path / "log"
    targets = hosts(tmp_path, "t1", "t2", code=DIES_AFTER.format(blocks=1))
    started = time.monotonic()
    source = here("source", altered(LOGS_READS.format(file=str(log))))
    run(request(src, "/venv", rate=MIB, compress="none"), targets, source)
    assert time.monotonic() - started < 6  # it would take seven and a half
    assert [one.verdict.msg.partition(":")[0] for one in targets] == ["t1", "t2"]
    assert len(log.read_text().split()) < 31


SOURCE_DIES = """
opened = sender.open_scanned
def dying(root, entry):
    if entry.path.endswith(b"48"):
        stdout.flush()
        os.kill(os.getpid(), 9)
    return opened(root, entry)
sender.open_scanned = dying
"""


def test_a_source_that_dies_fails_all_and_hangs_nothing(tmp_path: Path) -> None:
    src = tmp_path / "src"
    (src / "lib").mkdir(parents=True)
    for number in range(50):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(MIB))
    targets = hosts(tmp_path, "t1", "t2")
    started = time.monotonic()
    with pytest.raises(LegError, match="^source: the connection ended before the work was done"):
        run(request(src, "/venv", compress="none"), targets, here("source", altered(SOURCE_DIES)))
    assert time.monotonic() - started < 15
    for name in ("t1", "t2"):
        assert releases(tmp_path / name / "venv") == []
        assert not (tmp_path / name / "venv").exists()
        assert not (tmp_path / name / "venv.lock").exists()
        assert len(list((tmp_path / name / "venv.releases" / "staging" / "tree" / "lib").glob("[0-9]*"))) > 5
    again = hosts(tmp_path, "t1")
    run(request(src, "/venv", run="another", check=True), again)
    assert 0 < verdicts(again)["t1"]["files_sent"] < 44


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param(DIES_AFTER.format(blocks=3), "t1: the connection ended before the work was done", id="killed"),
        pytest.param(FAILING["cannot write"][0], "File too large; what arrived stays there", id="cannot write"),
    ],
)
def test_one_target_that_fails_in_the_middle_is_told_and_ends_the_source(
    tmp_path: Path, large: Path, code: str, told: str
) -> None:
    targets = hosts(tmp_path, "t1", code=code)
    started = time.monotonic()
    run(request(large, "/venv", compress="none", rate=3 * MIB), targets)
    assert time.monotonic() - started < 6  # it would take eight
    assert targets[0].verdict.failed is True
    assert targets[0].verdict.msg.startswith("t1: ")
    assert told in targets[0].verdict.msg
    assert releases(tmp_path / "t1" / "venv") == []


def test_one_target_that_fails_while_the_source_is_fast_is_told_and_hangs_nothing(tmp_path: Path, large: Path) -> None:
    targets = hosts(tmp_path, "t1", code=DIES_AFTER.format(blocks=3))
    run(request(large, "/venv", compress="none"), targets)
    assert targets[0].verdict.msg == "t1: the connection ended before the work was done"


@pytest.mark.slow
def test_one_target_that_reads_no_more_is_given_up(tmp_path: Path, large: Path) -> None:
    targets = hosts(tmp_path, "t1", code=FAILING["hangs later"][0])
    started = time.monotonic()
    run(request(large, "/venv", compress="none", idle=2.0), targets)
    assert time.monotonic() - started < 12
    assert targets[0].verdict.msg in {
        f"t1: nothing {what} for 2 s; the host or the network hangs" for what in ("came", "was taken")
    }


# Lets so many bytes through to the agent, then none, while what the agent says still passes.
STALLS = """
import os, subprocess, sys, time
agent = subprocess.Popen([sys.executable, "-c", {program!r}], stdin=subprocess.PIPE, bufsize=0)
left = {left}
while left:
    data = os.read(0, min(left, 1 << 16))
    if not data:
        sys.exit()
    agent.stdin.write(data)
    left -= len(data)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("names", [("t1",), ("t1", "t2")], ids=["alone", "among others"])
def test_a_target_that_only_waits_since_nothing_reaches_it_is_given_up(
    tmp_path: Path, large: Path, names: Sequence[str]
) -> None:
    """It says that it lives all the while."""
    often = "progress.HEARTBEAT_S = 0.2\n"
    program = below(tmp_path / "t1", often)
    stalling = target(here("t1", STALLS.format(program=program, left=len(bundle()) + 3 * MIB)))
    targets = [stalling, *hosts(tmp_path, *names[1:], code=often)]
    started = time.monotonic()
    run(request(large, "/venv", compress="none", idle=2.0), targets)
    assert time.monotonic() - started < 15
    assert [one.verdict.msg for one in targets] == [
        "t1: nothing was taken for 2 s; the host or the network hangs",
        *[""] * (len(names) - 1),
    ]


SOURCE_STOPS_IN_BLOCK = """
def stop(self, kind, head, fd, size):
    self.send_header(kind, len(head) + size)
    self._writer.write(head + bytes(size // 2))
    self.flush()
    {how}
sinks.Channel.send_file = stop
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told"),
    [
        pytest.param("os.kill(os.getpid(), 9)", "the connection ended before the work was done", id="dies"),
        pytest.param("time.sleep(60)", "nothing came for 2 s; the host or the network hangs", id="hangs"),
    ],
)
def test_a_source_that_stops_within_a_block_for_one_target_is_named(
    tmp_path: Path, large: Path, how: str, told: str
) -> None:
    targets = hosts(tmp_path, "t1", code="progress.HEARTBEAT_S = 0.5\n")
    source = here("source", altered(SOURCE_STOPS_IN_BLOCK.format(how=how)))
    started = time.monotonic()
    with pytest.raises(LegError) as caught:
        run(request(large, "/venv", compress="none", idle=2.0), targets, source)
    assert time.monotonic() - started < 15
    assert str(caught.value) == f"source: {told}"
    assert releases(tmp_path / "t1" / "venv") == []


SOURCE_HANGS = "sender.open_scanned = lambda root, entry: time.sleep(60)"


def test_a_source_that_falls_silent_is_given_up_by_name(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", code="progress.HEARTBEAT_S = 0.2\n")
    started = time.monotonic()
    with pytest.raises(LegError, match="^source: nothing came for 1 s; the host or the network hangs$"):
        run(request(src, "/venv", idle=1.0), targets, here("source", altered(SOURCE_HANGS)))
    assert time.monotonic() - started < 10
    assert releases(tmp_path / "t1" / "venv") == []


def test_a_source_that_refuses_ends_the_stream(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1")
    with pytest.raises(LegError) as caught:
        run(request(Path("/nowhere"), "/venv"), targets)
    assert str(caught.value) == "source: src /nowhere does not exist"
    assert os.listdir(tmp_path / "t1") == []


@pytest.mark.slow
def test_a_target_that_has_to_wait_for_its_turn_is_not_given_up(tmp_path: Path, src: Path) -> None:
    """What only the other target wants takes longer than ``idle``."""
    (src / "zz").write_text("for both")
    (tmp_path / "t2" / "venv").mkdir(parents=True)
    for path in (src / "lib").glob("[0-9]*"):
        (tmp_path / "t2" / "venv" / path.name).write_bytes(path.read_bytes())
    targets = hosts(tmp_path, "t1", "t2", code="progress.HEARTBEAT_S = 0.2\n")
    run(request(src, "/venv", idle=2.5, rate=2 * MIB, compress="none"), targets)
    assert {name: one["msg"] for name, one in verdicts(targets).items()} == {"t1": "", "t2": ""}
    assert (targets[0].verdict.files_sent, targets[1].verdict.files_sent) == (32, 2)
    assert targets[1].verdict.origins == {"dest": {"files": 30, "bytes": MANY_BYTES - 1}}


def test_a_held_lease_fails_that_target_only(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    Lease(str(tmp_path / "t2" / "venv")).acquire("other", "anna@control")
    run(request(src, "/venv", check=False), targets)
    found = verdicts(targets)
    assert found["t1"]["failed"] is False
    assert f"t2: {tmp_path}/t2/venv is being deployed to by anna@control" in found["t2"]["msg"]
