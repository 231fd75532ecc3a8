# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, hash_tree, scan, tree_digest


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "lib" / "deep").mkdir(parents=True)
    (root / "lib" / "a.py").write_text("a")
    (root / "lib" / "deep" / "b.log").write_text("b")
    (root / "lib64").symlink_to("lib")
    return root


def paths(root: Path, exclude: list[str]) -> List[str]:
    return [entry.path.decode() for entry in scan(os.fsencode(root), exclude)]


def digest(root: Path) -> str:
    entries = scan(os.fsencode(root))
    return tree_digest(entries, hash_tree(os.fsencode(root), entries))


def test_scanning_lists_what_counts_in_order(root: Path) -> None:
    (root / "lib" / "__pycache__").mkdir()
    (root / "lib" / "__pycache__" / "a.pyc").write_text("")
    (root / "lib" / "a.py").chmod(0o4755)
    entries = {entry.path: entry for entry in scan(os.fsencode(root))}
    assert list(entries) == [b"lib", b"lib/a.py", b"lib/deep", b"lib/deep/b.log", b"lib64"]
    assert (entries[b"lib/a.py"].mode, entries[b"lib/a.py"].size) == (0o755, 1)
    assert (entries[b"lib64"].kind, entries[b"lib64"].target, entries[b"lib64"].mode) == ("l", b"lib", 0)


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        (["*.log"], ["lib", "lib/a.py", "lib/deep", "lib64"]),
        (["deep"], ["lib", "lib/a.py", "lib64"]),
        (["lib/deep/"], ["lib", "lib/a.py", "lib64"]),
        (["deep/b.log"], ["lib", "lib/a.py", "lib/deep", "lib/deep/b.log", "lib64"]),
        (["/lib64"], ["lib", "lib/a.py", "lib/deep", "lib/deep/b.log"]),
        (["lib?4", "[ab].*"], ["lib", "lib/deep"]),
        ([".*"], ["lib", "lib/a.py", "lib/deep", "lib/deep/b.log", "lib64"]),
    ],
)
def test_excluding(root: Path, exclude: list[str], left: list[str]) -> None:
    assert paths(root, exclude) == left


def test_the_digest_names_content_and_modes_but_not_times_or_bytecode(root: Path) -> None:
    first = digest(root)
    os.utime(root / "lib" / "a.py", ns=(1, 1))
    (root / "lib" / "__pycache__").mkdir()
    assert digest(root) == first
    seen = {first}
    (root / "other-link").symlink_to("lib/deep")
    seen.add(digest(root))
    for change in (
        lambda: (root / "lib" / "a.py").write_text("b"),
        lambda: (root / "lib" / "a.py").chmod(0o755),
        lambda: (root / "lib").chmod(0o700),
        lambda: (root / "empty").mkdir(),
        lambda: (root / "empty").rename(root / "other"),
        lambda: os.replace(root / "other-link", root / "lib64"),
    ):
        change()
        seen.add(digest(root))
    assert len(seen) == 8


def test_the_digest_is_the_documented_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "f").chmod(0o640)
    content = hashlib.sha256(b"x").hexdigest()
    assert digest(tmp_path) == hashlib.sha256(f"f 0640 {content} f\0".encode()).hexdigest()


def test_a_file_that_is_not_the_scanned_one_is_named(root: Path) -> None:
    entries = scan(os.fsencode(root))
    (root / "lib" / "a.py").unlink()
    with pytest.raises(TreeError, match=r"lib/a\.py: No such file"):
        hash_tree(os.fsencode(root), entries)
    (root / "lib" / "a.py").symlink_to("/etc/passwd")
    with pytest.raises(TreeError, match=r"lib/a\.py: Too many levels of symbolic links"):
        hash_tree(os.fsencode(root), entries)
    (root / "lib" / "a.py").unlink()
    (root / "lib" / "a.py").write_text("a")
    with pytest.raises(TreeError, match=r"lib/a\.py changed while it was read"):
        hash_tree(os.fsencode(root), entries)


def test_a_directory_that_cannot_be_listed_is_named(root: Path) -> None:
    with pytest.raises(TreeError, match=r"root/lib/a\.py: Not a directory"):
        scan(os.fsencode(root / "lib" / "a.py"))
    with pytest.raises(TreeError, match="nowhere: No such file"):
        scan(os.fsencode(root / "nowhere"))


def test_odd_names_are_shown_readably() -> None:
    assert _tree.show("grün".encode() + b"\xff") == "grün\\xff"


def test_threads_do_everything_once_and_hand_the_first_failure_on(root: Path) -> None:
    for number in range(200):
        (root / str(number)).write_text("x")
    entries = scan(os.fsencode(root))
    done: List[bytes] = []
    _tree.run_threads(lambda entry: done.append(entry.path), entries, workers=4)
    assert sorted(done) == [entry.path for entry in entries]
    _tree.run_threads(done.append, [])  # type: ignore[arg-type]

    def fail(entry: _tree.Entry) -> None:
        if entry.path == b"100":
            raise TreeError("100 is bad")
        time.sleep(0.001)

    with pytest.raises(TreeError, match="100 is bad"):
        _tree.run_threads(fail, entries, workers=4)
    assert threading.active_count() < 4


def test_known_hashes_spare_reading(root: Path) -> None:
    entries = scan(os.fsencode(root))
    assert set(hash_tree(os.fsencode(root / "nowhere"), entries, known=lambda entry: "known").values()) == {"known"}
