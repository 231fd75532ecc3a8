# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashing of many files on all processors.

Each worker is a process of its own: a tree has tens of thousands of small files, and threads would spend more time handing the
interpreter's lock to each other than reading.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import time
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, TreeError, hash_file

MAX_WORKERS = 16
ALONE_FILES, ALONE_BYTES = 256, 32 << 20  # below both, starting processes takes longer than hashing
FILE_COST = 32 << 10  # what opening a file costs, in bytes that could be hashed meanwhile
# Place in the list, when reading began in nanoseconds, and the hash; or FAILED, the length of a message, and nothing before it.
RESULT = struct.Struct(">Iq32s")
RESULTS_AT_ONCE = 100
FAILED = 0xFFFFFFFF
ENDING = (signal.SIGTERM, signal.SIGHUP)

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
        _hash_in_processes(root, unknown, _shares(unknown, count), remember)
    return hashes


def _shares(entries: Sequence[Entry], count: int) -> List[List[int]]:
    """The places in the list, for each of ``count`` workers so that all have about as much to do."""
    shares: List[List[int]] = [[] for _share in range(count)]
    load = [0] * count
    for place in sorted(range(len(entries)), key=lambda place: -entries[place].size):
        least = load.index(min(load))
        shares[least].append(place)
        load[least] += entries[place].size + FILE_COST
    return shares


def _hash_in_processes(root: bytes, entries: Sequence[Entry], shares: Sequence[List[int]], remember: Done) -> None:
    selector = selectors.DefaultSelector()
    workers: Dict[int, int] = {}  # process by the pipe that its results come through
    left = {}
    try:
        for share in shares:
            reading, writing = os.pipe()
            with _not_ended():  # else a worker that is ended before it works would tidy up as if it were this process
                pid = os.fork()
                if not pid:
                    for pipe in (reading, *workers):  # else no write would fail when the reading process is gone
                        os.close(pipe)
                    _work(root, entries, sorted(share), writing)
                workers[reading], left[reading] = pid, len(share)
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, bytearray())
        while selector.get_map():
            for key, _events in selector.select():
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                left[key.fd] -= _take(key.data, entries, remember)
                if not data:
                    selector.unregister(key.fd)
                    if left[key.fd]:
                        raise TreeError("a process that hashed files was ended; run again")
    finally:
        selector.close()
        for pipe, pid in workers.items():
            os.close(pipe)
            if left[pipe]:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def _not_ended() -> Iterator[None]:
    """Put off the signals that end this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take(data: bytearray, entries: Sequence[Entry], remember: Done) -> int:
    """Use up the whole results in ``data``; gives how many there were. Raises TreeError with what a worker failed with."""
    count = 0
    while len(data) >= RESULT.size:
        place, number, digest = RESULT.unpack_from(data)
        if place == FAILED:
            if len(data) < RESULT.size + number:
                break
            raise TreeError(data[RESULT.size :].decode("utf-8", "replace"))
        remember(entries[place], digest.hex(), number)
        del data[: RESULT.size]
        count += 1
    return count


def _work(root: bytes, entries: Sequence[Entry], share: Sequence[int], pipe: int) -> None:
    """Hash a share and write the results. Never returns."""
    results: List[Tuple[int, int, bytes]] = []
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        for place in share:
            seen_ns = time.time_ns()
            results.append((place, seen_ns, bytes.fromhex(hash_file(root, entries[place]))))
            if len(results) == RESULTS_AT_ONCE or entries[place].size > ALONE_BYTES:
                _write(pipe, b"".join(RESULT.pack(*result) for result in results))
                results.clear()
        _write(pipe, b"".join(RESULT.pack(*result) for result in results))
        os._exit(0)
    except TreeError as error:
        message = str(error).encode()
        _write(pipe, RESULT.pack(FAILED, len(message), b"") + message)
    finally:
        os._exit(1)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
