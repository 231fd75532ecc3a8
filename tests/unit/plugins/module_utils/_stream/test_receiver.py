# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import io
import os
import random
import threading
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import large
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import receiver as under_test
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.large import PREFIX_STEP, Prefixes
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.listing import check_rows
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.receiver import Receiver
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
    message_frame,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError
from ansible_collections.ddtree.fleet.tests.unit.agents import EndsAfter
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB, row

NOISE = random.Random(7).randbytes(BLOCK_SIZE)
END = message_frame("end")


def group(numbers: Sequence[int], offsets: Sequence[Tuple[int, int]] = ()) -> Frame:
    return message_frame("group", runs=to_runs(numbers), offsets=list(offsets))


def block(data: bytes, packing: int = RAW, size: int = -1) -> Frame:
    return BLOCK, BLOCK_HEAD.pack(packing, len(data) if size < 0 else size) + data


def packed(data: bytes) -> bytes:
    codec = find_codec()
    assert codec
    return codec.compress(data, 1)


class Case:
    """Files that a receiver waits for, in a tree of its own."""

    def __init__(self, tree: Path, files: Dict[str, bytes], hashes: Dict[str, str]) -> None:
        rows = [row(name, content=content, mode=0o640, mtime=5) for name, content in files.items()]
        for one in rows:
            one[6] = hashes.get(one[0], one[6])
        self.tree = tree
        self.entries, self.hashes = check_rows(rows)
        self.waiting = set(range(len(files)))
        self.prefixes: Dict[int, Prefixes] = {}

    def take(self, *frames: Frame) -> int:
        stream = io.BytesIO()
        for frame in frames:
            Channel(io.BytesIO(), stream).send_frame(*frame)
        stream.seek(0)
        progress = Progress(Channel(io.BytesIO(), io.BytesIO()), "receive")
        tree = os.fsencode(self.tree)
        receiver = Receiver(tree, self.entries, self.hashes, self.waiting, self.prefixes, progress)
        receiver.receive(Channel(stream, io.BytesIO()))
        return receiver.resumed

    def files(self) -> Dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.tree.iterdir()}


def case(tmp_path: Path, files: Dict[str, bytes], **hashes: str) -> Case:
    tree = tmp_path / "tree"
    tree.mkdir()
    return Case(tree, files, hashes)


def test_a_block_is_cut_without_regard_to_files(tmp_path: Path) -> None:
    files = {"a": b"first", "b": b"", "c": NOISE + b"tail", "d": b"last", "e": b""}
    subject = case(tmp_path, files)
    stream = b"".join(files.values())
    cuts = [0, 3, 5, 100, len(NOISE), len(stream) - 1, len(stream)]
    blocks = [block(stream[start:end]) for start, end in zip(cuts, cuts[1:])]
    assert subject.take(group(range(5)), *blocks, END) == 0
    assert subject.files() == files
    for path in subject.tree.iterdir():
        assert (path.stat().st_mode & 0o7777, path.stat().st_mtime_ns) == (0o640, 5)
    assert threading.active_count() < 4


def test_groups_come_one_after_the_other_in_any_order(tmp_path: Path) -> None:
    files = {"a": b"1", "b": b"22", "c": b"", "d": b"4444"}
    subject = case(tmp_path, files)
    subject.take(group([1, 3]), block(b"224444"), group([2]), group([0]), block(b"1"), END)
    assert subject.files() == files


def test_every_packing_gives_the_same_content_and_zeros_become_holes(tmp_path: Path) -> None:
    zeros = bytes(BLOCK_SIZE)
    files = {"hole": zeros * 8 + b"end", "mixed": NOISE + zeros + NOISE, "small": bytes(100)}
    subject = case(tmp_path, files)
    hole = [(BLOCK, BLOCK_HEAD.pack(ZEROS, BLOCK_SIZE))] * 8
    mixed = [block(packed(NOISE), ZSTD, BLOCK_SIZE), (BLOCK, BLOCK_HEAD.pack(ZEROS, BLOCK_SIZE)), block(NOISE)]
    subject.take(group([0]), *hole, block(b"end"), group([1]), *mixed, group([2]), block(b"", ZEROS, 100), END)
    assert subject.files() == files
    assert (subject.tree / "hole").stat().st_blocks * 512 <= 64 << 10
    assert (subject.tree / "mixed").stat().st_blocks * 512 <= 2 * BLOCK_SIZE + (64 << 10)


def test_a_file_that_ends_in_a_hole_has_its_whole_size(tmp_path: Path) -> None:
    files = {"x": NOISE + bytes(3 * BLOCK_SIZE)}
    subject = case(tmp_path, files)
    subject.take(group([0]), block(NOISE), *[(BLOCK, BLOCK_HEAD.pack(ZEROS, BLOCK_SIZE))] * 3, END)
    assert subject.files() == files


TWO = {"a": b"expected", "b": b"others"}
BOTH = group([0, 1])
HOSTILE: Dict[str, Tuple[List[Frame], str]] = {
    "other content": ([BOTH, block(b"EXPECTEDothers"), END], "^a arrived with other content than the source listed"),
    "content of the second": ([BOTH, block(b"expectedOTHERS"), END], "^b arrived with other content"),
    "more than announced": ([BOTH, block(b"expectedothers!"), END], "more than the files that it announced"),
    "one more block": ([BOTH, block(b"expectedothers"), block(b"!"), END], "more than the files that it announced"),
    "block without a group": ([block(b"expected")], "more than the files that it announced"),
    "stops in a file": ([BOTH, block(b"exp"), END], "stopped in the middle of a file"),
    "stops between files": ([BOTH, block(b"expected"), END], "stopped in the middle of a file"),
    "group in a group": ([group([0]), block(b"exp"), group([1])], "stopped in the middle of a file"),
    "group instead of content": ([group([0]), group([1])], "stopped in the middle of a file"),
    "ends early": ([group([0]), block(b"expected"), END], "ended without 1 of the files that were asked for"),
    "sends nothing": ([END], "ended without 2 of the files"),
    "not asked for": ([group([2])], "sent file 2, which was not asked for"),
    "twice": ([group([0]), block(b"expected"), group([0])], "sent file 0, which was not asked for"),
    "out of range": ([group([4])], "named file 4, which the listing has not"),
    "negative": ([message_frame("group", runs=[[-1, 1]], offsets=[])], "named file -1"),
    "not rising": ([message_frame("group", runs=[[1, 1], [0, 1]], offsets=[])], "named file 0"),
    "offset not asked for": ([group([0], [(0, 3)]), block(b"ected")], "a from a place that was not asked for"),
    "negative offset": ([group([0], [(0, -8)]), block(b"expected")], "a from a place that was not asked for"),
    "offset of another": ([group([0], [(1, 3)]), block(b"expected")], "a form that is not understood"),
    "no runs": ([message_frame("group", offsets=[])], "a form that is not understood"),
    "odd runs": ([message_frame("group", runs=[["x", 1]], offsets=[])], "a form that is not understood"),
    "no offsets": ([message_frame("group", runs=[[0, 1]])], "a form that is not understood"),
    "odd offsets": ([message_frame("group", runs=[[0, 1]], offsets=[["x", 1]])], "a form that is not understood"),
    "unknown message": ([message_frame("sent")], "out of step"),
    "source failed": ([BOTH, message_frame("error", message="disk died")], "^disk died$"),
    "cut off": ([BOTH, block(b"expected")], "ended before the work was done"),
    "nonsense": ([(9, b"")], "the stream is corrupt"),
    "no head": ([BOTH, (BLOCK, b"\0\0")], "a block of another size than it says"),
    "longer than it says": ([BOTH, block(b"expected", RAW, 7)], "a block of another size than it says"),
    "shorter than it says": ([BOTH, block(b"expected", RAW, 9)], "a block of another size than it says"),
    "empty block": ([BOTH, block(b"")], "a block of another size than it says"),
    "too large": ([BOTH, block(b"x" * (BLOCK_SIZE + 1))], "a block that is too large"),
    "too large when unpacked": ([BOTH, block(packed(bytes(BLOCK_SIZE * 9)), ZSTD, BLOCK_SIZE * 9)], "too large"),
    "too many zeros": ([BOTH, block(b"", ZEROS, BLOCK_SIZE + 1)], "a block that is too large"),
    "bomb": (
        [BOTH, block(packed(bytes(BLOCK_SIZE * 9)), ZSTD, 14)],
        "the stream is corrupt: compressed data is damaged",
    ),
    "damaged": (
        [BOTH, block(b"\x28\xb5\x2f\xfdnonsense", ZSTD, 14)],
        "the stream is corrupt: compressed data is damaged",
    ),
    "unknown packing": ([BOTH, block(b"expectedothers", 3)], "in packing 3, which cannot be read here"),
}


@pytest.mark.parametrize(("frames", "problem"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_source_that_sends_anything_else_is_stopped(tmp_path: Path, frames: List[Frame], problem: str) -> None:
    subject = case(tmp_path, {**TWO, "c": b"is here", "d": b""})
    subject.waiting = {0, 1}
    with pytest.raises(PeerError, match=problem):
        subject.take(*frames)
    assert set(subject.files()) <= {"a", "b"}
    assert all(TWO[name].startswith(content) for name, content in subject.files().items())


def test_a_block_that_was_damaged_on_the_way_is_noticed(tmp_path: Path) -> None:
    good = packed(NOISE[:5000] * 100)
    damaged = good[:3000] + bytes([good[3000] ^ 1]) + good[3001:]
    subject = case(tmp_path, {"x": NOISE[:5000] * 100})
    with pytest.raises(PeerError, match="the stream is corrupt|arrived with other content"):
        subject.take(group([0]), block(damaged, ZSTD, 500_000), END)


def test_zstd_is_refused_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "find_codec", lambda: None)
    subject = case(tmp_path, TWO)
    with pytest.raises(PeerError, match="a block in packing 1, which cannot be read here"):
        subject.take(BOTH, block(packed(b"expectedothers"), ZSTD, 14), END)


def test_a_large_file_with_another_hash_is_no_success(tmp_path: Path) -> None:
    subject = case(tmp_path, {"x": NOISE * 3, "y": b"after"}, x="0" * 64)
    with pytest.raises(PeerError, match="^x arrived with other content"):
        subject.take(group([0, 1]), block(NOISE), block(NOISE), block(NOISE), block(b"after"), END)


def test_no_small_file_is_written_through_a_link_or_over_a_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    subject = case(tmp_path, {"small": b"small"})
    (subject.tree / "small").symlink_to(victim)
    with pytest.raises(TreeError, match="small: File exists; what arrived stays there"):
        subject.take(group([0]), block(b"small"), END)
    assert victim.read_bytes() == b"untouched"


def test_no_large_file_is_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    subject = case(tmp_path, {"large": NOISE * 2})
    (subject.tree / "large").symlink_to(victim)
    subject.take(group([0]), block(NOISE), block(NOISE), END)
    assert victim.read_bytes() == b"untouched"
    assert not (subject.tree / "large").is_symlink()
    assert subject.files() == {"large": NOISE * 2}


# going on with what an interrupted stream left


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_prefixes_are_hashed_at_every_step_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PREFIX_STEP == 32 * MIB
    monkeypatch.setattr(large, "PREFIX_STEP", BLOCK_SIZE)
    path = tmp_path / "file"
    path.write_bytes(NOISE + NOISE + b"rest")
    assert Prefixes(os.fsencode(path), 3 * BLOCK_SIZE).listed() == [
        (BLOCK_SIZE, sha256(NOISE)),
        (2 * BLOCK_SIZE, sha256(NOISE * 2)),
        (2 * BLOCK_SIZE + 4, sha256(NOISE * 2 + b"rest")),
    ]
    # of a file that is longer than the wanted one, no more than that
    assert Prefixes(os.fsencode(path), BLOCK_SIZE + 1).listed()[1:] == [(BLOCK_SIZE + 1, sha256(NOISE + NOISE[:1]))]
    os.truncate(path, BLOCK_SIZE)
    assert Prefixes(os.fsencode(path), 3 * BLOCK_SIZE).listed() == [(BLOCK_SIZE, sha256(NOISE))]


@pytest.mark.parametrize("offset", [0, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE + 4])
def test_a_large_file_goes_on_from_a_place_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    monkeypatch.setattr(large, "PREFIX_STEP", 2 * BLOCK_SIZE)
    content = b"head" + NOISE * 4
    subject = case(tmp_path, {"x": content, "y": b"next"})
    there = content[: 3 * BLOCK_SIZE + 4]
    # what is behind the agreed place is not trusted
    (subject.tree / "x").write_bytes(there if offset == len(there) else there[:offset] + b"?" * 99)
    inode = (subject.tree / "x").stat().st_ino
    subject.prefixes = {0: Prefixes(os.fsencode(subject.tree / "x"), len(content))}
    subject.prefixes[0].states.setdefault(offset, hashlib.sha256(content[:offset]))
    rest = content[offset:] + b"next"
    blocks = [block(rest[start : start + BLOCK_SIZE]) for start in range(0, len(rest), BLOCK_SIZE)]
    assert subject.take(group([0, 1], [(0, offset)] if offset else []), *blocks, END) == offset
    assert subject.files() == {"x": content, "y": b"next"}
    assert not offset or (subject.tree / "x").stat().st_ino == inode


def test_a_file_that_had_arrived_whole_needs_no_block(tmp_path: Path) -> None:
    subject = case(tmp_path, {"x": NOISE, "y": b"next"})
    (subject.tree / "x").write_bytes(NOISE)
    subject.prefixes = {0: Prefixes(os.fsencode(subject.tree / "x"), MIB)}
    assert subject.take(group([0, 1], [(0, MIB)]), block(b"next"), END) == MIB
    assert subject.files() == {"x": NOISE, "y": b"next"}
    assert (subject.tree / "x").stat().st_mode & 0o7777 == 0o640


def test_a_rest_that_does_not_fit_its_beginning_is_no_success(tmp_path: Path) -> None:
    subject = case(tmp_path, {"x": NOISE * 2})
    (subject.tree / "x").write_bytes(NOISE)
    subject.prefixes = {0: Prefixes(os.fsencode(subject.tree / "x"), 2 * MIB)}
    with pytest.raises(PeerError, match="^x arrived with other content"):
        subject.take(group([0], [(0, MIB)]), block(bytes(reversed(NOISE))), END)


def test_a_full_disk_is_named_and_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    subject = case(tmp_path, {"x": NOISE * 2})
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TreeError, match="tree/x: No space left on device; what arrived stays there"):
        subject.take(group([0]), block(NOISE), block(NOISE), END)


# going on with the same stream after a pass that ended early


def receiver_of(subject: Case) -> Receiver:
    progress = Progress(Channel(io.BytesIO(), io.BytesIO()), "receive")
    tree = os.fsencode(subject.tree)
    return Receiver(tree, subject.entries, subject.hashes, subject.waiting, subject.prefixes, progress)


FILES = {"a": b"first", "b": NOISE * 3 + b"tail", "c": b"third"}


@pytest.mark.parametrize("offset", [2 * MIB, MIB + 5, 0], ids=["all that it has", "less", "nothing of it"])
def test_a_pass_that_breaks_off_is_gone_on_with_from_any_place_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    monkeypatch.setattr(large, "PREFIX_STEP", MIB)
    subject = case(tmp_path, FILES)
    receiver = receiver_of(subject)
    stream = b"first" + NOISE * 3
    blocks = [block(stream[:MIB]), block(stream[MIB : 2 * MIB]), block(stream[2 * MIB : 2 * MIB + 5])]
    assert receiver.receive(EndsAfter(group([0, 1, 2]), *blocks), heals=True) == "gone"
    assert receiver.lacking() == [1, 2]
    ((number, known),) = receiver.partial()
    assert number == 1
    assert max(length for length, _hash in known) == 2 * MIB
    assert all(sha256(FILES["b"][:length]) == found for length, found in known)
    rest = (FILES["b"] + b"third")[offset:]
    blocks = [block(rest[start : start + BLOCK_SIZE]) for start in range(0, len(rest), BLOCK_SIZE)]
    assert receiver.receive(EndsAfter(group([1, 2], [(1, offset)] if offset else []), *blocks, END), heals=True) == ""
    assert subject.files() == FILES
    assert receiver.lacking() == []
    assert receiver.resumed == 0  # nothing was there before this stream


def test_a_small_file_that_was_cut_in_two_comes_whole(tmp_path: Path) -> None:
    subject = case(tmp_path, {"a": b"first", "b": b"second", "c": b"third"})
    receiver = receiver_of(subject)
    assert receiver.receive(EndsAfter(group([0, 1, 2]), block(b"firstsec")), heals=True) == "gone"
    assert receiver.receive(EndsAfter(group([1, 2]), block(b"secondthird"), END)) == ""
    assert subject.files() == {"a": b"first", "b": b"second", "c": b"third"}


def test_what_goes_on_from_a_place_that_has_not_arrived_is_refused(tmp_path: Path) -> None:
    subject = case(tmp_path, FILES)
    receiver = receiver_of(subject)
    receiver.receive(EndsAfter(group([0, 1, 2]), block(b"first" + NOISE[:100])), heals=True)
    with pytest.raises(PeerError, match="^the source sent b from a place that was not asked for$"):
        receiver.receive(EndsAfter(group([1], [(1, 101)])), heals=True)


def test_a_pass_can_be_stopped_in_the_middle_of_a_file_and_damage_is_noticed_in_the_next(tmp_path: Path) -> None:
    subject = case(tmp_path, FILES)
    receiver = receiver_of(subject)
    frames = [group([0, 1, 2]), block(b"first" + NOISE[:-5]), message_frame("stop")]
    assert receiver.receive(EndsAfter(*frames)) == under_test.STOPPED
    with (subject.tree / "b").open("r+b") as file:
        file.write(b"damage")
    rest = FILES["b"][100:] + b"third"
    blocks = [block(rest[start : start + BLOCK_SIZE]) for start in range(0, len(rest), BLOCK_SIZE)]
    with pytest.raises(PeerError, match="^b arrived with other content"):
        receiver.receive(EndsAfter(group([1, 2], [(1, 100)]), *blocks, END))


def test_a_connection_that_must_not_end_fails_the_pass(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="^gone$"):
        receiver_of(case(tmp_path, FILES)).receive(EndsAfter(group([0, 1, 2])))


def test_a_full_disk_is_a_failure_also_where_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    receiver = receiver_of(case(tmp_path, FILES))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(TreeError, match="tree/b: No space left on device; what arrived stays there"):
        receiver.receive(EndsAfter(group([0, 1, 2]), block(b"first" + NOISE[:-5])), heals=True)
