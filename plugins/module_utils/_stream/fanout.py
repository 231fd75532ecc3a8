# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fan-out: one sender's frames to several receivers, none of which can hold up the others once it has failed."""

from __future__ import annotations

import contextlib
import queue
from typing import Callable, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Buffer

QUEUED_FRAMES = 16  # of at most about 1 MiB, for each receiver; they share the frames that all of them still wait for

OutFrame = Tuple[int, Buffer]


class Outlet:
    """What waits to be sent to one receiver. One thread puts, another drains."""

    def __init__(self) -> None:
        self.failed = False
        self._frames: queue.Queue[Optional[OutFrame]] = queue.Queue(QUEUED_FRAMES)

    def put(self, frame: Optional[OutFrame]) -> None:
        """Queue a frame, None as the last; waits while the receiver is slower than the sender, but never for a failed one."""
        while not self.failed:
            with contextlib.suppress(queue.Full):
                self._frames.put(frame, timeout=0.2)
                return

    def drain(self, send: Callable[[int, Buffer], None]) -> None:
        """Send what is put until the last frame; when that fails, nothing is waited for any more, and the failure is raised."""
        try:
            while True:
                frame = self._frames.get()
                if frame is None:
                    return
                send(*frame)
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
