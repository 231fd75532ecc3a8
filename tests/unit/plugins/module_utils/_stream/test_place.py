# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.place import COPIED, LINKED, REFLINKED, Placer
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, TreeError, scan
from ansible_collections.ddtree.fleet.tests.unit.disks import extents, reflinking
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB

NOISE = random.Random(13).randbytes(MIB)


class Case:
    """A directory with one file ``old``, and a tree that it becomes a file of."""

    def __init__(self, place: Path, content: bytes = b"content") -> None:
        self.root, self.tree = place / "root", place / "tree"
        self.root.mkdir()
        self.tree.mkdir()
        self.old, self.new = self.root / "old", self.tree / "new"
        self.old.write_bytes(content)
        self.old.chmod(0o640)
        self.content = content
        self.placer = Placer(os.fsencode(self.tree))

    def entry(self) -> Entry:
        (entry,) = scan(os.fsencode(self.root))
        return entry

    def place(self, old: Entry, link: bool, trusted: bool, **wanted: int) -> str:
        new = old._replace(path=b"new", **wanted)
        sha256 = hashlib.sha256(self.content).hexdigest()
        return self.placer.place(os.fsencode(self.root), old, new, sha256, link, trusted)


@pytest.fixture(name="case")
def case_fixture(tmp_path: Path) -> Case:
    return Case(tmp_path)


def edit_unseen(path: Path) -> None:
    """Change content, and put size and mtime back."""
    st = path.stat()
    path.write_bytes(path.read_bytes().swapcase())
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


@pytest.mark.parametrize("trusted", [False, True])
def test_a_copy_has_the_mode_and_time_of_the_new_file(case: Case, trusted: bool) -> None:
    assert case.place(case.entry(), False, trusted, mode=0o755, mtime_ns=12_345) == COPIED
    assert case.new.read_bytes() == b"content"
    assert (case.new.stat().st_mode & 0o7777, case.new.stat().st_mtime_ns) == (0o755, 12_345)
    assert not os.path.samefile(case.old, case.new)
    assert case.old.stat().st_mode & 0o7777 == 0o640


def test_a_link_is_the_same_file(case: Case) -> None:
    assert case.place(case.entry(), True, True) == LINKED
    assert os.path.samefile(case.old, case.new)


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o1000])
def test_a_file_with_special_bits_is_never_linked(case: Case, bits: int) -> None:
    case.old.chmod(0o755 | bits)
    assert case.place(case.entry(), True, True) == COPIED
    assert case.new.stat().st_mode & 0o7777 == 0o755
    assert case.old.stat().st_mode & 0o7777 == 0o755 | bits


@pytest.mark.parametrize("link", [False, True])
def test_what_is_not_the_listed_file_any_more_is_named(case: Case, link: bool) -> None:
    entry = case.entry()
    case.old.write_bytes(b"other content")
    with pytest.raises(TreeError, match="root/old changed while it was read"):
        case.place(entry, link, True)
    case.old.unlink()
    with pytest.raises(TreeError, match="root/old: No such file"):
        case.place(entry, link, True)
    assert list(case.tree.iterdir()) == []


@pytest.mark.parametrize("trusted", [False, True])
def test_other_content_behind_an_unchanged_look_is_found(case: Case, trusted: bool) -> None:
    entry = case.entry()
    edit_unseen(case.old)
    with pytest.raises(TreeError, match="root/old is not what it was when it was hashed; run again with verify: full"):
        case.place(entry, False, trusted)


def test_holes_stay_holes(tmp_path: Path) -> None:
    case = Case(tmp_path, bytes(8 * MIB) + NOISE + bytes(8 * MIB))
    with open(case.old, "wb") as file:
        file.truncate(len(case.content))
        file.seek(8 * MIB)
        file.write(NOISE)
    assert case.place(case.entry(), False, False) == COPIED
    assert case.new.read_bytes() == case.content
    assert case.new.stat().st_blocks * 512 <= 2 * MIB


@pytest.mark.parametrize("content", [b"", bytes(3 * MIB)])
def test_a_file_that_is_all_hole_or_empty_has_its_size(tmp_path: Path, content: bytes) -> None:
    case = Case(tmp_path, content)
    os.truncate(case.old, 0)
    os.truncate(case.old, len(content))
    assert case.place(case.entry(), False, False) == COPIED
    assert case.new.read_bytes() == content
    assert case.new.stat().st_blocks == 0


def test_nothing_is_written_over_what_is_there_or_through_a_link(case: Case, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    case.new.symlink_to(victim)
    with pytest.raises(TreeError, match="tree/new: File exists; what arrived stays there"):
        case.place(case.entry(), False, False)
    assert victim.read_bytes() == b"untouched"


def test_another_file_system_gets_a_copy(case: Case) -> None:
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == case.root.stat().st_dev:
        pytest.skip("there is no other file system to write to")
    old = shared / f"ddtree-test-{os.getpid()}"
    old.write_bytes(b"content")
    try:
        (entry,) = [entry for entry in scan(b"/dev/shm", strict=False) if entry.path == os.fsencode(old.name)]
        sha256 = hashlib.sha256(b"content").hexdigest()
        new = entry._replace(path=b"new")
        assert case.placer.place(b"/dev/shm", entry, new, sha256, link=True, trusted=True) == COPIED
    finally:
        old.unlink()
    assert case.new.read_bytes() == b"content"


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_where_there_are_reflinks_content_is_shared_and_inodes_are_not(tmp_path: Path, kind: str) -> None:
    with reflinking(tmp_path / "disk", kind) as disk:
        case = Case(disk, NOISE)
        assert case.place(case.entry(), True, True, mode=0o755) == REFLINKED
        assert case.new.read_bytes() == NOISE
        assert (case.old.stat().st_nlink, case.new.stat().st_nlink) == (1, 1)
        assert case.new.stat().st_mode & 0o7777 == 0o755
        assert extents(case.new) == extents(case.old)
        assert all(shared for place, length, shared in extents(case.new))
        with open(case.new, "r+b") as file:
            file.write(b"edited")
        assert case.old.read_bytes() == NOISE
        # what is not trusted is read again, however the kernel copies it
        case.new.unlink()
        assert case.place(case.entry(), False, False) == COPIED
        assert case.new.read_bytes() == NOISE
