# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Large files: those that come in more than one block, and what is there of them when a stream goes on after it ended early."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.place import NEW_FILE, write_error
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PeerError
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, hash_into, show

RESUME_FROM = 8 << 20  # smaller files that an earlier stream left are sent again whole
PREFIX_STEP = 32 << 20
WRITE_OUT = 1 << 20
SYNC_FILE_RANGE_WRITE = 2


class Prefixes:
    """What an interrupted stream left of a large file: its hash at every 32 MiB and at its end, as states to go on from."""

    earlier = True  # the stream was another one

    def __init__(self, path: bytes, size: int) -> None:
        self.states: Dict[int, Any] = {}
        digest = hashlib.sha256()
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            length = min(os.fstat(fd).st_size, size)
            for end in [*range(PREFIX_STEP, length, PREFIX_STEP), length]:
                hash_into(digest, fd, end - max(self.states, default=0), path)
                self.states[end] = digest.copy()
        finally:
            os.close(fd)

    def listed(self) -> List[Tuple[int, str]]:
        return [(length, state.hexdigest()) for length, state in self.states.items()]

    def state(self, offset: int) -> Tuple[int, Any]:
        """The last place up to ``offset`` of which the hash is known, and the state there."""
        place = max((length for length in self.states if length <= offset), default=0)
        return place, self.states[place].copy() if place else hashlib.sha256()


class _Arrived(Prefixes):
    """The same of a file that this stream has begun, where the hash is known without reading it again."""

    earlier = False

    def __init__(self, states: Dict[int, Any]) -> None:
        self.states = states


class Large:
    """A file that comes in more than one block, written in one lane and hashed in another."""

    def __init__(self, number: int, entry: Entry, path: bytes, offset: int, known: Tuple[int, Any]) -> None:
        """``known``: a place up to ``offset``, and the hash's state there."""
        self.number = number
        self.entry = entry
        self.position = offset
        self.states: Dict[int, Any] = {}
        self._path = path
        self._hashed, self._digest = known
        self._fd = -1
        self._written_out = offset

    def open(self, offset: int) -> None:
        try:
            if not offset:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC if offset else NEW_FILE
            self._fd = os.open(self._path, flags, 0o600)
            os.ftruncate(self._fd, offset)
        except OSError as error:
            raise write_error(self._path, error) from error

    def write(self, data: memoryview, position: int, zeros: bool) -> None:
        if zeros:
            return
        try:
            while data:
                count = os.pwrite(self._fd, data, position)
                position, data = position + count, data[count:]
        except OSError as error:
            raise write_error(self._path, error) from error
        if position - self._written_out >= WRITE_OUT:
            write_out(self._fd, self._written_out, position - self._written_out)
            self._written_out = position

    def catch_up(self, offset: int) -> None:
        """Hash what the file has between the place where the hash was known and the one where it goes on."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.lseek(fd, self._hashed, os.SEEK_SET)
                hash_into(self._digest, fd, offset - self._hashed, self._path)
            finally:
                os.close(fd)
        except OSError as error:
            raise write_error(self._path, error) from error
        self._hashed = offset

    def update(self, data: memoryview) -> None:
        if self._hashed // PREFIX_STEP < (self._hashed + len(data)) // PREFIX_STEP:
            self.states[self._hashed] = self._digest.copy()
        self._digest.update(data)
        self._hashed += len(data)

    def arrived(self) -> Prefixes:
        """What is there of it, once nothing is written or hashed any more."""
        return _Arrived({**{place: state for place, state in self.states.items() if place}, self._hashed: self._digest})

    def finish(self) -> None:
        """Give the written file its size, mode and time."""
        try:
            os.ftruncate(self._fd, self.entry.size)
            os.fchmod(self._fd, self.entry.mode)
            os.utime(self._fd, ns=(self.entry.mtime_ns, self.entry.mtime_ns))
        except OSError as error:
            raise write_error(self._path, error) from error
        finally:
            self.close()

    def check(self, sha256: str) -> None:
        if self._digest.hexdigest() != sha256:
            raise other_content(self.entry)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def other_content(entry: Entry) -> PeerError:
    return PeerError(
        f"{show(entry.path)} arrived with other content than the source listed: it changed there, or the connection damaged it; "
        "run again"
    )


def write_out(fd: int, start: int, size: int) -> None:
    """Have the disk begin with what was just written, so that the sync before the commit finds little left to do."""
    if _sync_file_range is not None:
        _sync_file_range(fd, start, size, SYNC_FILE_RANGE_WRITE)


def _find_sync_file_range() -> Optional[Callable[..., int]]:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find_sync_file_range()
