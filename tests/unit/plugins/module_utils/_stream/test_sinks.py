# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The receivers of one sender, and a member of a chain, over real connections."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Iterator, List, Sequence, cast

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import sinks as under_test
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.link import Link
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import Direct, Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Receiving
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    Channel,
    Frame,
    PeerError,
    message_frame,
    parse_message,
)
from ansible_collections.ddtree.fleet.tests.unit.agents import EndsAfter
from ansible_collections.ddtree.fleet.tests.unit.direct_ends import SOON, stream

MIB = 1 << 20
MINE, NEXT, LAST = 1, 2, 3
END = message_frame("end")


@contextlib.contextmanager
def connected(*numbers: int) -> Iterator[Any]:
    """Sinks with connections to targets of these numbers, and the other ends."""
    with contextlib.ExitStack() as stack:
        sinks = Sinks(Channel(cast(BinaryIO, io.BytesIO()), cast(BinaryIO, io.BytesIO())))
        ends: List[Receiving] = []
        for number in numbers:
            sending, receiving = stack.enter_context(stream(1))
            sinks._direct[number] = Direct(sending)
            ends.append(receiving)
        stack.callback(sinks.close)
        yield sinks, ends


def group(*takers: int) -> Frame:
    return message_frame("group", runs=[[0, 1]], offsets=[], takers=list(takers))


def block(text: str) -> Frame:
    return BLOCK, text.encode()


def words(frames: Sequence[Frame]) -> List[str]:
    return [
        bytes(payload).decode() if kind == BLOCK else parse_message((kind, payload))["op"] for kind, payload in frames
    ]


def until(reader: Any, last: str) -> List[str]:
    frames: List[Frame] = []
    while not frames or words(frames)[-1] != last:
        frames.append(reader.receive_frame())
    return words(frames)


def test_a_member_keeps_what_is_for_it_and_passes_on_what_is_for_those_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [
        *(group(MINE), block("mine")),
        *(group(LAST), block("last")),
        *(group(MINE, NEXT), block("both")),
        message_frame("wait"),
        *(group(9), block("nobody's")),
        END,
    ]
    with connected(NEXT) as (sinks, (behind,)):
        link = Link(EndsAfter(*frames), sinks, MINE, [NEXT, LAST])
        assert until(link, "end") == ["group", "mine", "group", "both", "wait", "end"]
        sinks.finish()
        assert until(behind, "end") == ["group", "last", "group", "both", "wait", "end"]
        assert sinks.lost() == {}


def test_what_stops_a_head_is_not_passed_on() -> None:
    with connected(NEXT) as (sinks, _ends):
        link = Link(EndsAfter(message_frame("stop")), sinks, MINE, [NEXT])
        assert until(link, "stop") == ["stop"]
        sinks.finish()
        assert sinks._direct[NEXT].stripes.sent == 0


@pytest.mark.parametrize("takers", [None, 3, ["x"], {}])
def test_a_group_that_is_for_nobody_knows_whom_is_refused(takers: Any) -> None:
    with connected(NEXT) as (sinks, _ends):
        link = Link(EndsAfter(message_frame("group", runs=[], offsets=[], takers=takers)), sinks, MINE, [NEXT])
        with pytest.raises(PeerError, match="^the source sent a group in a form that is not understood$"):
            link.receive_frame()


def test_a_member_behind_that_is_gone_does_not_end_the_one_before() -> None:
    with connected(NEXT) as (sinks, (behind,)):
        behind.close()
        blocks = [(BLOCK, bytes(MIB))] * 30
        link = Link(EndsAfter(group(MINE, NEXT), *blocks, END), sinks, MINE, [NEXT])
        assert len(until(link, "end")) == 32
        sinks.finish()
        assert list(sinks.lost()) == [str(NEXT)]
        report = link.report()
    assert report["lost"] == {str(NEXT): "the connection ended before the work was done"}
    assert report["came"] > 0


def test_who_has_to_wait_for_a_receiver_counts_for_how_long_and_stop_sets_it_free() -> None:
    with connected(NEXT) as (sinks, _ends), ThreadPoolExecutor(1) as pool:
        filled = threading.Event()

        def fill() -> None:
            for number in range(200):
                sinks.pass_on([NEXT], BLOCK, bytes(MIB))
                if number == 10:
                    filled.set()

        filling = pool.submit(fill)
        assert filled.wait(SOON)
        deadline = time.monotonic() + SOON
        while sinks.report()["links"][str(NEXT)][0] < 0.3 and time.monotonic() < deadline:
            time.sleep(0.01)
        waited, taken, _best = sinks.report()["links"][str(NEXT)]
        assert waited >= 0.3
        assert taken < 100 * MIB
        assert sinks.any_left([NEXT])
        sinks.stop()
        filling.result(SOON)
        assert not sinks.any_left([NEXT])
        sinks.finish()
        assert sinks.lost() == {}  # it was this end's wish
        sinks.begin()
        assert sinks.any_left([0])


def test_a_receiver_that_only_others_are_sent_to_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "KEEP_ALIVE_S", 0.0)
    with connected(NEXT, LAST) as (sinks, (behind, other)):
        sinks.send([NEXT], *block("x"))
        sinks.end()
        assert until(behind, "end") == ["x", "end"]
        assert until(other, "end") == ["wait", "end"]


def test_what_was_sent_is_counted_when_all_is_closed() -> None:
    with connected(NEXT, LAST) as (sinks, (behind, other)):
        sinks.send([NEXT, LAST], BLOCK, bytes(1000))
        sinks.end()
        sinks.close()
        assert sinks.sent == 2 * (1000 + 5 + 5 + len(END[1]))
        for end in (behind, other):
            assert len(end.receive_frame()[1]) == 1000
