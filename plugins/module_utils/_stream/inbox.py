# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inbox of an agent: what its relay says, also while the agent streams, so that a stream can be stopped at once."""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Iterator, Optional, Union

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    Channel,
    Frame,
    Message,
    PeerError,
    parse_message,
)


class Inbox:
    """Messages of the relay. ``stop`` only counts while this end listens, and is passed over otherwise."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._thread: Optional[threading.Thread] = None
        self._heard: Union[Frame, PeerError, None] = None

    def receive(self, *ops: str) -> Message:
        """The next message, which must be one of ``ops``. Raises PeerError."""
        while True:
            message = parse_message(self._next(), "stop", *ops)
            if message["op"] != "stop":
                return message

    def _next(self) -> Frame:
        if self._thread is None:
            return self._channel.receive_frame()
        self._thread.join()
        self._thread = None
        if isinstance(self._heard, PeerError):
            raise self._heard
        if self._heard is None:
            raise PeerError("the connection ended before the work was done")
        return self._heard

    @contextlib.contextmanager
    def listening(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call ``stop`` from another thread when the relay says so or is gone. One message is heard, and kept for ``receive``."""
        if self._thread is None:
            self._heard = None
            self._thread = threading.Thread(target=self._listen, args=(stop,), daemon=True)
            self._thread.start()
        yield

    def _listen(self, stop: Callable[[], None]) -> None:
        try:
            self._heard = self._channel.receive_frame()
            stopped = parse_message(self._heard)["op"] == "stop"
        except PeerError as error:
            self._heard, stopped = error, True
        if stopped:
            stop()
