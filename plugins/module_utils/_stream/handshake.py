# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the agents of two hosts that see each other find each other: TLS 1.3, without the relay between them.

Each end has a certificate made for this one stream and accepts exactly the other one. Whoever else connects is refused and
delays nobody, since every handshake has a thread of its own and a limited time.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import queue
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PeerError

try:
    import ssl
except ImportError as error:
    raise PeerError(
        f"the Python of {socket.gethostname()}, {sys.executable}, has no ssl module, which the direct path needs"
    ) from error

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Receiving, Sending, is_end

STAGGER_S = 0.25
HANDSHAKE_S = 10.0  # for one connection at the listening end, where anybody may connect
MAX_STRANGERS = 64  # connections in their handshake at one time
HELLO = struct.Struct(">8sBB")  # magic, number of the connection, number of connections
MAGIC = b"ddtree/1"
WELCOME = b"\x01"
LATE = "it did not answer in time"

Address = Tuple[str, int]
Outcome = Tuple[Address, ssl.SSLSocket, Union[int, Exception]]


class Listener:
    """The end that waits for the other one, on all addresses of this host, for one stream.

    ``ports`` is a range with both ends in it, (0, 0) for any port; ``own`` is certificate and key, PEM; ``streams`` is the
    number of connections. Raises PeerError when no port of the range is free.
    """

    def __init__(self, ports: Tuple[int, int], own: Tuple[str, str], peer_certificate: str, streams: int) -> None:
        self._context = _context(True, own, peer_certificate)
        self._peer = ssl.PEM_cert_to_DER_cert(peer_certificate)
        self._streams = streams
        self._socket = _listen(*ports)
        self._open = True
        self.port: int = self._socket.getsockname()[1]

    def accept(self, timeout: float, idle: float) -> Receiving:
        """Wait ``timeout`` seconds for all connections of the one peer; anybody else is refused and delays nothing.

        Nobody can connect afterwards. ``idle``: see ``Receiving``. Raises PeerError when the time is up.
        """
        deadline = time.monotonic() + timeout
        found: Dict[int, ssl.SSLSocket] = {}
        refused = ""
        with contextlib.ExitStack() as connections, _Attempts() as attempts, self._taking_in(attempts):
            while len(found) < self._streams:
                try:
                    address, tls, outcome = attempts.next(deadline)
                except queue.Empty:
                    raise PeerError(self._nobody(timeout, len(found), refused)) from None
                if isinstance(outcome, Exception):
                    refused = f"; refused {address[0]}: {_why(outcome)}"
                    continue
                if outcome in found:  # its first attempt was lost on the way
                    found[outcome].close()
                found[outcome] = connections.enter_context(tls)
            connections.pop_all()
        return Receiving([found[number] for number in range(self._streams)], idle)

    @contextlib.contextmanager
    def _taking_in(self, attempts: _Attempts) -> Iterator[None]:
        thread = threading.Thread(target=self._take_in, args=(attempts,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._refuse_all()
            thread.join()

    def _take_in(self, attempts: _Attempts) -> None:
        while self._open:
            try:
                sock, address = self._socket.accept()
                tls = _wrap(self._context, sock, True)
            except OSError:  # whoever it was has left again, or this process has no descriptor free
                time.sleep(0.01)
                continue
            tls.settimeout(HANDSHAKE_S)
            attempts.begin((address[0].replace("::ffff:", ""), address[1]), tls, self._welcome)

    def _welcome(self, tls: ssl.SSLSocket) -> int:
        """The client knows only by this answer that its own certificate was accepted: in TLS 1.3 its handshake ends earlier."""
        tls.do_handshake()
        _check_peer(tls, self._peer)
        magic, number, streams = HELLO.unpack(_receive_exactly(tls, HELLO.size))
        if (magic, streams) != (MAGIC, self._streams) or number >= streams:
            raise ValueError("it wants another number of connections or speaks another protocol")
        tls.send(WELCOME)
        return int(number)

    def _nobody(self, timeout: float, found: int, refused: str) -> str:
        came = f"only {found} of {self._streams} connections" if found else "nobody"
        return f"{came} of the other host came to port {self.port} within {timeout:.0f} s{refused}"

    def _refuse_all(self) -> None:
        self._open = False
        _cut(self._socket)

    def close(self) -> None:
        self._refuse_all()
        self._socket.close()


def connect(
    candidates: Sequence[Address],
    own: Tuple[str, str],
    peer_certificate: str,
    streams: int,
    timeout: float,
    idle: float,
) -> Sending:
    """Connect to a ``Listener`` that has one of the ``candidates``, address and port; the first that proves to be the peer is taken.

    ``own`` is certificate and key, PEM; ``timeout`` in seconds is for everything; ``idle``: see ``Sending``. Raises PeerError
    that names each address and what was wrong there.
    """
    deadline = time.monotonic() + timeout
    context = _context(False, own, peer_certificate)
    call = _Call(context, ssl.PEM_cert_to_DER_cert(peer_certificate), streams, deadline)
    with contextlib.ExitStack() as stack:
        address, first = call.first(list(dict.fromkeys(candidates)))
        connections = [stack.enter_context(first)]
        for number in range(1, streams):
            connections.append(stack.enter_context(call.further(address, number)))
        stack.pop_all()
    return Sending(connections, idle)


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
        with _Attempts() as attempts:
            while len(failures) < len(candidates) and time.monotonic() < self.deadline:
                try:
                    if waiting:
                        address = waiting.popleft()
                        tls, target = self._socket_for(address)
                        attempts.begin(address, tls, functools.partial(self._reach, target=target))
                    until = time.monotonic() + STAGGER_S if waiting else self.deadline
                    address, tls, outcome = attempts.next(min(until, self.deadline))
                    if isinstance(outcome, Exception):
                        raise outcome
                    with _closed_on_failure(tls):
                        self._introduce(tls, 0)
                    return address, tls
                except queue.Empty:
                    continue
                except (OSError, ValueError) as error:
                    failures[address] = _why(error)
        tried = "; ".join(f"{host} port {port}: {failures.get((host, port), LATE)}" for host, port in candidates)
        raise PeerError(f"the other host cannot be reached directly: {tried or 'it has no address'}")

    def further(self, address: Address, number: int) -> ssl.SSLSocket:
        """One more connection to the address that was found."""
        try:
            tls, target = self._socket_for(address)
            with _closed_on_failure(tls):
                self._reach(tls, target)
                self._introduce(tls, number)
            return tls
        except (OSError, ValueError) as error:
            raise PeerError(
                f"connection {number + 1} of {self.streams} to {address[0]} port {address[1]} failed: {_why(error)}"
            ) from error

    def _socket_for(self, address: Address) -> Tuple[ssl.SSLSocket, Tuple[Any, ...]]:
        family, kind, protocol, _name, target = _look_up(address, self.deadline)
        return _wrap(self.context, socket.socket(family, kind, protocol), False), target

    def _reach(self, tls: ssl.SSLSocket, target: Tuple[Any, ...]) -> int:
        self._limit(tls)
        tls.connect(target)
        self._limit(tls)
        tls.do_handshake()
        _check_peer(tls, self.peer)
        return 0

    def _introduce(self, tls: ssl.SSLSocket, number: int) -> None:
        self._limit(tls)
        tls.send(HELLO.pack(MAGIC, number, self.streams))
        _receive_exactly(tls, len(WELCOME))

    def _limit(self, tls: ssl.SSLSocket) -> None:
        tls.settimeout(max(0.001, self.deadline - time.monotonic()))


class _Attempts:
    """Handshakes side by side, a thread for each. Leaving it as a context manager ends those that are still going on."""

    def __init__(self) -> None:
        self._going: Dict[ssl.SSLSocket, threading.Thread] = {}
        self._outcomes: queue.Queue[Outcome] = queue.Queue()

    def __enter__(self) -> _Attempts:
        return self

    def __exit__(self, *_exception: object) -> None:
        for tls, thread in list(self._going.items()):
            _cut(tls)
            thread.join()
        while not self._outcomes.empty():
            self._outcomes.get()[1].close()

    def begin(self, address: Address, tls: ssl.SSLSocket, shake: Callable[[ssl.SSLSocket], int]) -> None:
        """Begin one; when there are too many, the oldest has to go."""
        going = list(self._going.items())
        if len(going) >= MAX_STRANGERS:
            _cut(going[0][0])
            going[0][1].join()
        self._going[tls] = threading.Thread(target=self._run, args=(address, tls, shake), daemon=True)
        self._going[tls].start()

    def next(self, deadline: float) -> Outcome:
        """What has ended: where, its socket, and what it gave or why it failed. Raises queue.Empty at the time ``deadline``."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise queue.Empty
        return self._outcomes.get(timeout=left)

    def _run(self, address: Address, tls: ssl.SSLSocket, shake: Callable[[ssl.SSLSocket], int]) -> None:
        outcome: Union[int, Exception]
        try:
            with _closed_on_failure(tls):
                outcome = shake(tls)
        except (OSError, ValueError) as error:
            outcome = error
        self._outcomes.put((address, tls, outcome))
        del self._going[tls]


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
        with _pipe(own[0]) as certificate, _pipe(own[1]) as key:
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, ValueError) as error:
        raise PeerError(f"the certificates for the direct path cannot be used here: {_why(error)}") from error
    return context


@contextlib.contextmanager
def _pipe(text: str) -> Iterator[str]:
    """A path where ``text`` can be read once: the library takes keys from paths only, and no file shall have one."""
    reading, writing = os.pipe()
    try:
        with open(writing, "w", encoding="ascii") as pipe:
            pipe.write(text)  # fits: a pipe holds 64 KiB
        yield f"/proc/self/fd/{reading}"
    finally:
        os.close(reading)


def _why(error: Exception) -> str:
    if isinstance(error, socket.timeout):
        return LATE
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"it is not the expected host ({error.verify_message})"
    if is_end(error):
        return "it closed the connection"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _wrap(context: ssl.SSLContext, sock: socket.socket, server: bool) -> ssl.SSLSocket:
    with _closed_on_failure(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False, suppress_ragged_eofs=False)


def _check_peer(tls: ssl.SSLSocket, certificate: bytes) -> None:
    if tls.getpeercert(True) != certificate:
        raise ValueError("it is not the expected host (another certificate)")


def _receive_exactly(tls: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = tls.recv(size - len(data))
        if not piece:
            raise ssl.SSLEOFError("the connection was closed")
        data += piece
    return data


def _listen(low: int, high: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    taken: Optional[OSError] = None
    for port in range(low, high + 1):
        try:
            family = socket.AF_INET6 if both else socket.AF_INET
            return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            taken = error
    why = os.strerror(taken.errno or 0) if taken else "the range is empty"
    raise PeerError(f"no port of {low}-{high} can be used for the direct path ({why}); free one or name another range")


def _look_up(address: Address, deadline: float) -> Tuple[Any, ...]:
    """The first of what a name stands for; raises OSError, also when no name server answers in time."""
    found: queue.Queue[Any] = queue.Queue()

    def look_up() -> None:
        try:
            found.put(socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0])
        except (OSError, ValueError, OverflowError) as error:
            found.put(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        outcome = found.get(timeout=max(0.001, deadline - time.monotonic()))
    except queue.Empty:
        raise socket.timeout from None
    if isinstance(outcome, Exception):
        raise outcome
    return tuple(outcome)


@contextlib.contextmanager
def _closed_on_failure(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _cut(sock: socket.socket) -> None:
    """End what another thread does with the socket, which that thread then closes."""
    with contextlib.suppress(OSError):  # not by the method of a TLS socket: after that, it would send in the clear
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
