# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import time
from typing import Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import pace
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import Pace, RateLimit

MIB = 1 << 20
WINDOW = pace.WINDOW_BYTES // MIB  # in blocks of 1 MiB


class World:
    """A link that delivers content with each level at a rate (MiB/s) that a test sets, and the clock that goes with it."""

    def __init__(self, rates: Dict[int, float], mode: str = "auto") -> None:
        self.rates = rates
        self.now = 0.0
        self.pace = Pace(mode, lambda: self.now)

    def send(self, blocks: int) -> List[int]:
        """Send blocks of 1 MiB; gives the level of each."""
        levels = []
        for _ in range(blocks):
            level = self.pace.level(0)
            self.now += 1 / self.rates[level]
            self.pace.packed(0, MIB, MIB // 3)
            self.pace.left(MIB)
            levels.append(level)
        return levels


def share(levels: List[int], level: int) -> float:
    return levels.count(level) / len(levels)


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({0: 1000.0, 1: 400.0, 3: 200.0}, 0),  # a fast link
        ({0: 100.0, 1: 300.0, 3: 200.0}, 1),  # a link of one gigabit
        ({0: 10.0, 1: 30.0, 3: 35.0}, 3),  # a slow one
    ],
)
def test_after_one_window_each_the_fastest_level_is_used(rates: Dict[int, float], best: int) -> None:
    world = World(rates)
    levels = world.send(3 * WINDOW)
    assert {levels[start] for start in (0, WINDOW, 2 * WINDOW)} == {0, 1, 3}
    assert share(world.send(60 * WINDOW), best) > 0.85


def test_a_change_of_the_link_is_noticed() -> None:
    world = World({0: 1000.0, 1: 700.0, 3: 650.0})
    assert share(world.send(10 * WINDOW)[3 * WINDOW :], 0) == 1.0
    world.rates = {0: 50.0, 1: 150.0, 3: 140.0}
    world.send(30 * WINDOW)
    assert share(world.send(20 * WINDOW), 0) < 0.2


def test_a_level_that_is_far_slower_is_hardly_ever_tried_again() -> None:
    world = World({0: 1000.0, 1: 900.0, 3: 100.0})
    world.send(3 * WINDOW)
    levels = world.send(39 * WINDOW)
    assert levels.count(3) == 0
    assert levels.count(1) >= 2 * WINDOW
    assert world.send(60 * WINDOW).count(3) > 0


def test_the_first_half_of_a_window_does_not_count() -> None:
    """In it, buffers that were filled with another level run empty."""
    world = World({0: 100.0, 1: 100.0, 3: 100.0})
    world.rates[1] = 1.0
    world.send(WINDOW // 2)
    world.rates[1] = 200.0
    world.send(WINDOW // 2)
    assert world.pace.rates() == {"zstd 1": pytest.approx(200 * MIB, rel=0.01)}


def test_rates_are_told_by_level() -> None:
    world = World({0: 100.0, 1: 300.0, 3: 200.0})
    world.send(3 * WINDOW)
    assert world.pace.rates() == {
        "none": pytest.approx(100 * MIB, rel=0.01),
        "zstd 1": pytest.approx(300 * MIB, rel=0.01),
        "zstd 3": pytest.approx(200 * MIB, rel=0.01),
    }


@pytest.mark.parametrize(("mode", "level"), [("zstd", 3), ("none", 0)])
def test_what_a_user_asked_for_is_used_always(mode: str, level: int) -> None:
    world = World({0: 1000.0, 3: 1.0}, mode)
    assert set(world.send(10 * WINDOW)) == {level}
    world = World({0: 1.0, 3: 1000.0}, mode)
    assert set(world.send(10 * WINDOW)) == {level}


def test_a_file_that_does_not_compress_is_left_alone_for_a_while_and_others_are_not() -> None:
    chosen = Pace("zstd")
    chosen.packed(7, MIB, MIB)
    assert chosen.level(8) == 3
    assert [chosen.level(7) for _ in range(pace.SKIPPED_BLOCKS + 1)] == [0] * pace.SKIPPED_BLOCKS + [3]
    chosen.packed(7, MIB, MIB // 2)
    assert chosen.level(7) == 3


def test_a_rate_holds_on_average_with_short_bursts() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    limit = RateLimit(1000, lambda: now[0], sleep)
    for _ in range(50):
        limit.spend(100)
    assert now[0] == pytest.approx(5.0, abs=0.11)
    now[0] += 60  # a pause saves nothing up
    before = now[0]
    for _ in range(50):
        limit.spend(100)
    assert now[0] - before >= 4.89
    assert min(slept) > 0


def test_without_a_rate_nothing_is_waited_for() -> None:
    limit = RateLimit(0, sleep=lambda seconds: pytest.fail("waited"))
    for _ in range(1000):
        limit.spend(1 << 30)


def test_a_rate_is_kept_by_the_real_clock() -> None:
    started = time.monotonic()
    limit = RateLimit(10 * MIB)
    for _ in range(5):
        limit.spend(MIB)
    assert 0.35 < time.monotonic() - started < 2
