# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _tree
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    TreeError,
    hash_file,
    open_scanned,
    scan,
    tree_digest,
)


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


def test_excluding_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"cafe"):
        open(os.path.join(os.fsencode(tmp_path), name), "w").close()
    assert paths(tmp_path, ["caf\udce9"]) == ["cafe"]


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


def test_a_file_is_hashed_by_its_content_whatever_its_size(tmp_path: Path) -> None:
    for size in (0, 1, _tree.HASH_SIZE - 1, _tree.HASH_SIZE, _tree.HASH_SIZE * 3 + 7):
        (tmp_path / "file").write_bytes(os.urandom(size))
        (entry,) = scan(os.fsencode(tmp_path))
        expected = hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
        assert hash_file(os.fsencode(tmp_path), entry) == expected


@pytest.mark.parametrize("change", ["append", "truncate", "touch"])
def test_a_file_that_changes_while_it_is_open_is_named(root: Path, change: str) -> None:
    victim = root / "lib" / "a.py"
    entry = next(entry for entry in scan(os.fsencode(root)) if entry.path == b"lib/a.py")
    told = r"lib/a\.py changed while it was read; stop what writes to the environment"
    with pytest.raises(TreeError, match=told), open_scanned(os.fsencode(root), entry) as fd:
        assert os.read(fd, 9) == b"a"
        if change == "append":
            victim.write_text("ab")
        elif change == "truncate":
            os.truncate(victim, 0)
        else:
            os.utime(victim, ns=(1, 1))
    assert not os.path.exists(f"/proc/self/fd/{fd}")


def test_a_fifo_where_a_file_was_is_named_and_not_waited_for(root: Path) -> None:
    entries = scan(os.fsencode(root))
    (root / "lib" / "a.py").unlink()
    os.mkfifo(root / "lib" / "a.py")
    with pytest.raises(TreeError, match=r"lib/a\.py changed while it was read"):
        hash_tree(os.fsencode(root), entries)


def test_special_modes_are_told_of_files_only(root: Path) -> None:
    (root / "lib" / "a.py").chmod(0o4755)
    (root / "lib" / "deep" / "b.log").chmod(0o1644)
    (root / "lib").chmod(0o2755)
    special: Dict[bytes, int] = {}
    entries = {entry.path: entry.mode for entry in scan(os.fsencode(root), special=special)}
    assert special == {b"lib/a.py": 0o4755, b"lib/deep/b.log": 0o1644}
    assert (entries[b"lib"], entries[b"lib/a.py"], entries[b"lib/deep/b.log"]) == (0o755, 0o755, 0o644)


def test_unless_strict_what_no_environment_has_is_passed_over(root: Path) -> None:
    os.mkfifo(root / "lib" / "pipe")
    with pytest.raises(TreeError, match="lib/pipe is a FIFO"):
        scan(os.fsencode(root))
    seen = [entry.path for entry in scan(os.fsencode(root), strict=False)]
    assert seen == [b"lib", b"lib/a.py", b"lib/deep", b"lib/deep/b.log", b"lib64"]
    assert scan(os.fsencode(root / "nowhere"), strict=False) == []


def test_a_file_that_vanishes_while_its_directory_is_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (root / "lib" / "deep" / str(number)).write_text("")
    scandir = os.scandir

    def slow_scandir(path: Any) -> Any:
        found = scandir(path)
        if os.fsdecode(path).endswith("/deep"):
            items = list(found)
            os.unlink(items[0].path)
            return contextlib.nullcontext(items)
        return found

    monkeypatch.setattr(_tree.os, "scandir", slow_scandir)
    with pytest.raises(TreeError, match="No such file"):
        scan(os.fsencode(root))
    assert len(scan(os.fsencode(root / "lib" / "deep"), strict=False)) == 19


def test_a_directory_that_cannot_be_listed_is_named(root: Path) -> None:
    with pytest.raises(TreeError, match=r"root/lib/a\.py: Not a directory"):
        scan(os.fsencode(root / "lib" / "a.py"))
    with pytest.raises(TreeError, match="nowhere: No such file"):
        scan(os.fsencode(root / "nowhere"))


def test_odd_names_are_shown_readably() -> None:
    assert _tree.show("grün".encode() + b"\xff") == "grün\\xff"


def test_known_hashes_spare_reading(root: Path) -> None:
    entries = scan(os.fsencode(root))
    assert set(hash_tree(os.fsencode(root / "nowhere"), entries, known=lambda entry: "known").values()) == {"known"}
