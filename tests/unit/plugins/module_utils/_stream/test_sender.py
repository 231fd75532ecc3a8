# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import io
import os
import random
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import sender as under_test
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sender import Group, Sender
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import RELAY, Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    BLOCK_HEAD,
    BLOCK_SIZE,
    RAW,
    ZEROS,
    ZSTD,
    Channel,
    Frame,
    PeerError,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, scan
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB

NOISE = random.Random(3).randbytes(BLOCK_SIZE)
TEXT = (b"".join(b"line %d of a file that compresses well\n" % number for number in range(40_000)))[:BLOCK_SIZE]
ZERO = bytes(BLOCK_SIZE)


class Case:
    """A tree with some files, and what a sender makes of it."""

    def __init__(self, root: Path, files: Dict[str, bytes]) -> None:
        root.mkdir()
        for name, content in files.items():
            (root / name).write_bytes(content)
        self.root = os.fsencode(root)
        self.entries = scan(self.root)
        self.files = [files[os.fsdecode(entry.path)] for entry in self.entries]
        self._wire = root.with_name(root.name + ".wire")

    def send(self, *groups: Group, compress: str = "none", rate: int = 0) -> Sender:
        with self._wire.open("wb") as file:
            sender = Sender(self.root, self.entries, Sinks(Channel(io.BytesIO(), file)), compress, rate)
            for group in groups:
                sender.send(group)
            sender.close()
        return sender

    def frames(self) -> List[Frame]:
        channel, frames = Channel(io.BytesIO(self._wire.read_bytes()), io.BytesIO()), []
        try:
            while True:
                frames.append(channel.receive_frame())
        except PeerError:
            return frames

    def blocks(self) -> List[bytes]:
        return [payload for kind, payload in self.frames() if kind == BLOCK]


def whole(numbers: Sequence[int]) -> Group:
    return Group(list(numbers), {}, [RELAY], [1])


def unpacked(payload: bytes) -> bytes:
    packing, size = BLOCK_HEAD.unpack_from(payload)
    data = payload[BLOCK_HEAD.size :]
    if packing == ZEROS:
        assert not data
        return bytes(size)
    if packing == ZSTD:
        codec = find_codec()
        assert codec
        return codec.decompress(data, size)
    assert packing == RAW and len(data) == size
    return data


def packing(payload: bytes) -> int:
    return payload[0]


@pytest.fixture(name="uncopied")
def uncopied_fixture(monkeypatch: pytest.MonkeyPatch) -> List[int]:
    """How many bytes each call sent from a file without a copy."""
    counts: List[int] = []
    sendfile = os.sendfile

    def counting(*args: Any) -> int:
        counts.append(sendfile(*args))
        return counts[-1]

    monkeypatch.setattr(os, "sendfile", counting)
    return counts


@pytest.mark.parametrize("compress", ["none", "zstd", "auto"])
def test_files_follow_one_another_in_whole_blocks(tmp_path: Path, compress: str) -> None:
    files = {"a": b"first", "b": b"", "c": NOISE + TEXT + b"tail", "d": ZERO * 2, "e": TEXT * 2, "f": b"end"}
    case = Case(tmp_path / "src", files)
    case.send(whole(range(6)), compress=compress)
    frames = case.frames()
    assert parse_message(frames[0]) == {"op": "group", "runs": [[0, 6]], "offsets": [], "takers": [1]}
    blocks = [unpacked(payload) for _kind, payload in frames[1:]]
    assert b"".join(blocks) == b"".join(case.files)
    assert [len(block) for block in blocks[:-1]] == [BLOCK_SIZE] * (len(blocks) - 1)


def test_zeros_take_a_few_bytes_each(tmp_path: Path) -> None:
    case = Case(tmp_path / "src", {f"{number}": bytes(BLOCK_SIZE // 2) for number in range(10)} | {"x": bytes(9)})
    case.send(whole(range(11)))
    assert case.blocks() == [BLOCK_HEAD.pack(ZEROS, BLOCK_SIZE)] * 5 + [BLOCK_HEAD.pack(ZEROS, 9)]


def test_holes_take_a_few_bytes_each_and_what_is_between_them_arrives(tmp_path: Path, uncopied: List[int]) -> None:
    case = Case(tmp_path / "src", {"x": b""})
    with open(tmp_path / "src" / "x", "wb") as file:
        file.seek(30 * BLOCK_SIZE)
        file.write(NOISE * 2)
        file.truncate(64 * BLOCK_SIZE + 9)
    case.entries = scan(case.root)
    case.send(whole([0]))
    between = [BLOCK_HEAD.pack(RAW, BLOCK_SIZE) + NOISE] * 2
    hole = BLOCK_HEAD.pack(ZEROS, BLOCK_SIZE)
    assert case.blocks() == [hole] * 30 + between + [hole] * 32 + [BLOCK_HEAD.pack(ZEROS, 9)]
    assert uncopied == []


@pytest.mark.parametrize("place", [0, 1, BLOCK_SIZE // 2, BLOCK_SIZE // 2 + 1, BLOCK_SIZE - 1])
def test_one_byte_anywhere_is_no_zeros(tmp_path: Path, place: int) -> None:
    content = bytearray(BLOCK_SIZE)
    content[place] = 1
    case = Case(tmp_path / "src", {"x": bytes(content)})
    case.send(whole([0]))
    assert [packing(payload) for payload in case.blocks()] == [RAW]
    assert unpacked(case.blocks()[0]) == content


def test_compression_is_used_where_it_helps(tmp_path: Path) -> None:
    case = Case(tmp_path / "src", {"a": TEXT * 3, "b": NOISE * 3})
    case.send(whole([0, 1]), compress="zstd")
    assert [packing(payload) for payload in case.blocks()] == [ZSTD] * 3 + [RAW] * 3
    assert sum(map(len, case.blocks()[:3])) < MIB
    none = Case(tmp_path / "other", {"a": TEXT * 3})
    none.send(whole([0]), compress="none")
    assert {packing(payload) for payload in none.blocks()} == {RAW}


def test_without_a_codec_content_is_sent_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "find_codec", lambda: None)
    case = Case(tmp_path / "src", {"a": TEXT * 3})
    case.send(whole([0]), compress="auto")
    assert {packing(payload) for payload in case.blocks()} == {RAW}


def test_of_a_partial_file_only_the_rest_is_sent(tmp_path: Path) -> None:
    case = Case(tmp_path / "src", {"a": NOISE * 2 + TEXT, "b": NOISE, "c": b"after"})
    case.send(Group([0, 1, 2], {1: BLOCK_SIZE, 0: 2 * BLOCK_SIZE - 3}, [RELAY], [1]))
    assert parse_message(case.frames()[0])["offsets"] == [[0, 2 * BLOCK_SIZE - 3], [1, BLOCK_SIZE]]
    assert b"".join(map(unpacked, case.blocks())) == NOISE[-3:] + TEXT + b"after"


@pytest.mark.parametrize("offset", [0, 1, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE + 7])
def test_a_large_file_arrives_byte_for_byte_without_a_copy(tmp_path: Path, uncopied: List[int], offset: int) -> None:
    large = random.Random(offset).randbytes(10 * BLOCK_SIZE + 11)
    case = Case(tmp_path / "src", {"a": large, "b": b"after"})
    case.send(Group([0, 1], {0: offset} if offset else {}, [RELAY], [1]))
    blocks = case.blocks()
    assert b"".join(map(unpacked, blocks)) == large[offset:] + b"after"
    assert sum(uncopied) == (len(large) - offset) // BLOCK_SIZE * BLOCK_SIZE
    assert [len(payload) for payload in blocks[:-1]] == [BLOCK_HEAD.size + BLOCK_SIZE] * (len(blocks) - 1)


@pytest.mark.parametrize(("compress", "least", "most"), [("none", 20, 20), ("auto", 4, 19)])
def test_only_what_is_learnt_from_is_copied(
    tmp_path: Path, uncopied: List[int], compress: str, least: int, most: int
) -> None:
    case = Case(tmp_path / "src", {"a": NOISE * 20})
    case.send(whole([0]), compress=compress)
    assert b"".join(map(unpacked, case.blocks())) == NOISE * 20
    assert least <= sum(uncopied) // BLOCK_SIZE <= most


def test_what_follows_a_small_file_keeps_its_place(tmp_path: Path, uncopied: List[int]) -> None:
    noise = random.Random(5).randbytes(30 * BLOCK_SIZE)
    case = Case(tmp_path / "src", {"a": b"small", "b": TEXT * 5, "c": noise, "d": b"end"})
    case.send(whole(range(4)), compress="none")
    assert b"".join(map(unpacked, case.blocks())) == b"".join(case.files)
    assert 0 < sum(uncopied) < 35 * BLOCK_SIZE
    uncopied.clear()
    packed = Case(tmp_path / "other", {"a": b"small", "b": TEXT * 5, "c": noise, "d": b"end"})
    packed.send(whole(range(4)), compress="zstd")
    assert b"".join(map(unpacked, packed.blocks())) == b"".join(packed.files)
    assert 0 < sum(uncopied) < 30 * BLOCK_SIZE


def test_groups_are_told_apart(tmp_path: Path) -> None:
    case = Case(tmp_path / "src", {"a": b"1", "b": b"22", "c": b"333"})
    case.send(whole([1]), whole([0, 2]))
    names = [parse_message(frame)["runs"] if frame[0] != BLOCK else unpacked(frame[1]) for frame in case.frames()]
    assert names == [[[1, 1]], b"22", [[0, 1], [2, 1]], b"1333"]


def test_a_rate_limit_holds_for_what_is_sent(tmp_path: Path) -> None:
    case = Case(tmp_path / "src", {"a": NOISE * 6})
    started = time.monotonic()
    case.send(whole([0]), rate=10 * MIB)
    assert 0.4 < time.monotonic() - started < 5
    packed = Case(tmp_path / "other", {"a": TEXT * 60})
    started = time.monotonic()
    packed.send(whole([0]), compress="zstd", rate=100 * MIB)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("size", [0, BLOCK_SIZE - 1, BLOCK_SIZE * 2 + 5])
def test_a_file_that_is_not_the_listed_one_any_more_is_named(tmp_path: Path, size: int) -> None:
    case = Case(tmp_path / "src", {"a": b"before", "x": NOISE * 2})
    with open(tmp_path / "src" / "x", "r+b") as file:
        file.truncate(size)
    with pytest.raises(TreeError, match="src/x changed while it was read; stop what writes to the environment"):
        case.send(whole([0, 1]))
