# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import io
import json
import zlib
from typing import Any, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import wire
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    Channel,
    PeerError,
    Row,
    check_rows,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry


def row(path: str, kind: str = "f", content: bytes = b"", mode: int = 0o644, target: str = "", **more: Any) -> Row:
    size, digest = (len(content), hashlib.sha256(content).hexdigest()) if kind == "f" else (0, "")
    return [path, kind, mode, more.get("size", size), target, more.get("mtime", 0), more.get("digest", digest)]


def sent(*messages: tuple[str, dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    for op, fields in messages:
        Channel(io.BytesIO(), stream).send(op, **fields)
    return stream.getvalue()


def receiver(data: bytes) -> Channel:
    return Channel(io.BytesIO(data), io.BytesIO())


def test_messages_arrive_as_they_were_sent_and_long_ones_are_packed() -> None:
    long = {"want": list(range(50_000)), "name": wire.encode_path(b"\xff\n")}
    data = sent(("need", long), ("bye", {}))
    assert len(data) < len(json.dumps(long)) / 2
    channel = receiver(data)
    assert channel.receive("need") == {"op": "need", **long}
    assert channel.receive("need", "bye") == {"op": "bye"}
    assert channel.received == len(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ended before the work was done"),
        (sent(("bye", {}))[:-1], "ended before the work was done"),
        (b"Last login: today\n", "something else than the agent writes"),
        (wire.HEADER.pack(1, wire.MAX_FRAME + 1), "something else than the agent writes"),
        (sent(("error", {"message": "disk died"})), "^disk died$"),
        (sent(("hello", {})), "expected bye, got hello"),
        (wire.HEADER.pack(wire.DATA, 1) + b"x", "expected bye, got a frame of type 3"),
        (wire.HEADER.pack(1, 4) + b"null", "not a message"),
        (wire.HEADER.pack(1, 2) + b"{}", "not a message"),
        (wire.HEADER.pack(1, 1) + b"{", "not a message"),
        (wire.HEADER.pack(wire.PACKED, 1) + b"x", "not a message"),
    ],
)
def test_anything_else_is_an_error_for_people(data: bytes, problem: str) -> None:
    with pytest.raises(PeerError, match=problem):
        receiver(data).receive("bye")


def test_a_packed_message_cannot_fill_the_memory() -> None:
    bomb = zlib.compress(b'{"op":"x"}' + b" " * (wire.MAX_FRAME * 4))
    assert len(bomb) < 1 << 20
    assert parse_message((wire.PACKED, bomb)) == {"op": "x"}


def test_rows_of_any_number_arrive_in_order() -> None:
    rows: List[Row] = [[f"name {number}"] for number in range(2 * wire.ROWS_PER_FRAME + 1)]
    stream = io.BytesIO()
    wire.send_rows(Channel(io.BytesIO(), stream), "entries", rows)
    assert wire.receive_rows(receiver(stream.getvalue()), "entries") == rows
    stream = io.BytesIO()
    wire.send_rows(Channel(io.BytesIO(), stream), "entries", [])
    assert wire.receive_rows(receiver(stream.getvalue()), "entries") == []


def test_paths_of_any_bytes_survive_json() -> None:
    path = bytes(range(1, 256))
    assert wire.decode_path(json.loads(json.dumps(wire.encode_path(path)))) == path


def test_a_listing_becomes_sorted_entries() -> None:
    entries, hashes = check_rows(
        [row("d/x", content=b"1"), row("l", "l", mode=0, target="d"), row("d", "d", mode=0o700), row("d-")]
    )
    assert [(entry.path, entry.kind, entry.mode, entry.size) for entry in entries] == [
        (b"d", "d", 0o700, 0),
        (b"d-", "f", 0o644, 0),
        (b"d/x", "f", 0o644, 1),
        (b"l", "l", 0, 0),
    ]
    assert hashes[b"d/x"] == hashlib.sha256(b"1").hexdigest()
    assert check_rows([]) == ([], {})


HOSTILE = {
    "parent": [row("../x")],
    "deep parent": [row("d", "d", mode=0o755), row("d/../../x")],
    "absolute": [row("/etc/x")],
    "dot": [row(".")],
    "no name": [row("")],
    "doubled slash": [row("d", "d", mode=0o755), row("d//x")],
    "missing parent": [row("d/x")],
    "parent is a link": [row("d", "l", mode=0, target="/tmp"), row("d/x")],
    "parent is a file": [row("d"), row("d/x")],
    "twice": [row("x"), row("x", content=b"other")],
    "nul": [row("x\0y")],
    "device": [row("x", "b")],
    "setuid": [row("x", mode=0o4755)],
    "negative size": [row("x", size=-1)],
    "no digest": [row("x", digest="")],
    "not hexadecimal": [row("x", digest="/" * 64)],
    "empty link": [row("x", "l", mode=0)],
    "bytecode folder": [row("__pycache__", "l", mode=0, target="/tmp")],
    "impossible time": [row("x", mtime=1 << 80)],
    "short row": [["x"]],
    "no row": ["x"],
    "no path": [[7, "f", 0, 0, "", 0, ""]],
    "numeric link": [["x", "l", 0, 0, 7, 0, ""]],
    "lone surrogate": [row("\ud800")],
}


@pytest.mark.parametrize("rows", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_listing_that_leads_out_of_a_tree_or_is_none_is_refused(rows: List[Row]) -> None:
    with pytest.raises(PeerError, match="^the source listed"):
        check_rows(rows)


def entry(
    path: bytes, kind: str = "f", mode: int = 0o644, size: int = 1, target: bytes = b"", mtime_ns: int = 5
) -> Entry:
    return Entry(path, kind, mode, size, target, mtime_ns, 1, 1, 1)


def test_folders_hold_their_direct_children_only() -> None:
    entries = [entry(b"a"), entry(b"d", "d"), entry(b"d/e", "d"), entry(b"d/e/f"), entry(b"d/x")]
    assert {path: [one.path for one in inside] for path, inside in wire.folders(entries).items()} == {
        b"": [b"a", b"d"],
        b"d": [b"d/e", b"d/x"],
        b"d/e": [b"d/e/f"],
    }


def test_a_folder_digest_tells_everything_that_a_row_carries() -> None:
    base = entry(b"d/x")
    hashes = {b"d/x": "0" * 64}
    digests = {
        wire.folder_digest([base], hashes),
        wire.folder_digest([base], {b"d/x": "1" * 64}),
        wire.folder_digest([base._replace(mode=0o755)], hashes),
        wire.folder_digest([base._replace(mtime_ns=6)], hashes),
        wire.folder_digest([base._replace(kind="l", target=b"t")], {}),
        wire.folder_digest([base._replace(path=b"d/y")], {b"d/y": "0" * 64}),
        wire.folder_digest([], {}),
    }
    assert len(digests) == 7
    assert wire.folder_digest([base._replace(inode=9, ctime_ns=9)], hashes) in digests
