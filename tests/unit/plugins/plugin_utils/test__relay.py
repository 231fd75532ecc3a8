# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import bundle
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import LegError
from ansible_collections.ddtree.fleet.tests.unit.agents import listing, releases
from ansible_collections.ddtree.fleet.tests.unit.hosts import (
    DIES_AFTER,
    LOGS_READS,
    MIB,
    NO_ZSTD,
    altered,
    below,
    content,
    here,
    hosts,
    recorded,
    request,
    run,
    target,
    verdicts,
)

pytestmark = pytest.mark.usefixtures("forget_hashes")

SIZE = 30 * MIB // 4 + 1  # of the files in src


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for number in range(30):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(MIB // 4))
    (src / "lib" / "deep" / "x").write_text("x")
    return src


def release_of(tmp_path: Path, name: str) -> Path:
    """The only release of a host."""
    (release,) = releases(tmp_path / name / "venv")
    return tmp_path / name / "venv.releases" / release


def test_one_source_feeds_two_targets_and_nothing_the_second_time(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv"), targets)
    found = verdicts(targets)
    for name in ("t1", "t2"):
        release = release_of(tmp_path, name)
        assert content(release) == content(src)
        assert (found[name]["failed"], found[name]["changed"], found[name]["msg"]) == (False, True, "")
        assert (found[name]["release"], found[name]["digest"]) == (release.name, tree["digest"])
        assert (found[name]["files_sent"], found[name]["bytes_sent"], found[name]["path"]) == (31, SIZE, "relay")
        assert found[name]["wire_bytes"] > found[name]["bytes_sent"]
    assert (tree["files"], tree["environment"]) == (31, {})
    before = listing(tmp_path)
    for check in (True, False):
        again = hosts(tmp_path, "t1", "t2")
        run(request(src, "/venv", check=check), again)
        for name, verdict in verdicts(again).items():
            assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, False, 0)
            assert verdict["installed_digest"] == found[name]["installed_digest"] == tree["digest"]
            assert (verdict["path"], verdict["bytes_sent"]) == ("", 0)
    after = listing(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} <= {
        str(tmp_path / name) for name in ("t1", "t2")
    }  # the lease


def test_figures_are_exact(tmp_path: Path, src: Path) -> None:
    (src / "lib" / "twin").write_bytes((src / "lib" / "00").read_bytes())
    targets = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    tree = run(request(src, "/venv"), targets)
    verdict = verdicts(targets)["t1"]
    assert (tree["files"], tree["bytes"], tree["entries"]) == (32, SIZE + MIB // 4, 34)
    assert (tree["hashed"], tree["hashed_bytes"]) == (32, SIZE + MIB // 4)
    assert (verdict["files_sent"], verdict["bytes_sent"], verdict["bytes_resumed"]) == (31, SIZE, 0)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    assert {how: count for how, count in verdict["reused"].items() if count["files"]} == {
        "sent": {"files": 31, "bytes": SIZE},
        "repeated": {"files": 1, "bytes": MIB // 4},
    }
    assert verdict["origins"] == {}
    assert set(verdict["seconds"]) == {"compare", "reuse", "receive", "prove", "sync", "commit"}
    assert set(tree["source_seconds"]) == {"scan", "hash", "send"}
    assert verdict["mib_per_s"] == pytest.approx(SIZE / MIB / verdict["seconds"]["receive"], abs=0.06)
    for memory in (verdict["peak_memory"], tree["source_peak_memory"], tree["relay_peak_memory"]):
        assert 4 * MIB < memory < 1024 * MIB
    assert tree["seconds"] >= verdict["seconds"]["receive"]
    (src / "new").write_bytes(b"new")
    again = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    tree = run(request(src, "/venv"), again)
    verdict = verdicts(again)["t1"]
    assert (verdict["files_sent"], verdict["bytes_sent"]) == (1, 3)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    first = f"release {targets[0].verdict.release}"
    assert verdict["origins"] == {first: {"files": 32, "bytes": SIZE + MIB // 4}}
    assert sum(count["files"] for count in verdict["reused"].values()) == 33


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path, src: Path) -> None:
    before = listing(src)
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", check=True), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, True, 31)
    assert (verdict["path"], verdict["bytes_sent"]) == ("", SIZE)
    assert listing(src) == before
    assert os.listdir(tmp_path / "t1") == []


FAILING = {
    "unreachable": (
        here("t2", "import sys; sys.exit('ssh: connect to host t2 port 22: No route to host')"),
        "t2: the connection ended before the agent started (exit status 1): ssh: connect to host t2 port 22: No route to host",
    ),
    "hangs": (
        here("t2", "import sys; print('ddtree-agent/2 3.12 1', flush=True); sys.stdin.read()"),
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


def test_directories_that_only_one_target_knows_are_listed_once_for_each(tmp_path: Path, src: Path) -> None:
    run(request(src, "/venv"), hosts(tmp_path, "old"))
    (src / "lib" / "00").write_text("new")
    targets = hosts(tmp_path, "old", "fresh")
    run(request(src, "/venv"), targets)
    assert {name: (one["msg"], one["files_sent"]) for name, one in verdicts(targets).items()} == {
        "old": ("", 1),
        "fresh": ("", 31),
    }


def test_targets_that_want_different_files_get_theirs_and_each_file_is_read_once(tmp_path: Path, src: Path) -> None:
    """One lacks everything, one has half of it, one has it all but two, and one more dies in the middle."""
    everything = content(src)
    for name, having in (("half", 15), ("most", 29)):
        for number in range(having, 30):
            (src / "lib" / f"{number:02}").unlink()
        run(request(src, "/venv"), hosts(tmp_path, name))
        for path, data in everything.items():
            (src / path).write_bytes(data)
    (src / "last").write_text("last")
    log = tmp_path / "log"
    dying = target(here("dying", below(tmp_path / "dying", DIES_AFTER.format(blocks=3))))
    targets = [dying, *hosts(tmp_path, "none", "half", "most")]
    run(request(src, "/venv"), targets, here("source", altered(LOGS_READS.format(file=str(log)))))
    found = verdicts(targets)
    assert {name: one["msg"] for name, one in found.items() if one["failed"]} == {
        "dying": "dying: the connection ended before the work was done"
    }
    assert {name: one["files_sent"] for name, one in found.items()} == {"dying": 32, "none": 32, "half": 16, "most": 2}
    for name in ("none", "half", "most"):
        release = tmp_path / name / "venv.releases" / found[name]["release"]
        assert content(release) == content(src)
    assert sorted(log.read_text().split()) == sorted(content(src))
    assert releases(tmp_path / "dying" / "venv") == []
    again = hosts(tmp_path, "dying")
    run(request(src, "/venv"), again)
    assert 0 < verdicts(again)["dying"]["files_sent"] < 32
    assert verdicts(again)["dying"]["reused"]["kept"]["files"] > 0
    assert content(release_of(tmp_path, "dying")) == content(src)


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_large_file_goes_on_where_it_stopped_and_comes_whole_to_the_others(tmp_path: Path, spoiled: bool) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "large").write_bytes(os.urandom(24 * MIB))
    (src / "small").write_bytes(b"small")
    cut_off = [target(here("t1", below(tmp_path / "t1", DIES_AFTER.format(blocks=18))))]
    run(request(src, "/venv"), cut_off)
    assert cut_off[0].verdict.failed is True
    staged = tmp_path / "t1" / "venv.releases" / "staging" / "tree" / "large"
    arrived = staged.stat().st_size
    assert 8 * MIB < arrived < 24 * MIB
    if spoiled:
        with staged.open("r+b") as file:
            file.write(b"spoiled")
    targets = hosts(tmp_path, "t1", "t2")
    run(request(src, "/venv"), targets)
    found = verdicts(targets)
    for name in ("t1", "t2"):
        assert found[name]["msg"] == ""
        assert content(release_of(tmp_path, name)) == content(src)
    resumed = 0 if spoiled else arrived
    assert (found["t1"]["bytes_resumed"], found["t2"]["bytes_resumed"]) == (resumed, 0)
    assert found["t1"]["bytes_sent"] == found["t2"]["bytes_sent"] == 24 * MIB + 5
    spared = found["t2"]["wire_bytes"] - found["t1"]["wire_bytes"]
    assert abs(spared - resumed) < MIB // 8


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


# one target, to which blocks pass within the kernel


@pytest.fixture(name="large")
def large_fixture(tmp_path: Path) -> Path:
    """A tree whose content is a large file, and a few small ones around it."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "a").write_bytes(b"before")
    (large / "large").write_bytes(os.urandom(24 * MIB + 11))
    with (large / "sparse").open("wb") as file:
        file.truncate(3 * MIB)
        file.write(b"before a hole")
    (large / "z").write_bytes(b"after")
    return large


@pytest.mark.parametrize("compress", ["none", "auto", "zstd"])
def test_one_target_gets_the_same_and_what_it_is_sent_is_counted(tmp_path: Path, large: Path, compress: str) -> None:
    targets = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    run(request(large, "/venv", compress=compress), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["failed"], verdict["msg"], verdict["path"]) == (False, "", "relay")
    assert content(release_of(tmp_path, "t1")) == content(large)
    assert (verdict["files_sent"], verdict["bytes_sent"]) == (4, 27 * MIB + 22)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    assert 24 * MIB < verdict["wire_bytes"] < 26 * MIB


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
sender.Channel.send_file = stop
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


SLOW = """
build = target.Staging.build
def slow(self, plan, prefixes, progress):
    for _ in range(12):
        time.sleep(0.2)
        progress._tell()
    build(self, plan, prefixes, progress)
target.Staging.build = slow
"""


@pytest.mark.slow
def test_a_target_that_copies_for_long_is_waited_for(tmp_path: Path, src: Path) -> None:
    """Building from what is already there takes longer than ``idle``, while more than the pipes hold waits to be sent."""
    targets = hosts(tmp_path, "t1", code=SLOW)
    run(request(src, "/venv", idle=2.0), targets)
    assert verdicts(targets)["t1"]["msg"] == ""
    assert len(releases(tmp_path / "t1" / "venv")) == 1


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
    assert targets[1].verdict.origins == {"dest": {"files": 30, "bytes": SIZE - 1}}


def test_a_held_lease_fails_that_target_only(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    Lease(str(tmp_path / "t2" / "venv")).acquire("other", "anna@control")
    run(request(src, "/venv", check=False), targets)
    found = verdicts(targets)
    assert found["t1"]["failed"] is False
    assert f"t2: {tmp_path}/t2/venv is being deployed to by anna@control" in found["t2"]["msg"]


TALKATIVE = """
add = progress.Progress.add
def talk(self, files, size=0):
    add(self, files, size)
    with self._lock:
        for _ in range(3000):
            self._tell()
progress.Progress.add = talk
"""


def test_progress_of_a_target_never_blocks_its_stream(tmp_path: Path, src: Path) -> None:
    """Its messages are more than the pipe to the relay holds while content is passed on."""
    targets = hosts(tmp_path, "t1", code=TALKATIVE)
    run(request(src, "/venv", idle=4.0), targets)
    assert verdicts(targets)["t1"]["msg"] == ""


def test_what_the_ends_do_is_told_on_the_way(tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_board, "EVERY_S", 0.0)
    said: List[str] = []
    often = "progress.INTERVAL_S = 0\n"
    source = here("source", altered(often))
    run(request(src, "/venv"), hosts(tmp_path, "t1", "t2", code=often), source, said.append)
    assert any(line.startswith("source hashes: ") for line in said)
    sending = [line for line in said if line.startswith("source -> t1, t2: ")]
    assert "31 of 31 files, 7 of 7 MiB, " in sending[-1]
    assert not [line for line in said if "\n" in line]
    monkeypatch.setattr(_board, "EVERY_S", 60.0)
    quiet: List[str] = []
    run(request(src, "/venv"), hosts(tmp_path, "t3", code=often), source, quiet.append)
    assert quiet == []


@pytest.mark.slow
def test_the_source_keeps_to_the_rate(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv", rate=5 * MIB, compress="none"), targets)
    assert [one.verdict.msg for one in targets] == ["", ""]
    assert tree["source_seconds"]["send"] >= SIZE / (5 * MIB) - 0.15
    assert targets[0].verdict.mib_per_s <= 6


@pytest.fixture(name="text")
def text_fixture(tmp_path: Path) -> Path:
    """A tree that compresses well."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(4):
        (text / str(number)).write_bytes(b"".join(b"%d %d\n" % (number, line) for line in range(100_000)))
    return text


@pytest.mark.parametrize("compress", ["auto", "zstd", "none"])
def test_content_is_compressed_as_asked(tmp_path: Path, text: Path, compress: str) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    run(request(text, "/venv", compress=compress), targets)
    for name, verdict in verdicts(targets).items():
        assert (verdict["msg"], verdict["compress"]) == ("", compress)
        assert (verdict["wire_bytes"] < verdict["bytes_sent"] / 2) == (compress != "none")
        assert content(release_of(tmp_path, name)) == content(text)


@pytest.mark.parametrize("without", ["source", "t2"])
def test_nothing_is_compressed_where_one_end_has_no_zstd(tmp_path: Path, text: Path, without: str) -> None:
    targets = [*hosts(tmp_path, "t1"), *hosts(tmp_path, "t2", code=NO_ZSTD if without == "t2" else "")]
    source = here("source", altered(NO_ZSTD if without == "source" else ""))
    run(request(text, "/venv", compress="zstd"), targets, source)
    for name, verdict in verdicts(targets).items():
        assert (verdict["msg"], verdict["compress"]) == ("", "none")
        assert verdict["wire_bytes"] > verdict["bytes_sent"]
        told = [f"{without}: there is no zstd, so content goes uncompressed; install libzstd"]
        assert verdict["notices"] == (told if without in ("source", name) else [])
        assert content(release_of(tmp_path, name)) == content(text)


READS_SLOWLY = """
take = receiver.Receiver._take
def slow(self, data, zeros):
    time.sleep(0.01)
    take(self, data, zeros)
receiver.Receiver._take = slow
"""


@pytest.mark.slow
def test_the_relay_holds_little_of_what_a_slow_target_still_has_to_take(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    noise = os.urandom(MIB)
    with (src / "large").open("wb") as file:
        for _ in range(128):
            file.write(noise)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    targets = hosts(tmp_path, "t1", code=READS_SLOWLY)
    tree = run(request(src, "/venv", compress="none"), targets)
    assert targets[0].verdict.msg == ""
    assert 0 <= tree["relay_own_memory"] < 64 * MIB


def test_seeds_that_a_target_lacks_are_told(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", seeds=[str(src), "/none"]), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["notices"], verdict["files_sent"]) == (["t1: there is no seed /none"], 0)
    assert verdict["origins"] == {f"seed {src}": {"files": 31, "bytes": SIZE}}


def test_special_modes_are_told_and_kept_when_asked(tmp_path: Path, src: Path) -> None:
    (src / "lib" / "00").chmod(0o4755)
    for special, mode in ((False, 0o755), (True, 0o4755)):
        name = f"special-{special}"
        tree = run(request(src, "/venv", special=special), hosts(tmp_path, name))
        assert tree["special"] == ["lib/00"]
        assert (release_of(tmp_path, name) / "lib" / "00").stat().st_mode & 0o7777 == mode
