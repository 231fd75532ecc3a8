# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The direct path: the agents of two hosts that see each other, over TLS 1.3, without the relay between them.

Each end has a certificate made for this one stream and accepts exactly the other one. Whoever else connects is refused.

Frames are those of ``wire``. They travel in blocks, a big-endian 32-bit length and that many bytes of whole frames; block k
goes over connection k mod n. Striping by block, not by frame, keeps all connections busy whatever the order of large and
small frames is, and spares a hand-over between threads for each small one.
"""

from __future__ import annotations

import array
import collections
import contextlib
import errno
import fcntl
import functools
import ipaddress
import os
import select
import selectors
import socket
import ssl
import struct
import tempfile
import threading
import time
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Generic,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    HEADER,
    MAX_FRAME,
    Frame,
    PeerError,
    check_header,
)

MAX_STREAMS = 16
IDLE_S = 180.0
CLOSE_S = 2.0
STAGGER_S = 0.25
HANDSHAKE_S = 10.0  # for one connection at the listening end, where anybody may connect
MAX_STRANGERS = 64  # connections in their handshake at one time
BLOCK = 256 << 10
RECORD = 16 << 10  # the most that one TLS record carries
QUEUED_BLOCKS, QUEUED_BYTES = 4, 8 << 20
LENGTH = struct.Struct(">I")
MAX_BLOCK = BLOCK + HEADER.size + MAX_FRAME
HELLO = struct.Struct(">8sBB")  # magic, number of the connection, number of connections
MAGIC = b"ddtree/1"
WELCOME = b"\x01"
SIOCGIFCONF = 0x8912
IFREQ = struct.Struct("16s4x4s16x")
UNUSABLE_IPV6 = 0x08 | 0x20 | 0x40  # duplicate, deprecated, tentative

ENDED = "the connection ended before the work was done"
CLOSED = "the stream was closed at this end"
CORRUPT = "the stream is corrupt: something else than the agent writes to this connection"

T = TypeVar("T")
Address = Tuple[str, int]
Buffer = Union[bytes, bytearray, memoryview]


class DirectError(Exception):
    """No direct connection came about; the message is for people."""


# this host


def addresses() -> List[str]:
    """The addresses by which other hosts may reach this one, those of the fastest interface first, IPv4 before IPv6.

    It does not matter when one of them is good for nothing: who connects there and finds somebody else tries the next.
    """
    found = [(name, text) for name, text in (*_ipv4_addresses(), *_ipv6_addresses()) if _may_be_reached(name, text)]
    return list(dict.fromkeys(text for _name, text in sorted(found, key=lambda item: -_speed(item[0]))))


def _ipv4_addresses() -> Iterator[Tuple[str, str]]:
    buffer = array.array("B", bytes(IFREQ.size * 1024))
    start, size = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, SIOCGIFCONF, struct.pack("iL", size, start))
    used = struct.unpack("iL", answer)[0]
    for name, packed in IFREQ.iter_unpack(bytes(buffer[:used])):
        interface = name.rstrip(b"\0").decode().partition(":")[0]
        yield interface, socket.inet_ntop(socket.AF_INET, packed)


def _ipv6_addresses() -> Iterator[Tuple[str, str]]:
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        for line in lines:
            digits, _index, _prefix, _scope, flags, interface = line.split()
            if not int(flags, 16) & UNUSABLE_IPV6:
                yield interface, str(ipaddress.IPv6Address(bytes.fromhex(digits)))


def _may_be_reached(interface: str, text: str) -> bool:
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        return False
    return _sys(interface, "operstate") in ("up", "unknown", "")


def _speed(interface: str) -> int:
    """Mbit/s; 0 when it is not known."""
    text = _sys(interface, "speed")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _sys(interface: str, name: str) -> str:
    with contextlib.suppress(OSError), open(f"/sys/class/net/{interface}/{name}", encoding="ascii") as file:
        return file.read().strip()
    return ""


# TLS


def _context(server: bool, own: Tuple[str, str], peer_certificate: str) -> ssl.SSLContext:
    """TLS 1.3 with ``own`` (certificate and key, PEM), which trusts the peer's certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    if server:
        context.num_tickets = 0
    try:
        context.load_verify_locations(cadata=peer_certificate)
        with _as_file("\n".join(own)) as path:
            context.load_cert_chain(path)
    except (ssl.SSLError, ValueError) as error:
        raise DirectError(f"the certificates for the direct path cannot be used here: {_why(error)}") from error
    return context


@contextlib.contextmanager
def _as_file(secret: str) -> Iterator[str]:
    """A path of ``secret``, since the library loads keys from files only: memory, not a file, where the system has that."""
    with contextlib.ExitStack() as stack:
        try:
            fd = os.memfd_create("key")
            path = f"/proc/self/fd/{fd}"
            stack.callback(os.close, fd)
        except (AttributeError, OSError):
            fd, path = tempfile.mkstemp()
            stack.callback(os.close, fd)
            stack.callback(os.unlink, path)
        os.write(fd, secret.encode("ascii"))
        yield path


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it is not the expected host ({error.verify_message})"
    if _is_end(error):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _is_end(error: Exception) -> bool:
    if isinstance(error, (ssl.SSLZeroReturnError, ssl.SSLEOFError)):
        return True
    # Python 3.9 with OpenSSL 3 has no class of its own for it.
    return isinstance(error, ssl.SSLError) and error.reason == "UNEXPECTED_EOF_WHILE_READING"


# handshakes, side by side in one thread: each is a generator that yields the event it waits for

Steps = Generator[int, None, T]


class _Handshakes(Generic[T]):
    """Handshakes that go on at one time. Leaving it as a context manager ends those that are not done."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._going: Dict[int, Tuple[Address, Steps[T], float]] = {}
        self._done: List[Tuple[Address, Union[T, Exception]]] = []

    def __enter__(self) -> _Handshakes[T]:
        return self

    def __exit__(self, *_exception: object) -> None:
        for fd in list(self._going):
            self._forget(fd).close()
        self._selector.close()

    def __len__(self) -> int:
        return len(self._going)

    def add(self, fd: int, address: Address, steps: Steps[T], deadline: float) -> None:
        """Begin one on the descriptor ``fd``, which it keeps to its end."""
        self._going[fd] = (address, steps, deadline)
        self._selector.register(fd, selectors.EVENT_READ)
        self._advance(fd)

    def drop_oldest(self) -> None:
        self._forget(next(iter(self._going))).close()

    def watch(self, listening: socket.socket) -> None:
        """End the wait in ``turn`` also when somebody connects."""
        self._selector.register(listening, selectors.EVENT_READ)

    def turn(self, until: float) -> List[Tuple[Address, Union[T, Exception]]]:
        """Wait for events, at most until the time ``until``; gives what has ended, with its result or its failure."""
        limit = min([until, *(deadline for _address, _steps, deadline in self._going.values())])
        for key, _events in self._selector.select(0 if self._done else max(0.0, limit - time.monotonic())):
            if key.fd in self._going:
                self._advance(key.fd)
        now = time.monotonic()
        for fd, (address, _steps, deadline) in list(self._going.items()):
            if now >= deadline:
                self._forget(fd).close()
                self._done.append((address, TimeoutError("it did not answer in time")))
        done, self._done = self._done, []
        return done

    def _advance(self, fd: int) -> None:
        address, steps, _deadline = self._going[fd]
        try:
            self._selector.modify(fd, next(steps))
        except StopIteration as end:
            self._forget(fd)
            self._done.append((address, end.value))
        except (OSError, ValueError) as error:
            self._forget(fd)
            self._done.append((address, error))

    def _forget(self, fd: int) -> Steps[T]:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)
        return self._going.pop(fd)[1]


def _alone(sock: socket.socket, address: Address, steps: Steps[T], deadline: float) -> T:
    """The result of one handshake; raises OSError when it fails."""
    with _Handshakes[T]() as handshakes:
        handshakes.add(sock.fileno(), address, steps, deadline)
        while True:
            for _address, outcome in handshakes.turn(deadline):
                if isinstance(outcome, Exception):
                    raise outcome
                return outcome


def _when_possible(operation: Callable[[], T]) -> Steps[T]:
    while True:
        try:
            return operation()
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            yield selectors.EVENT_WRITE


def _authenticated(sock: socket.socket, context: ssl.SSLContext, peer: bytes, server: bool) -> Steps[ssl.SSLSocket]:
    """TLS on a connected socket, with the peer whose certificate is ``peer`` (DER)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with _closed_on_failure(sock):
        tls = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=False)
    with _closed_on_failure(tls):
        yield from _when_possible(tls.do_handshake)
        if tls.getpeercert(True) != peer:
            raise ValueError("it is not the expected host (another certificate)")
    return tls


@contextlib.contextmanager
def _closed_on_failure(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _close_all(connections: Iterable[ssl.SSLSocket]) -> None:
    for tls in connections:
        tls.close()


def _receive_exactly(tls: ssl.SSLSocket, size: int) -> Steps[bytes]:
    data = b""
    while len(data) < size:
        piece = yield from _when_possible(functools.partial(tls.recv, size - len(data)))
        if not piece:
            raise ssl.SSLEOFError("the connection was closed")
        data += piece
    return data


class Listener:
    """The end that waits for the other one, on all addresses of this host.

    ``ports`` is a range with both ends in it, (0, 0) for any port; ``own`` is certificate and key, PEM; ``streams`` is the
    number of connections. Raises DirectError when no port of the range is free.
    """

    def __init__(self, ports: Tuple[int, int], own: Tuple[str, str], peer_certificate: str, streams: int) -> None:
        self._context = _context(True, own, peer_certificate)
        self._peer = ssl.PEM_cert_to_DER_cert(peer_certificate)
        self._streams = streams
        self._socket = _listen(*ports)
        self.port: int = self._socket.getsockname()[1]

    def accept(self, timeout: float) -> Stripes:
        """Wait ``timeout`` seconds for all connections of the one peer; anybody else is refused and delays nothing.

        Raises DirectError when the time is up.
        """
        deadline = time.monotonic() + timeout
        found: Dict[int, ssl.SSLSocket] = {}
        refused = ""
        with contextlib.ExitStack() as stack, _Handshakes[Tuple[int, ssl.SSLSocket]]() as handshakes:
            stack.callback(_close_all, found.values())
            handshakes.watch(self._socket)
            while len(found) < self._streams:
                if time.monotonic() >= deadline:
                    raise DirectError(self._nobody(timeout, len(found), refused))
                for address, outcome in handshakes.turn(deadline):
                    if isinstance(outcome, Exception):
                        refused = f"; refused {address[0]}: {_why(outcome)}"
                        continue
                    number, tls = outcome
                    if number in found:  # its first attempt was lost on the way
                        found[number].close()
                    found[number] = tls
                self._take_in(handshakes)
            connections = [found[number] for number in range(self._streams)]
            found.clear()
        return Stripes(connections)

    def _take_in(self, handshakes: _Handshakes[Tuple[int, ssl.SSLSocket]]) -> None:
        """Begin a handshake with everybody who has connected."""
        while True:
            try:
                sock, address = self._socket.accept()
            except OSError:  # nobody more, or one who has left again
                return
            sock.setblocking(False)
            if len(handshakes) >= MAX_STRANGERS:
                handshakes.drop_oldest()
            who = (address[0].replace("::ffff:", ""), address[1])
            handshakes.add(sock.fileno(), who, self._welcome(sock), time.monotonic() + HANDSHAKE_S)

    def _welcome(self, sock: socket.socket) -> Steps[Tuple[int, ssl.SSLSocket]]:
        """The client knows only by this answer that its own certificate was accepted: in TLS 1.3 its handshake ends earlier."""
        tls = yield from _authenticated(sock, self._context, self._peer, True)
        with _closed_on_failure(tls):
            magic, number, streams = HELLO.unpack((yield from _receive_exactly(tls, HELLO.size)))
            if (magic, streams) != (MAGIC, self._streams) or number >= streams:
                raise ValueError("it wants another number of connections or speaks another protocol")
            yield from _when_possible(lambda: tls.send(WELCOME))
        return number, tls

    def _nobody(self, timeout: float, found: int, refused: str) -> str:
        came = f"only {found} of {self._streams} connections" if found else "nobody"
        return f"{came} of the other host came to port {self.port} within {timeout:.0f} s{refused}"

    def close(self) -> None:
        self._socket.close()


def _listen(low: int, high: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    taken: Optional[OSError] = None
    for port in range(low, high + 1):
        listening = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
        try:
            with _closed_on_failure(listening):
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if dual:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listening.bind(("::" if dual else "0.0.0.0", port))
                listening.listen(128)
        except OSError as error:
            taken = error
        else:
            listening.setblocking(False)
            return listening
    raise DirectError(
        f"no port of {low}-{high} can be used for the direct path ({_why(taken) if taken else 'the range is empty'}); "
        "free one or name another range"
    )


def connect(
    candidates: Sequence[Address],
    own: Tuple[str, str],
    peer_certificate: str,
    streams: int,
    timeout: float,
) -> Stripes:
    """Connect to a ``Listener`` that has one of the ``candidates``, address and port; the first that proves to be the peer is taken.

    ``own`` is certificate and key, PEM; ``timeout`` in seconds is for everything. Raises DirectError that names each address
    and what was wrong there.
    """
    deadline = time.monotonic() + timeout
    context = _context(False, own, peer_certificate)
    call = _Call(context, ssl.PEM_cert_to_DER_cert(peer_certificate), streams, deadline)
    connections: List[ssl.SSLSocket] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_close_all, connections)
        address, first = call.first(list(dict.fromkeys(candidates)))
        connections.append(first)
        for number in range(1, streams):
            connections.append(call.further(address, number))
        stack.pop_all()
    return Stripes(connections)


class _Call(NamedTuple):
    """The calling end of one stream."""

    context: ssl.SSLContext
    peer: bytes
    streams: int
    deadline: float

    def first(self, candidates: List[Address]) -> Tuple[Address, ssl.SSLSocket]:
        """Begin one attempt after the other, not waiting for the end of any; gives the first that succeeds."""
        failures: Dict[Address, str] = {}
        waiting = collections.deque(candidates)
        begin = 0.0
        with _Handshakes[ssl.SSLSocket]() as handshakes:
            while waiting or len(handshakes):
                if waiting and (time.monotonic() >= begin or not len(handshakes)):
                    begin = time.monotonic() + STAGGER_S
                    self._begin(handshakes, waiting.popleft(), failures)
                for address, outcome in handshakes.turn(begin if waiting else self.deadline):
                    try:
                        if isinstance(outcome, Exception):
                            raise outcome
                        return address, self._introduce(outcome, address, 0)
                    except (OSError, ValueError) as error:
                        failures[address] = _why(error)
                        begin = 0.0
        tried = "; ".join(f"{host} port {port}: {failures[host, port]}" for host, port in candidates)
        raise DirectError(f"the other host cannot be reached directly: {tried or 'it has no address'}")

    def _begin(self, handshakes: _Handshakes[ssl.SSLSocket], address: Address, failures: Dict[Address, str]) -> None:
        try:
            sock, target = _socket_for(address)
        except OSError as error:
            failures[address] = _why(error)
        else:
            handshakes.add(sock.fileno(), address, self._reach(sock, target), self.deadline)

    def further(self, address: Address, number: int) -> ssl.SSLSocket:
        """One more connection to the address that was found."""
        try:
            sock, target = _socket_for(address)
            tls = _alone(sock, address, self._reach(sock, target), self.deadline)
            return self._introduce(tls, address, number)
        except (OSError, ValueError) as error:
            raise DirectError(
                f"connection {number + 1} of {self.streams} to {address[0]} port {address[1]} failed: {_why(error)}"
            ) from error

    def _reach(self, sock: socket.socket, target: Tuple[Any, ...]) -> Steps[ssl.SSLSocket]:
        with _closed_on_failure(sock):
            number = sock.connect_ex(target)
            if number == errno.EINPROGRESS:
                yield selectors.EVENT_WRITE
                number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, os.strerror(number))
        return (yield from _authenticated(sock, self.context, self.peer, False))

    def _introduce(self, tls: ssl.SSLSocket, address: Address, number: int) -> ssl.SSLSocket:
        return _alone(tls, address, self._hello(tls, number), self.deadline)

    def _hello(self, tls: ssl.SSLSocket, number: int) -> Steps[ssl.SSLSocket]:
        with _closed_on_failure(tls):
            yield from _when_possible(lambda: tls.send(HELLO.pack(MAGIC, number, self.streams)))
            yield from _receive_exactly(tls, len(WELCOME))
        return tls


def _socket_for(address: Address) -> Tuple[socket.socket, Tuple[Any, ...]]:
    family, kind, protocol, _name, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    return sock, target


# the stream


class _Connection:
    """One authenticated connection that never waits. Safe for one thread that gives and another one that takes."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        self._tls = tls
        self._lock = threading.Lock()  # the library allows one call at a time
        self.fd = tls.fileno()
        self.given = self.taken = 0.0  # when that was last possible

    def give(self, data: memoryview) -> int:
        """Send as much of it as is taken now; gives how much. Raises PeerError."""
        size = 0
        try:
            with self._lock:
                while size < len(data):  # each call sends one record
                    size += self._tls.send(data[size:])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except (OSError, ValueError) as error:
            raise _peer_error(error) from error
        if size:
            self.given = time.monotonic()
        return size

    def take(self, buffer: memoryview) -> int:
        """Receive as much of ``buffer`` as is there now; gives how much. Raises PeerError, also at the end."""
        size = 0
        try:
            with self._lock:
                while size < len(buffer):  # each call receives one record
                    piece = self._tls.recv_into(buffer[size:])
                    if not piece:
                        raise _Ended(ENDED)
                    size += piece
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (OSError, ValueError) as error:
            raise _peer_error(error) from error
        if size:
            self.taken = time.monotonic()
        return size

    def blocks(self) -> Iterator[Optional[List[Frame]]]:
        """The frames of one block after the other; None when the next has not come yet. Raises PeerError."""
        buffer = memoryview(bytearray(BLOCK))
        while True:
            yield from self._fill(buffer[: LENGTH.size])
            (size,) = LENGTH.unpack_from(buffer)
            if not 0 < size <= MAX_BLOCK:
                raise PeerError(CORRUPT)
            if size > len(buffer):
                buffer = memoryview(bytearray(size))
            yield from self._fill(buffer[:size])
            yield _frames(buffer[:size])

    def _fill(self, buffer: memoryview) -> Iterator[None]:
        while True:
            buffer = buffer[self.take(buffer) :]
            if not buffer:
                return
            yield None

    def close(self, orderly: bool) -> None:
        """Close; ``orderly`` with TLS's own word to the other end, and so that all that was sent still arrives."""
        with self._lock:  # to the end: without TLS, the socket would send what a thread gives it as it is
            with contextlib.suppress(OSError, ValueError):
                if orderly:
                    self._say_goodbye()
                self._tls.shutdown(socket.SHUT_WR if orderly else socket.SHUT_RDWR)
                for _turn in range(64):  # what is left unread makes the kernel drop what is still on its way
                    if not os.read(self.fd, 1 << 16):
                        break
            self._tls.close()

    def _say_goodbye(self) -> None:
        while True:
            try:
                self._tls.unwrap()
                return
            except ssl.SSLWantWriteError:
                if not _wait(self.fd, select.POLLOUT, CLOSE_S):
                    return
            except ssl.SSLError:  # told; it need not answer
                return


class _Ended(PeerError):
    """The other end has closed its connection; what it had sent before has all come."""


def _peer_error(error: Exception) -> PeerError:
    if isinstance(error, ssl.SSLError) and "BAD_RECORD_MAC" in (error.reason or ""):
        return PeerError("what arrived is not what was sent: something between the two hosts changes the bytes")
    if _is_end(error):
        return _Ended(ENDED)
    if not isinstance(error, ssl.SSLError):
        return PeerError(ENDED)
    return PeerError(f"the stream is corrupt: {_why(error)}")


def _frames(block: memoryview) -> List[Frame]:
    frames: List[Frame] = []
    start = 0
    while start < len(block):
        if len(block) - start < HEADER.size:
            raise PeerError(CORRUPT)
        kind, size = HEADER.unpack_from(block, start)
        start += HEADER.size
        check_header(kind, size)
        if size > len(block) - start:
            raise PeerError(CORRUPT)
        frames.append((kind, bytes(block[start : start + size])))
        start += size
    return frames


class _Inline:
    """The lane of a stream with one connection: whoever sends and receives does the work."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._blocks = connection.blocks()

    def put(self, pieces: Sequence[memoryview], idle: float) -> None:
        for piece in pieces:
            while True:
                piece = piece[self._connection.give(piece) :]
                if not piece:
                    break
                if not _wait(self._connection.fd, select.POLLOUT, idle):
                    raise PeerError(_nothing("was taken", idle))

    def get(self, idle: float) -> List[Frame]:
        for frames in self._blocks:
            if frames is not None:
                return frames
            if not _wait(self._connection.fd, select.POLLIN, idle):
                raise PeerError(_nothing("came", idle))
        raise PeerError(ENDED)

    def flush(self, idle: float) -> None:
        """``put`` leaves nothing behind."""

    def close(self, orderly: bool) -> None:
        self._connection.close(orderly)


def _wait(fd: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(seconds * 1000))


def _nothing(verb: str, seconds: float) -> str:
    return f"nothing {verb} for {seconds:.0f} s; the host or the network hangs"


class _State:
    """What the threads of one stream share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.failure: Optional[PeerError] = None


class _Threaded:
    """The lane of one connection among several: a thread does the work, with a bounded queue in each direction."""

    def __init__(self, connection: _Connection, state: _State) -> None:
        self._connection = connection
        self._state = state
        self._out: Deque[Tuple[int, List[memoryview]]] = collections.deque()
        self._in: Deque[List[Frame]] = collections.deque()
        self._out_bytes = self._in_bytes = 0
        self._broken: Optional[PeerError] = None  # nothing can be sent any more
        self._ended: Optional[PeerError] = None  # nothing comes any more
        self._stop = False
        self._alarm, self._bell = os.pipe()
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, pieces: Sequence[memoryview], idle: float) -> None:
        size = sum(map(len, pieces))
        with self._state.changed:
            self._await(lambda: self._has_room(size) or self._unsendable(), "was taken", idle)
            error = self._unsendable()
            if error:
                raise error
            self._out.append((size, list(pieces)))
            self._out_bytes += size
        self._wake()

    def get(self, idle: float) -> List[Frame]:
        with self._state.changed:
            self._await(lambda: self._in or self._ended or self._state.failure, "came", idle)
            if not self._in:
                raise self._ended or self._state.failure or PeerError(ENDED)
            was_full = self._is_full()
            frames = self._in.popleft()
            self._in_bytes -= _size(frames)
        if was_full:
            self._wake()
        return frames

    def flush(self, idle: float) -> None:
        with self._state.changed:
            self._await(lambda: not self._out or self._unsendable(), "was taken", idle)
            error = self._unsendable()
            if self._out and error:
                raise error

    def close(self, orderly: bool) -> None:
        with self._state.changed:
            self._stop = True
            self._broken = self._ended = PeerError(CLOSED)
            self._state.changed.notify_all()
        self._wake()
        self._thread.join()
        self._connection.close(orderly)
        os.close(self._alarm)
        os.close(self._bell)

    def _await(self, ready: Callable[[], object], verb: str, idle: float) -> None:
        """Wait with the lock held; raises PeerError when the connection has moved nothing for ``idle`` seconds."""
        started = time.monotonic()
        while not ready():
            moved = self._connection.taken if verb == "came" else self._connection.given
            left = max(started, moved) + idle - time.monotonic()
            if left <= 0:
                raise PeerError(_nothing(verb, idle))
            self._state.changed.wait(left)

    def _has_room(self, size: int) -> bool:
        return not self._out or (len(self._out) < QUEUED_BLOCKS and self._out_bytes + size <= QUEUED_BYTES)

    def _is_full(self) -> bool:
        return len(self._in) >= QUEUED_BLOCKS or self._in_bytes >= QUEUED_BYTES

    def _unsendable(self) -> Optional[PeerError]:
        return self._broken or self._state.failure

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"\0")

    # in the thread, which alone touches the connection

    def _work(self) -> None:
        blocks = self._connection.blocks()
        while not self._stop:
            gave = self._give()
            if not self._take(blocks) and not gave:
                self._sleep()

    def _give(self) -> bool:
        """Send one block; False when there is none or not all of it can be sent now."""
        if not self._out or self._broken:
            return False
        size, pieces = self._out[0]
        try:
            while pieces:
                pieces[0] = pieces[0][self._connection.give(pieces[0]) :]
                if pieces[0]:
                    return False
                del pieces[0]
        except PeerError as error:
            with self._state.changed:
                self._broken = error
                self._state.changed.notify_all()
            return True
        with self._state.changed:
            self._out.popleft()
            self._out_bytes -= size
            self._state.changed.notify_all()
        return True

    def _take(self, blocks: Iterator[Optional[List[Frame]]]) -> bool:
        """Receive one block; False when it is not there yet."""
        if self._ended or self._is_full():
            return False
        try:
            frames = next(blocks)
        except PeerError as error:
            with self._state.changed:
                self._ended = error
                if not isinstance(error, _Ended):  # else the other connections may still carry the last blocks
                    self._state.failure = self._state.failure or error
                self._state.changed.notify_all()
            return True
        if frames is None:
            return False
        with self._state.changed:
            self._in.append(frames)
            self._in_bytes += _size(frames)
            self._state.changed.notify_all()
        return True

    def _sleep(self) -> None:
        """Wait for the connection or for a caller, who rings after each change."""
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        giving = select.POLLOUT if self._out and not self._broken else 0
        taking = 0 if self._ended or self._is_full() else select.POLLIN
        if giving or taking:  # else a connection that was hung up would end the wait again and again
            poll.register(self._connection.fd, giving | taking)
        poll.poll()
        with contextlib.suppress(BlockingIOError):
            os.read(self._alarm, 4096)


def _size(frames: List[Frame]) -> int:
    return sum(len(payload) for _kind, payload in frames)


class Stripes:
    """Frames in order over the connections of one stream. One thread may send while another one receives.

    With one connection there are no threads and no queues. ``sent`` and ``received`` count bytes of frames. ``idle``: seconds
    in which the other end may take or give nothing. What goes wrong is a PeerError; after one from sending, ``receive_frame``
    still gives what the other end said before.
    """

    def __init__(self, connections: Sequence[ssl.SSLSocket], idle: float = IDLE_S) -> None:
        self.idle = idle
        self.sent = 0
        self.received = 0
        made = [_Connection(tls) for tls in connections]
        state = _State()
        self._lanes: List[Union[_Inline, _Threaded]] = (
            [_Inline(made[0])] if len(made) == 1 else [_Threaded(connection, state) for connection in made]
        )
        self._block = bytearray(LENGTH.size)
        self._blocks_sent = 0
        self._blocks_received = 0
        self._frames: Deque[Frame] = collections.deque()

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

    def _send_block(self, rest: memoryview) -> None:
        block, self._block = self._block, bytearray(LENGTH.size)
        LENGTH.pack_into(block, 0, len(block) - LENGTH.size + len(rest))
        if len(self._lanes) > 1 and not isinstance(rest.obj, bytes):
            rest = memoryview(bytes(rest))  # it is sent later
        lane = self._lanes[self._blocks_sent % len(self._lanes)]
        self._blocks_sent += 1
        lane.put([memoryview(block), rest] if rest else [memoryview(block)], self.idle)

    def receive_frame(self) -> Frame:
        """The next frame, type and payload, in the order in which they were sent. Raises PeerError, also at the end."""
        while not self._frames:
            lane = self._lanes[self._blocks_received % len(self._lanes)]
            self._frames.extend(lane.get(self.idle))
            self._blocks_received += 1
        kind, payload = self._frames.popleft()
        self.received += HEADER.size + len(payload)
        return kind, payload

    def flush(self) -> None:
        """Hand everything to the network."""
        if len(self._block) > LENGTH.size:
            self._send_block(memoryview(b""))
        for lane in self._lanes:
            lane.flush(self.idle)

    def close(self, abort: bool = False) -> None:
        """Send what is left, tell the other end, and close; with ``abort`` only close, at once. Raises PeerError."""
        try:
            if self._lanes and not abort:
                self.flush()
        except PeerError:
            abort = True
            raise
        finally:
            lanes, self._lanes = self._lanes, []
            for lane in lanes:
                lane.close(not abort)
