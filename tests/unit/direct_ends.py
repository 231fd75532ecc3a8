# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Both ends of a direct connection in one process, certificates for them, and clients that are strangers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.handshake import Listener, connect
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.stripes import Receiving, Sending
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import make_pair

HOST = "127.0.0.1"
SOON = 10.0
IDLE = 20.0

Pair = Tuple[str, str]


def pair_of(name: str) -> Pair:
    pair = make_pair(name)
    return pair.certificate, pair.key


CALLER, LISTENER, STRANGER = pair_of("source"), pair_of("target"), pair_of("source")


@contextlib.contextmanager
def listening(streams: int = 1) -> Iterator[Listener]:
    with contextlib.closing(Listener((0, 0), LISTENER, CALLER[0], streams)) as listener:
        yield listener


def call(port: int, streams: int = 1, own: Pair = CALLER, idle: float = IDLE) -> Sending:
    return connect([(HOST, port)], own, LISTENER[0], streams, SOON, idle)


@contextlib.contextmanager
def stream(
    streams: int, idle: float = IDLE, port_of: Callable[[int], int] = lambda port: port
) -> Iterator[Tuple[Sending, Receiving]]:
    """Both ends of one stream; ``port_of`` may put something between them."""
    with listening(streams) as listener, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call, port_of(listener.port), streams, idle=idle)
        receiving = listener.accept(SOON, idle)
        sending = calling.result()
    try:
        yield sending, receiving
    finally:
        sending.close(abort=True)
        receiving.close()


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
