# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sending half of a stream: files become blocks, blocks are packed, and every block goes to those who need it."""

from __future__ import annotations

import collections
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Deque, Dict, List, Tuple, Union

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import Codec, find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import Pace, RateLimit
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import RELAY, Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    BLOCK_HEAD,
    BLOCK_SIZE,
    HEADER,
    RAW,
    ZEROS,
    ZSTD,
    Buffer,
    message_frame,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, changed_while_read, open_scanned

MAX_WORKERS = 8
NOTHING = bytes(BLOCK_SIZE)


@dataclass(frozen=True)
class Group:
    """Files that go to the same sinks, by their number in the listing; of those in ``offsets`` only the rest is sent.

    ``takers`` are the numbers of the targets that want them, be it that a sink is one of them or leads to them.
    """

    numbers: List[int]
    offsets: Dict[int, int]
    sinks: List[int]
    takers: List[int]


class Sender:
    """Sends groups of one tree's files. ``compress`` is ``auto``, ``zstd`` or ``none``, ``rate`` in bytes per second (0: any)."""

    def __init__(self, root: bytes, entries: List[Entry], sinks: Sinks, compress: str, rate: int) -> None:
        self._root = root
        self._entries = entries
        self._sinks = sinks
        self._limit = RateLimit(rate)
        self.progress = Progress(sinks.channel, "send")
        self.progress.more = sinks.report
        workers = min(os.cpu_count() or 1, MAX_WORKERS)
        self.pace = Pace(compress, workers)
        self._pool = ThreadPoolExecutor(workers)
        self._codec = find_codec() if compress != "none" else None
        self._pending: Deque[Tuple[int, int, Union[Buffer, Future[bytes]]]] = collections.deque()
        self._most_pending = workers + 2
        self._buffer = bytearray(BLOCK_HEAD.size + BLOCK_SIZE)  # of the block that is being filled
        self._used = 0
        self.read = 0  # bytes of files
        self._sample = False  # compress the next block for the sake of knowing
        self._first = 0  # the first file of which it has a part

    def send(self, group: Group) -> None:
        """Send a group: what it is, then its blocks."""
        offsets = sorted(group.offsets.items())
        runs = to_runs(group.numbers)
        self._sinks.send(group.sinks, *message_frame("group", runs=runs, offsets=offsets, takers=group.takers))
        for number in group.numbers:
            if not self._sinks.any_left(group.sinks):
                break
            self._send_file(group, number)
        self._end_block(group)
        self._send_packed(group, 0)

    def _send_file(self, group: Group, number: int) -> None:
        """Add what a file has from its offset to the block that is being filled, and send blocks that are full."""
        entry, offset = self._entries[number], group.offsets.get(number, 0)
        left = entry.size - offset
        if left:
            with open_scanned(self._root, entry) as fd:
                dense = os.fstat(fd).st_blocks * 512 >= entry.size
                if offset:
                    os.lseek(fd, offset, os.SEEK_SET)
                while left and self._sinks.any_left(group.sinks):
                    if dense and not self._used and left >= BLOCK_SIZE and self._goes_as_it_is(group, number):
                        left -= self._send_uncopied(group, fd, entry)
                        continue
                    self._first = self._first if self._used else number
                    count = os.readv(fd, [memoryview(self._buffer)[BLOCK_HEAD.size + self._used :][:left]])
                    if not count:
                        raise changed_while_read(os.path.join(self._root, entry.path))
                    self._used, left = self._used + count, left - count
                    self.read += count
                    if self._used == BLOCK_SIZE:
                        self._end_block(group)
        self.progress.add(1)

    def _end_block(self, group: Group) -> None:
        if self._used:
            packed = self._pack(self._buffer, self._used, self._first)
            self._pending.append((self._first, self._used, packed))
            self._buffer, self._used = bytearray(BLOCK_HEAD.size + BLOCK_SIZE), 0
            self._send_packed(group, self._most_pending)

    def _goes_as_it_is(self, group: Group, number: int) -> bool:
        """Whether the next block of a file goes uncompressed to the relay only, and nothing is to be learnt from it."""
        if group.sinks != [RELAY] or (self._codec and self.pace.level(number)):
            return False
        self._sample = self._sample or (self._codec is not None and self.pace.wants_sample())
        return not self._sample

    def _send_uncopied(self, group: Group, fd: int, entry: Entry) -> int:
        """Send the next block of a file without its bytes passing through this process; gives its size."""
        self._send_packed(group, 0)
        self._limit.spend(HEADER.size + BLOCK_HEAD.size + BLOCK_SIZE)
        if self._sinks.channel.send_file(BLOCK, BLOCK_HEAD.pack(RAW, BLOCK_SIZE), fd, BLOCK_SIZE) < BLOCK_SIZE:
            raise changed_while_read(os.path.join(self._root, entry.path))
        self.read += BLOCK_SIZE
        self.pace.left(BLOCK_SIZE)
        self.progress.add(0, BLOCK_SIZE)
        return BLOCK_SIZE

    def _pack(self, buffer: bytearray, size: int, file: int) -> Union[Buffer, Future[bytes]]:
        head, end = BLOCK_HEAD.size, BLOCK_HEAD.size + size
        if not (buffer[head] or buffer[end - 1] or buffer[(head + end) // 2]) and buffer.startswith(
            NOTHING[:size], head
        ):
            return BLOCK_HEAD.pack(ZEROS, size)
        level = self.pace.level(file) if self._codec else 0
        if self._codec and not level and (self._sample or self.pace.wants_sample()):
            self._sample = False
            self._pool.submit(_try, self._codec, buffer, size, self.pace)
        if level and self._codec:
            return self._pool.submit(_compress, self._codec, buffer, size, level)
        BLOCK_HEAD.pack_into(buffer, 0, RAW, size)
        return memoryview(buffer)[:end]

    def _send_packed(self, group: Group, most: int) -> None:
        """Send what is ready, in order, until at most ``most`` blocks are waiting."""
        while self._pending:
            file, size, payload = self._pending[0]
            if isinstance(payload, Future):
                if len(self._pending) <= most and not payload.done():
                    return
                payload = payload.result()
                self.pace.packed(file, size, len(payload))
            self._pending.popleft()
            self._limit.spend((HEADER.size + len(payload)) * len(group.sinks))
            self._sinks.send(group.sinks, BLOCK, payload)
            self.pace.left(size)
            self.progress.add(0, size)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _try(codec: Codec, buffer: bytearray, size: int, pace: Pace) -> None:
    started = time.monotonic()
    packed = codec.compress(memoryview(buffer)[BLOCK_HEAD.size : BLOCK_HEAD.size + size], 1)
    pace.sampled(size, len(packed), time.monotonic() - started)


def _compress(codec: Codec, buffer: bytearray, size: int, level: int) -> bytes:
    packed = codec.compress(memoryview(buffer)[BLOCK_HEAD.size : BLOCK_HEAD.size + size], level)
    if len(packed) < size:
        return BLOCK_HEAD.pack(ZSTD, size) + packed
    BLOCK_HEAD.pack_into(buffer, 0, RAW, size)
    return bytes(memoryview(buffer)[: BLOCK_HEAD.size + size])
