# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Iterator, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import fanout
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.fanout import Outlet

PATIENCE_S = 10

Start = Callable[..., "Future[Any]"]


@pytest.fixture(name="start")
def start_fixture() -> Iterator[Start]:
    """Call a function in a thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_frames_leave_in_the_order_in_which_they_were_put(start: Start) -> None:
    outlet, sent = Outlet(), []
    draining = start(outlet.drain, lambda kind, payload: sent.append((kind, bytes(payload))))
    frames = [(number % 3, b"%d" % number) for number in range(1000)]
    for frame in frames:
        outlet.put(frame)
    outlet.put(None)
    draining.result(PATIENCE_S)
    assert sent == frames
    assert outlet.failed is False


def test_an_outlet_can_be_drained_again_after_its_last_frame(start: Start) -> None:
    outlet = Outlet()
    sent: List[int] = []
    for number in (1, 2):
        outlet.put((number, b""))
        outlet.put(None)
        outlet.drain(lambda kind, payload: sent.append(kind))
        assert sent == [1, 2][:number]


def test_few_frames_wait_for_a_slow_receiver(start: Start) -> None:
    outlet, go = Outlet(), threading.Semaphore(0)
    draining = start(outlet.drain, lambda kind, payload: go.acquire(timeout=PATIENCE_S))
    done: List[int] = []

    def put_all() -> None:
        for number in range(100):
            outlet.put((1, b""))
            done.append(number)
        outlet.put(None)

    putting = start(put_all)
    time.sleep(0.4)
    assert len(done) == fanout.QUEUED_FRAMES + 1  # and the one that is being sent
    assert not putting.done()
    go.release(101)
    putting.result(PATIENCE_S)
    draining.result(PATIENCE_S)
    assert len(done) == 100


def test_who_puts_is_not_held_up_by_a_receiver_that_fails(start: Start) -> None:
    outlet = Outlet()

    def send(kind: int, payload: Any) -> None:
        time.sleep(0.1)
        raise OSError("broken pipe")

    draining = start(outlet.drain, send)
    for _ in range(1000):
        outlet.put((1, b"x"))
    outlet.put(None)
    with pytest.raises(OSError, match="broken pipe"):
        draining.result(PATIENCE_S)
    assert outlet.failed is True


def test_failing_an_outlet_wakes_both_ends(start: Start) -> None:
    waiting, full = Outlet(), Outlet()
    draining = start(waiting.drain, lambda kind, payload: None)

    def put_too_many() -> None:
        for _ in range(fanout.QUEUED_FRAMES + 5):
            full.put((1, b"x"))

    putting = start(put_too_many)
    time.sleep(0.1)
    assert not draining.done()
    assert not putting.done()
    waiting.fail()
    full.fail()
    draining.result(PATIENCE_S)
    putting.result(PATIENCE_S)


def test_what_waited_for_a_failed_receiver_is_not_sent_any_more(start: Start) -> None:
    outlet, sent = Outlet(), []
    for number in range(5):
        outlet.put((number, b""))
    outlet.fail()
    outlet.drain(lambda kind, payload: sent.append(kind))
    assert sent == []
    outlet.fail()  # as often as anybody finds out
    outlet.put((1, b""))
    outlet.put(None)


def test_one_failed_receiver_does_not_disturb_the_others(start: Start) -> None:
    good, bad, sent = Outlet(), Outlet(), []

    def fail(kind: int, payload: Any) -> None:
        raise OSError("gone")

    threads = [start(good.drain, lambda kind, payload: sent.append(kind)), start(bad.drain, fail)]
    started = time.monotonic()
    for number in range(500):
        for outlet in (bad, good):
            outlet.put((number, b""))
    for outlet in (bad, good):
        outlet.put(None)
    threads[0].result(PATIENCE_S)
    with pytest.raises(OSError):
        threads[1].result(PATIENCE_S)
    assert sent == list(range(500))
    assert time.monotonic() - started < 5


def test_the_best_rate_is_measured_from_the_first_byte_over_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rate = fanout.Rate()
    now[0] += 50  # nothing had come yet, which says nothing of the rate
    for seconds in (0.0, 1.0, 1.0, 4.0):
        now[0] += seconds
        rate.add(8 << 20)
    assert rate.bytes == 32 << 20
    assert rate.best == 8 << 20
