# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hashing of many files on all processors."""

from __future__ import annotations

import struct
import time
from typing import Callable, Dict, Iterable, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, hash_file
from ansible_collections.ddtree.fleet.plugins.module_utils._workers import (
    MAX_WORKERS,
    make_batches,
    processors,
    run_workers,
)

ALONE_FILES, ALONE_BYTES = 256, 32 << 20  # below both, starting processes takes longer than hashing
FILE_COST = 32 << 10  # what opening a file costs, in bytes that could be hashed meanwhile
BATCH_COST = 4 << 20
BATCHES_EACH = 8  # at least, where there is less to do
HASHED = struct.Struct(">q32s")  # when reading began, in nanoseconds, and the hash

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

    def work(place: int) -> bytes:
        return HASHED.pack(time.time_ns(), bytes.fromhex(hash_file(root, unknown[place])))

    def take(place: int, result: bytes) -> None:
        seen_ns, digest = HASHED.unpack(result)
        remember(unknown[place], digest.hex(), seen_ns)

    count = min(workers or processors(), MAX_WORKERS, len(unknown))
    if count < 2 or (len(unknown) < ALONE_FILES and sum(entry.size for entry in unknown) < ALONE_BYTES):
        for place in range(len(unknown)):
            take(place, work(place))
    else:
        costs = [entry.size + FILE_COST for entry in unknown]
        run_workers(make_batches(costs, min(BATCH_COST, sum(costs) // (count * BATCHES_EACH))), count, work, take)
    return hashes
