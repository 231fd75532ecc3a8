# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Callable, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import (
    LEVELS,
    SKIPPED_BLOCKS,
    TRY_AGAIN,
    WINDOW_BYTES,
    Pace,
    RateLimit,
)

MIB = 1 << 20
Rates = Callable[[int], float]  # bytes per second by level


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def windows(pace: Pace, clock: Clock, count: int, rates: Rates) -> List[int]:
    """Send so many windows in blocks of 1 MiB; gives the level of each."""
    used = []
    for _number in range(count):
        used.append(pace.level(0))
        for _block in range(WINDOW_BYTES // MIB):
            clock.now += MIB / rates(pace.level(0))
            pace.left(MIB)
    return used


@pytest.mark.parametrize("best", LEVELS)
def test_the_level_that_delivers_most_is_found_and_kept(best: int) -> None:
    clock = Clock()
    pace = Pace("auto", clock)

    def rates(level: int) -> float:
        return 300e6 if level == best else 200e6

    used = windows(pace, clock, TRY_AGAIN, rates)
    assert used[:3] == list(LEVELS)
    assert set(used[3:]) == {best}
    seen = {"none" if level == 0 else f"zstd {level}": int(rates(level)) for level in LEVELS}
    assert pace.rates() == pytest.approx(seen, rel=1e-3)


def test_another_level_is_tried_again_so_that_a_change_of_the_link_is_seen() -> None:
    clock = Clock()
    pace = Pace("auto", clock)
    assert windows(pace, clock, 8, lambda level: {0: 300e6, 1: 250e6, 3: 20e6}[level])[-1] == 0
    later = windows(pace, clock, 3 * TRY_AGAIN, lambda level: {0: 10e6, 1: 40e6, 3: 20e6}[level])
    assert later[-5:] == [1] * 5
    assert 0 in later


def test_what_was_hopeless_is_tried_seldom() -> None:
    clock = Clock()
    pace = Pace("auto", clock)
    used = windows(pace, clock, 3 + 8 * TRY_AGAIN, lambda level: {0: 300e6, 1: 290e6, 3: 20e6}[level])[3:]
    assert 1 <= used.count(3) <= 2
    assert used.count(1) >= 4
    assert used.count(0) >= 7 * TRY_AGAIN


def test_the_first_half_of_a_window_does_not_count() -> None:
    """Blocks of the level before are still on their way then."""
    clock = Clock()
    pace = Pace("auto", clock)
    for number in range(WINDOW_BYTES // MIB):
        clock.now += MIB / (1e6 if number < WINDOW_BYTES // MIB // 2 else 100e6)
        pace.left(MIB)
    assert pace.rates() == pytest.approx({"zstd 1": 100e6}, rel=1e-3)


@pytest.mark.parametrize(("mode", "level"), [("zstd", 3), ("none", 0)])
def test_a_level_that_is_set_is_never_left(mode: str, level: int) -> None:
    clock = Clock()
    assert set(windows(Pace(mode, clock), clock, 30, lambda used: 1e6)) == {level}


def test_a_file_that_does_not_compress_is_only_tried_now_and_then() -> None:
    pace = Pace("zstd", Clock())
    levels = []
    for _block in range(3 * (SKIPPED_BLOCKS + 1)):
        levels.append(pace.level(5))
        if levels[-1]:
            pace.packed(5, MIB, MIB - 1)
    assert levels == ([3] + [0] * SKIPPED_BLOCKS) * 3
    pace.packed(5, MIB, MIB)
    assert pace.level(6) == 3
    pace.packed(6, MIB, MIB // 2)
    assert pace.level(6) == 3


def test_a_rate_is_kept_on_average() -> None:
    clock = Clock()
    limit = RateLimit(10 * MIB, clock, clock.sleep)
    for _block in range(100):
        limit.spend(MIB)
    assert clock.now - 1000 == pytest.approx(10, abs=0.2)


def test_time_without_sending_is_no_credit_for_a_burst() -> None:
    clock = Clock()
    limit = RateLimit(10 * MIB, clock, clock.sleep)
    limit.spend(MIB)
    clock.now += 60
    started = clock.now
    for _block in range(20):
        limit.spend(MIB)
    assert clock.now - started >= 1.8


def test_a_sender_that_is_slower_than_the_limit_never_waits() -> None:
    clock = Clock()
    limit = RateLimit(10 * MIB, clock, pytest.fail)
    clock.now += 1
    for _block in range(20):
        limit.spend(MIB)
        clock.now += 0.11


def test_no_limit_never_waits() -> None:
    limit = RateLimit(0, Clock(), pytest.fail)
    for _block in range(100):
        limit.spend(1 << 40)
