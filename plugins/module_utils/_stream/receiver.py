# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The receiving half of a stream: blocks become files of the staged tree, each of which must have the hash that was listed.

Reading from the connection, writing and hashing go on at once: two lanes (threads) or more take the work in turn.
"""

from __future__ import annotations

import collections
import hashlib
import os
import queue
import threading
from typing import Callable, Deque, Dict, List, Optional, Protocol, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import CodecError, find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.large import Large, Prefixes, other_content
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.place import NEW_FILE, write_error
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    BLOCK_HEAD,
    BLOCK_SIZE,
    RAW,
    ZEROS,
    ZSTD,
    Buffer,
    Frame,
    Message,
    PeerError,
    from_runs,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, show

NOTHING = bytes(BLOCK_SIZE)
LANE_JOBS = 4
STOPPED = "the relay stopped this pass"


class FrameReader(Protocol):
    """The relay's connection, or one of a source's or another target's own."""

    def receive_frame(self) -> Frame: ...


class _Lane(threading.Thread):
    """Does jobs in order. After the first failure of any lane all jobs are passed over."""

    def __init__(self, failures: List[BaseException]) -> None:
        super().__init__(daemon=True)
        self._jobs: queue.Queue[Optional[Callable[[], None]]] = queue.Queue(LANE_JOBS)
        self._failures = failures
        self.start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def waiting(self) -> int:
        return self._jobs.qsize()

    def run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            if self._failures:
                continue
            try:
                job()
            except BaseException as error:  # raised by the receiving thread
                self._failures.append(error)

    def end(self) -> None:
        self._jobs.put(None)
        self.join()


class Receiver:
    """Takes the files ``waiting`` (numbers in ``entries``), all of which must come, and no others."""

    def __init__(
        self,
        tree: bytes,
        entries: List[Entry],
        hashes: Dict[bytes, str],
        waiting: Set[int],
        prefixes: Dict[int, Prefixes],
        progress: Progress,
    ) -> None:
        self._tree = tree
        self._entries = entries
        self._hashes = hashes
        self._waiting = waiting
        self._prefixes = prefixes
        self._progress = progress
        self._codec = find_codec()
        self._failures: List[BaseException] = []
        self._lanes: List[_Lane] = []
        self._turn = 0
        self._coming: Deque[Tuple[int, int]] = collections.deque()  # number and offset
        self._large: Optional[Large] = None
        self._waits = False  # for the sender, which may have to send others what this host has
        self.resumed = 0  # bytes of large files that an earlier stream had brought

    def receive(self, peer: FrameReader, heals: bool = False, more: Callable[[], Message] = dict) -> str:
        """Take frames up to ``end``, or to ``stop``; gives why they ended before everything was there, empty otherwise.

        ``heals``: it is no failure when the peer is gone. ``more`` is told to the relay with the progress. Raises PeerError
        or TreeError; what is complete by then stays in the tree.
        """
        self._failures.clear()
        self._lanes = [_Lane(self._failures) for _lane in range(2 if (os.cpu_count() or 1) < 8 else 4)]
        self._progress.more = more
        with self._progress.heartbeat(lambda: self._waits):
            short = self._receive(peer, heals)
        if self._failures:
            raise self._failures[0]
        if short:
            self._keep()
        elif self._waiting:
            raise PeerError(f"the source ended without {len(self._waiting)} of the files that were asked for")
        return short

    def lacking(self) -> List[int]:
        """The numbers of the files that have still to come, after a pass that ended early."""
        return sorted(self._waiting)

    def partial(self) -> List[Tuple[int, List[Tuple[int, str]]]]:
        """What is there of those files that are there in part."""
        return [(number, found.listed()) for number, found in self._prefixes.items() if number in self._waiting]

    def _keep(self) -> None:
        """Wait again for what was announced, and remember what has arrived of a large file."""
        self._waiting.update(number for number, _offset in self._coming)
        self._coming.clear()
        if self._large:
            self._waiting.add(self._large.number)
            self._prefixes[self._large.number] = self._large.arrived()
            self._large = None

    def _receive(self, peer: FrameReader, heals: bool) -> str:
        try:
            while True:
                self._waits = True
                try:
                    kind, payload = peer.receive_frame()
                except PeerError as error:
                    if heals:
                        return str(error)
                    raise
                self._waits = False
                if self._failures:
                    break
                if kind == BLOCK:
                    self._take(*self._unpack(payload))
                    continue
                message = parse_message((kind, payload), "group", "wait", "end", "stop")
                if message["op"] == "wait":
                    continue
                if message["op"] == "stop":
                    return STOPPED
                if self._coming or self._large:
                    raise PeerError("the source stopped in the middle of a file")
                if message["op"] == "end":
                    break
                self._begin(message)
        finally:
            self._waits = False
            for lane in self._lanes:
                lane.end()
            if self._large:
                self._large.close()
        return ""

    def _begin(self, message: Message) -> None:
        try:
            runs, offsets = message["runs"], {int(number): int(offset) for number, offset in message["offsets"]}
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError("the source sent a group in a form that is not understood") from error
        for number in from_runs(runs, len(self._entries)):
            entry, offset = self._entries[number], offsets.pop(number, 0)
            if number not in self._waiting:
                raise PeerError(f"the source sent file {number}, which was not asked for")
            known = self._prefixes.get(number)
            if offset and (known is None or not 0 < offset <= max(known.states, default=0)):
                raise PeerError(f"the source sent {show(entry.path)} from a place that was not asked for")
            self._waiting.remove(number)
            self._coming.append((number, offset))
            self.resumed += offset if known and known.earlier else 0
        if offsets:
            raise PeerError("the source sent a group in a form that is not understood")
        small: List[Tuple[int, memoryview]] = []
        self._skip_complete(small)
        if small:
            self._put_small(small)

    def _unpack(self, payload: Buffer) -> Tuple[memoryview, bool]:
        if len(payload) < BLOCK_HEAD.size:
            raise PeerError("the source sent a block of another size than it says")
        packing, size = BLOCK_HEAD.unpack_from(payload)
        data = memoryview(payload)[BLOCK_HEAD.size :]
        if size > BLOCK_SIZE:
            raise PeerError("the source sent a block that is too large")
        if packing == ZEROS:
            return memoryview(NOTHING)[:size], True
        if packing == ZSTD and self._codec:
            try:
                data = memoryview(self._codec.decompress(data, size))
            except CodecError as error:
                raise PeerError(f"the stream is corrupt: {error}") from error
        elif packing != RAW:
            raise PeerError(f"the source sent a block in packing {packing}, which cannot be read here")
        if len(data) != size or not size:
            raise PeerError("the source sent a block of another size than it says")
        return data, False

    def _take(self, data: memoryview, zeros: bool) -> None:
        """Hand one block's content to the files that it belongs to."""
        small: List[Tuple[int, memoryview]] = []
        while data:
            if self._large:
                left = self._large.entry.size - self._large.position
                self._write(self._large, data[:left], zeros)
                data = data[left:]
            elif not self._coming:
                raise PeerError("the source sent more than the files that it announced")
            else:
                number, offset = self._coming.popleft()
                size = self._entries[number].size
                if offset or size > len(data):
                    self._start(number, offset)
                else:
                    small.append((number, data[:size]))
                    data = data[size:]
            self._skip_complete(small)
        if small:
            self._put_small(small)

    def _skip_complete(self, small: List[Tuple[int, memoryview]]) -> None:
        """Pass over the next files for which nothing comes: empty ones, and those that had arrived whole."""
        while not self._large and self._coming:
            number, offset = self._coming[0]
            if self._entries[number].size > offset:
                return
            self._coming.popleft()
            if offset:
                self._finish(self._start(number, offset))
            else:
                small.append((number, memoryview(b"")))

    def _put_small(self, small: List[Tuple[int, memoryview]]) -> None:
        min(self._lanes, key=_Lane.waiting).put(lambda: self._make_small(small))

    def _start(self, number: int, offset: int) -> Large:
        entry = self._entries[number]
        known = self._prefixes[number].state(offset) if offset else (0, hashlib.sha256())
        large = self._large = Large(number, entry, os.path.join(self._tree, entry.path), offset, known)
        self._turn = (self._turn + 2) % len(self._lanes)
        self._lanes[self._turn].put(lambda: large.open(offset))
        if offset != known[0]:
            self._lanes[self._turn + 1].put(lambda: large.catch_up(offset))
        return large

    def _write(self, large: Large, data: memoryview, zeros: bool) -> None:
        position = large.position
        self._lanes[self._turn].put(lambda: large.write(data, position, zeros))
        self._lanes[self._turn + 1].put(lambda: large.update(data))
        large.position += len(data)
        self._progress.add(0, len(data))
        if large.position == large.entry.size:
            self._finish(large)

    def _finish(self, large: Large) -> None:
        sha256 = self._hashes[large.entry.path]
        self._lanes[self._turn].put(large.finish)
        self._lanes[self._turn + 1].put(lambda: large.check(sha256))
        self._large = None
        self._progress.add(1)

    def _make_small(self, files: List[Tuple[int, memoryview]]) -> None:
        size = 0
        for number, data in files:
            entry = self._entries[number]
            if hashlib.sha256(data).hexdigest() != self._hashes[entry.path]:
                raise other_content(entry)
            path = os.path.join(self._tree, entry.path)
            try:
                if number in self._prefixes:  # begun by a pass that ended early, when it came in two pieces
                    os.unlink(path)
                fd = os.open(path, NEW_FILE, 0o600)
                try:
                    while data:
                        data = data[os.write(fd, data) :]
                    os.fchmod(fd, entry.mode)
                    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
                finally:
                    os.close(fd)
            except OSError as error:
                raise write_error(path, error) from error
            size += entry.size
        self._progress.add(len(files), size)
