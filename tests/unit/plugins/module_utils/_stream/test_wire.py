# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

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
    parse_message,
)


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
        (wire.HEADER.pack(4, 0), "something else than the agent writes"),
        (sent(("error", {"message": "disk died"})), "^disk died$"),
        (sent(("hello", {})), "expected bye, got hello"),
        (wire.HEADER.pack(wire.BLOCK, 1) + b"x", "expected bye, got a frame of type 3"),
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


def test_an_end_of_another_version_is_told_what_to_do() -> None:
    wire.check_protocol({"protocol": wire.PROTOCOL})
    with pytest.raises(PeerError) as caught:
        wire.check_protocol({})
    assert str(caught.value) == (
        "this agent speaks version 3 of the stream protocol and the other end version 1; "
        "use the same release of ddtree.fleet on both"
    )
    with pytest.raises(PeerError, match="other end version 2"):
        wire.check_protocol({"protocol": 2})


@pytest.mark.parametrize(
    ("numbers", "runs"),
    [([], []), ([0], [[0, 1]]), ([0, 1, 2, 5, 7, 8], [[0, 3], [5, 1], [7, 2]])],
)
def test_numbers_become_runs_and_back(numbers: List[int], runs: List[List[int]]) -> None:
    assert wire.to_runs(numbers) == runs
    assert wire.from_runs(runs, 9) == numbers


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([[8, 2]], "named file 8, which the listing has not"),
        ([[9, 1]], "named file 9, which the listing has not"),
        ([[-1, 1]], "named file -1, which the listing has not"),
        ([[3, 0]], "named file 3, which the listing has not"),
        ([[3, -1]], "named file 3, which the listing has not"),
        ([[3, 2], [4, 1]], "named file 4, which the listing has not"),
        ([[3, 1], [2, 1]], "named file 2, which the listing has not"),
        ([[0, 1 << 80]], "named file 0, which the listing has not"),
        ([[0]], "a form that is not understood"),
        ([["0", 1]], "a form that is not understood"),
        ([[0.5, 1]], "a form that is not understood"),
        ([None], "a form that is not understood"),
        (7, "a form that is not understood"),
    ],
)
def test_runs_that_do_not_rise_within_the_listing_are_refused(runs: Any, problem: str) -> None:
    with pytest.raises(PeerError, match=problem):
        wire.from_runs(runs, 9)
