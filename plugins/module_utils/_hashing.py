# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashing of many files on all processors.

Each worker is a process of its own: a tree has tens of thousands of small files, and threads would spend more time handing the
interpreter's lock to each other than reading. Workers take the next batch of files from one pipe, so none idles while another
has much left to do.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import time
from typing import Callable, Dict, Iterable, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, TreeError, hash_file

MAX_WORKERS = 16
ALONE_FILES, ALONE_BYTES = 256, 32 << 20  # below both, starting processes takes longer than hashing
FILE_COST = 32 << 10  # what opening a file costs, in bytes that could be hashed meanwhile
# Place in the list, when reading began in nanoseconds, and the hash; or FAILED, the length of a message, and nothing before it.
RESULT = struct.Struct(">Iq32s")
BATCH = struct.Struct(">I")
BATCH_COST = 4 << 20
BATCHES_EACH = 8  # at least, where there is less to do
MAX_BATCHES = 8000  # half of what a pipe holds while nobody reads it, since one large file makes a batch more
FAILED = 0xFFFFFFFF

# Gives the known SHA-256 of a file that has not changed since it was hashed, else None.
Lookup = Callable[[Entry], Optional[str]]
# Told an entry, its SHA-256 in hex, and when reading it began, in nanoseconds.
Done = Callable[[Entry, str, int], None]


def hash_tree(
    root: bytes, entries: Iterable[Entry], known: Optional[Lookup] = None, done: Optional[Done] = None, workers: int = 0
) -> Dict[bytes, str]:
    """SHA-256 in hex by path for every file among ``entries``; ``known`` spares reading files whose hash is already known.

    ``done`` is told of each file that was read. ``workers`` processes read at once (0: one per processor, at most 16). Raises
    TreeError for a file that cannot be read or changes meanwhile.
    """
    hashes: Dict[bytes, str] = {}
    unknown: List[Entry] = []
    for entry in entries:
        if entry.kind == FILE:
            found = known(entry) if known else None
            if found is None:
                unknown.append(entry)
            else:
                hashes[entry.path] = found

    def remember(entry: Entry, sha256: str, seen_ns: int) -> None:
        hashes[entry.path] = sha256
        if done:
            done(entry, sha256, seen_ns)

    count = min(workers or os.cpu_count() or 1, MAX_WORKERS, len(unknown))
    if count < 2 or (len(unknown) < ALONE_FILES and sum(entry.size for entry in unknown) < ALONE_BYTES):
        for entry in unknown:
            seen_ns = time.time_ns()
            remember(entry, hash_file(root, entry), seen_ns)
    else:
        _hash_in_processes(root, unknown, count, remember)
    return hashes


def _batches(entries: Sequence[Entry], count: int) -> List[List[int]]:
    """Places in the list, large files first: what is taken last is small, so that ``count`` workers end together."""
    total = sum(entry.size + FILE_COST for entry in entries)
    enough = max(min(BATCH_COST, total // (count * BATCHES_EACH)), total // MAX_BATCHES)
    batches: List[List[int]] = []
    cost = enough
    for place in sorted(range(len(entries)), key=lambda place: -entries[place].size):
        if cost >= enough:
            batches.append([])
            cost = 0
        batches[-1].append(place)
        cost += entries[place].size + FILE_COST
    return batches


def _hash_in_processes(root: bytes, entries: Sequence[Entry], count: int, remember: Done) -> None:
    batches = _batches(entries, count)
    waiting, filling = os.pipe()  # the numbers of the batches that nobody has taken yet
    os.write(filling, b"".join(BATCH.pack(number) for number in range(len(batches))))
    os.close(filling)
    selector = selectors.DefaultSelector()
    workers: Dict[int, int] = {}  # process by the pipe that its results come through
    try:
        for _worker in range(count):
            reading, writing = os.pipe()
            pid = os.fork()
            if not pid:
                for pipe in (reading, *workers):  # else no write would fail when the reading process is gone
                    os.close(pipe)
                _work(root, entries, batches, waiting, writing)
            os.close(writing)
            workers[reading] = pid
            selector.register(reading, selectors.EVENT_READ, bytearray())
        while workers:
            for key, _events in selector.select():
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                _take(key.data, entries, remember)
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    if os.waitpid(workers.pop(key.fd), 0)[1]:
                        raise TreeError("a process that hashed files was ended; run again")
    finally:
        selector.close()
        os.close(waiting)
        for pipe, pid in workers.items():
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _take(data: bytearray, entries: Sequence[Entry], remember: Done) -> None:
    """Use up the whole results in ``data``. Raises TreeError with what a worker failed with."""
    start = 0
    while len(data) - start >= RESULT.size:
        place, number, digest = RESULT.unpack_from(data, start)
        if place == FAILED:
            if len(data) - start < RESULT.size + number:
                break
            raise TreeError(data[start + RESULT.size :].decode("utf-8", "replace"))
        remember(entries[place], digest.hex(), number)
        start += RESULT.size
    del data[:start]


def _work(root: bytes, entries: Sequence[Entry], batches: Sequence[Sequence[int]], waiting: int, pipe: int) -> None:
    """Take batch after batch, hash it and write the results. Never returns."""
    try:
        while True:
            number = os.read(waiting, BATCH.size)
            if not number:
                os._exit(0)
            results = []
            for place in batches[BATCH.unpack(number)[0]]:
                seen_ns = time.time_ns()
                results.append(RESULT.pack(place, seen_ns, bytes.fromhex(hash_file(root, entries[place]))))
            _write(pipe, b"".join(results))
    except TreeError as error:
        message = str(error).encode()
        _write(pipe, RESULT.pack(FAILED, len(message), b"") + message)
    finally:
        os._exit(1)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
