# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which target holds the others up, judged from how long senders had to wait for it.

Waiting for a receiver proves nothing by itself: where all links are equal, every sender waits for its receiver all the time. A
target is slow when the others would be at least twice as fast without it, and that is known: a member of a chain that waits for
it once got content so much faster itself, or other receivers of the same sender once took it so much faster. Of the head of a
single chain nothing is known, so it goes to the end of the chain, where its predecessor will know.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._chains import Chain
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target

WINDOW_S = 20.0  # what is judged
MOST_WAITING = 0.5  # of the window: who is waited for longer holds its sender up
FASTER = 2.0  # times the rate: what the others must have been capable of
IDLE_PROCESSORS = 0.5  # at the sender; where they are busy, it is they that are slow
MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What a sender has seen of a receiver by ``at``, in seconds, bytes taken from it and, of content, bytes that have arrived."""

    at: float
    waited: float
    taken: int
    idle: float
    arrived: int


@dataclass
class Edge:
    """The samples of one receiver within the window, the most that it has ever taken in a second, and the most its sender got."""

    samples: collections.deque[Sample] = field(default_factory=collections.deque)
    best: float = 0.0
    came: float = 0.0

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        while len(self.samples) > 1 and self.samples[1].at <= sample.at - WINDOW_S:
            self.samples.popleft()

    def share(self) -> Optional[float]:
        """How much of the window the sender waited; None before there is a whole one."""
        seconds = self._over("at")
        return self._over("waited") / seconds if seconds >= WINDOW_S else None

    def per_second(self, name: str) -> float:
        return self._over(name) / max(self._over("at"), 1e-6)

    def _over(self, name: str) -> float:
        if not self.samples:
            return 0.0
        return float(getattr(self.samples[-1], name) - getattr(self.samples[0], name))


@dataclass(frozen=True)
class Slow:
    """A target that holds the others up. ``proved``: it took ``rate`` bytes a second where ``could`` were possible."""

    target: Target
    proved: bool
    rate: float = 0.0
    could: float = 0.0

    def notice(self) -> str:
        host = self.target.verdict.host
        return (
            f"{host}: it took {self.rate / MIB:.1f} MiB/s where others could be given {self.could / MIB:.0f}, so they went on "
            "without it, and it was fed by itself afterwards"
        )


class Watch:
    """One round, watched. Not for several threads at once."""

    def __init__(self, chains: list[Chain], clock: Callable[[], float] = time.monotonic) -> None:
        self._chains = chains
        self._clock = clock
        self._edges: dict[int, Edge] = collections.defaultdict(Edge)

    def heard(
        self, target: Target, waited: float, taken: int, best: float = 0.0, came: float = 0.0, idle: float = 0.0
    ) -> None:
        """What the sender of a target says of it: seconds waited and bytes taken so far, the best rates in bytes per second that
        the target took and that the sender itself got, and for how many seconds the sender's processors have idled."""
        edge = self._edges[target.number]
        edge.best, edge.came = best, came
        edge.add(Sample(self._clock(), waited, taken, idle, target.arrived))

    def slow(self) -> Optional[Slow]:
        """The target that holds the others up, if there is one and what is left is worth doing something about it."""
        if sum(target.waits for chain in self._chains for target in chain.members) < 2:
            return None
        for chain in self._chains:
            for place, target in enumerate(chain.members):
                behind = [one for one in chain.members[place + 1 : place + 2] if one.waits]
                at_fault = self._share(target) > MOST_WAITING and all(self._is_quick(one) for one in behind)
                if target.waits and at_fault and self._pays(target):
                    found = self._judge(chain, place, target)
                    if found:
                        return found
        return None

    def _share(self, target: Target) -> float:
        return self._edges[target.number].share() or 0.0

    def _is_quick(self, target: Target) -> bool:
        """Whether it is known that its sender does not wait for it."""
        return self._edges[target.number].share() is not None and self._share(target) <= MOST_WAITING

    def _pays(self, target: Target) -> bool:
        """Whether more is left than came within the window."""
        edge = self._edges[target.number]
        return target.verdict.bytes_sent - target.arrived > edge.per_second("arrived") * WINDOW_S

    def _judge(self, chain: Chain, place: int, target: Target) -> Optional[Slow]:
        edge = self._edges[target.number]
        rate = edge.per_second("taken")
        heads = [
            other.members[0].number for other in self._chains if other is not chain and other.direct == chain.direct
        ]
        could = edge.came if place else max((self._edges[number].best for number in heads), default=0.0)
        if could >= FASTER * rate and edge.per_second("idle") >= IDLE_PROCESSORS:
            return Slow(target, True, rate, could)
        if not place and not heads and len(chain.members) > 1:
            return Slow(target, False)
        return None
