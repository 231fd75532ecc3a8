# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pace: what a sender learns from the rate at which its blocks leave, and the limit that a user sets on it."""

from __future__ import annotations

import time
from typing import Callable, Dict

LEVELS = (1, 0, 3)  # of zstd, 0 is uncompressed; begins with what costs little wherever it is wrong
WINDOW_BYTES = 48 << 20
TRY_AGAIN = 10  # windows
HOPELESS = 0.6  # of the best rate: not tried again as often
INCOMPRESSIBLE = 0.95
SKIPPED_BLOCKS = 7


class Pace:
    """Chooses how hard to compress by the only thing that counts, content delivered per second.

    The rate of a window depends on link, processors at both ends, everything between, and the content; none of these need be
    known. Each level is tried for one window; then the fastest is used, and now and then another is tried again. A window that
    begins with full buffers of another level tells little, so the first half of each is not counted.
    """

    def __init__(self, mode: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``mode``: ``auto``, ``zstd`` (always level 3) or ``none``."""
        self._clock = clock
        self._levels = {"auto": LEVELS, "zstd": (3,), "none": (0,)}[mode]
        self._rates: Dict[int, float] = {}
        self._tried: Dict[int, int] = {}
        self._windows = 0
        self._level = self._levels[0]
        self._bytes = 0
        self._half = (0, clock())
        self._skip: Dict[int, int] = {}

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

    def left(self, size: int) -> None:
        """Learn that ``size`` bytes of content have left, and choose anew at the end of a window."""
        before = self._bytes
        self._bytes += size
        if before < WINDOW_BYTES // 2 <= self._bytes:
            self._half = (self._bytes, self._clock())
        if self._bytes >= WINDOW_BYTES and len(self._levels) > 1:
            counted, since = self._half
            self._end_window((self._bytes - counted) / max(self._clock() - since, 1e-6))

    def _end_window(self, rate: float) -> None:
        known = self._rates.get(self._level)
        self._rates[self._level] = rate if known is None else (known + rate) / 2
        self._tried[self._level] = self._windows
        self._windows += 1
        self._bytes = 0
        self._level = self._next_level()

    def _next_level(self) -> int:
        for level in self._levels:
            if level not in self._rates:
                return level
        best = max(self._rates, key=lambda level: self._rates[level])
        for level in self._levels:
            patience = TRY_AGAIN if self._rates[level] > HOPELESS * self._rates[best] else 4 * TRY_AGAIN
            if level != best and self._windows - self._tried[level] > patience:
                return level
        return best

    def rates(self) -> Dict[str, int]:
        """Content per second seen with each level, in bytes, for a result."""
        return {f"zstd {level}" if level else "none": int(rate) for level, rate in sorted(self._rates.items())}


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
