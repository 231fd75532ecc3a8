# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams between hosts that see each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Iterator, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _chains
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import bundle
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
    recorded,
    request,
    run,
    target,
    verdicts,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forget_hashes")]

SIZE = 12 * MIB + 1


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    src = tmp_path / "src"
    (src / "lib").mkdir(parents=True)
    (src / "large").write_bytes(os.urandom(9 * MIB))
    for number in range(12):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(MIB // 4))
    (src / "x").write_text("x")
    return src


@pytest.fixture(name="taken")
def taken_fixture() -> Iterator[Tuple[int, int]]:
    """A range of one port, which somebody listens on."""
    with socket.create_server(("", 0)) as sock:
        yield (sock.getsockname()[1],) * 2


def arrived(tmp_path: Path, name: str) -> Any:
    """The files of the newest release of a host."""
    store = tmp_path / name / "venv.releases"
    newest = max(releases(tmp_path / name / "venv"), key=lambda release: (store / release).stat().st_ctime_ns)
    return content(store / newest)


def test_content_goes_from_host_to_host(tmp_path: Path, src: Path) -> None:
    """Both are this machine, so the loopback address is offered, which neither names itself."""
    targets = [target(here("t1", below(tmp_path / "t1", NO_ADDRESS)))]
    run(request(src, "/venv", path="direct"), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["msg"], verdict["path"], verdict["notices"]) == ("", "direct", [])
    assert (verdict["files_sent"], verdict["bytes_sent"]) == (14, SIZE)
    assert arrived(tmp_path, "t1") == content(src)


def test_what_went_directly_is_counted_with_what_the_relay_said(tmp_path: Path, src: Path) -> None:
    targets = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    addresses = {"t1": "127.0.0.1"}
    run(request(src, "/venv", path="direct", addresses=addresses, compress="none", streams=1), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["msg"], verdict["path"]) == ("", "direct")
    told = (tmp_path / "sent").stat().st_size - len(bundle())
    assert told < MIB // 8
    blocks = -(-SIZE // MIB)
    assert verdict["wire_bytes"] - told - SIZE - blocks * 10 in range(300)  # the group and the end


ERRORS = """
report = agent._report
def log(channel, message):
    with open({file!r}, "a") as file:
        file.write(message)
    report(channel, message)
agent._report = log
"""


@pytest.mark.parametrize("streams", [0, 1, 3])
def test_three_targets_are_fed_directly_at_once(tmp_path: Path, src: Path, streams: int) -> None:
    for name, path in (("t2", "large"), ("t3", "lib/00")):
        seed = tmp_path / name / "venv"
        seed.mkdir(parents=True)
        (seed / "had").write_bytes((src / path).read_bytes())
    log = tmp_path / "log"
    code = ERRORS.format(file=str(tmp_path / "errors"))
    targets = [target(here(name, below(tmp_path / name, code))) for name in ("t1", "t2", "t3")]
    source = here("source", altered(LOGS_READS.format(file=str(log))))
    run(request(src, "/venv", path="direct", streams=streams), targets, source)
    found = verdicts(targets)
    assert {name: (one["msg"], one["path"]) for name, one in found.items()} == dict.fromkeys(found, ("", "direct"))
    assert {name: one["files_sent"] for name, one in found.items()} == {"t1": 14, "t2": 13, "t3": 13}
    for name in found:
        assert arrived(tmp_path, name) == content(src)
    assert sorted(log.read_text().split()) == sorted(content(src))
    assert not (tmp_path / "errors").exists()  # of an agent that is told something it does not expect


def test_a_target_that_dies_leaves_the_other_its_stream(tmp_path: Path, src: Path) -> None:
    dying = DIES_AFTER.format(blocks=3)
    targets = [target(here("t1", below(tmp_path / "t1", dying))), *hosts(tmp_path, "t2")]
    run(request(src, "/venv", path="direct"), targets)
    found = verdicts(targets)
    assert found["t1"]["msg"] == "t1: the connection ended before the work was done"
    assert found["t2"]["msg"] == ""
    assert arrived(tmp_path, "t2") == content(src)
    assert releases(tmp_path / "t1" / "venv") == []


def test_when_all_targets_died_no_more_is_read(tmp_path: Path, src: Path) -> None:
    log = tmp_path / "log"
    targets = hosts(tmp_path, "t1", code=DIES_AFTER.format(blocks=1))
    source = here("source", altered(LOGS_READS.format(file=str(log))))
    run(request(src, "/venv", path="direct", rate=4 * MIB, compress="none"), targets, source)
    assert targets[0].verdict.msg == "t1: the connection ended before the work was done"
    assert "x" not in log.read_text().split()


def test_a_target_whose_ports_are_taken_gets_its_content_through_the_relay(
    tmp_path: Path, src: Path, taken: Tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chains, "DIRECT_FROM", 1)
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", path="auto", ports=taken), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["msg"], verdict["path"]) == ("", "relay")
    (notice,) = verdict["notices"]
    assert notice.startswith(f"t1: it cannot be connected to directly: no port of {taken[0]}-{taken[0]} can be used")
    assert notice.endswith("; its content goes through the control node")
    assert arrived(tmp_path, "t1") == content(src)


def test_a_target_whose_ports_are_taken_is_told_what_to_do(tmp_path: Path, src: Path, taken: Tuple[int, int]) -> None:
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", path="direct", ports=taken), targets)
    message = targets[0].verdict.msg
    assert message.startswith(f"t1: it cannot be connected to directly: no port of {taken[0]}-{taken[0]} can be used")
    assert message.endswith("; open the ports to the source, set direct_ports, or use path auto or relay")
    assert releases(tmp_path / "t1" / "venv") == []


def test_a_target_listens_where_the_firewall_lets_it(tmp_path: Path, src: Path) -> None:
    with socket.create_server(("", 0)) as sock:
        port = sock.getsockname()[1]
    log = "make_listener = conversation.Listening.__init__\ndef log(self, message):\n    make_listener(self, message)\n"
    log += f"    open({str(tmp_path / 'port')!r}, 'w').write(str(self.port))\nconversation.Listening.__init__ = log\n"
    targets = hosts(tmp_path, "t1", code=log)
    run(request(src, "/venv", path="direct", ports=(port, port)), targets)
    assert (targets[0].verdict.msg, targets[0].verdict.path) == ("", "direct")
    assert (tmp_path / "port").read_text() == str(port)


def test_one_goes_directly_and_one_through_the_relay(
    tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The direct one alone wants something, too: all that it gets must come in order."""
    monkeypatch.setattr(_chains, "DIRECT_FROM", 1)
    (tmp_path / "far" / "venv").mkdir(parents=True)
    (tmp_path / "far" / "venv" / "had").write_bytes((src / "large").read_bytes())
    slow = "take = receiver.Receiver._take\ndef slow(self, data, zeros):\n    time.sleep(0.05)\n    take(self, data, zeros)\nreceiver.Receiver._take = slow\n"
    far = target(elsewhere("far", below(tmp_path / "far", NO_ADDRESS)))
    targets = [*hosts(tmp_path, "near", code=slow), far]
    run(request(src, "/venv", path="auto", topology="star"), targets)
    found = verdicts(targets)
    assert {name: (one["msg"], one["path"]) for name, one in found.items()} == {
        "near": ("", "direct"),
        "far": ("", "relay"),
    }
    (notice,) = found["far"]["notices"]
    assert notice == (
        "far: source cannot connect to it directly: the other host cannot be reached directly: it has no address; "
        "its content goes through the control node"
    )
    assert (found["near"]["files_sent"], found["far"]["files_sent"]) == (14, 13)
    for name in found:
        assert arrived(tmp_path, name) == content(src)


def test_only_what_the_relay_is_told_leads_to_a_host_without_an_address(tmp_path: Path, src: Path) -> None:
    for addresses in ({}, {"t1": "127.0.0.1"}):
        targets = [target(elsewhere("t1", below(tmp_path / "t1", NO_ADDRESS)))]
        run(request(src, "/venv", path="direct", addresses=addresses), targets)
        assert targets[0].verdict.failed is not bool(addresses)
    assert (targets[0].verdict.msg, targets[0].verdict.path) == ("", "direct")


def test_an_address_that_leads_nowhere_is_named_and_no_other_is_tried(tmp_path: Path, src: Path) -> None:
    targets = [target(elsewhere("t1", below(tmp_path / "t1")))]
    run(request(src, "/venv", path="direct", addresses={"t1": "255.255.255.255"}), targets)
    message = targets[0].verdict.msg
    assert message.startswith("t1: source cannot connect to it directly: ")
    assert "255.255.255.255 port " in message
    assert message.count(" port ") == 1


@pytest.mark.parametrize(("least", "way"), [(SIZE, "direct"), (SIZE + 1, "relay")])
def test_little_is_not_worth_a_connection(
    tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch, least: int, way: str
) -> None:
    assert _chains.DIRECT_FROM >= 16 * MIB
    monkeypatch.setattr(_chains, "DIRECT_FROM", least)
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", path="auto"), targets)
    assert (targets[0].verdict.msg, targets[0].verdict.path, targets[0].verdict.notices) == ("", way, [])


def test_a_large_file_goes_on_directly(tmp_path: Path, src: Path) -> None:
    (src / "large").write_bytes(os.urandom(20 * MIB))
    run(request(src, "/venv", path="direct"), hosts(tmp_path, "t1", code=DIES_AFTER.format(blocks=16)))
    size = (tmp_path / "t1" / "venv.releases" / "staging" / "tree" / "large").stat().st_size
    assert size > 8 * MIB
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", path="direct"), targets)
    assert (targets[0].verdict.msg, targets[0].verdict.bytes_resumed) == ("", size)
    assert arrived(tmp_path, "t1") == content(src)


def test_the_rate_is_that_of_all_connections_together(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv", path="direct", rate=12 * MIB, compress="none"), targets)
    assert [one.verdict.msg for one in targets] == ["", ""]
    assert tree["source_seconds"]["send"] >= 2 * SIZE / (12 * MIB) - 0.2


HANGS = "receiver.Receiver._take = lambda self, data, zeros: time.sleep(60)\n"


def test_a_target_that_hangs_is_given_up_by_name(tmp_path: Path, src: Path) -> None:
    targets = [*hosts(tmp_path, "t1", code=HANGS), *hosts(tmp_path, "t2")]
    run(request(src, "/venv", path="direct", idle=2.0), targets)
    assert targets[0].verdict.msg == "t1: nothing came for 2 s; the host or the network hangs"
    assert targets[1].verdict.msg == ""


def test_a_target_that_has_to_wait_for_its_turn_is_not_given_up(tmp_path: Path, src: Path) -> None:
    (src / "zz").write_text("for both")
    often = "progress.HEARTBEAT_S = progress.INTERVAL_S = 0.2\n"
    (tmp_path / "t2" / "venv" / "lib").mkdir(parents=True)
    for path in ("large", *(f"lib/{number:02}" for number in range(12))):
        (tmp_path / "t2" / "venv" / path).write_bytes((src / path).read_bytes())
    targets = hosts(tmp_path, "t1", "t2", code=often)
    source = here("source", altered(often + "sinks.KEEP_ALIVE_S = 0.2\n"))
    run(request(src, "/venv", path="direct", idle=2.5, rate=3 * MIB, compress="none"), targets, source)
    assert [one.verdict.msg for one in targets] == ["", ""]


WITHOUT_TLS = "import sys\nsys.modules['ssl'] = None\n"


@pytest.mark.parametrize("lacking", ["source", "target"])
@pytest.mark.parametrize("path", ["auto", "direct"])
def test_a_python_without_tls_is_named_and_the_relay_path_works(
    tmp_path: Path, src: Path, path: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chains, "DIRECT_FROM", 1)
    only = target(here("t1", below(tmp_path / "t1", WITHOUT_TLS if lacking == "target" else "")))
    run(request(src, "/venv", path=path), [only], here("source", altered(WITHOUT_TLS if lacking == "source" else "")))
    what = "it cannot be connected to" if lacking == "target" else "source cannot connect to it"
    said = only.verdict.msg if path == "direct" else only.verdict.notices[0]
    assert said.startswith(f"t1: {what} directly: the Python of ")
    assert "has no ssl module, which the direct path needs; " in said
    assert (only.verdict.failed, only.verdict.path) == ((True, "") if path == "direct" else (False, "relay"))
