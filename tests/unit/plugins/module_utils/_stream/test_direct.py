# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import direct
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.direct import (
    BLOCK,
    RECORD,
    DirectError,
    Listener,
    Stripes,
    addresses,
    connect,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK as CONTENT
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import MESSAGE, PeerError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import make_pair
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

COLLECTIONS = Path(__file__).resolve().parents[5] / ".collections"
HOST = "127.0.0.1"
SOON = 10.0
SIZES = [0, 1, RECORD - 5, 70_001, BLOCK - 1, BLOCK, BLOCK + 1, 3, (1 << 20) + 7, 2, (3 << 20) + 1, 5]
OFTEN = [1, 3]

Pair = Tuple[str, str]


def pair_of(name: str) -> Pair:
    pair = make_pair(name)
    return pair.certificate, pair.key


CALLER, LISTENER, STRANGER = pair_of("source"), pair_of("target"), pair_of("source")


@contextlib.contextmanager
def listening(streams: int = 1) -> Iterator[Listener]:
    with contextlib.closing(Listener((0, 0), LISTENER, CALLER[0], streams)) as listener:
        yield listener


def call(port: int, streams: int = 1, own: Pair = CALLER) -> Stripes:
    return connect([(HOST, port)], own, LISTENER[0], streams, SOON)


@contextlib.contextmanager
def stream(streams: int, port_of: Callable[[int], int] = lambda port: port) -> Iterator[Tuple[Stripes, Stripes]]:
    """The calling and the listening end of one stream; ``port_of`` may put something between them."""
    with listening(streams) as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, port_of(listener.port), streams)
        ends = listener.accept(SOON), calling.result()
    try:
        yield ends[1], ends[0]
    finally:
        for end in ends:
            end.close(abort=True)


def payload(number: int, size: int) -> bytes:
    return bytes([number % 251]) * (size // 2) + os.urandom(size - size // 2)


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[None]:
    """Something goes on meanwhile, and has to succeed."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
        future.result(SOON)


# frames


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_frames_arrive_in_order_and_unchanged_in_both_directions_at_once(streams: int) -> None:
    frames = [(CONTENT, payload(number, size)) for number, size in enumerate(SIZES * 2)]
    with stream(streams) as (caller, listener), ThreadPoolExecutor(4) as pool:

        def send(end: Stripes) -> None:
            for frame in frames:
                end.send_frame(*frame)
            end.flush()

        def receive(end: Stripes) -> List[Tuple[int, bytes]]:
            return [end.receive_frame() for _frame in frames]

        sending = [pool.submit(send, end) for end in (caller, listener)]
        receiving = [pool.submit(receive, end) for end in (caller, listener)]
        for done in sending:
            done.result(SOON)
        assert [done.result(SOON) == frames for done in receiving] == [True, True]
        total = sum(len(content) + 5 for _kind, content in frames)
        assert caller.sent == listener.sent == caller.received == listener.received == total


@pytest.mark.parametrize("streams", OFTEN)
def test_a_question_gets_its_answer_once_it_is_flushed(streams: int) -> None:
    with stream(streams) as (caller, listener):
        for number in range(7):
            caller.send_frame(MESSAGE, b"question %d" % number)
            caller.flush()
            assert listener.receive_frame() == (MESSAGE, b"question %d" % number)
            listener.send_frame(MESSAGE, b"answer")
            listener.flush()
            assert caller.receive_frame() == (MESSAGE, b"answer")


@pytest.mark.parametrize("streams", OFTEN)
def test_a_buffer_may_be_used_again_after_it_was_sent(streams: int) -> None:
    buffer = bytearray(1 << 20)
    with stream(streams) as (caller, listener):

        def send() -> None:
            for number in range(8):
                buffer[:] = bytes([number]) * len(buffer)
                caller.send_frame(CONTENT, memoryview(buffer))
            caller.flush()

        with in_thread(send):
            for number in range(8):
                assert listener.receive_frame()[1] == bytes([number]) * len(buffer)


def test_one_connection_needs_no_thread_and_several_need_one_each() -> None:
    before = threading.active_count()
    for streams, threads in ((1, 0), (3, 2 * 3)):
        with stream(streams):
            assert threading.active_count() - before == threads
    assert threading.active_count() == before


# ends


@pytest.mark.parametrize("streams", OFTEN)
def test_what_was_sent_before_an_orderly_end_arrives(streams: int) -> None:
    with stream(streams) as (caller, listener):
        for number in range(20):
            caller.send_frame(CONTENT, payload(number, 100_000))
        with in_thread(caller.close):
            for number in range(20):
                assert listener.receive_frame()[1][:50_000] == bytes([number]) * 50_000
        with pytest.raises(PeerError, match="ended before the work was done"):
            listener.receive_frame()


@pytest.mark.parametrize("streams", OFTEN)
def test_what_was_sent_arrives_also_when_something_was_left_unread(streams: int) -> None:
    with stream(streams) as (caller, listener):
        for _number in range(streams):
            listener.send_frame(DATA, bytes(BLOCK))
        listener.flush()
        for _number in range(streams * 6):
            caller.send_frame(DATA, b"y" * BLOCK)
        caller.close()
        time.sleep(0.2)
        for _number in range(streams * 6):
            assert listener.receive_frame() == (DATA, b"y" * BLOCK)


def test_the_end_of_one_connection_does_not_cut_what_others_still_carry() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        with plain_call(listener.port, CALLER) as first:
            first.send(direct.HELLO.pack(direct.MAGIC, 0, 2))
            with plain_call(listener.port, CALLER) as second:
                second.send(direct.HELLO.pack(direct.MAGIC, 1, 2))
                assert (first.recv(1), second.recv(1)) == (direct.WELCOME, direct.WELCOME)
                stripes = accepting.result(SOON)
            receiving = pool.submit(stripes.receive_frame)
            time.sleep(0.2)
            first.send(direct.LENGTH.pack(7) + direct.HEADER.pack(DATA, 2) + b"ok")
            assert receiving.result(SOON) == (DATA, b"ok")
            stripes.close(abort=True)


@pytest.mark.parametrize("abort", [False, True])
def test_an_orderly_end_can_be_told_from_a_cut(abort: bool) -> None:
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        with plain_call(listener.port, certificates=CALLER) as tls:
            tls.send(direct.HELLO.pack(direct.MAGIC, 0, 1))
            assert tls.recv(1) == direct.WELCOME
            tls.suppress_ragged_eofs = False
            accepting.result(SOON).close(abort)
            with pytest.raises(ssl.SSLError, match="(?i)eof") if abort else contextlib.nullcontext():
                assert tls.recv(1) == b""


@pytest.mark.parametrize("streams", OFTEN)
def test_the_other_end_s_last_words_can_be_heard_after_a_send_has_failed(streams: int) -> None:
    with stream(streams) as (caller, listener):
        listener.send_frame(MESSAGE, b"the disk is full")
        listener.close()
        with pytest.raises(PeerError, match="ended before the work was done"):
            for _number in range(100):
                caller.send_frame(CONTENT, bytes(1 << 20))
        assert caller.receive_frame() == (MESSAGE, b"the disk is full")


@pytest.mark.parametrize("streams", OFTEN)
def test_closing_ends_the_wait_of_another_thread_and_may_be_done_twice(streams: int) -> None:
    with stream(streams) as (caller, _listener), ThreadPoolExecutor(1) as pool:
        caller.send_frame(CONTENT, b"never flushed")
        receiving = pool.submit(caller.receive_frame)
        time.sleep(0.1)
        assert not receiving.done()
        caller.close(abort=True)
        with pytest.raises(PeerError, match="the connection ended|closed at this end"):
            receiving.result(2)
        caller.close()


PEER = """
import json, sys
given = json.load(sys.stdin)
sys.path.insert(0, given["collections"])
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.direct import connect
stripes = connect([("127.0.0.1", given["port"])], given["own"], given["peer"], given["streams"], 10)
while True:
    stripes.send_frame(3, bytes(1 << 20))
"""


@pytest.mark.parametrize("streams", OFTEN)
def test_a_peer_that_is_killed_is_noticed_at_once(streams: int) -> None:
    with listening(streams) as listener, subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE) as peer:
        given = {"port": listener.port, "own": CALLER, "peer": LISTENER[0], "streams": streams}
        assert peer.stdin
        peer.stdin.write(json.dumps({**given, "collections": str(COLLECTIONS)}).encode())
        peer.stdin.close()
        stripes = listener.accept(SOON)
        stripes.receive_frame()
        peer.kill()
        started = time.monotonic()
        with pytest.raises(PeerError, match="ended before the work was done"):
            while True:
                assert stripes.receive_frame() == (CONTENT, bytes(1 << 20))
        assert time.monotonic() - started < 5
        stripes.close(abort=True)


@pytest.mark.parametrize("streams", OFTEN)
def test_a_peer_that_takes_nothing_is_given_up(streams: int) -> None:
    with stream(streams) as (caller, _listener):
        caller.idle = 1
        with pytest.raises(PeerError, match="nothing was taken for 1 s; the host or the network hangs"):
            for _number in range(500):
                caller.send_frame(CONTENT, bytes(1 << 20))
        started = time.monotonic()
        caller.close(abort=True)
        assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("streams", OFTEN)
def test_a_peer_that_gives_nothing_is_given_up(streams: int) -> None:
    with stream(streams) as (caller, listener):
        listener.idle = 1
        caller.send_frame(CONTENT, b"x" * BLOCK)
        caller.flush()
        assert listener.receive_frame() == (CONTENT, b"x" * BLOCK)
        with pytest.raises(PeerError, match="nothing came for 1 s; the host or the network hangs"):
            listener.receive_frame()


@pytest.mark.parametrize("streams", OFTEN)
def test_a_slow_reader_bounds_what_is_queued_for_it(streams: int) -> None:
    with stream(streams) as (caller, _listener):
        caller.idle = 0.5
        with pytest.raises(PeerError, match="nothing was taken"):
            for _number in range(500):
                caller.send_frame(CONTENT, bytes(1 << 20))
        # Both queues of each connection, and what the kernel holds.
        assert caller.sent < streams * (2 * 8 + 32) << 20


class Proxy:
    """Passes connections on to ``port`` and changes the byte at ``at`` of what the last one's client sends."""

    def __init__(self, port: int, at: int) -> None:
        self._to = port
        self._at = at
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        passed = 0
        with client, socket.create_connection((HOST, self._to)) as server, contextlib.suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = bytearray(ready.recv(65536))
                    if not data:
                        return
                    if ready is client:
                        if passed <= self._at < passed + len(data):
                            data[self._at - passed] ^= 1
                        passed += len(data)
                    (server if ready is client else client).sendall(data)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.mark.parametrize("streams", OFTEN)
def test_a_byte_changed_on_the_way_ends_the_stream_and_is_never_received(streams: int) -> None:
    proxies: List[Proxy] = []

    def through_proxy(port: int) -> int:
        proxies.append(Proxy(port, 700_000))
        return proxies[0].port

    content = payload(1, 1 << 20)
    with stream(streams, through_proxy) as (caller, listener):

        def send() -> None:
            with contextlib.suppress(PeerError):
                for _number in range(6):
                    caller.send_frame(CONTENT, content)
                caller.flush()

        with in_thread(send), pytest.raises(PeerError, match="not what was sent: something between the two hosts"):
            while True:
                assert listener.receive_frame() == (CONTENT, content)
        listener.close(abort=True)
    proxies[0].close()


def test_a_peer_that_does_not_keep_to_blocks_is_refused() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(listener.accept, SOON)
        with plain_call(listener.port, certificates=CALLER) as raw:
            raw.send(direct.HELLO.pack(direct.MAGIC, 0, 1))
            stripes = calling.result()
            raw.send(direct.LENGTH.pack(direct.MAX_BLOCK + 1))
            with pytest.raises(PeerError, match="the stream is corrupt"):
                stripes.receive_frame()
        stripes.close(abort=True)


# strangers


@contextlib.contextmanager
def plain_call(
    port: int,
    certificates: Optional[Pair] = None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[ssl.SSLSocket]:
    """A TLS client that is not one of this program's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0x80)  # set by default before Python 3.11
    if certificates:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("\n".join(certificates))
            file.flush()
            context.load_cert_chain(file.name)
    with socket.create_connection((HOST, port), SOON) as sock, context.wrap_socket(sock) as tls:
        yield tls


def answer_to_hello(port: int, **how: Any) -> bytes:
    """What the listener says to a client that speaks its protocol; nothing when it hangs up, before or after an alert."""
    with contextlib.suppress(ssl.SSLError, ConnectionError), plain_call(port, **how) as tls:
        tls.send(direct.HELLO.pack(direct.MAGIC, 0, 1))
        return tls.recv(1)
    return b""


def test_strangers_are_refused_and_the_right_peer_gets_through_afterwards() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        with pytest.raises(DirectError, match=f"{HOST} port {listener.port}: .*(alert|closed|reset)"):
            call(listener.port, own=STRANGER)
        assert answer_to_hello(listener.port) == b""
        assert answer_to_hello(listener.port, certificates=STRANGER) == b""
        assert answer_to_hello(listener.port, certificates=CALLER, version=ssl.TLSVersion.TLSv1_2) == b""
        assert not accepting.done()
        caller, accepted = call(listener.port), accepting.result(SOON)
        caller.send_frame(CONTENT, b"mine")
        caller.flush()
        assert accepted.receive_frame() == (CONTENT, b"mine")
        caller.close()
        accepted.close()


def test_a_certificate_that_the_peer_s_key_has_signed_is_not_the_peer_s() -> None:
    authority = signed(None)
    with contextlib.closing(Listener((0, 0), LISTENER, authority[0], 1)) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        with pytest.raises(DirectError, match="alert|closed|reset"):
            call(listener.port, own=signed(authority))
        assert not accepting.done()
        caller = call(listener.port, own=authority)
        accepting.result(SOON).close(abort=True)
        caller.close(abort=True)


def signed(issuer: Optional[Pair]) -> Pair:
    """An authority's pair, or one that an authority has signed."""
    key: Any = ec.generate_private_key(ec.SECP256R1())
    issuer_key: Any = serialization.load_pem_private_key(issuer[1].encode(), None) if issuer else key
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "child")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names[bool(issuer)])
        .issuer_name(names[0])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=not issuer, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return (
        certificate.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain).decode(),
    )


def test_whoever_connects_and_talks_no_tls_delays_nobody() -> None:
    with listening(3) as listener, contextlib.ExitStack() as stack:
        for said in (b"", b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff", os.urandom(3000)):
            scanner = stack.enter_context(socket.create_connection((HOST, listener.port)))
            scanner.sendall(said)
        stack.enter_context(plain_call_in_two_steps(listener.port))
        started = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(call, listener.port, 3)
            accepted = listener.accept(SOON)
            calling.result().close(abort=True)
        accepted.close(abort=True)
        assert time.monotonic() - started < 3


@contextlib.contextmanager
def plain_call_in_two_steps(port: int) -> Iterator[None]:
    """A client that begins TLS and then says nothing more."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    with socket.create_connection((HOST, port)) as sock:
        sock.sendall(outgoing.read())
        yield


def test_any_number_of_silent_connections_leaves_room_for_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_STRANGERS", 4)
    with listening() as listener, contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        silent = [stack.enter_context(socket.create_connection((HOST, listener.port))) for _number in range(12)]
        silent[0].settimeout(5)
        assert silent[0].recv(1) == b""
        assert not accepting.done()
        caller = call(listener.port)
        accepting.result(SOON).close(abort=True)
        caller.close(abort=True)


def test_a_silent_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "HANDSHAKE_S", 0.2)
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, 1)
        with socket.create_connection((HOST, listener.port), SOON) as silent:
            assert silent.recv(1) == b""
        assert not accepting.done()
        with pytest.raises(DirectError, match=f"refused {HOST}: it did not answer in time"):
            accepting.result(SOON)


# finding each other


def test_nobody_is_waited_for_without_end() -> None:
    with listening(2) as listener:
        started = time.monotonic()
        with pytest.raises(DirectError, match=f"nobody of the other host came to port {listener.port} within 1 s"):
            listener.accept(1)
        assert 0.9 < time.monotonic() - started < 3


def test_too_few_connections_are_told_from_none() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, 1.5)
        with plain_call(listener.port, certificates=CALLER) as tls:
            tls.send(direct.HELLO.pack(direct.MAGIC, 0, 2))
            assert tls.recv(1) == direct.WELCOME
            with pytest.raises(DirectError, match="only 1 of 2 connections"):
                accepting.result(SOON)


def test_a_range_in_which_every_port_is_taken_is_named() -> None:
    with listening() as taken, pytest.raises(DirectError) as caught:
        Listener((taken.port, taken.port), LISTENER, CALLER[0], 1)
    assert f"no port of {taken.port}-{taken.port} can be used" in str(caught.value)
    assert "Address already in use" in str(caught.value)


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        low = taken.getsockname()[1]
        with contextlib.closing(Listener((low, low + 30), LISTENER, CALLER[0], 1)) as listener:
            assert low < listener.port <= low + 30


def closed_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def test_the_right_address_is_found_among_wrong_ones() -> None:
    silent = socket.create_server((HOST, 0))
    other = Listener((0, 0), STRANGER, CALLER[0], 3)
    with silent, contextlib.closing(other), listening(3) as listener, ThreadPoolExecutor(2) as pool:
        pool.submit(other.accept, 1)
        accepting = pool.submit(listener.accept, SOON)
        wrong = [(HOST, closed_port()), (HOST, silent.getsockname()[1]), (HOST, other.port)]
        started = time.monotonic()
        caller = connect([*wrong, (HOST, listener.port)], CALLER, LISTENER[0], 3, SOON)
        assert time.monotonic() - started < 3
        accepted = accepting.result(SOON)
        caller.send_frame(CONTENT, b"found")
        caller.flush()
        assert accepted.receive_frame() == (CONTENT, b"found")
        caller.close(abort=True)
        accepted.close(abort=True)


def test_one_listener_with_two_addresses_is_taken_once() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON)
        caller = connect([(name, listener.port) for name in (HOST, "127.0.0.2", "::1")], CALLER, LISTENER[0], 2, SOON)
        accepted = accepting.result(SOON)
        accepted.send_frame(CONTENT, b"here")
        accepted.flush()
        assert caller.receive_frame() == (CONTENT, b"here")
        caller.close(abort=True)
        accepted.close(abort=True)


def test_every_address_that_was_tried_is_named_with_its_reason() -> None:
    other = Listener((0, 0), STRANGER, CALLER[0], 1)
    with socket.create_server((HOST, 0)) as silent, contextlib.closing(other), ThreadPoolExecutor(1) as pool:
        pool.submit(other.accept, 2)
        closed = closed_port()
        candidates = [(HOST, closed), (HOST, silent.getsockname()[1]), (HOST, other.port)]
        started = time.monotonic()
        with pytest.raises(DirectError) as caught:
            connect(candidates, CALLER, LISTENER[0], 1, 2)
        assert time.monotonic() - started < 4
    text = str(caught.value)
    assert f"{HOST} port {closed}: Connection refused" in text
    assert f"{HOST} port {candidates[1][1]}: it did not answer in time" in text
    assert f"{HOST} port {other.port}: it is not the expected host (" in text


def test_nothing_to_connect_to_is_an_error_for_people() -> None:
    with pytest.raises(DirectError, match="it has no address"):
        connect([], CALLER, LISTENER[0], 1, 1)


def test_a_certificate_that_is_none_is_an_error_for_people() -> None:
    with pytest.raises(DirectError, match="certificates for the direct path cannot be used"):
        Listener((0, 0), ("-----BEGIN", "nonsense"), CALLER[0], 1)


# keys


def open_files() -> Dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


@pytest.mark.parametrize("has_memfd", [True, False])
def test_no_key_is_left_in_any_file(has_memfd: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if has_memfd:
        tmp_path.chmod(0o500)
        monkeypatch.setattr(tempfile, "mkstemp", lambda: pytest.fail("a key was written to a file"))
    else:
        monkeypatch.delattr(os, "memfd_create")
    before = open_files()
    with stream(2):
        assert list(tmp_path.iterdir()) == []
        assert [name for name in open_files().values() if "memfd" in name or str(tmp_path) in name] == []
    assert open_files() == before


# this host


def test_the_addresses_of_this_host_are_its_own_and_others_may_reach_them() -> None:
    for text in addresses():
        address = ipaddress.ip_address(text)
        assert not (address.is_loopback or address.is_link_local)
        socket.create_server((text, 0), family=socket.AF_INET if address.version == 4 else socket.AF_INET6).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing; asks which of this host's addresses is used to reach others
        own = probe.getsockname()[0]
        assert own in addresses() or ipaddress.ip_address(own).is_loopback


def test_addresses_of_fast_interfaces_come_first_and_those_of_idle_bridges_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [("eth0", "10.0.0.1"), ("docker0", "172.17.0.1"), ("ib0", "10.1.0.1"), ("ib0", "169.254.3.4")]
    facts = {"eth0": ("up", "1000"), "docker0": ("down", "-1"), "ib0": ("up", "400000"), "tun0": ("unknown", "")}
    monkeypatch.setattr(direct, "_ipv4_addresses", lambda: iter(found))
    monkeypatch.setattr(direct, "_ipv6_addresses", lambda: iter([("ib0", "fd00::1"), ("tun0", "fd00::2")]))
    monkeypatch.setattr(direct, "_sys", lambda interface, name: facts[interface][name == "speed"])
    assert addresses() == ["10.1.0.1", "fd00::1", "10.0.0.1", "fd00::2"]
