# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import threading
import time
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import fanout
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.fanout import Outlet
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK, Buffer


def drain(
    outlet: Outlet, send: fanout.Callable[[int, Buffer], None], failures: List[BaseException]
) -> threading.Thread:
    def work() -> None:
        try:
            outlet.drain(send)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_frames_arrive_in_order_up_to_the_last() -> None:
    outlet, arrived, failures = Outlet(), [], []  # type: ignore[var-annotated]
    thread = drain(outlet, lambda kind, payload: arrived.append(payload), failures)
    sent = [b"%d" % number for number in range(100)]
    for payload in sent:
        outlet.put((BLOCK, payload))
    outlet.put(None)
    thread.join(10)
    assert (arrived, failures) == (sent, [])


def test_a_slow_receiver_holds_the_sender_up_and_memory_down() -> None:
    outlet = Outlet()
    for _number in range(fanout.QUEUED_FRAMES):
        outlet.put((BLOCK, b""))
    blocked = threading.Thread(target=outlet.put, args=((BLOCK, b""),))
    blocked.start()
    blocked.join(0.3)
    assert blocked.is_alive()
    arrived: List[Buffer] = []
    thread = drain(outlet, lambda kind, payload: arrived.append(payload), [])
    blocked.join(10)
    outlet.put(None)
    thread.join(10)
    assert len(arrived) == fanout.QUEUED_FRAMES + 1


def test_a_receiver_that_failed_holds_nobody_up() -> None:
    def broken(kind: int, payload: Buffer) -> None:
        raise BrokenPipeError("gone")

    outlet, failures = Outlet(), []  # type: ignore[var-annotated]
    thread = drain(outlet, broken, failures)
    started = time.monotonic()
    for _number in range(10 * fanout.QUEUED_FRAMES):
        outlet.put((BLOCK, b""))
    thread.join(10)
    assert [str(error) for error in failures] == ["gone"]
    assert outlet.failed
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("queued", [0, fanout.QUEUED_FRAMES])
def test_giving_up_ends_the_thread_that_waits(queued: int) -> None:
    outlet, arrived = Outlet(), []  # type: ignore[var-annotated]
    for _number in range(queued):
        outlet.put((BLOCK, b""))
    outlet.fail()
    thread = drain(outlet, lambda kind, payload: arrived.append(payload), [])
    thread.join(10)
    assert not thread.is_alive()
    assert arrived == []
