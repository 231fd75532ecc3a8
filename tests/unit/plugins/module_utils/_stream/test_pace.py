# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import time
from typing import List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import pace
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import Pace, RateLimit

MIB = 1 << 20
WINDOW = pace.WINDOW_BYTES // MIB  # in blocks of 1 MiB
HOLD = pace.HOLD_BYTES // MIB
GIGABIT = 112.0


class World:
    """A link of ``link`` MiB/s, processors that each pack ``packs`` MiB/s to a third, and the clock that goes with them.

    ``free`` of the processors idle while content goes uncompressed, None where the host does not tell.
    """

    def __init__(
        self, link: float, packs: float, workers: int = 8, mode: str = "auto", free: Optional[float] = None
    ) -> None:
        self.link = link
        self.packs = packs
        self.kept = 1 / 3
        self.now = 0.0
        self.samples = 0
        self.pace = Pace(mode, workers, lambda: self.now, lambda: None if free is None else self.now * free)
        if mode == "auto":
            assert self.pace.level(0) == 1  # a stream of few bytes is over before anything is known
            self.pace.left(pace.FIRST_BYTES)

    def send(self, blocks: int) -> List[int]:
        """Send blocks of 1 MiB; gives the level of each."""
        return [self._send_block() for _ in range(blocks)]

    def _send_block(self) -> int:
        level = self.pace.level(0)
        packed = int(MIB * self.kept)
        if level:
            self.pace.packed(0, MIB, packed)
        elif self.pace.wants_sample():
            self.samples += 1
            self.pace.sampled(MIB, packed, 1 / self.packs)
        self.now += (self.kept if level else 1) / self.link
        self.pace.left(MIB)
        return level


@pytest.mark.parametrize(
    ("link", "packs", "workers", "level"),
    [
        pytest.param(3000.0, 500.0, 8, 0, id="fast link"),
        pytest.param(GIGABIT, 500.0, 8, 3, id="one gigabit, many processors"),
        pytest.param(GIGABIT, 500.0, 2, 1, id="one gigabit, two processors"),
        pytest.param(10.0, 500.0, 2, 3, id="slow link"),
        pytest.param(GIGABIT, 50.0, 8, 0, id="processors that are busy with something else"),
        pytest.param(GIGABIT, 130.0, 1, 0, id="one processor, hardly faster than the link"),
    ],
)
def test_what_is_faster_on_that_link_with_those_processors_is_chosen(
    link: float, packs: float, workers: int, level: int
) -> None:
    world = World(link, packs, workers)
    assert world.send(WINDOW) == [0] * WINDOW
    assert world.send(HOLD) == [level] * HOLD


@pytest.mark.parametrize(
    ("link", "free", "level"),
    [
        pytest.param(330.0, 0.1, 0, id="the stream itself needs both processors"),
        pytest.param(330.0, 1.0, 1, id="the stream waits for the link, one processor idles"),
        pytest.param(GIGABIT, 1.6, 1, id="both idle most of the time"),
        pytest.param(GIGABIT, 64.0, 3, id="a host with more processors than the stream may use"),
    ],
)
def test_only_processors_that_idle_are_counted_on(link: float, free: float, level: int) -> None:
    world = World(link, 450.0, 2 if free < 2 else 8, free=free)
    world.send(WINDOW)
    assert world.send(1) == [level]
    assert world.pace.rates()["free_percent"] == min(int(free * 100), 800)


def test_this_host_tells_how_long_its_processors_have_idled() -> None:
    idled = pace.idle_seconds()
    assert idled is not None
    assert 0 < idled < time.clock_gettime(time.CLOCK_BOOTTIME) * (os.cpu_count() or 1) * 1.1


def test_content_that_keeps_its_size_goes_as_it_is() -> None:
    world = World(10.0, 500.0)
    world.kept = 1.0
    assert set(world.send(3 * WINDOW)) == {0}


def test_without_samples_nothing_is_compressed() -> None:
    world = Pace("auto", 8, iter(range(10_000)).__next__)
    world.left(pace.FIRST_BYTES)
    for _ in range(3 * WINDOW):
        assert world.level(0) == 0
        world.left(MIB)
    assert world.rates() == {}


def test_only_some_blocks_of_a_window_are_compressed_to_learn_from() -> None:
    world = World(GIGABIT, 500.0)
    world.send(WINDOW)
    assert world.samples == WINDOW // pace.SAMPLE_EVERY
    world.send(HOLD)
    assert world.samples == WINDOW // pace.SAMPLE_EVERY


@pytest.mark.parametrize(("links", "levels"), [((3000.0, 10.0), (0, 3)), ((10.0, 3000.0), (3, 0))])
def test_it_learns_anew_after_a_while_and_notices_that_the_link_is_another(
    links: List[float], levels: List[int]
) -> None:
    world = World(links[0], 500.0)
    assert world.send(WINDOW + HOLD) == [0] * WINDOW + [levels[0]] * HOLD
    world.link = links[1]
    assert world.send(WINDOW + HOLD) == [0] * WINDOW + [levels[1]] * HOLD


def test_the_first_half_of_a_window_does_not_count() -> None:
    """In it, buffers fill: a slow link seems to be fast."""
    world = World(10_000.0, 500.0)
    world.send(WINDOW // 2)
    world.link = 10.0
    world.send(WINDOW // 2)
    assert world.pace.rates()["link"] == pytest.approx(10 * MIB, rel=0.01)
    assert world.pace.level(0) == 3


def test_what_was_learnt_is_told() -> None:
    world = World(GIGABIT, 500.0)
    assert world.pace.rates() == {}
    world.send(WINDOW)
    assert world.pace.rates() == {
        "link": pytest.approx(GIGABIT * MIB, rel=0.01),
        "pack": pytest.approx(500 * MIB, rel=0.01),
        "packed_percent": 33,
        "free_percent": 800,
        "level": 3,
    }


@pytest.mark.parametrize(("mode", "level"), [("zstd", 3), ("none", 0)])
@pytest.mark.parametrize("link", [10.0, 3000.0])
def test_what_a_user_asked_for_is_used_always(mode: str, level: int, link: float) -> None:
    world = World(link, 500.0, mode=mode)
    assert world.send(2 * WINDOW + HOLD) == [level] * (2 * WINDOW + HOLD)
    assert (world.samples, world.pace.rates()) == (0, {})


def test_a_file_that_does_not_compress_is_left_alone_for_a_while_and_others_are_not() -> None:
    chosen = Pace("zstd", 2)
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
