# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The frames of ``wire`` from one host to another, over one or more TLS connections at once.

They travel in blocks, a big-endian 32-bit length and that many bytes of whole frames; block k goes over connection k mod n.
Striping by block, not by frame, keeps all connections busy whatever the order of large and small frames is, and spares a
hand-over between threads for each small one. Content flows one way only, so each connection needs one thread, and with one
connection whoever sends or receives is that thread.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Deque, List, Sequence, TypeVar

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    CLOSED,
    HEADER,
    MAX_FRAME,
    Buffer,
    Frame,
    PeerError,
    check_header,
)

CLOSE_S = 2.0
BLOCK = 256 << 10
RECORD = 16 << 10  # the most that one TLS record carries
QUEUED_BLOCKS = 4  # for each connection at each end
LENGTH = struct.Struct(">I")
MAX_BLOCK = BLOCK + HEADER.size + MAX_FRAME

ENDED = "the connection ended before the work was done"
CORRUPT = "the stream is corrupt: something else than the agent writes to this connection"
CHANGED = "what arrived is not what was sent: something between the two hosts changes the bytes"

T = TypeVar("T")


class Sending:
    """The end that sends. ``sent`` counts bytes of frames.

    Raises PeerError when the other end has gone or takes nothing, over any connection, for ``idle`` seconds.
    """

    def __init__(self, connections: Sequence[ssl.SSLSocket], idle: float) -> None:
        self.sent = 0
        watch = _Watch(idle)
        self._connections = [_Connection(tls, watch) for tls in connections]
        self._block = bytearray(LENGTH.size)
        self._blocks = 0
        self._going: Deque[Future[None]] = collections.deque()
        self._closed = False

    def send_frame(self, kind: int, payload: Buffer) -> None:
        """Send one frame; small ones wait for ``flush`` or for company. ``payload`` may be changed afterwards."""
        data = memoryview(payload).cast("B")
        self._block += HEADER.pack(kind, len(data))
        # The start of a large one fills the header's TLS record; the rest is sent from where it is.
        start = len(data) if len(data) < BLOCK else RECORD
        self._block += data[:start]
        self.sent += HEADER.size + len(data)
        if len(self._block) >= BLOCK or start < len(data):
            self._send_block(data[start:])

    def flush(self) -> None:
        """Hand everything to the network."""
        if len(self._block) > LENGTH.size:
            self._send_block(memoryview(b""))
        self._await(0)

    def close(self, abort: bool = False) -> None:
        """Send what is left, tell the other end, and close; with ``abort`` only close, at once, also while a thread sends."""
        if self._closed:
            return
        self._closed = True
        try:
            if not abort:
                self.flush()
        except PeerError:
            abort = True
            raise
        finally:
            _close(self._connections, orderly=not abort)

    def _send_block(self, rest: memoryview) -> None:
        block, self._block = self._block, bytearray(LENGTH.size)
        LENGTH.pack_into(block, 0, len(block) - LENGTH.size + len(rest))
        connection = self._connections[self._blocks % len(self._connections)]
        self._blocks += 1
        if len(self._connections) == 1:
            connection.send_block(block, rest)
            return
        if not isinstance(rest.obj, bytes):
            rest = memoryview(bytes(rest))  # it is sent later
        self._await(QUEUED_BLOCKS * len(self._connections) - 1)
        self._going.append(connection.in_thread(connection.send_block, block, rest))

    def _await(self, most: int) -> None:
        """Wait until no more than ``most`` blocks are on their way."""
        while len(self._going) > most:
            self._going[0].result()  # one that failed stays, so that nothing can follow it
            self._going.popleft()


class Receiving:
    """The end that receives. ``received`` counts bytes of frames."""

    def __init__(self, connections: Sequence[ssl.SSLSocket], idle: float) -> None:
        self.received = 0
        watch = _Watch(idle)
        self._connections = [_Connection(tls, watch) for tls in connections]
        self._frames: Deque[Frame] = collections.deque()
        self._coming: Deque[Future[List[Frame]]] = collections.deque()
        self._blocks = 0

    def receive_frame(self) -> Frame:
        """The next frame, type and payload, in the order in which they were sent.

        Raises PeerError at the end, when bytes were changed on the way, and when nothing came, over any connection, for
        ``idle`` seconds.
        """
        while not self._frames:
            self._frames.extend(self._next_block())
        kind, payload = self._frames.popleft()
        self.received += HEADER.size + len(payload)
        return kind, payload

    def _next_block(self) -> List[Frame]:
        count = len(self._connections)
        if count == 1:
            return self._connections[0].receive_block()
        while (
            len(self._coming) < QUEUED_BLOCKS * count
        ):  # not before the first is wanted, from when on idle time counts
            connection = self._connections[self._blocks % count]
            self._coming.append(connection.in_thread(connection.receive_block))
            self._blocks += 1
        frames = self._coming[0].result()  # one that failed stays, so that nothing can follow it
        self._coming.popleft()
        return frames

    def close(self) -> None:
        """Close at once, also while a thread receives."""
        _close(self._connections, orderly=False)


class _Watch:
    """When something last moved on any connection of one stream, and how many seconds without that are too long."""

    def __init__(self, idle: float) -> None:
        self.idle = idle
        self.moved = 0.0


class _Connection:
    """One connection, in one direction. Only one thread at a time uses it, but any may cut it."""

    def __init__(self, tls: ssl.SSLSocket, watch: _Watch) -> None:
        tls.setblocking(False)
        self._tls = tls
        self._fd = tls.fileno()
        self._watch = watch
        self._in_use = threading.Lock()
        self._is_cut = False
        self._length = memoryview(bytearray(LENGTH.size))
        self._thread = ThreadPoolExecutor(1)  # starts with the first work that it is given

    def in_thread(self, work: Callable[..., T], *given: Buffer) -> Future[T]:
        try:
            return self._thread.submit(work, *given)
        except RuntimeError as error:
            raise PeerError(CLOSED) from error

    def send_block(self, start: Buffer, rest: memoryview) -> None:
        self._move(self._tls.send, memoryview(start), "was taken")
        self._move(self._tls.send, rest, "was taken")

    def receive_block(self) -> List[Frame]:
        self._move(self._tls.recv_into, self._length, "came")
        (size,) = LENGTH.unpack_from(self._length)
        if not 0 < size <= MAX_BLOCK:
            raise PeerError(CORRUPT)
        block = memoryview(bytearray(size))  # a new one each time, since its frames are handed on without a copy
        self._move(self._tls.recv_into, block, "came")
        return _frames(block)

    def _move(self, operation: Callable[[memoryview], int], data: memoryview, verb: str) -> None:
        """Send or fill all of ``data``; each call of ``operation`` moves one TLS record. A failure is the connection's end."""
        self._watch.moved = time.monotonic()
        try:
            with self._in_use:
                while data:
                    if self._is_cut:
                        raise PeerError(CLOSED)
                    try:
                        size = operation(data)
                    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                        self._wait(error, verb)
                        continue
                    if not size:
                        raise ssl.SSLZeroReturnError
                    data = data[size:]
        except (OSError, ValueError) as error:
            closed = self._is_cut
            self.cut()
            raise PeerError(CLOSED) if closed else _peer_error(error) from error

    def _wait(self, error: ssl.SSLError, verb: str) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN if isinstance(error, ssl.SSLWantReadError) else select.POLLOUT)
        while True:
            left = self._watch.moved + self._watch.idle - time.monotonic()
            if left <= 0:
                self.cut()
                raise PeerError(f"nothing {verb} for {self._watch.idle:.0f} s; the host or the network hangs")
            if poll.poll(left * 1000):
                self._watch.moved = time.monotonic()
                return

    def cut(self) -> None:
        """End the connection at once for both ends, and whatever a thread does with it."""
        self._is_cut = True  # the kernel still gives what it has, and takes what comes
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._tls, socket.SHUT_RDWR)  # after the TLS socket's own it would send in the clear

    def close(self, orderly: bool) -> None:
        """Close; ``orderly`` with TLS's own word to the other end, which need not answer."""
        self._thread.shutdown()
        with self._in_use:
            if orderly:
                with contextlib.suppress(OSError, ValueError):
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll(CLOSE_S * 1000)
                    self._tls.unwrap()
            self._tls.close()


def _close(connections: Sequence[_Connection], orderly: bool) -> None:
    if not orderly:
        for connection in connections:
            connection.cut()
    for connection in connections:
        connection.close(orderly)


def _peer_error(error: Exception) -> PeerError:
    if not isinstance(error, ssl.SSLError) or is_end(error):
        return PeerError(ENDED)
    return PeerError(CHANGED if "BAD_RECORD_MAC" in (error.reason or "") else CORRUPT)


def is_end(error: Exception) -> bool:
    """Whether the other end has closed the connection."""
    if isinstance(error, (ssl.SSLZeroReturnError, ssl.SSLEOFError)):
        return True
    # Python 3.9 with OpenSSL 3 has no class of its own for it.
    return isinstance(error, ssl.SSLError) and error.reason == "UNEXPECTED_EOF_WHILE_READING"


def _frames(block: memoryview) -> List[Frame]:
    frames: List[Frame] = []
    while block:
        if len(block) < HEADER.size:
            raise PeerError(CORRUPT)
        kind, size = HEADER.unpack_from(block)
        check_header(kind, size)
        end = HEADER.size + size
        if end > len(block):
            raise PeerError(CORRUPT)
        frames.append((kind, block[HEADER.size : end]))
        block = block[end:]
    return frames
