# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire: frames between the relay and an agent, over the standard streams of one remote command.

A frame is a type byte, a big-endian 32-bit length, and that many bytes:

==========  ========================================================================
``MESSAGE`` a JSON object with the key ``op``; everything but file content
``PACKED``  the same, zlib-compressed, for long ones
``FILE``    the index of the file whose content follows, 32-bit big-endian
``DATA``    a piece of its content
``SUM``     the raw SHA-256 of the content as it was read; the file is complete
==========  ========================================================================

docs/protocol.md has the order of the messages. Paths in JSON are UTF-8 with surrogate escapes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from typing import Any, BinaryIO, Dict, List, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import DIRECTORY, FILE, IGNORED_NAME, LINK, Entry

MAGIC = "ddtree-agent/1"
MESSAGE, FILE_INDEX, DATA, SUM, PACKED = 1, 2, 3, 4, 5
HEADER = struct.Struct(">BI")
INDEX = struct.Struct(">I")
MAX_FRAME = 16 << 20
ROWS_PER_FRAME = 2000
PACK_FROM = 1024

Message = Dict[str, Any]
Frame = Tuple[int, bytes]
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

    def send_frame(self, kind: int, payload: bytes) -> None:
        self._writer.write(HEADER.pack(kind, len(payload)))
        self._writer.write(payload)
        self.sent += HEADER.size + len(payload)

    def send(self, op: str, **fields: Any) -> None:
        payload = json.dumps({"op": op, **fields}, separators=(",", ":")).encode("ascii")
        if len(payload) < PACK_FROM:
            self.send_frame(MESSAGE, payload)
        else:
            self.send_frame(PACKED, zlib.compress(payload, 6))
        self.flush()

    def flush(self) -> None:
        self._writer.flush()

    def receive_frame(self) -> Frame:
        kind, length = HEADER.unpack(self._read(HEADER.size))
        if kind not in (MESSAGE, FILE_INDEX, DATA, SUM, PACKED) or length > MAX_FRAME:
            raise PeerError("the stream is corrupt: something else than the agent writes to this connection")
        payload = self._read(length)
        self.received += HEADER.size + length
        return kind, payload

    def _read(self, length: int) -> bytes:
        data = self._reader.read(length)
        if len(data) != length:
            raise PeerError("the connection ended before the work was done")
        return data

    def receive(self, *ops: str) -> Message:
        """The next message, which must be one of ``ops``; an error of the other end is raised as PeerError."""
        return parse_message(self.receive_frame(), *ops)


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
        message: Message = json.loads(payload)
        op = message["op"]
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise PeerError(f"the stream is corrupt: not a message: {payload[:80]!r}") from error
    if op == "error":
        raise PeerError(str(message.get("message", "unknown error")))
    if ops and op not in ops:
        raise PeerError(f"the stream is out of step: expected {' or '.join(ops)}, got {op}")
    return message


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


def folders(entries: List[Entry]) -> Dict[bytes, List[Entry]]:
    """The entries by the directory they are in; the root's is the empty path. Directories in sorted order."""
    found: Dict[bytes, List[Entry]] = {b"": []}
    for entry in entries:
        found[entry.path.rpartition(b"/")[0]].append(entry)
        if entry.kind == DIRECTORY:
            found[entry.path] = []
    return dict(sorted(found.items()))


def folder_digest(children: List[Entry], hashes: Dict[bytes, str]) -> str:
    """SHA-256 over all that is sent about the children of one directory, in hex: equal ones need not be listed again."""
    digest = hashlib.sha256()
    for e in children:
        content = hashes[e.path] if e.kind == FILE else encode_path(e.target)
        fields = [
            encode_path(e.path.rpartition(b"/")[2]),
            e.kind,
            e.mode,
            e.size,
            e.mtime_ns if e.kind == FILE else 0,
            content,
        ]
        digest.update(json.dumps(fields).encode("ascii"))
    return digest.hexdigest()


def entry_row(entry: Entry, hashes: Dict[bytes, str]) -> Row:
    e = entry
    return [encode_path(e.path), e.kind, e.mode, e.size, encode_path(e.target), e.mtime_ns, hashes.get(e.path, "")]


def check_rows(rows: List[Row]) -> Tuple[List[Entry], Dict[bytes, str]]:
    """The entries of a received listing, sorted and checked: nothing in it can lead a receiver out of the tree it builds."""
    entries: List[Entry] = []
    hashes: Dict[bytes, str] = {}
    directories = {b""}
    try:
        listed = sorted(((decode_path(row[0]), row[1:]) for row in rows), key=lambda item: item[0])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PeerError("the source listed something that has no path") from error
    for path, row in listed:
        try:
            entry, sha256 = _checked(path, row, directories, entries[-1].path if entries else b"")
        except (AttributeError, TypeError, ValueError) as error:
            raise PeerError(f"the source listed {path!r} in a form that is not understood") from error
        entries.append(entry)
        if entry.kind == DIRECTORY:
            directories.add(path)
        elif entry.kind == FILE:
            hashes[path] = sha256
    return entries, hashes


def _checked(path: bytes, row: Row, directories: set[bytes], before: bytes) -> Tuple[Entry, str]:
    kind, mode, size, target, mtime_ns, sha256 = row
    parent, _slash, name = path.rpartition(b"/")
    # A link named __pycache__ would not be seen in staging, and bytecode would be written through it.
    if name in (b"", b".", b"..", IGNORED_NAME) or b"\0" in path or parent not in directories:
        raise PeerError(f"the source listed {path!r}, which is not a path inside a tree")
    if path <= before:
        raise PeerError(f"the source listed {path!r} twice")
    if kind not in (FILE, DIRECTORY, LINK) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise PeerError(f"the source listed {path!r} with an unknown type or mode")
    if not isinstance(size, int) or size < 0 or not isinstance(mtime_ns, int) or abs(mtime_ns) >= 1 << 63:
        raise PeerError(f"the source listed {path!r} with an impossible size or time")
    if kind == FILE and (not isinstance(sha256, str) or len(sha256) != 64 or set(sha256) - set("0123456789abcdef")):
        raise PeerError(f"the source listed {path!r} without a SHA-256")
    if kind == LINK and (not target or "\0" in target):
        raise PeerError(f"the source listed {path!r} as a link to nothing")
    return Entry(path, kind, mode, size, decode_path(target), mtime_ns, 0, 0, 1), sha256
