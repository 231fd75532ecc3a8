# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import io
import os
import threading
from typing import BinaryIO, Iterator, cast

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.inbox import Inbox
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel, PeerError

PATIENCE_S = 10


class Relay:
    """The other end of an inbox."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._writer = cast(BinaryIO, open(writing, "wb"))
        self._reader = cast(BinaryIO, open(reading, "rb"))
        self.channel = Channel(cast(BinaryIO, io.BytesIO()), self._writer)
        self.inbox = Inbox(Channel(self._reader, cast(BinaryIO, io.BytesIO())))
        self.stopped = threading.Event()

    def go(self) -> None:
        self._writer.close()


@pytest.fixture(name="relay")
def relay_fixture() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.go()


def test_messages_come_in_order_and_a_late_stop_says_nothing(relay: Relay) -> None:
    relay.channel.send("build")
    relay.channel.send("stop")
    relay.channel.send("bye")
    assert relay.inbox.receive("build")["op"] == "build"
    assert relay.inbox.receive("take", "bye")["op"] == "bye"
    relay.channel.send("build")
    with pytest.raises(PeerError, match="^the stream is out of step: expected stop or bye, got build$"):
        relay.inbox.receive("bye")


def test_stop_is_heard_while_the_agent_streams(relay: Relay) -> None:
    with relay.inbox.listening(relay.stopped.set):
        assert not relay.stopped.is_set()
        relay.channel.send("stop")
        assert relay.stopped.wait(PATIENCE_S)
    relay.channel.send("bye")
    assert relay.inbox.receive("bye")["op"] == "bye"


def test_anything_else_is_kept_for_afterwards(relay: Relay) -> None:
    for _ in range(2):
        with relay.inbox.listening(relay.stopped.set):
            relay.channel.send("listen", port=7)
        assert relay.inbox.receive("listen")["port"] == 7
    assert not relay.stopped.is_set()


def test_a_relay_that_is_gone_stops_the_agent_and_is_told_of_afterwards(relay: Relay) -> None:
    with relay.inbox.listening(relay.stopped.set):
        relay.go()
        assert relay.stopped.wait(PATIENCE_S)
    with pytest.raises(PeerError, match="^the connection ended before the work was done$"):
        relay.inbox.receive("bye")
