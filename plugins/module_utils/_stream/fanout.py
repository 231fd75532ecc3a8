# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fan-out: one sender's frames to several receivers, none of which can hold up the others once it has failed."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import Callable, Iterable, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Buffer

QUEUED_FRAMES = 16  # of at most about 1 MiB, for each receiver; they share the frames that all of them still wait for
WAIT_S = 0.2
RATE_BYTES = 16 << 20

OutFrame = Tuple[int, Buffer]


class Outlet:
    """What waits to be sent to one receiver. One thread puts, another drains.

    ``blocked`` counts the seconds for which the one who puts had to wait, ``taken`` the bytes of content that were sent.
    """

    def __init__(self) -> None:
        self.failed = False
        self.blocked = 0.0
        self.taken = Rate()
        self._frames: queue.Queue[Optional[OutFrame]] = queue.Queue(QUEUED_FRAMES)

    def put(self, frame: Optional[OutFrame]) -> None:
        """Queue a frame, None as the last; waits while the receiver is slower than the sender, but never for a failed one."""
        while not self.failed:
            since = time.monotonic()
            try:
                self._frames.put(frame, timeout=WAIT_S)
                return
            except queue.Full:
                continue
            finally:
                self.blocked += time.monotonic() - since

    def drain(self, send: Callable[[int, Buffer], None]) -> None:
        """Send what is put until the last frame; when that fails, nothing is waited for any more, and the failure is raised."""
        try:
            while True:
                frame = self._frames.get()
                if frame is None:
                    return
                send(*frame)
                self.taken.add(len(frame[1]))
        except BaseException:
            self.failed = True
            raise

    def fail(self) -> None:
        """Drop what is queued and end the draining thread."""
        self.failed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._frames.get_nowait()
        self._frames.put(None)


def fan_out(frame: OutFrame, outlets: Iterable[Outlet]) -> None:
    """Queue one frame for several receivers."""
    for outlet in outlets:
        outlet.put(frame)


class Rate:
    """How many bytes passed, and the most in a second that any 16 MiB of them did. One thread adds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.best = 0.0
        self._mark = (0, 0.0)

    def add(self, size: int) -> None:
        if not self.bytes:
            self._mark = (size, time.monotonic())
        self.bytes += size
        since, began = self._mark
        if self.bytes - since >= RATE_BYTES:
            now = time.monotonic()
            self.best = max(self.best, (self.bytes - since) / max(now - began, 1e-6))
            self._mark = (self.bytes, now)
