# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._index import (
    KEY,
    MAGIC,
    OWN_QUIET_NS,
    QUIET_NS,
    RECORD_BYTES,
    STATE,
    HashIndex,
    index_path,
)
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
    return HashIndex(os.fsencode(tmp_path / "cache" / "index"))


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
    assert (tmp_path / "cache" / "index").stat().st_mode & 0o777 == 0o600
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


def test_records_of_files_nobody_asked_for_are_dropped_when_all_were_looked_at(tmp_path: Path, root: Path) -> None:
    (root / "other").write_text("content of another")
    remember(tmp_path, root)
    index = fresh(tmp_path)
    index.add(look(root, b"other"), HASH, time.time_ns() + OLD)
    index.save()  # a run that looked at some only
    index = fresh(tmp_path)
    assert index.lookup(look(root)) == HASH
    index.save(prune=True)
    assert fresh(tmp_path).lookup(look(root)) == HASH
    assert fresh(tmp_path).lookup(look(root, b"other")) is None
    assert (tmp_path / "cache" / "index").stat().st_size == len(MAGIC) + RECORD_BYTES


def test_an_index_without_news_is_not_written_again(tmp_path: Path, root: Path) -> None:
    remember(tmp_path, root)
    before = (tmp_path / "cache" / "index").stat()
    index = fresh(tmp_path)
    index.lookup(look(root))
    index.save()
    index.save(prune=True)
    after = (tmp_path / "cache" / "index").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_index_that_another_user_could_have_written_is_not_read(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(tmp_path, root)
    path = tmp_path / "cache" / "index"
    path.chmod(0o620)
    assert fresh(tmp_path).lookup(look(root)) is None
    path.chmod(0o600)
    assert fresh(tmp_path).lookup(look(root)) == HASH
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert fresh(tmp_path).lookup(look(root)) is None


@pytest.mark.parametrize("quiet_ns", [QUIET_NS, OWN_QUIET_NS])
def test_how_long_a_file_was_quiet_counts_from_when_it_was_seen(tmp_path: Path, root: Path, quiet_ns: int) -> None:
    index, entry = fresh(tmp_path), look(root)
    index.add(entry, HASH, entry.ctime_ns + quiet_ns, quiet_ns)
    assert index.lookup(entry) is None
    index.add(entry, HASH, entry.ctime_ns + quiet_ns + 1, quiet_ns)
    assert index.lookup(entry) == HASH


def record(entry: Entry) -> bytes:
    return KEY.pack(entry.inode) + STATE.pack(entry.size, entry.mtime_ns, entry.ctime_ns) + bytes.fromhex(HASH)


@pytest.mark.parametrize(
    ("before", "cut", "after"),
    [
        (b"", 0, b""),
        (MAGIC[:-2], 0, b""),
        (b"ddtree-index 1\n", None, b""),
        (b"ddtree-index 3\n", None, b""),
        (MAGIC, RECORD_BYTES - 1, b""),
        (MAGIC, None, b"x"),
        (MAGIC + b"x", None, b""),
        (b'{"format": 1, "files": {}}', 0, b""),
    ],
)
def test_a_damaged_or_foreign_index_is_an_empty_one(
    tmp_path: Path, root: Path, before: bytes, cut: Optional[int], after: bytes
) -> None:
    entry = look(root)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "index").write_bytes(MAGIC + record(entry))
    assert fresh(tmp_path).lookup(entry) == HASH
    (tmp_path / "cache" / "index").write_bytes(before + record(entry)[:cut] + after)
    index = fresh(tmp_path)
    assert index.lookup(entry) is None
    index.add(entry, HASH, time.time_ns() + OLD)
    index.save()
    assert (tmp_path / "cache" / "index").read_bytes() == MAGIC + record(entry)
    assert os.listdir(tmp_path / "cache") == ["index"]


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
