# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work on many files by several processes, which take batch after batch, so that none idles while another has much left to do.

They are processes, since a tree has tens of thousands of small files, and threads would spend more time handing the interpreter's
lock to each other than working.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
from typing import Callable, Dict, Iterator, List, NoReturn, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, show

MAX_WORKERS = 16
MAX_BATCHES = 8000  # half of what a pipe holds while nobody reads it, since one large item makes a batch more
BATCH_ITEMS, BATCH_BYTES = 64, 64 << 20
BATCH = struct.Struct(">I")
# The place in the list, or FAILED and then a message instead of a result, and the length of what follows.
RESULT = struct.Struct(">II")
FAILED = 0xFFFFFFFF
ENDING = (signal.SIGTERM, signal.SIGHUP)


def processors() -> int:
    return min(os.cpu_count() or 1, MAX_WORKERS)


def make_batches(costs: Sequence[int], enough: int) -> List[List[int]]:
    """Places in the list in batches that cost about ``enough``, costly ones first: what is taken last is cheap, so that all end together."""
    enough = max(enough, sum(costs) // MAX_BATCHES)
    batches: List[List[int]] = []
    cost = enough
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        if cost >= enough:
            batches.append([])
            cost = 0
        batches[-1].append(place)
        cost += costs[place]
    return batches


def batches_in_order(sizes: Sequence[int]) -> List[range]:
    """Places in the list in batches of neighbours, few where they are large, for work that is quicker within one directory."""
    most = max(BATCH_ITEMS, len(sizes) // MAX_BATCHES * 2)
    batches: List[range] = []
    start = total = 0
    for place, size in enumerate(sizes):
        if place - start == most or (total and total + size > BATCH_BYTES and len(batches) < MAX_BATCHES):
            batches.append(range(start, place))
            start, total = place, 0
        total += size
    if sizes:
        batches.append(range(start, len(sizes)))
    return batches


def run_workers(
    batches: Sequence[Sequence[int]], count: int, work: Callable[[int], bytes], take: Callable[[int, bytes], None]
) -> None:
    """Do ``work`` for every place in ``batches`` in ``count`` processes, and hand each result to ``take`` in this one.

    Raises TreeError with what a worker failed with; the others are ended then.
    """
    waiting, filling = os.pipe()  # the numbers of the batches that nobody has taken yet
    os.write(filling, b"".join(BATCH.pack(number) for number in range(len(batches))))
    os.close(filling)
    selector = selectors.DefaultSelector()
    workers: Dict[int, int] = {}  # process by the pipe that its results come through
    try:
        for _worker in range(count):
            reading, writing = os.pipe()
            with _not_ended():  # else a worker that is ended before it works would tidy up as if it were this process
                pid = os.fork()
                if not pid:
                    for pipe in (reading, *workers):  # else no write would fail when the reading process is gone
                        os.close(pipe)
                    _work(batches, work, waiting, writing)
                workers[reading] = pid
            os.close(writing)
            selector.register(reading, selectors.EVENT_READ, bytearray())
        while workers:
            for key, _events in selector.select():
                data = os.read(key.fd, 1 << 16)
                key.data.extend(data)
                _take(key.data, take)
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    if os.waitpid(workers.pop(key.fd), 0)[1]:
                        raise TreeError("a process that worked on files was ended; run again")
    finally:
        selector.close()
        os.close(waiting)
        for pipe, pid in workers.items():
            os.close(pipe)
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


def _take(data: bytearray, take: Callable[[int, bytes], None]) -> None:
    """Use up the whole results in ``data``."""
    start = 0
    while len(data) - start >= RESULT.size:
        place, size = RESULT.unpack_from(data, start)
        end = start + RESULT.size + size
        if len(data) < end:
            break
        result = bytes(data[start + RESULT.size : end])
        if place == FAILED:
            raise TreeError(result.decode("utf-8", "replace"))
        take(place, result)
        start = end
    del data[:start]


def _work(batches: Sequence[Sequence[int]], work: Callable[[int], bytes], waiting: int, pipe: int) -> NoReturn:
    """Take batch after batch and write the results."""
    try:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        while True:
            taken = os.read(waiting, BATCH.size)
            if not taken:
                os._exit(0)
            results = []
            for place in batches[BATCH.unpack(taken)[0]]:
                result = work(place)
                results += [RESULT.pack(place, len(result)), result]
            _write(pipe, b"".join(results))
    except TreeError as error:
        _fail(pipe, str(error))
    except OSError as error:
        place = f"{show(os.fsencode(error.filename))}: " if error.filename else ""
        _fail(pipe, f"{place}{error.strerror or error}")
    finally:
        os._exit(1)


def _fail(pipe: int, why: str) -> None:
    message = why.encode()
    _write(pipe, RESULT.pack(FAILED, len(message)) + message)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
