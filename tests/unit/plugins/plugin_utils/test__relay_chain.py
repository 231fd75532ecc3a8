# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams along chains of targets, and how they go on when something on the way is lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _chains, _slow
from ansible_collections.ddtree.fleet.tests.unit.agents import releases
from ansible_collections.ddtree.fleet.tests.unit.hosts import (
    DIES_AFTER,
    LOGS_READS,
    MIB,
    NO_ADDRESS,
    altered,
    below,
    content,
    elsewhere,
    here,
    hosts,
    release_of,
    request,
    run,
    target,
    verdicts,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forget_hashes")]

SIZE = 28 * MIB
IN_FLIGHT = 12 * MIB  # at most, at the rate of these streams
NAMES = ("t1", "t2", "t3", "t4")


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    src = tmp_path / "src"
    (src / "lib").mkdir(parents=True)
    (src / "zz").write_bytes(os.urandom(20 * MIB))
    for number in range(16):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(MIB // 2))
    return src


class Fleet:
    """Hosts by name, of which some do not do what they should, and what came of a stream to them."""

    def __init__(self, tmp_path: Path, src: Path) -> None:
        self._tmp_path = tmp_path
        self._src = src
        self.tree: Dict[str, Any] = {}
        self.found: Dict[str, Dict[str, Any]] = {}

    def stream(self, codes: Dict[str, str], path: str = "direct", source: str = "", **more: Any) -> None:
        targets = [target(here(name, below(self._tmp_path / name, codes.get(name, "")))) for name in NAMES]
        fields: Dict[str, Any] = {"topology": "chain", "compress": "none", "rate": 24 * MIB, "path": path, **more}
        self.tree = run(request(self._src, "/venv", **fields), targets, here("source", altered(source)))
        self.found = verdicts(targets)

    def check(self, failed: Sequence[str] = (), rounds: int = 1) -> None:
        """All but those that ``failed`` have the tree, those have nothing, and it took so many rounds."""
        assert {name for name, one in self.found.items() if one["failed"]} == set(failed), self.messages()
        assert self.tree["rounds"] == rounds
        for name in NAMES:
            if name in failed:
                assert releases(self._tmp_path / name / "venv") == []
            else:
                assert content(release_of(self._tmp_path, name)) == content(self._src)

    def messages(self) -> Dict[str, str]:
        return {name: one["msg"] for name, one in self.found.items() if one["msg"]}

    def ways(self) -> List[Any]:
        return [(one["fed_by"], one["path"], one["topology"]) for one in self.found.values()]


@pytest.fixture(name="fleet")
def fleet_fixture(tmp_path: Path, src: Path) -> Fleet:
    return Fleet(tmp_path, src)


# as it should be


@pytest.mark.parametrize("path", ["direct", "relay"])
def test_the_source_reads_and_sends_once_and_each_passes_on(tmp_path: Path, src: Path, fleet: Fleet, path: str) -> None:
    log = tmp_path / "log"
    fleet.stream({}, path, LOGS_READS.format(file=str(log)), rate=0, streams=2)
    fleet.check()
    head = ("source", "direct", "chain") if path == "direct" else ("relay", "relay", "chain")
    assert fleet.ways() == [head, *((name, "direct", "chain") for name in NAMES[:-1])]
    assert fleet.tree["chains"] == [list(NAMES)]
    assert fleet.tree["source_bytes_read"] == SIZE
    assert SIZE < fleet.tree["source_bytes_sent"] < SIZE + MIB // 8
    assert (fleet.tree["relay_bytes_sent"] > SIZE) == (path == "relay")
    assert fleet.tree["relay_bytes_sent"] < SIZE + MIB // 8
    assert sorted(log.read_text().split()) == sorted(content(src))
    for one in fleet.found.values():
        assert (one["rounds"], one["notices"], one["bytes_sent"]) == (1, [], SIZE)
        assert SIZE < one["wire_bytes"] < SIZE + MIB // 8


def test_nothing_changed_needs_no_chain(fleet: Fleet) -> None:
    fleet.stream({}, rate=0)
    fleet.stream({}, rate=0)
    assert fleet.ways() == [("", "", "")] * 4
    assert (fleet.tree["rounds"], fleet.tree["chains"], fleet.tree["source_bytes_read"]) == (0, [], 0)


def test_members_that_lack_different_files_get_theirs_past_each_other(tmp_path: Path, src: Path, fleet: Fleet) -> None:
    for name, having in (("t1", ["zz"]), ("t3", [f"lib/{number:02}" for number in range(16)]), ("t4", ["lib/00"])):
        (tmp_path / name / "venv").mkdir(parents=True)
        for number, path in enumerate(having):
            (tmp_path / name / "venv" / str(number)).write_bytes((src / path).read_bytes())
    fleet.stream({}, rate=0)
    fleet.check()
    assert [one["files_sent"] for one in fleet.found.values()] == [16, 17, 1, 16]
    assert fleet.tree["source_bytes_sent"] < SIZE + MIB // 8


def test_who_lacks_nothing_stands_apart(tmp_path: Path, src: Path, fleet: Fleet) -> None:
    (tmp_path / "t2" / "venv").mkdir(parents=True)
    for number, path in enumerate(content(src)):
        (tmp_path / "t2" / "venv" / str(number)).write_bytes((src / path).read_bytes())
    fleet.stream({}, rate=0)
    fleet.check()
    assert sorted(fleet.tree["chains"]) == [["t1", "t3", "t4"], ["t2"]]
    assert (fleet.found["t2"]["fed_by"], fleet.found["t2"]["files_sent"]) == ("", 0)


@pytest.mark.parametrize(("least", "topology"), [(SIZE, "chain"), (SIZE + 1, "star")])
def test_little_is_not_worth_a_chain(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, least: int, topology: str) -> None:
    monkeypatch.setattr(_chains, "DIRECT_FROM", least)
    fleet.stream({}, "auto", topology="auto", rate=0)
    fleet.check()
    assert {one["topology"] for one in fleet.found.values()} == {topology}


def test_one_that_its_predecessor_cannot_connect_to_is_a_head(
    tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chains, "DIRECT_FROM", 1)
    far = target(elsewhere("far", below(tmp_path / "far", NO_ADDRESS)))
    targets = [*hosts(tmp_path, "t1"), far, *hosts(tmp_path, "t3")]
    tree = run(request(src, "/venv", path="auto", topology="chain"), targets)
    found = verdicts(targets)
    assert [one["msg"] for one in found.values()] == ["", "", ""]
    assert tree["chains"] == [["t1"], ["far", "t3"]]
    assert [(one["fed_by"], one["path"]) for one in found.values()] == [
        ("source", "direct"),
        ("relay", "relay"),
        ("far", "direct"),
    ]
    nowhere = "cannot connect to it directly: the other host cannot be reached directly: it has no address"
    assert found["far"]["notices"] == [
        f"far: t1 {nowhere}; source {nowhere}; its content goes through the control node"
    ]


def test_one_that_nobody_can_connect_to_fails_under_direct_and_those_behind_it_are_fed(
    tmp_path: Path, src: Path
) -> None:
    far = target(elsewhere("far", below(tmp_path / "far", NO_ADDRESS)))
    targets = [*hosts(tmp_path, "t1"), far, *hosts(tmp_path, "t3")]
    tree = run(request(src, "/venv", path="direct", topology="chain"), targets)
    found = verdicts(targets)
    assert found["far"]["msg"].endswith(
        "source cannot connect to it directly: the other host cannot be reached directly: it has no address; "
        "open the ports to the source, set direct_ports, or use path auto or relay"
    )
    assert [found[name]["msg"] for name in ("t1", "t3")] == ["", ""]
    assert tree["chains"] == [["t1", "t3"]]
    assert releases(tmp_path / "far" / "venv") == []


# going on without what was lost

DIES = DIES_AFTER.format(blocks=6)
NO_SPACE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
"""
HANGS = """
take, taken = receiver.Receiver._take, []
def hanging(self, data, zeros):
    taken.append(1)
    if len(taken) > 6:
        time.sleep(60)
    take(self, data, zeros)
receiver.Receiver._take = hanging
"""
ENDED = "the connection ended before the work was done"


@pytest.mark.parametrize("path", ["direct", "relay"])
@pytest.mark.parametrize(
    ("dying", "rounds"),
    [(["t1"], 2), (["t2"], 2), (["t4"], 1), (["t2", "t3"], 2), (["t1", "t3"], 2)],
    ids=["the head", "a middle one", "the last", "two neighbours", "two others"],
)
def test_those_that_die_are_gone_around(
    src: Path, fleet: Fleet, path: str, dying: List[str], rounds: int, tmp_path: Path
) -> None:
    fleet.stream(dict.fromkeys(dying, DIES), path)
    if len(dying) == 2 and fleet.tree["rounds"] == 3:  # the second one died only in the second round
        rounds = 3
    fleet.check(dying, rounds)
    assert fleet.messages() == {name: f"{name}: {ENDED}" for name in dying}
    living = [name for name in NAMES if name not in dying]
    if rounds > 1:
        assert fleet.tree["chains"] == [living]
    assert fleet.tree["source_bytes_sent"] < SIZE + (rounds - 1) * IN_FLIGHT + MIB
    fleet.stream({}, path, run="another", take_over=True)
    fleet.check()
    for name in dying:
        assert 0 < fleet.found[name]["bytes_sent"] <= SIZE
        assert fleet.found[name]["reused"]["kept"]["files"] or fleet.found[name]["bytes_resumed"]


def test_a_full_disk_in_the_middle_is_gone_around(fleet: Fleet) -> None:
    fleet.stream({"t2": NO_SPACE})
    fleet.check(["t2"], 2)
    assert "File too large; what arrived stays there" in fleet.messages()["t2"]


def test_one_that_hangs_in_the_middle_is_gone_around(fleet: Fleet) -> None:
    fleet.stream({"t2": HANGS}, idle=2.0)
    fleet.check(["t2"], 2)
    assert fleet.messages() == {"t2": "t2: nothing came for 2 s; the host or the network hangs"}


PHASES = {
    "building": "staging.Staging.build = lambda *more: os.kill(os.getpid(), 9)",
    "listening": "conversation.Listening.__init__ = lambda *more: os.kill(os.getpid(), 9)",
    "connecting": "sinks.Sinks.connect = lambda *more: os.kill(os.getpid(), 9)",
    "repeating": "staging.Staging.repeat = lambda *more: os.kill(os.getpid(), 9)",
    "proving": "target.Target.commit = lambda *more: os.kill(os.getpid(), 9)",
    "having passed on": "sinks.Sinks.finish = lambda self: os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("code", PHASES.values(), ids=PHASES.keys())
def test_one_that_dies_while(fleet: Fleet, code: str, request: pytest.FixtureRequest) -> None:
    fleet.stream({"t2": code}, rate=0)
    others = [name for name in NAMES if name != "t2"]
    assert fleet.messages() == {"t2": f"t2: {ENDED}"}
    if "having passed on" in request.node.name:  # its own release was there already
        others = list(NAMES)
    for name in others:
        assert content(release_of(fleet._tmp_path, name)) == content(fleet._src)


# Lines of a target that cuts the connection that it is fed over, ``times`` times.
CUTS = """
take, taken, fed = receiver.Receiver._take, [], []
def cutting(self, data, zeros):
    taken.append(1)
    if fed and len(taken) > 6:
        fed.pop()._connections[0].cut()
    take(self, data, zeros)
receiver.Receiver._take = cutting
accepted, count = conversation.Listening.peer, []
def accepting(self):
    peer = accepted(self)
    count.append(1)
    if len(count) <= {times}:
        fed.append(peer)
        taken.clear()
    return peer
conversation.Listening.peer = accepting
"""


def test_a_connection_that_breaks_once_is_made_again(fleet: Fleet) -> None:
    fleet.stream({"t3": CUTS.format(times=1)})
    fleet.check([], 2)
    assert fleet.tree["chains"] == [list(NAMES)]
    (notice,) = fleet.found["t3"]["notices"]
    assert notice.startswith("t3: content from t2 stopped (")
    assert [fleet.found[name]["notices"] for name in ("t1", "t2", "t4")] == [[], [], []]


def test_a_connection_that_breaks_again_and_again_is_given_up_and_another_one_taken(fleet: Fleet) -> None:
    fleet.stream({"t3": CUTS.format(times=2)})
    fleet.check([], 3)
    assert fleet.tree["chains"] == [["t1", "t2"], ["t3", "t4"]]
    assert fleet.found["t3"]["fed_by"] == "source"


def test_when_no_direct_connection_holds_the_relay_is_left(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chains, "DIRECT_FROM", 1)
    fleet.stream({"t1": CUTS.format(times=9)}, "auto")
    fleet.check([], 3)
    assert fleet.found["t1"]["fed_by"] == "relay"
    assert "t1: source cannot feed it directly: " in fleet.found["t1"]["notices"][-1]


def test_a_target_that_nobody_can_feed_any_more_fails_and_the_others_go_on(fleet: Fleet) -> None:
    fleet.stream({"t1": CUTS.format(times=9)}, "direct")
    fleet.check(["t1"], 3)
    assert fleet.messages()["t1"].startswith("t1: source cannot feed it directly: ")
    assert fleet.messages()["t1"].endswith("or use path auto or relay")


def test_a_source_that_fails_ends_the_stream_and_is_named(src: Path, fleet: Fleet, tmp_path: Path) -> None:
    changes = "opened = sender.open_scanned\ndef fail(root, entry):\n    if entry.path == b'lib/03':\n        os.truncate(root + b'/' + entry.path, 5)\n    return opened(root, entry)\nsender.open_scanned = fail\n"
    with pytest.raises(Exception, match="^source: .*lib/03 changed while it was read"):
        fleet.stream({}, source=changes)
    for name in NAMES:
        assert releases(tmp_path / name / "venv") == []
        assert not (tmp_path / name / "venv.lock").exists()


# slow ones

SLOW = "take = receiver.Receiver._take\ndef slow(self, data, zeros):\n    time.sleep(0.25)\n    take(self, data, zeros)\nreceiver.Receiver._take = slow\n"
OFTEN = "progress.INTERVAL_S = 0.1\n"


@pytest.mark.parametrize(
    ("name", "topology", "path"),
    [("t3", "chain", "direct"), ("t1", "chain", "relay"), ("t2", "star", "relay"), ("t2", "star", "direct")],
)
def test_a_slow_one_is_set_aside_and_fed_after_the_others(
    src: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, name: str, topology: str, path: str
) -> None:
    monkeypatch.setattr(_slow, "WINDOW_S", 1.0)
    monkeypatch.setattr(_slow, "IDLE_PROCESSORS", -1.0)  # other tests may keep this machine busy
    for number in range(3):
        (src / f"more-{number}").write_bytes(os.urandom(20 * MIB))
    codes = {one: OFTEN + (SLOW if one == name else "") for one in NAMES}
    fleet.stream(codes, path, OFTEN, topology=topology, rate=0)
    fleet.check([], fleet.tree["rounds"])
    assert 3 <= fleet.tree["rounds"] <= 4  # the fourth where the head was in doubt first
    assert fleet.tree["set_aside"] == [name]
    assert sorted(host for chain in fleet.tree["chains"] for host in chain) == sorted(set(NAMES) - {name})
    assert fleet.found[name]["topology"] == "star"
    (notice,) = fleet.found[name]["notices"]
    assert notice.startswith(f"{name}: it took ")
    assert notice.endswith("so they went on without it, and it was fed by itself afterwards")
