# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A link of a chain: what comes to a target of which some, or all, is for targets after it."""

from __future__ import annotations

from typing import Collection, List, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.fanout import Rate
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.receiver import FrameReader
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    Frame,
    Message,
    PeerError,
    parse_message,
)


class Link:
    """Reads from ``peer``, passes frames on as they are to the sink ``after[0]``, and gives those that are for target ``number``.

    ``after`` are the numbers of the targets behind this one, the next first.
    """

    def __init__(self, peer: FrameReader, sinks: Sinks, number: int, after: List[int]) -> None:
        self._peer = peer
        self._sinks = sinks
        self._number = number
        self._next = after[:1]
        self._after = frozenset(after)
        self._mine = self._theirs = False
        self._came = Rate()

    def receive_frame(self) -> Frame:
        """The next frame for this target. Raises PeerError as ``peer`` does."""
        while True:
            kind, payload = self._peer.receive_frame()
            self._came.add(len(payload))
            if kind == BLOCK:
                mine, theirs = self._mine, self._theirs
            else:
                mine, theirs = self._whose((kind, payload))
            self._sinks.pass_on(self._next if theirs else [], kind, payload)
            if mine:
                return kind, payload

    def report(self) -> Message:
        """What the relay is told of the next target."""
        return {**self._sinks.report(), "came": self._came.best}

    def _whose(self, frame: Frame) -> Tuple[bool, bool]:
        """Whether a message is for this target, and whether it is for those after it."""
        message = parse_message(frame, "group", "wait", "end", "stop")
        if message["op"] == "stop":
            return True, False
        if message["op"] != "group":
            return True, True
        takers: Collection[int] = message.get("takers", ())
        if not isinstance(takers, list) or not all(isinstance(number, int) for number in takers):
            raise PeerError("the source sent a group in a form that is not understood")
        self._mine, self._theirs = self._number in takers, not self._after.isdisjoint(takers)
        return self._mine, self._theirs
