# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import handshake
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.handshake import Listener, connect
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Receiving, Sending
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK as DATA
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PeerError
from ansible_collections.ddtree.fleet.tests.unit.direct_ends import (
    CALLER,
    HOST,
    IDLE,
    LISTENER,
    SOON,
    STRANGER,
    Pair,
    call,
    listening,
    plain_call,
    stream,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

COLLECTIONS = Path(__file__).resolve().parents[5] / ".collections"


def answer_to_hello(port: int, **how: Any) -> bytes:
    """What the listener says to a client that speaks its protocol; nothing when it hangs up, before or after an alert."""
    with contextlib.suppress(ssl.SSLError, ConnectionError), plain_call(port, **how) as tls:
        tls.send(handshake.HELLO.pack(handshake.MAGIC, 0, 1))
        return tls.recv(1)
    return b""


def test_strangers_are_refused_and_the_right_peer_gets_through_afterwards() -> None:
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON, IDLE)
        with pytest.raises(PeerError, match=f"{HOST} port {listener.port}: .*(alert|closed|reset)"):
            call(listener.port, own=STRANGER)
        assert answer_to_hello(listener.port) == b""
        assert answer_to_hello(listener.port, certificates=STRANGER) == b""
        assert answer_to_hello(listener.port, certificates=CALLER, version=ssl.TLSVersion.TLSv1_2) == b""
        assert not accepting.done()
        caller, accepted = call(listener.port), accepting.result(SOON)
        caller.send_frame(DATA, b"mine")
        caller.flush()
        assert accepted.receive_frame() == (DATA, b"mine")
        caller.close()
        accepted.close()


def test_a_certificate_that_the_peer_s_key_has_signed_is_not_the_peer_s() -> None:
    authority = signed(None)
    with contextlib.closing(Listener((0, 0), LISTENER, authority[0], 1)) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON, IDLE)
        with pytest.raises(PeerError, match="alert|closed|reset"):
            call(listener.port, own=signed(authority))
        assert not accepting.done()
        caller = call(listener.port, own=authority)
        accepting.result(SOON).close()
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
            accepted = listener.accept(SOON, IDLE)
            calling.result().close(abort=True)
        accepted.close()
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
    monkeypatch.setattr(handshake, "MAX_STRANGERS", 4)
    with listening() as listener, contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON, IDLE)
        silent = [stack.enter_context(socket.create_connection((HOST, listener.port))) for _number in range(12)]
        silent[0].settimeout(5)
        assert silent[0].recv(1) == b""
        assert not accepting.done()
        caller = call(listener.port)
        accepting.result(SOON).close()
        caller.close(abort=True)


def test_a_silent_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.2)
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, 1, IDLE)
        with socket.create_connection((HOST, listener.port), SOON) as silent:
            assert silent.recv(1) == b""
        assert not accepting.done()
        with pytest.raises(PeerError, match=f"refused {HOST}: it did not answer in time"):
            accepting.result(SOON)


def test_nobody_is_waited_for_without_end() -> None:
    with listening(2) as listener:
        started = time.monotonic()
        with pytest.raises(PeerError, match=f"nobody of the other host came to port {listener.port} within 1 s"):
            listener.accept(1, IDLE)
        assert 0.9 < time.monotonic() - started < 3


@pytest.mark.slow
def test_too_few_connections_are_told_from_none() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, 1.5, IDLE)
        with plain_call(listener.port, certificates=CALLER) as tls:
            tls.send(handshake.HELLO.pack(handshake.MAGIC, 0, 2))
            assert tls.recv(1) == handshake.WELCOME
            with pytest.raises(PeerError, match="only 1 of 2 connections"):
                accepting.result(SOON)


def test_a_range_in_which_every_port_is_taken_is_named() -> None:
    with listening() as taken, pytest.raises(PeerError) as caught:
        Listener((taken.port, taken.port), LISTENER, CALLER[0], 1)
    assert f"no port of {taken.port}-{taken.port} can be used" in str(caught.value)
    assert "Address already in use" in str(caught.value)


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with socket.create_server(("", 0)) as taken:
        low = taken.getsockname()[1]
        with contextlib.closing(Listener((low, low + 30), LISTENER, CALLER[0], 1)) as listener:
            assert low < listener.port <= low + 30


def assert_joined(caller: Sending, accepted: Receiving) -> None:
    """Both are ends of one stream; closes them."""
    caller.send_frame(DATA, b"found")
    caller.flush()
    assert accepted.receive_frame() == (DATA, b"found")
    caller.close(abort=True)
    accepted.close()


def closed_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def test_the_right_address_is_found_among_wrong_ones() -> None:
    silent = socket.create_server((HOST, 0))
    other = Listener((0, 0), STRANGER, CALLER[0], 3)
    with silent, contextlib.closing(other), listening(3) as listener, ThreadPoolExecutor(2) as pool:
        pool.submit(other.accept, 1, IDLE)
        accepting = pool.submit(listener.accept, SOON, IDLE)
        wrong = [(HOST, closed_port()), (HOST, silent.getsockname()[1]), (HOST, other.port)]
        started = time.monotonic()
        caller = connect([*wrong, (HOST, listener.port)], CALLER, LISTENER[0], 3, SOON, IDLE)
        assert time.monotonic() - started < 3
        assert_joined(caller, accepting.result(SOON))


def test_one_listener_with_two_addresses_is_taken_once() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON, IDLE)
        caller = connect(
            [(name, listener.port) for name in (HOST, "127.0.0.2", "::1")], CALLER, LISTENER[0], 2, SOON, IDLE
        )
        assert_joined(caller, accepting.result(SOON))


@pytest.mark.slow
def test_every_address_that_was_tried_is_named_with_its_reason() -> None:
    other = Listener((0, 0), STRANGER, CALLER[0], 1)
    with socket.create_server((HOST, 0)) as silent, contextlib.closing(other), ThreadPoolExecutor(1) as pool:
        pool.submit(other.accept, 2, IDLE)
        closed = closed_port()
        candidates = [(HOST, closed), (HOST, silent.getsockname()[1]), (HOST, other.port)]
        started = time.monotonic()
        with pytest.raises(PeerError) as caught:
            connect(candidates, CALLER, LISTENER[0], 1, 2, IDLE)
        assert time.monotonic() - started < 4
    text = str(caught.value)
    assert f"{HOST} port {closed}: Connection refused" in text
    assert f"{HOST} port {candidates[1][1]}: it did not answer in time" in text
    assert f"{HOST} port {other.port}: it is not the expected host (" in text


def test_a_name_that_no_server_answers_for_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(handshake.socket, "getaddrinfo", lambda *_more, **_options: [answer.wait(SOON)])
    started = time.monotonic()
    with pytest.raises(PeerError, match="target.example port 9: it did not answer in time"):
        connect([("target.example", 9)], CALLER, LISTENER[0], 1, 0.2, IDLE)
    assert time.monotonic() - started < 3
    answer.set()


def test_nothing_to_connect_to_is_an_error_for_people() -> None:
    with pytest.raises(PeerError, match="it has no address"):
        connect([], CALLER, LISTENER[0], 1, 1, IDLE)


def test_a_certificate_that_is_none_is_an_error_for_people() -> None:
    with pytest.raises(PeerError, match="certificates for the direct path cannot be used"):
        Listener((0, 0), ("-----BEGIN", "nonsense"), CALLER[0], 1)


def open_files() -> Dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def test_no_key_is_left_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o500)
    before = open_files()
    with stream(2):
        assert list(tmp_path.iterdir()) == []
        assert [
            name for name in open_files().values() if name.startswith("pipe:") and name not in before.values()
        ] == []
    assert open_files() == before


def test_a_python_without_tls_says_so_in_one_sentence() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(COLLECTIONS)!r}); sys.modules['ssl'] = None\n"
        "from ansible_collections.ddtree.fleet.plugins.module_utils._stream import agent, wire\n"
        "try:\n from ansible_collections.ddtree.fleet.plugins.module_utils._stream import handshake\n"
        "except wire.PeerError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.endswith(f"{sys.executable}, has no ssl module, which the direct path needs\n")
