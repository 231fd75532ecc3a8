# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
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
from typing import Any, Callable, Iterator, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.handshake import HELLO, MAGIC, WELCOME
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import (
    BLOCK,
    LENGTH,
    MAX_BLOCK,
    RECORD,
    Sending,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK as DATA
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import HEADER, MESSAGE, PeerError
from ansible_collections.ddtree.fleet.tests.unit.direct_ends import (
    CALLER,
    HOST,
    IDLE,
    LISTENER,
    SOON,
    call,
    listening,
    plain_call,
    stream,
)

COLLECTIONS = Path(__file__).resolve().parents[5] / ".collections"
SIZES = [0, 1, RECORD - 5, 70_001, BLOCK - 1, BLOCK, BLOCK + 1, 3, (1 << 20) + 7, 2, (3 << 20) + 1, 5]
OFTEN = [1, 3]


def payload(number: int, size: int) -> bytes:
    return bytes([number % 251]) * (size // 2) + os.urandom(size - size // 2)


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[None]:
    """Something goes on meanwhile, and has to succeed."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
        future.result(SOON)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_frames_arrive_in_order_and_unchanged(streams: int) -> None:
    frames = [(DATA, payload(number, size)) for number, size in enumerate(SIZES * 2)]
    with stream(streams) as (sending, receiving):

        def send() -> None:
            for frame in frames:
                sending.send_frame(*frame)
            sending.flush()

        with in_thread(send):
            assert [receiving.receive_frame() for _frame in frames] == frames
        assert sending.sent == receiving.received == sum(len(content) + HEADER.size for _kind, content in frames)


@pytest.mark.parametrize("streams", OFTEN)
def test_small_frames_arrive_once_they_are_flushed(streams: int) -> None:
    with stream(streams) as (sending, receiving):
        for number in range(7):
            sending.send_frame(MESSAGE, b"message %d" % number)
            sending.flush()
            assert receiving.receive_frame() == (MESSAGE, b"message %d" % number)


@pytest.mark.parametrize("streams", OFTEN)
def test_a_buffer_may_be_used_again_after_it_was_sent(streams: int) -> None:
    buffer = bytearray(1 << 20)
    with stream(streams) as (caller, listener):

        def send() -> None:
            for number in range(8):
                buffer[:] = bytes([number]) * len(buffer)
                caller.send_frame(DATA, memoryview(buffer))
            caller.flush()

        with in_thread(send):
            for number in range(8):
                assert listener.receive_frame()[1] == bytes([number]) * len(buffer)


def test_one_connection_needs_no_thread_and_several_need_one_each() -> None:
    before = threading.active_count()
    for streams, threads in ((1, 0), (3, 2 * 3)):
        with stream(streams) as (sending, receiving):
            for _number in range(streams):
                sending.send_frame(DATA, bytes(BLOCK))
                receiving.receive_frame()
            assert threading.active_count() - before == threads
    assert threading.active_count() == before


@pytest.mark.parametrize("streams", OFTEN)
def test_what_was_sent_before_an_orderly_end_arrives(streams: int) -> None:
    with stream(streams) as (caller, listener):
        for number in range(20):
            caller.send_frame(DATA, payload(number, 100_000))
        with in_thread(caller.close):
            for number in range(20):
                assert listener.receive_frame()[1][:50_000] == bytes([number]) * 50_000
        with pytest.raises(PeerError, match="ended before the work was done"):
            listener.receive_frame()


def test_the_end_of_one_connection_does_not_cut_what_others_still_carry() -> None:
    with listening(2) as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(listener.accept, SOON, IDLE)
        with plain_call(listener.port, CALLER) as first:
            first.send(HELLO.pack(MAGIC, 0, 2))
            with plain_call(listener.port, CALLER) as second:
                second.send(HELLO.pack(MAGIC, 1, 2))
                assert (first.recv(1), second.recv(1)) == (WELCOME, WELCOME)
                receiving = accepting.result(SOON)
            taking = pool.submit(receiving.receive_frame)
            time.sleep(0.2)
            first.send(LENGTH.pack(7) + HEADER.pack(DATA, 2) + b"ok")
            assert taking.result(SOON) == (DATA, b"ok")
            receiving.close()


@contextlib.contextmanager
def plain_listener() -> Iterator[Tuple[int, Callable[[], ssl.SSLSocket]]]:
    """A port that a Sending can be connected to, and what accepts there without this program's code."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(LISTENER))
        file.flush()
        context.load_cert_chain(file.name)
    with socket.create_server((HOST, 0)) as server, contextlib.ExitStack() as stack:

        def accept() -> ssl.SSLSocket:
            tls = context.wrap_socket(server.accept()[0], server_side=True, suppress_ragged_eofs=False)
            assert tls.recv(HELLO.size) == HELLO.pack(MAGIC, 0, 1)
            tls.send(WELCOME)
            return stack.enter_context(tls)

        yield server.getsockname()[1], accept


@pytest.mark.parametrize("abort", [False, True])
def test_an_orderly_end_can_be_told_from_a_cut(abort: bool) -> None:
    with plain_listener() as (port, accept), ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, port)
        tls = accept()
        calling.result(SOON).close(abort)
        with pytest.raises(ssl.SSLError, match="(?i)eof") if abort else contextlib.nullcontext():
            assert tls.recv(1) == b""


@pytest.mark.parametrize("streams", OFTEN)
def test_closing_ends_the_wait_of_another_thread_and_may_be_done_twice(streams: int) -> None:
    with stream(streams) as (sending, receiving), ThreadPoolExecutor(2) as pool:

        def send() -> None:
            while True:
                sending.send_frame(DATA, bytes(1 << 20))

        sender = pool.submit(send)
        time.sleep(0.3)
        assert not sender.done()
        sending.close(abort=True)
        with pytest.raises(PeerError, match="the connection ended|closed at this end"):
            sender.result(2)
        sending.close()
    with stream(streams) as (sending, receiving), ThreadPoolExecutor(1) as pool:
        sending.send_frame(DATA, b"never flushed")
        taking = pool.submit(receiving.receive_frame)
        time.sleep(0.1)
        assert not taking.done()
        receiving.close()
        with pytest.raises(PeerError, match="the connection ended|closed at this end"):
            taking.result(2)
        receiving.close()


@pytest.mark.parametrize("streams", OFTEN)
def test_closing_ends_at_once_what_nobody_has_read(streams: int) -> None:
    with stream(streams) as (sending, receiving), in_thread(lambda: send_until_it_fails(sending)):
        receiving.receive_frame()
        time.sleep(0.3)
        started = time.monotonic()
        receiving.close()
        assert time.monotonic() - started < 2


def send_until_it_fails(sending: Sending) -> None:
    with pytest.raises(PeerError, match="ended before the work was done"):
        while True:
            sending.send_frame(DATA, bytes(1 << 20))


@pytest.mark.parametrize("streams", OFTEN)
def test_an_end_that_has_left_is_noticed_by_the_one_that_sends(streams: int) -> None:
    with stream(streams) as (sending, receiving):
        receiving.close()
        send_until_it_fails(sending)


PEER = """
import json, sys
given = json.load(sys.stdin)
sys.path.insert(0, given["collections"])
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.handshake import connect
stripes = connect([("127.0.0.1", given["port"])], given["own"], given["peer"], given["streams"], 10, 20)
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
        receiving = listener.accept(SOON, IDLE)
        receiving.receive_frame()
        peer.kill()
        started = time.monotonic()
        with pytest.raises(PeerError, match="ended before the work was done"):
            while True:
                assert receiving.receive_frame() == (DATA, bytes(1 << 20))
        assert time.monotonic() - started < 5
        receiving.close()


@pytest.mark.slow
@pytest.mark.parametrize("streams", OFTEN)
def test_a_peer_that_takes_nothing_is_given_up_and_little_is_queued_for_it(streams: int) -> None:
    with stream(streams, idle=1) as (sending, _receiving):
        with pytest.raises(PeerError, match="nothing was taken for 1 s; the host or the network hangs"):
            for _number in range(500):
                sending.send_frame(DATA, bytes(1 << 20))
        # The queues of both ends of each connection, and what the kernel holds.
        assert sending.sent < streams * (2 * 8 + 32) << 20
        started = time.monotonic()
        sending.close(abort=True)
        assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("streams", OFTEN)
def test_a_peer_that_gives_nothing_is_given_up(streams: int) -> None:
    with stream(streams, idle=1) as (sending, receiving):
        sending.send_frame(DATA, b"x" * BLOCK)
        sending.flush()
        assert receiving.receive_frame() == (DATA, b"x" * BLOCK)
        with pytest.raises(PeerError, match="nothing came for 1 s; the host or the network hangs"):
            receiving.receive_frame()


def test_idle_time_does_not_count_before_the_first_frame_is_wanted() -> None:
    with stream(3, idle=1) as (sending, receiving):
        time.sleep(1.2)
        with in_thread(lambda: (sending.send_frame(DATA, b"late"), sending.flush())):
            assert receiving.receive_frame() == (DATA, b"late")


@pytest.mark.slow
def test_a_slow_peer_is_not_given_up_while_anything_comes_over_any_connection() -> None:
    with stream(3, idle=1) as (sending, receiving):

        def send() -> None:
            for _number in range(6):  # each connection has its turn only every 1.5 s
                time.sleep(0.5)
                sending.send_frame(DATA, b"slow")
                sending.flush()

        with in_thread(send):
            assert [receiving.receive_frame() for _number in range(6)] == [(DATA, b"slow")] * 6


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
    with stream(streams, port_of=through_proxy) as (caller, listener):

        def send() -> None:
            with contextlib.suppress(PeerError):
                for _number in range(6):
                    caller.send_frame(DATA, content)
                caller.flush()

        with in_thread(send), pytest.raises(PeerError, match="not what was sent: something between the two hosts"):
            while True:
                assert listener.receive_frame() == (DATA, content)
        listener.close()
    proxies[0].close()


@pytest.mark.parametrize(
    "said",
    [LENGTH.pack(MAX_BLOCK + 1), LENGTH.pack(0), LENGTH.pack(3) + b"abc", LENGTH.pack(6) + HEADER.pack(DATA, 2) + b"x"],
)
def test_a_peer_that_does_not_keep_to_blocks_is_refused(said: bytes) -> None:
    with listening() as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(listener.accept, SOON, IDLE)
        with plain_call(listener.port, certificates=CALLER) as raw:
            raw.send(HELLO.pack(MAGIC, 0, 1))
            receiving = calling.result()
            raw.send(said)
            with pytest.raises(PeerError, match="the stream is corrupt"):
                receiving.receive_frame()
        receiving.close()
