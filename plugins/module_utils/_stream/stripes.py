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
import queue
import select
import socket
import ssl
import struct
import threading
import time
from typing import Callable, Deque, List, Optional, Sequence, Union

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
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
CLOSED = "the stream was closed at this end"
CORRUPT = "the stream is corrupt: something else than the agent writes to this connection"
CHANGED = "what arrived is not what was sent: something between the two hosts changes the bytes"


class Sending:
    """The end that sends. ``sent`` counts bytes of frames.

    Raises PeerError when the other end has gone or takes nothing, over any connection, for ``idle`` seconds.
    """

    def __init__(self, connections: Sequence[ssl.SSLSocket], idle: float) -> None:
        self.sent = 0
        watch = _Watch(idle)
        self._connections = [_Connection(tls, watch) for tls in connections]
        self._failures: List[BaseException] = []
        self._writers = [_Writer(one, self._failures) for one in self._connections] if len(connections) > 1 else []
        self._block = bytearray(LENGTH.size)
        self._blocks = 0
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
        for writer in self._writers:
            writer.blocks.join()
        self._check()

    def close(self, abort: bool = False) -> None:
        """Send what is left, tell the other end, and close; with ``abort`` only close, at once, whoever is sending."""
        if self._closed:
            return
        try:
            if not abort:
                self.flush()
        except PeerError:
            abort = True
            raise
        finally:
            self._closed = True
            self._failures.append(PeerError(CLOSED))
            if abort:
                for connection in self._connections:
                    connection.cut()
            for writer in self._writers:
                writer.end()
            for connection in self._connections:
                connection.close(orderly=not abort)

    def _send_block(self, rest: memoryview) -> None:
        self._check()
        block, self._block = self._block, bytearray(LENGTH.size)
        LENGTH.pack_into(block, 0, len(block) - LENGTH.size + len(rest))
        if self._writers:
            if not isinstance(rest.obj, bytes):
                rest = memoryview(bytes(rest))  # it is sent later
            self._writers[self._blocks % len(self._writers)].blocks.put([memoryview(block), rest])
            self._blocks += 1
        else:
            self._connections[0].send(memoryview(block))
            self._connections[0].send(rest)

    def _check(self) -> None:
        if self._failures:
            raise self._failures[0]


class Receiving:
    """The end that receives. ``received`` counts bytes of frames."""

    def __init__(self, connections: Sequence[ssl.SSLSocket], idle: float) -> None:
        self.received = 0
        watch = _Watch(idle)
        self._connections = [_Connection(tls, watch) for tls in connections]
        self._readers = [_Reader(one) for one in self._connections] if len(connections) > 1 else []
        self._blocks = 0
        self._frames: Deque[Frame] = collections.deque()

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
        if not self._readers:
            return self._connections[0].receive_block()
        reader = self._readers[self._blocks % len(self._readers)]
        self._blocks += 1
        return reader.take()

    def close(self) -> None:
        """Close at once, also while another thread receives."""
        for connection in self._connections:
            connection.cut()
        for reader in self._readers:
            reader.end()
        for connection in self._connections:
            connection.close(orderly=False)


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
        self._buffer = memoryview(bytearray(BLOCK))

    def send(self, data: memoryview) -> None:
        self._move(self._tls.send, data, "was taken")

    def receive_block(self) -> List[Frame]:
        self._move(self._tls.recv_into, self._buffer[: LENGTH.size], "came")
        (size,) = LENGTH.unpack_from(self._buffer)
        if not 0 < size <= MAX_BLOCK:
            raise PeerError(CORRUPT)
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._move(self._tls.recv_into, self._buffer[:size], "came")
        return _frames(self._buffer[:size])

    def _move(self, operation: Callable[[memoryview], int], data: memoryview, verb: str) -> None:
        """Send or fill all of ``data``; each call of ``operation`` moves one TLS record."""
        self._watch.moved = time.monotonic()
        with self._in_use:
            while data:
                if self._is_cut:
                    raise PeerError(CLOSED)
                try:
                    size = operation(data)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT, verb)
                    continue
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN, verb)
                    continue
                except (OSError, ValueError) as error:
                    raise _peer_error(error) from error
                if not size:
                    raise PeerError(ENDED)
                data = data[size:]

    def _wait(self, events: int, verb: str) -> None:
        poll = select.poll()
        poll.register(self._fd, events)
        while True:
            left = self._watch.moved + self._watch.idle - time.monotonic()
            if left <= 0:
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
        with self._in_use:
            if orderly:
                with contextlib.suppress(OSError, ValueError):
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll(CLOSE_S * 1000)
                    self._tls.unwrap()
            self._tls.close()


class _Writer(threading.Thread):
    """Sends the blocks of one connection. After the first failure of any they are passed over, so that nobody waits."""

    def __init__(self, connection: _Connection, failures: List[BaseException]) -> None:
        super().__init__(daemon=True)
        self.blocks: queue.Queue[Optional[List[memoryview]]] = queue.Queue(QUEUED_BLOCKS)
        self._connection = connection
        self._failures = failures
        self.start()

    def run(self) -> None:
        while True:
            pieces = self.blocks.get()
            try:
                if pieces is None:
                    return
                for piece in pieces:
                    if not self._failures:
                        self._connection.send(piece)
            except BaseException as error:  # raised by the thread that sends
                self._failures.append(error)
            finally:
                self.blocks.task_done()

    def end(self) -> None:
        self.blocks.put(None)
        self.join()


class _Reader(threading.Thread):
    """Receives the blocks of one connection."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__(daemon=True)
        self._blocks: queue.Queue[Union[List[Frame], BaseException]] = queue.Queue(QUEUED_BLOCKS)
        self._connection = connection
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._blocks.put(self._connection.receive_block())
        except BaseException as error:  # raised by the thread that receives
            self._blocks.put(error)

    def take(self) -> List[Frame]:
        found = self._blocks.get()
        if isinstance(found, BaseException):
            self._blocks.put(found)  # for whoever asks again
            raise found
        return found

    def end(self) -> None:
        """Wait for the thread, whose connection was cut; whoever waits for a block gets an error."""
        while self.is_alive() or not self._blocks.empty():
            with contextlib.suppress(queue.Empty):
                self._blocks.get(timeout=0.01)  # it may be waiting for room
        self._blocks.put(PeerError(CLOSED))


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
        frames.append((kind, bytes(block[HEADER.size : end])))
        block = block[end:]
    return frames
