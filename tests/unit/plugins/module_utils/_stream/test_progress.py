# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import io
import threading
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import progress as under_test
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress, peak_memory
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel, Message, PeerError


def told(stream: io.BytesIO) -> List[Message]:
    channel, found = Channel(io.BytesIO(stream.getvalue()), io.BytesIO()), []
    try:
        while True:
            found.append(channel.receive("progress"))
    except PeerError:
        return found


def test_progress_is_told_at_most_once_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.BytesIO(), [0.0]
    monkeypatch.setattr(under_test.time, "monotonic", lambda: now[0])
    progress = Progress(Channel(io.BytesIO(), stream), "receive")
    for _number in range(14):
        now[0] += 0.25
        progress.add(1, 10)
    assert [message["files"] for message in told(stream)] == [4, 8, 12]
    assert told(stream)[0] == {"op": "progress", "phase": "receive", "files": 4, "bytes": 40}


def test_threads_lose_no_count() -> None:
    progress = Progress(Channel(io.BytesIO(), io.BytesIO()), "hash")
    threads = [threading.Thread(target=lambda: [progress.add(1, 2) for _number in range(2000)]) for _thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (progress.files, progress.bytes) == (8000, 16000)


def test_one_long_call_still_shows_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "HEARTBEAT_S", 0.01)
    stream = io.BytesIO()
    with Progress(Channel(io.BytesIO(), stream), "sync").heartbeat():
        threading.Event().wait(0.2)
    beats = told(stream)
    assert 2 <= len(beats) <= 25
    assert beats[0]["phase"] == "sync"
    assert len(told(stream)) == len(beats)


def test_the_peak_of_memory_stays_when_memory_is_given_back() -> None:
    before = peak_memory()
    data = b"x" * (64 << 20)
    del data
    assert before + (16 << 20) < peak_memory() < 4 << 30
