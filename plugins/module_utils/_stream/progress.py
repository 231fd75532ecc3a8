# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of one phase, told to the relay at most once a second; it also shows the relay that this end is alive."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Iterator

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel, Message

INTERVAL_S = 1.0
HEARTBEAT_S = 5.0


class Progress:
    """Counts files and bytes of a phase; any thread may add. ``more`` gives what else the relay is told."""

    def __init__(self, channel: Channel, phase: str) -> None:
        self.files = 0
        self.bytes = 0
        self.more: Callable[[], Message] = dict
        self._channel = channel
        self._phase = phase
        self._lock = threading.Lock()
        self._told = time.monotonic()

    def add(self, files: int, size: int = 0) -> None:
        with self._lock:
            self.files += files
            self.bytes += size
            if time.monotonic() - self._told >= INTERVAL_S:
                self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._channel.send("progress", phase=self._phase, files=self.files, bytes=self.bytes, **self.more())

    @contextlib.contextmanager
    def heartbeat(self, alive: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Tell the relay every few seconds, while ``alive``, during what cannot count, such as a sync or a wait for others."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(HEARTBEAT_S):
                with self._lock:
                    if alive():
                        self._tell()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def peak_memory() -> int:
    """The most memory that this process has had at once, in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
