# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import random
from pathlib import Path
from typing import List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import check_diffs, parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.git_format import Side, git_diff
from ansible_collections.ddtree.fleet.tests.unit.patched import git

FILE, PROGRAM, LINK = 0o100644, 0o100755, 0o120000
PATHS = (
    "a.py",
    "pkg/with space.py",
    'pkg/qu"ote\\.py',
    "pkg/tab\tline\nbreak.py",
    "pkg/ümlaut b/x.py",
    "pkg/b/pkg/b.py",
)
LINES = (
    b"",
    b" ",
    b"x = 1",
    b"-x",
    b"+x",
    b"\\ no",
    b"--- a",
    b"+++ b",
    b"@@ -1 +1 @@",
    b"cr\r",
    b"\t",
    b"{{ x }}",
    "ü\u2028".encode(),
    b"\x0c",
)


def text(chance: random.Random, most: int = 30) -> bytes:
    lines = [chance.choice(LINES) for _line in range(chance.randrange(most))]
    return b"\n".join(lines) + chance.choice((b"", b"\n"))


def edited(chance: random.Random, before: bytes) -> bytes:
    lines = before.split(b"\n")
    for _edit in range(chance.randrange(1, 4)):
        start = chance.randrange(len(lines) + 1)
        lines[start : start + chance.randrange(3)] = [chance.choice(LINES) for _line in range(chance.randrange(3))]
    return b"\n".join(lines)


def put(root: Path, path: str, side: Optional[Side]) -> None:
    full = root / path
    if os.path.lexists(full):
        full.unlink()
    if side is None:
        return
    full.parent.mkdir(parents=True, exist_ok=True)
    if side.mode == LINK:
        full.symlink_to(os.fsdecode(side.data))
    else:
        full.write_bytes(side.data)
        full.chmod(side.mode & 0o777)


def judged(root: Path, diff: bytes) -> List[str]:
    """What every check found."""
    declared = parse_diffs([{"text": diff.decode()}])
    return [str(check.found) for check in check_diffs(Environment(str(root), str(root), ""), declared)]


def assert_both_ways(root: Path, path: str, before: Optional[Side], after: Optional[Side]) -> None:
    """Applied where the change is, and on no account where it is not."""
    diff = git_diff(path, before, after)
    put(root, path, after)
    found = judged(root, diff)
    assert found and set(found) <= {"applied", "executable", "not executable", "no file"}, (diff, found)
    put(root, path, before)
    found = judged(root, diff)
    if before and after and before.mode != LINK:
        assert all(one.startswith("absent: ") for one in found), (diff, found)
    else:
        assert not {"applied", "no file"} & set(found), (diff, found)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_written_is_applied_with_the_change_and_absent_without(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _round in range(60):
        before = text(chance)
        after = chance.choice((edited(chance, before), text(chance)))
        if before != after:
            assert_both_ways(tmp_path, chance.choice(PATHS), Side(FILE, before), Side(FILE, after))


@pytest.mark.parametrize("path", PATHS)
def test_new_and_deleted_files_and_links_are_told_from_what_was_before(tmp_path: Path, path: str) -> None:
    for content in (b"x = 1\ny = 2\n", b"no end", b""):
        for mode in (FILE, PROGRAM):
            assert_both_ways(tmp_path, path, None, Side(mode, content))
            assert_both_ways(tmp_path, path, Side(mode, content), None)
    assert_both_ways(tmp_path, path, None, Side(LINK, b"../target"))
    assert_both_ways(tmp_path, path, Side(LINK, b"../target"), Side(LINK, b"elsewhere"))
    assert_both_ways(tmp_path, path, Side(LINK, b"../target"), None)


def test_a_deleted_file_that_is_no_text_is_named_by_its_id(tmp_path: Path) -> None:
    diff = git_diff("a.so", Side(FILE, b"\x7fELF\0"), None, is_text=False)
    assert b"Binary files a/a.so and /dev/null differ\n" in diff
    assert judged(tmp_path, diff) == ["no file"]
    put(tmp_path, "a.so", Side(FILE, b"\x7fELF\0"))
    assert judged(tmp_path, diff) == ["a file"]


def test_git_applies_it_and_writes_the_same_ids(tmp_path: Path) -> None:
    chance = random.Random(1)
    git(tmp_path, "init", "-q")
    for path in PATHS:
        before, after = text(chance, 60) + b"last", text(chance, 60) + b"other\n"
        put(tmp_path, path, Side(FILE, before))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "before")
        diff = git_diff(path, Side(FILE, before), Side(FILE, after))
        (tmp_path / ".git" / "change.diff").write_bytes(diff)
        git(tmp_path, "apply", ".git/change.diff")
        assert (tmp_path / path).read_bytes() == after
        theirs = git(tmp_path, "-c", "core.quotePath=false", "diff", "--full-index")
        assert theirs.splitlines()[:4] == diff.splitlines()[:4]


def test_an_empty_line_of_context_has_no_space_and_one_that_is_changed_has_its_mark() -> None:
    diff = git_diff("a.py", Side(FILE, b"\nx\n\n"), Side(FILE, b"\ny\n\n\n"))
    assert diff.split(b"\n")[4:] == [b"@@ -1,3 +1,4 @@", b"", b"-x", b"+y", b"", b"+", b""]
