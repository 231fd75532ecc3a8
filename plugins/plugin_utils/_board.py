# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The board: what the ends of a stream say of their progress, as a line now and then that a terminal and a log can both show."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target

EVERY_S = 5.0
MIB = 1 << 20
DOING = {"hash": "hashes", "local": "hashes what it has", "reuse": "reuses", "bytecode": "compiles", "sync": "syncs"}


class Board:
    """Hears progress of all ends, from any thread, and says one line at most every five seconds."""

    def __init__(self, source: str, say: Callable[[str], None]) -> None:
        self._source = source
        self._say = say
        self._lock = threading.Lock()
        self._said = time.monotonic()
        self._began = time.monotonic()
        self._names = ""
        self._files = 0
        self._bytes = 0

    def begin(self, targets: Sequence[Target]) -> None:
        """Content is about to be sent to these targets."""
        self._began = time.monotonic()
        self._names = ", ".join(target.verdict.host for target in targets)
        wanted = set().union(*(target.want for target in targets))
        self._files = len(wanted)
        self._bytes = max(target.verdict.bytes_sent for target in targets)

    def heard(self, host: str, progress: dict[str, Any]) -> None:
        """One end has come so far with one phase."""
        with self._lock:
            if time.monotonic() - self._said >= EVERY_S:
                line = self._line(host, progress)
                if line:
                    self._said = time.monotonic()
                    self._say(line)

    def _line(self, host: str, progress: dict[str, Any]) -> str:
        files, size = progress["files"], progress["bytes"]
        if progress["phase"] in DOING:
            amount = f": {files:,} files, {size // MIB:,} MiB" if files else ""
            return f"{host} {DOING[progress['phase']]}{amount}"
        if progress["phase"] != "send":
            return ""
        seconds = time.monotonic() - self._began
        rate = size / seconds if seconds else 0.0
        left = f", {(self._bytes - size) / rate:.0f} s left" if rate and self._bytes > size else ""
        return (
            f"{self._source} -> {self._names}: {files:,} of {self._files:,} files, "
            f"{size // MIB:,} of {self._bytes // MIB:,} MiB, {rate / MIB:.0f} MiB/s{left}"
        )
