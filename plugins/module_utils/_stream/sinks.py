# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sinks: where an end of a stream sends content. A source has them, and so has a target that passes on to the next one."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.fanout import Outlet, fan_out
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import idle_seconds
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    Buffer,
    Channel,
    Message,
    PeerError,
    message_frame,
)

if TYPE_CHECKING:
    from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Sending

RELAY = 0  # the sink that is the relay's own connection
CONNECT_S = 10.0
KEEP_ALIVE_S = 5.0


class Direct:
    """A target that this end has a connection of its own to, fed by a thread unless the sender is the thread."""

    def __init__(self, stripes: Sending) -> None:
        self.stripes = stripes
        self.outlet = Outlet()
        self.problem = ""
        self._ended = self._cut = False
        self._told = time.monotonic()
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def queue(self) -> Outlet:
        """Where the thread takes frames from, which is started by the first one."""
        self._told = time.monotonic()
        if not self._thread.ident:
            self._thread.start()
        return self.outlet

    def put(self, kind: int, payload: Buffer) -> None:
        """Send a frame in the caller's thread, or by the queue once there is one, since the order of frames counts."""
        if self._thread.ident:
            self.outlet.put((kind, payload))
        elif not self.problem:
            self._told = began = time.monotonic()
            with self._noted():
                self._give(kind, payload)
            self.outlet.blocked += time.monotonic() - began
            self.outlet.taken.add(len(payload))

    def waits(self) -> bool:
        """Whether it should be told, while only others are sent to, that its turn will come."""
        return time.monotonic() - self._told >= KEEP_ALIVE_S

    def _give(self, kind: int, payload: Buffer) -> None:
        self.stripes.send_frame(kind, payload)
        if kind != BLOCK:
            self.stripes.flush()

    def _drain(self) -> None:
        with self._noted():
            self.outlet.drain(self._give)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (OSError, PeerError) as error:
            if not self._cut:
                self.problem = str(error)

    def end(self) -> None:
        """Wait until everything is sent."""
        if self._thread.ident:
            self.outlet.put(None)
            self._thread.join()
        if not self.problem and not self._cut:
            with self._noted():
                self.stripes.flush()
                self._ended = True

    def cut(self) -> None:
        """End the connection at once, whatever a thread does with it."""
        self._cut = True
        self.close()

    def close(self) -> None:
        """Close in order after ``end``, else at once."""
        self.outlet.fail()
        with contextlib.suppress(OSError, PeerError):
            self.stripes.close(abort=not self._ended)


class Sinks:
    """The relay, and targets by their numbers that this end is connected to. ``stop`` may come from another thread."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.stopped = False
        self.sent = 0  # bytes given to connections that are closed
        self._direct: Dict[int, Direct] = {}

    def connect(self, message: Message) -> Dict[str, str]:
        """Connect to each target of the request, all at once, and to nobody else; gives why those that failed did."""
        self.close()
        failed: Dict[str, str] = {}

        def work(peer: Dict[str, Any]) -> None:
            try:
                from ansible_collections.ddtree.fleet.plugins.module_utils._stream import handshake  # seldom needed

                addresses = [(str(host), int(port)) for host, port in peer["addresses"]]
                own = (peer["certificate"], peer["key"])
                stripes = handshake.connect(addresses, own, peer["peer"], peer["streams"], CONNECT_S, message["idle"])
                self._direct[peer["sink"]] = Direct(stripes)
            except (OSError, PeerError) as error:
                failed[str(peer["sink"])] = str(error)

        threads = [threading.Thread(target=work, args=(peer,), daemon=True) for peer in message["peers"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    def begin(self) -> None:
        """Content is about to be sent; what stopped an earlier pass counts no more."""
        self.stopped = False

    def send(self, sinks: Sequence[int], kind: int, payload: Buffer) -> None:
        """Send a frame to some sinks; where there is only one at all, without a queue."""
        direct = [self._direct[number] for number in sinks if number in self._direct]
        if RELAY in sinks:
            self.channel.send_frame(kind, payload)
        if len(self._direct) == 1 and RELAY not in sinks:
            for sink in direct:
                sink.put(kind, payload)
        elif direct:
            fan_out((kind, payload), [sink.queue() for sink in direct if not sink.problem])
        self._keep_alive(sinks)

    def pass_on(self, sinks: Sequence[int], kind: int, payload: Buffer) -> None:
        """Queue a frame for some sinks, so that this thread goes on while it is sent."""
        fan_out((kind, payload), [self._direct[number].queue() for number in sinks if not self._direct[number].problem])
        self._keep_alive(sinks)

    def _keep_alive(self, sinks: Sequence[int]) -> None:
        for number, sink in self._direct.items():
            if number not in sinks and sink.waits():
                fan_out(message_frame("wait"), [sink.queue()])

    def any_left(self, sinks: Sequence[int]) -> bool:
        return not self.stopped and any(number == RELAY or not self._direct[number].problem for number in sinks)

    def end(self) -> None:
        """Tell the targets that no frame follows, and wait until all that they take is sent."""
        if not self.stopped:
            self.send([*self._direct], *message_frame("end"))
        self.finish()

    def finish(self) -> None:
        """Wait until all that the targets take is sent."""
        for sink in self._direct.values():
            sink.end()

    def lost(self) -> Dict[str, str]:
        """Why the targets that could not be sent to could not."""
        return {str(number): sink.problem for number, sink in self._direct.items() if sink.problem}

    def report(self) -> Message:
        """What the relay is told of those that are sent to; nothing where there are none."""
        if not self._direct:
            return {}
        outlets = {str(number): sink.outlet for number, sink in self._direct.items()}
        links = {number: [one.blocked, one.taken.bytes, one.taken.best] for number, one in outlets.items()}
        return {"lost": self.lost(), "links": links, "idle": idle_seconds() or 0.0}

    def stop(self) -> None:
        """Send nothing more to anybody, and hold up nobody who still tries."""
        self.stopped = True
        for sink in list(self._direct.values()):
            sink.cut()

    def close(self) -> None:
        """Close all connections: those that are finished in order, others at once."""
        for sink in self._direct.values():
            sink.close()
            self.sent += sink.stripes.sent
        self._direct.clear()
