# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pace: how hard to compress, from what link and processors turn out to do, and the limit that a user sets on the rate."""

from __future__ import annotations

import os
import time
from typing import Callable, Dict, List, Optional, Tuple

FIRST_BYTES = 8 << 20  # sent with level 1, since a stream of few bytes is over before anything is known
WINDOW_BYTES = 48 << 20  # sent uncompressed to learn how fast the link is
HOLD_BYTES = 1 << 30  # until that is done again, where content is compressed or nothing has the time for it
HOLD_DENSE_BYTES = 128 << 20  # the same after content that does not compress: what follows it may
SAMPLE_EVERY = 4  # blocks of such a window
PAYS = 1.2  # times the rate of uncompressed content: how fast packing and unpacking must be
UNPACKS = 2.0  # times the rate of level 1: how fast one processor unpacks
LEVEL_3 = 0.55  # times the rate of level 1: how fast level 3 packs
INCOMPRESSIBLE = 0.95
SKIPPED_BLOCKS = 7


class Pace:
    """Chooses a level of zstd, 0 for none.

    After the first few bytes a window is sent uncompressed, and some of its blocks are compressed only to see how long that takes and what is left of
    them. Its second half shows what the link and all that stands behind it take in a second; in the first, buffers fill.
    Compressing pays where packing on the processors that idle meanwhile and unpacking on one would be clearly faster than that, and
    something is gained. On a fast link, or where the processors are busy with the stream as it is, it does not. How much is gained by
    the samples does not count, since content differs from file to file and blocks that do not compress are soon passed over.
    """

    def __init__(
        self,
        mode: str,
        workers: int,
        clock: Callable[[], float] = time.monotonic,
        idle: Optional[Callable[[], Optional[float]]] = None,
    ) -> None:
        """``mode``: ``auto``, ``zstd`` (always level 3) or ``none``; ``workers``: how many blocks are packed at once.

        ``idle`` gives how many seconds all processors together have idled, None where nobody can tell.
        """
        self._auto = mode == "auto"
        self._workers = workers
        self._clock = clock
        self._idle = idle or idle_seconds
        self._level = {"zstd": 3, "auto": 1, "none": 0}[mode]
        self._learning = False
        self._hold = FIRST_BYTES
        self._bytes = 0
        self._half: Tuple[int, float, Optional[float]] = (0, clock(), None)
        self._blocks = 0
        self._samples: List[Tuple[int, int, float]] = []
        self._skip: Dict[int, int] = {}
        self._rates: Dict[str, int] = {}

    def level(self, file: int) -> int:
        """The level for the next block, which begins in file number ``file``; 0 while that file does not compress."""
        if self._level and self._skip.get(file):
            self._skip[file] -= 1
            return 0
        return self._level

    def packed(self, file: int, size: int, packed: int) -> None:
        """Learn what came of compressing a block."""
        if packed > INCOMPRESSIBLE * size:
            self._skip = {file: SKIPPED_BLOCKS}

    def wants_sample(self) -> bool:
        """Whether the next block should be compressed for the sake of knowing, beside being sent as it is."""
        if not self._learning:
            return False
        self._blocks += 1
        return self._blocks % SAMPLE_EVERY == 1

    def sampled(self, size: int, packed: int, seconds: float) -> None:
        """Learn how long compressing a block with level 1 took; any thread may tell."""
        self._samples.append((size, packed, seconds))

    def left(self, size: int) -> None:
        """Learn that ``size`` bytes of content have left."""
        if not self._auto:
            return
        before = self._bytes
        self._bytes += size
        if self._learning:
            if before < WINDOW_BYTES // 2 <= self._bytes:
                self._half = (self._bytes, self._clock(), self._idle())
            if self._bytes >= WINDOW_BYTES:
                counted, since, idled = self._half
                seconds, idle = max(self._clock() - since, 1e-6), self._idle()
                free = self._workers if idle is None or idled is None else min((idle - idled) / seconds, self._workers)
                self._choose((self._bytes - counted) / seconds, free)
        elif self._bytes >= self._hold:
            self._level, self._bytes, self._learning = 0, 0, True

    def _choose(self, rate: float, free: float) -> None:
        """``rate``: bytes per second that left uncompressed; ``free``: how many processors idled meanwhile."""
        samples = list(self._samples)
        seconds = sum(sample[2] for sample in samples)
        if samples and seconds:
            size = sum(sample[0] for sample in samples)
            packs, left = size / seconds, max(sum(sample[1] for sample in samples) / size, 0.01)
            able, gained = min(packs * free, packs * UNPACKS) > PAYS * rate, left < INCOMPRESSIBLE
            self._level = int(able and gained)
            if self._level and packs * free * LEVEL_3 > 2 * rate / left:
                self._level = 3
            self._hold = HOLD_DENSE_BYTES if able and not gained else HOLD_BYTES
            self._rates = {
                "link": int(rate),
                "pack": int(packs),
                "packed_percent": int(100 * left),
                "free_percent": int(100 * free),
                "level": self._level,
            }
        self._samples = []
        self._bytes, self._learning = 0, False

    def rates(self) -> Dict[str, int]:
        """What was learnt last: content that the link takes and one processor packs, in bytes per second; what is left of it, and
        how much of one processor idled, in percent; the level."""
        return self._rates


def idle_seconds() -> Optional[float]:
    """How many seconds all processors of this host together have idled since it started."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class RateLimit:
    """Lets at most ``rate`` bytes a second pass on average (0: any number), with bursts of a tenth of a second."""

    def __init__(
        self, rate: int, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def spend(self, size: int) -> None:
        """Wait until ``size`` more bytes may pass."""
        if not self._rate:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - 0.1) + size / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)
