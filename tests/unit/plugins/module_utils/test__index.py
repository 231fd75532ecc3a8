# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, scan

OLD = 10_000_000_000
HASH = "a" * 64


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    return root


def look(root: Path, name: bytes = b"file") -> Entry:
    return next(entry for entry in scan(os.fsencode(root)) if entry.path == name)


def fresh(tmp_path: Path) -> HashIndex:
    return HashIndex(os.fsencode(tmp_path / "cache" / "index.json"))


def remember(tmp_path: Path, root: Path) -> None:
    index = fresh(tmp_path)
    index.add(look(root), HASH, time.time_ns() + OLD)
    index.save()


def test_an_unchanged_file_is_known_in_the_next_run(tmp_path: Path, root: Path) -> None:
    remember(tmp_path, root)
    assert fresh(tmp_path).lookup(look(root)) == HASH


def test_others_reach_the_caches_beside_the_index_but_not_the_index(tmp_path: Path, root: Path) -> None:
    before = os.umask(0o077)
    try:
        remember(tmp_path, root)
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "cache" / "index.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "cache").chmod(0o711)
    remember(tmp_path, root)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o711


def test_a_file_hashed_right_after_it_was_written_is_not_trusted(tmp_path: Path, root: Path) -> None:
    index = fresh(tmp_path)
    index.add(look(root), HASH)
    assert index.lookup(look(root)) is None


def test_every_change_is_seen_even_with_size_and_mtime_put_back(tmp_path: Path, root: Path) -> None:
    remember(tmp_path, root)
    st = (root / "file").stat()
    (root / "file").write_text("CONTENT")
    os.utime(root / "file", ns=(st.st_atime_ns, st.st_mtime_ns))
    assert fresh(tmp_path).lookup(look(root)) is None


def test_hard_links_share_a_record_and_a_new_one_needs_a_new_record(tmp_path: Path, root: Path) -> None:
    os.link(root / "file", root / "other")
    remember(tmp_path, root)
    index = fresh(tmp_path)
    assert index.lookup(look(root, b"other")) == HASH
    os.link(root / "file", root / "third")
    assert fresh(tmp_path).lookup(look(root)) is None


def test_records_of_files_nobody_asked_for_are_dropped(tmp_path: Path, root: Path) -> None:
    remember(tmp_path, root)
    fresh(tmp_path).save()
    assert fresh(tmp_path).lookup(look(root)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"format": 2, "files": {}}',
        '{"format": 1}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"x": [1, 2, 3, "h"]}}',
        '{"format": 1, "files": {"INODE": [1, 2]}}',
        '{"format": 1, "files": {"INODE": [SIZE, MTIME, CTIME]}}',
        '{"format": 1, "files": {"INODE": 7}}',
    ],
)
def test_a_damaged_index_is_an_empty_one(tmp_path: Path, root: Path, text: str) -> None:
    entry = look(root)
    for name, value in {
        "INODE": entry.inode,
        "SIZE": entry.size,
        "MTIME": entry.mtime_ns,
        "CTIME": entry.ctime_ns,
    }.items():
        text = text.replace(name, str(value))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "index.json").write_text(text)
    index = fresh(tmp_path)
    assert index.lookup(entry) is None
    index.add(entry, HASH, time.time_ns() + OLD)
    index.save()
    assert json.loads((tmp_path / "cache" / "index.json").read_text())["files"]
    assert os.listdir(tmp_path / "cache") == ["index.json"]


def test_an_index_that_cannot_be_written_is_no_error(tmp_path: Path, root: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    index = fresh(tmp_path)
    index.add(look(root), HASH, time.time_ns() + OLD)
    index.save()
    assert index.lookup(look(root)) == HASH


def test_the_index_is_never_inside_the_tree() -> None:
    path = index_path(b"/opt/venv")
    assert path.startswith(
        b"/var/cache/ddtree-fleet/" if os.geteuid() == 0 else os.path.expanduser(b"~/.cache/ddtree-fleet/")
    )
    assert path != index_path(b"/opt/venv2")
