# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire: frames between the relay and an agent over the standard streams of one remote command, or between two agents.

A frame is a type byte, a big-endian 32-bit length, and that many bytes:

==========  ==========================================================================================
``MESSAGE`` a JSON object with the key ``op``; everything but file content
``PACKED``  the same, zlib-compressed, for long ones
``BLOCK``   a piece of the files' content: how it is packed, its unpacked size, and the packed bytes
==========  ==========================================================================================

Content is sent in groups: a ``group`` message says which files follow, and its blocks are cut from their contents one after
the other, without regard to where one file ends. docs/protocol.md has the order of the messages. Paths in JSON are UTF-8 with
surrogate escapes.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import Any, BinaryIO, Dict, Iterable, List, Tuple, Union

PROTOCOL = 3
MAGIC = f"ddtree-agent/{PROTOCOL}"
MESSAGE, PACKED, BLOCK = 1, 2, 3
HEADER = struct.Struct(">BI")
BLOCK_HEAD = struct.Struct(">BI")
RAW, ZSTD, ZEROS = 0, 1, 2
BLOCK_SIZE = 1 << 20
MAX_FRAME = 16 << 20
ROWS_PER_FRAME = 2000
PACK_FROM = 1024
CLOSED = "the stream was closed at this end"

Buffer = Union[bytes, bytearray, memoryview]
Message = Dict[str, Any]
Frame = Tuple[int, Union[bytes, memoryview]]
Row = List[Any]


class PeerError(Exception):
    """The other end reported an error or broke the protocol; the message is for people."""


class Channel:
    """Frames over a pair of binary streams. Not safe for two threads on the same direction."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer
        self.received = 0
        self.sent = 0

    def send_frame(self, kind: int, payload: Buffer) -> None:
        self._writer.write(HEADER.pack(kind, len(payload)))
        self._writer.write(payload)
        self.sent += HEADER.size + len(payload)

    def send(self, op: str, **fields: Any) -> None:
        self.send_frame(*message_frame(op, **fields))
        self.flush()

    def flush(self) -> None:
        self._writer.flush()

    def receive_frame(self) -> Frame:
        kind, length = self.receive_header()
        return kind, self._read(length)

    def receive_header(self) -> Tuple[int, int]:
        """Type and length of the next frame, whose content must be received next."""
        kind, length = HEADER.unpack(self._read(HEADER.size))
        check_header(kind, length)
        self.received += HEADER.size + length
        return kind, length

    def receive_content(self, kind: int, length: int) -> Frame:
        return kind, self._read(length)

    def send_header(self, kind: int, length: int) -> None:
        """Begin a frame whose content is sent past this channel, after a flush."""
        self._writer.write(HEADER.pack(kind, length))
        self.sent += HEADER.size + length

    def send_file(self, kind: int, head: bytes, fd: int, size: int) -> int:
        """Send a frame of ``head`` and the next ``size`` bytes of an open file, without a copy; gives how many there were.

        Where the file has fewer, zeros make up for them, so that the frames that follow are still read.
        """
        self.send_header(kind, len(head) + size)
        self._writer.write(head)
        self.flush()
        done = 0
        while done < size:
            count = os.sendfile(self._writer.fileno(), fd, None, size - done)
            if not count:
                self._writer.write(bytes(size - done))
                break
            done += count
        return done

    def _read(self, length: int) -> bytes:
        data = self._reader.read(length)
        if len(data) != length:
            raise PeerError("the connection ended before the work was done")
        return data

    def receive(self, *ops: str) -> Message:
        """The next message, which must be one of ``ops``; an error of the other end is raised as PeerError."""
        return parse_message(self.receive_frame(), *ops)


def check_header(kind: int, length: int) -> None:
    if kind not in (MESSAGE, PACKED, BLOCK) or length > MAX_FRAME:
        raise PeerError("the stream is corrupt: something else than the agent writes to this connection")


def message_frame(op: str, **fields: Any) -> Frame:
    payload = json.dumps({"op": op, **fields}, separators=(",", ":")).encode("ascii")
    if len(payload) < PACK_FROM:
        return MESSAGE, payload
    return PACKED, zlib.compress(payload, 6)


def parse_message(frame: Frame, *ops: str) -> Message:
    """A frame's message; raises PeerError when it is an error or none of ``ops`` (any when there are none)."""
    kind, payload = frame
    if kind not in (MESSAGE, PACKED):
        raise PeerError(
            f"the stream is out of step: expected {' or '.join(ops) or 'a message'}, got a frame of type {kind}"
        )
    try:
        if kind == PACKED:
            payload = zlib.decompressobj().decompress(payload, MAX_FRAME)
        message: Message = json.loads(bytes(payload))
        op = message["op"]
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise PeerError("the stream is corrupt: what came is not a message") from error
    if op == "error":
        raise PeerError(str(message.get("message", "unknown error")))
    if ops and op not in ops:
        raise PeerError(f"the stream is out of step: expected {' or '.join(ops)}, got {op}")
    return message


def check_protocol(message: Message) -> None:
    """Raise PeerError unless the other end speaks this version of the protocol."""
    found = message.get("protocol", 1)
    if found != PROTOCOL:
        raise PeerError(
            f"this agent speaks version {PROTOCOL} of the stream protocol and the other end version {found}; "
            "use the same release of ddtree.fleet on both"
        )


def encode_path(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def decode_path(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def send_rows(channel: Channel, op: str, rows: List[Row]) -> None:
    """A long list, in messages ``op`` of bounded length, then ``end``."""
    for start in range(0, len(rows), ROWS_PER_FRAME):
        channel.send(op, rows=rows[start : start + ROWS_PER_FRAME])
    channel.send("end")


def receive_rows(channel: Channel, op: str) -> List[Row]:
    rows: List[Row] = []
    while True:
        message = channel.receive(op, "end")
        if message["op"] == "end":
            return rows
        rows += message["rows"]


def to_runs(numbers: Iterable[int]) -> List[List[int]]:
    """Rising numbers as ``[first, count]`` pairs, which are few where files are sent in the order of the listing."""
    runs: List[List[int]] = []
    for number in numbers:
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs


def from_runs(runs: Any, below: int) -> List[int]:
    """The numbers of such pairs; raises PeerError for anything but rising numbers from 0 to ``below``."""
    numbers: List[int] = []
    least = 0
    try:
        for first, count in runs:
            if not least <= first < first + count <= below:
                raise PeerError(f"the other end named file {first}, which the listing has not")
            numbers += range(first, first + count)
            least = first + count
    except (TypeError, ValueError) as error:
        raise PeerError("the other end named files in a form that is not understood") from error
    return numbers
