# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is taken for slow, by the words of senders and a clock of the test's own."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils._chains import Chain
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._slow import MIB, WINDOW_S, Slow, Watch
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target

SIZE = 100_000 * MIB


def target(number: int) -> Target:
    made = Target(Endpoint(f"t{number}", ["true"], 10), "python3")
    made.number, made.verdict.bytes_sent = number, SIZE
    return made


class Stream:
    """Some chains, of which every second of ``run`` tells."""

    def __init__(self, *chains: List[int], direct: bool = True) -> None:
        self.targets = {number: target(number) for chain in chains for number in chain}
        self.chains = [Chain([self.targets[number] for number in chain], direct) for chain in chains]
        self.now = 0.0
        self.watch = Watch(self.chains, lambda: self.now)
        self.waited = dict.fromkeys(self.targets, 0.0)
        self.idle = 0.0

    def run(
        self,
        seconds: float,
        waits: Dict[int, float],
        rate: int = MIB,
        idles: float = 1.0,
        best: Optional[Dict[int, int]] = None,
        came: int = 0,
    ) -> Optional[Slow]:
        """Let time pass in which ``waits`` says for how much of each second each target was waited for."""
        for _second in range(int(seconds)):
            self.now += 1
            self.idle += idles
            for number, one in self.targets.items():
                one.arrived += rate
                self.waited[number] += waits.get(number, 0.0)
                most = float((best or {}).get(number, 0))
                self.watch.heard(one, self.waited[number], one.arrived, most, float(came), self.idle)
        return self.watch.slow()


def test_a_member_is_slow_that_takes_less_than_half_of_what_came_to_the_one_before() -> None:
    stream = Stream([1, 2, 3])
    assert stream.run(WINDOW_S, {1: 1.0, 2: 0.9}, came=2 * MIB) is None  # there is no whole window yet
    found = stream.run(1, {1: 1.0, 2: 0.9}, came=2 * MIB)
    assert found == Slow(stream.targets[2], True, MIB, 2 * MIB)
    assert found.notice() == (
        "t2: it took 1.0 MiB/s where others could be given 2, so they went on without it, and it was fed by itself afterwards"
    )


EQUAL: Dict[str, Dict[str, Any]] = {
    "all links are equal": {"waits": {1: 1.0, 2: 1.0, 3: 0.2}, "came": int(1.1 * MIB)},
    "it was waited for less than half of the time": {"waits": {2: 0.5}, "came": 9 * MIB},
    "the sender's processors are busy": {"waits": {2: 1.0}, "came": 9 * MIB, "idles": 0.4},
    "nothing is known of what could be": {"waits": {2: 1.0}},
    "more came in the window than is left": {"waits": {2: 1.0}, "came": 99999 * MIB, "rate": 2500 * MIB},
}


@pytest.mark.parametrize("case", EQUAL.values(), ids=EQUAL.keys())
def test_nobody_is_slow_where(case: Dict[str, Any]) -> None:
    assert Stream([1, 2, 3]).run(25, **case) is None


def test_nobody_is_blamed_as_long_as_nothing_is_known_of_the_next_one() -> None:
    stream = Stream([1, 2, 3])
    heard = stream.watch.heard
    stream.watch.heard = lambda one, *more, **words: None if one.number == 3 else heard(one, *more, **words)  # type: ignore[method-assign]
    assert stream.run(25, {2: 1.0}, came=9 * MIB) is None


def test_who_only_waits_for_the_next_one_is_not_blamed() -> None:
    stream = Stream([1, 2, 3, 4])
    found = stream.run(25, {1: 1.0, 2: 1.0, 3: 1.0, 4: 0.1}, came=9 * MIB)
    assert found and found.target is stream.targets[3]


def test_it_is_the_last_seconds_that_count() -> None:
    stream = Stream([1, 2])
    assert stream.run(60, {2: 0.1}, rate=9 * MIB, came=9 * MIB) is None
    assert stream.run(10, {2: 1.0}, came=9 * MIB) is None  # that makes more than half of what once came
    found = stream.run(5, {2: 1.0}, came=9 * MIB)
    assert found and found.proved


def test_of_the_head_of_a_single_chain_nobody_knows() -> None:
    stream = Stream([1, 2, 3])
    assert stream.run(25, {1: 0.9, 2: 0.3}, best={1: 9 * MIB}) == Slow(stream.targets[1], False)


@pytest.mark.parametrize("direct", [True, False])
def test_heads_are_judged_by_each_other(direct: bool) -> None:
    stream = Stream([1], [2], [3], direct=direct)
    assert stream.run(25, {2: 0.9}, best={1: int(1.5 * MIB), 2: 9 * MIB, 3: MIB}) is None
    found = stream.run(1, {2: 0.9}, best={1: MIB, 2: MIB, 3: 2 * MIB})
    assert found == Slow(stream.targets[2], True, MIB, 2 * MIB)


def test_a_head_of_another_sender_says_nothing() -> None:
    stream = Stream([1], [2])
    stream.chains[1].direct = False
    assert stream.run(25, {1: 0.9}, best={2: 99 * MIB}) is None


def test_the_last_one_that_is_left_is_never_slow() -> None:
    stream = Stream([1, 2])
    stream.targets[1].done = True
    assert stream.run(25, {2: 1.0}, came=9 * MIB) is None
