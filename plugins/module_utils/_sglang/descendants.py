# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes that this one has started, and those that they started: what memory they take, and that they end.

RLIMIT_AS is no way to bound memory: CUDA reserves far more address space than it ever uses. What counts here is what the
kernel cannot take back: anonymous and shared memory. Files that are mapped, as libraries are, do not count.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from contextlib import contextmanager
from typing import Dict, Iterator, List, Set

_PR_SET_CHILD_SUBREAPER = 36
_ENDING_SECONDS = 10
_HELD = re.compile(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)


class MemoryWatch:
    """A ``watch`` of run_program: false once all descendants together hold more than ``limit_mib`` (0: no limit)."""

    def __init__(self, limit_mib: int) -> None:
        self.limit_mib = limit_mib
        self.seen_mib = 0

    def __call__(self) -> bool:
        self.seen_mib = sum(_held_kib(pid) for pid in descendants(os.getpid())) // 1024
        return not self.exceeded()

    def exceeded(self) -> bool:
        return 0 < self.limit_mib < self.seen_mib


@contextmanager
def ending_all_that_start() -> Iterator[None]:
    """Whatever starts meanwhile is gone afterwards, also what has left its parent's process group and its parent."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = set(descendants(os.getpid()))
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _end(before)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end(spared: Set[int]) -> None:
    """Ends all descendants but the ``spared`` ones. One that the kernel itself holds, in a driver say, is left to it."""
    deadline = time.monotonic() + _ENDING_SECONDS
    left = set(descendants(os.getpid())) - spared
    while left and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                # It is gone already, or another process has to take note of it first.
                continue
        time.sleep(0.02)
        left = set(descendants(os.getpid())) - spared


def descendants(root: int) -> List[int]:
    """The processes that ``root`` started, and that they started."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The name of a program, in brackets, may hold anything.
            fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    found: List[int] = []
    waiting = [root]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def _held_kib(pid: int) -> int:
    return sum(int(number) for number in _HELD.findall(_read(f"/proc/{pid}/status")))


def _read(path: str) -> str:
    """Empty for a process that is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
