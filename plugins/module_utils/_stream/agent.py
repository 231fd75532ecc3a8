# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent: one program for both ends of a stream, run by a remote Python that reads it from its standard input."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from typing import BinaryIO

from ansible_collections.ddtree.fleet.plugins.module_utils._lease import LeaseError
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import ReleaseError
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import conversation, source
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel, PeerError, check_protocol
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, show


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Serve one relay. What goes wrong is one ``error`` message to it, for people; the exit status says nothing."""
    os.umask(0o022)
    atexit.register(os._exit, 0)  # a thread may still read standard input, over which an orderly end would stumble
    sys.setswitchinterval(0.0005)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # so that the lease is given back
    channel = Channel(stdin, stdout)
    with (
        contextlib.ExitStack() as opened
    ):  # closed after it was said what went wrong: who notices the end asks the relay why
        try:
            request = channel.receive("scan", "open")
            check_protocol(request)
            if request["op"] == "scan":
                source.serve(channel, request, opened)
            else:
                conversation.serve(channel, request)
        except (TreeError, ReleaseError, LeaseError, PeerError) as error:
            _report(channel, str(error))
        except (KeyError, TypeError, ValueError) as error:
            _report(channel, f"the stream is corrupt: a request lacks or garbles {error}")
        except OSError as error:
            place = f"{show(os.fsencode(error.filename))}: " if error.filename else ""
            _report(channel, f"{place}{error.strerror or error}")


def _end(*_signal: object) -> None:
    raise SystemExit(1)


def _report(channel: Channel, message: str) -> None:
    try:
        channel.send("error", message=message)
    except OSError:
        _end()  # the relay is gone; nobody is left to tell
