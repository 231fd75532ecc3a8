# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a target answers its relay, message by message; docs/protocol.md has their order."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease, this_process
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment, progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.inbox import Inbox
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.link import Link
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import peak_memory
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.receiver import FrameReader
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.target import Target
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel, Message, PeerError
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError

if TYPE_CHECKING:
    from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Receiving

LISTEN_S = 30.0
SAID_FIRST_S = 0.1


class Listening:
    """The connection of whoever feeds this target being waited for, while the relay tells that one about it."""

    def __init__(self, message: Message) -> None:
        from ansible_collections.ddtree.fleet.plugins.module_utils._stream import addresses, handshake  # seldom needed

        self.addresses = addresses.addresses()
        own = (message["certificate"], message["key"])
        low, high = message["ports"]
        self._listener = handshake.Listener((low, high), own, message["peer"], message["streams"])
        self.port = self._listener.port
        self._idle = message["idle"]
        self._peer: Optional[Receiving] = None
        self._problem = "nobody connected"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            # Whoever shall connect may be told so only after another host was waited for, for as long as anybody is.
            self._peer = self._listener.accept(LISTEN_S + self._idle, self._idle)
        except (OSError, PeerError) as error:
            self._problem = str(error)

    def peer(self) -> Receiving:
        self._thread.join(LISTEN_S)
        if self._peer is None:
            raise PeerError(f"the other host did not connect: {self._problem}")
        return self._peer

    def close(self) -> None:
        self._listener.close()
        if self._peer:
            self._peer.close()


def serve(channel: Channel, request: Message) -> None:
    """Answer one relay; ``open`` has ``dest``, ``run``, ``who``, ``check``, ``full`` and more. See docs/protocol.md."""
    progress.HEARTBEAT_S = min(progress.HEARTBEAT_S, request["idle"] / 4)
    target = Target(channel, request)
    lease, run = Lease(target.environments.dest), request["run"]
    if target.check:
        Conversation(channel, target).converse()
        return
    # An interpreter is shipped within the stream of an environment, whose agent has the lease.
    holder = "" if request["interpreter"] else this_process()
    taken = lease.acquire(run, request["who"], take_over=request["take_over"], holder=holder)
    try:
        Conversation(channel, target).converse()
    finally:
        if taken:
            lease.release(run, holder)


class Conversation:
    """One relay's questions about one target, and the connections to its neighbours in a chain."""

    def __init__(self, channel: Channel, target: Target) -> None:
        self._channel = channel
        self._target = target
        self._inbox = Inbox(channel)
        self._sinks = Sinks(channel)
        self._listening: Optional[Listening] = None
        self._request: Message = {}

    def converse(self) -> None:
        """Answer until ``bye``."""
        channel, target = self._channel, self._target
        target.local.base()
        codec = find_codec()
        channel.send("opened", codec=codec.backend if codec else "", processors=os.cpu_count() or 1)
        try:
            while True:
                message = self._inbox.receive("look", "check", "prepare", "build", "listen", "connect", "take", "bye")
                if message["op"] == "look":
                    channel.send("state", **target.look(message["digest"], message["repair"]))
                elif message["op"] == "check":
                    channel.send("checked", why=_why_not(message["environment"], target.dest))
                elif message["op"] == "prepare":
                    self._request = message
                    channel.send("need", **target.prepare(message))
                elif message["op"] == "build":
                    target.build()
                    channel.send("built")
                elif message["op"] == "listen":
                    channel.send("listening", **self._listen(message))
                elif message["op"] == "connect":
                    channel.send("connected", failed=self._sinks.connect(message))
                elif message["op"] == "take":
                    self._take(message["direct"], message["number"], message["after"])
                else:
                    return
        finally:
            self._disconnect()

    def _listen(self, message: Message) -> Dict[str, Any]:
        """Wait for whoever feeds this target; gives the answer, which has the ``problem`` where that cannot be done."""
        self._stop_listening()
        try:
            self._listening = Listening(message)
        except (OSError, PeerError) as error:
            return {"problem": str(error)}
        return {"problem": "", "port": self._listening.port, "addresses": self._listening.addresses}

    def _take(self, direct: bool, number: int, after: List[int]) -> None:
        """Take one pass of content, pass it on to the targets ``after`` this one, and commit when all of it is here."""
        channel, sinks = self._channel, self._sinks
        sinks.begin()
        peer: Optional[Receiving] = None
        if direct:
            if self._listening is None:
                raise PeerError("the relay announced a connection before it had this target listen")
            peer = self._listening.peer()
        fed: FrameReader = peer or channel
        link = Link(fed, sinks, number, after) if after else None
        with self._inbox.listening(self._stop) if direct else contextlib.nullcontext():
            short = self._target.receive(link or fed, direct, link.report if link else dict)
            wire = peer.received if peer else 0
            if short:  # said before those behind this target notice anything, so that the relay knows where it began
                channel.send("short", why=short, wire=wire, peak_memory=peak_memory(), **self._target.lacking())
                time.sleep(SAID_FIRST_S if after else 0)
            else:
                done = self._target.commit(self._request)
                with progress.Progress(channel, "pass on").heartbeat():
                    sinks.finish()
                channel.send("committed", seconds=self._target.seconds, wire=wire, peak_memory=peak_memory(), **done)
            self._disconnect()

    def _stop(self) -> None:
        """End the pass at once; another thread streams."""
        listening = self._listening
        if listening:
            listening.close()
        self._sinks.stop()

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening.close()
        self._listening = None

    def _disconnect(self) -> None:
        self._stop_listening()
        self._sinks.close()


def _why_not(described: Dict[str, Any], dest: bytes) -> str:
    """Why an environment's interpreter does not do here; empty when it does."""
    try:
        environment.check_interpreter(described, dest)
    except TreeError as error:
        return str(error)
    return ""
