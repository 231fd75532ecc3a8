# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import DiffError, FileChange, parse_diff
from ansible_collections.ddtree.fleet.tests.unit.patched import git


def parse(text: str, strip: int = 1) -> List[FileChange]:
    return parse_diff(text.encode("utf-8", "surrogateescape"), strip)


@pytest.fixture(name="repository")
def repository_fixture(tmp_path: Path) -> Path:
    """A git repository with every sort of change that is not committed yet."""
    repository = tmp_path / "repository"
    (repository / "pkg").mkdir(parents=True)
    git(repository, "init", "-q")
    lines = [f"line {number}\n" for number in range(30)]
    for name in ("edited", "gone", "old name", "copied", "mode", "spä\tce", "empty"):
        content = "" if name == "empty" else "".join(f"{name} {line}" for line in lines)
        (repository / "pkg" / f"{name}.py").write_text(content)
    (repository / "data.bin").write_bytes(bytes(range(256)))
    (repository / "link").symlink_to("pkg/edited.py")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "first")
    edited = [f"edited {line}" for line in lines]
    (repository / "pkg/edited.py").write_text("".join([*edited[:3], "x\n", *edited[3:20], *edited[22:]]))
    (repository / "pkg/gone.py").unlink()
    (repository / "pkg/empty.py").unlink()
    (repository / "pkg/old name.py").rename(repository / "new name.py")
    (repository / "copy.py").write_text((repository / "pkg/copied.py").read_text() + "more\n")
    (repository / "pkg/mode.py").chmod(0o755)
    (repository / "pkg/spä\tce.py").write_text("".join(f"spä\tce {line}" for line in lines[1:]))
    (repository / "data.bin").write_bytes(bytes(range(255)))
    (repository / "new.py").write_text("no end")
    (repository / "new empty.py").write_text("")
    (repository / "link").unlink()
    (repository / "link").symlink_to("new.py")
    git(repository, "add", "-A")
    return repository


def test_every_change_that_git_writes_is_read(repository: Path) -> None:
    options = ["diff", "--cached", "-M", "-C", "--find-copies-harder", "--no-rename-empty"]
    for more in ([], ["--binary", "--full-index"], ["-U0"]):
        changes = {change.path: change for change in parse_diff(git(repository, *options, *more), 1)}
        assert sorted(changes) == [
            "copy.py",
            "data.bin",
            "link",
            "new empty.py",
            "new name.py",
            "new.py",
            "pkg/edited.py",
            "pkg/empty.py",
            "pkg/gone.py",
            "pkg/mode.py",
            "pkg/spä\tce.py",
        ]
        assert (changes["copy.py"].copied, changes["copy.py"].old, len(changes["copy.py"].hunks)) == (
            True,
            "pkg/copied.py",
            1,
        )
        assert (changes["new name.py"].renamed, changes["new name.py"].old) == (True, "pkg/old name.py")
        assert changes["data.bin"].binary
        assert changes["link"].new_mode == 0o120000
        assert (changes["new.py"].created, changes["new.py"].new_mode) == (True, 0o100644)
        assert changes["new.py"].hunks[0].lines == [("+", b"no end")]
        assert (changes["new empty.py"].created, changes["new empty.py"].hunks) == (True, [])
        assert (changes["pkg/gone.py"].deleted, changes["pkg/gone.py"].new) == (True, None)
        assert changes["pkg/empty.py"].deleted
        assert (changes["pkg/mode.py"].new_mode, changes["pkg/mode.py"].changes_content()) == (0o100755, False)
        assert len(changes["pkg/edited.py"].hunks) == 2


def test_mails_with_prose_and_signatures_are_read(repository: Path) -> None:
    git(repository, "commit", "-qm", "Change all\n\nSome --- prose\n--- here\n+and there\n diff of a thing\n")
    mail = git(repository, "format-patch", "-1", "--stdout", "--no-renames")
    assert b"\n-- \n" in mail
    assert [change.path for change in parse_diff(mail, 1)] == [
        change.path for change in parse_diff(git(repository, "diff", "--no-renames", "HEAD~"), 1)
    ]


def test_diffs_of_directories_are_read(tmp_path: Path) -> None:
    for side in ("old", "new"):
        (tmp_path / side / "pkg").mkdir(parents=True)
        (tmp_path / side / "pkg" / "edited.py").write_text(f"{side}\n")
    (tmp_path / "old/gone.py").write_text("gone\n")
    (tmp_path / "new/new file.py").write_text("new\n")
    done = subprocess.run(["diff", "-ruN", "old", "new"], cwd=tmp_path, capture_output=True, check=False)
    changes = parse_diff(done.stdout, 1)
    assert [(change.path, change.created, change.deleted) for change in changes] == [
        ("gone.py", False, True),
        ("new file.py", True, False),
        ("pkg/edited.py", False, False),
    ]
    done = subprocess.run(["diff", "-ru", "old", "new"], cwd=tmp_path, capture_output=True, check=False)
    with pytest.raises(DiffError, match="^line [0-9]+: a file that diff only names; make the diff with diff -N or git"):
        parse_diff(done.stdout, 1)
    done = subprocess.run(["git", "diff", "--no-index", "old", "new"], cwd=tmp_path, capture_output=True, check=False)
    assert [change.path for change in parse_diff(done.stdout, 2)] == ["gone.py", "new file.py", "pkg/edited.py"]


PLAIN = "--- a/x.py\t2026-01-01 00:00:00.000000000 +0000\n+++ b/x.py\n@@ -1,2 +1,3 @@ def f():\n one\n+two\n three\n"


def test_what_stands_around_a_diff_does_not_matter() -> None:
    (plain,) = parse(PLAIN)
    assert (plain.old, plain.new, plain.created, plain.hunks[0].line) == ("x.py", "x.py", False, 3)
    for text in (
        "Index: x.py\n=====\n" + PLAIN,
        PLAIN + "-- \n2.39\n",
        PLAIN + "--\n2.39\n\n",
        PLAIN.replace("\n", "\r\n"),
        PLAIN.rstrip("\n"),
        PLAIN.replace("b/x.py", '"b/\\170.py"'),
    ):
        (change,) = parse(text)
        assert (change.path, change.hunks[0].lines) == ("x.py", plain.hunks[0].lines)
    assert parse(PLAIN.replace(" one\n", " one\r\n"))[0].hunks[0].lines[0] == (" ", b"one\r\n")
    assert parse(PLAIN.replace(" one\n", "\n"))[0].hunks[0].lines[0] == (" ", b"\n")


def test_strip_takes_off_leading_parts() -> None:
    text = PLAIN.replace("a/x.py", "/root/old/pkg/x.py").replace("b/x.py", "/root/new/pkg/x.py")
    assert parse(text, 3)[0].path == "pkg/x.py"
    assert parse(PLAIN, 0)[0].path == "b/x.py"
    renamed = "diff --git a/python/x.py b/python/y.py\nsimilarity index 100%\nrename from python/x.py\nrename to python/y.py\n"
    assert (parse(renamed, 2)[0].old, parse(renamed, 2)[0].new) == ("x.py", "y.py")
    bare = renamed.replace("a/python", "python").replace("b/python", "python")
    assert (parse(bare, 0)[0].old, parse(bare, 0)[0].new) == ("python/x.py", "python/y.py")


GIT = "diff --git a/x.py b/x.py\n"
HUNK = "@@ -1,2 +1,3 @@\n one\n+two\n three\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 0: holds no unified diff; make it with git diff or diff -u"),
        ("hello\n*** a\n--- b\n", "line 3: holds no unified diff; make it with git diff or diff -u"),
        (HUNK, "line 1: a hunk without --- and +++ lines before it"),
        (GIT + HUNK, "line 2: a hunk without --- and +++ lines before it"),
        ("@@@ -1 -1 +1 @@@\n", "line 1: a combined diff of a merge; make the diff against one parent"),
        (PLAIN.replace("-1,2", "-1,x"), "line 1: file names without a hunk after them; the diff is cut short"),
        (PLAIN + "@@ -x +1 @@\n", "line 7: '@@ -x +1 @@' is no hunk header such as @@ -1,7 +1,8 @@"),
        (
            PLAIN[: -len(" three\n")],
            "line 3: the header counts 2 old and 3 new lines, 1 and 2 are there; the diff is cut short",
        ),
        (
            PLAIN.replace("-1,2 +1,3", "-1,3 +1,4") + "-- \n2.39\n",
            "line 8: no line of the hunk of line 3: the header counts 3 old and 4 new lines, 3 and 3 are there",
        ),
        (PLAIN.replace("+1,3", "+1,2"), "line 6: more lines than the hunk header of line 3 counts"),
        (PLAIN + " four\n", "line 7: more lines than the hunk header of line 3 counts"),
        (PLAIN + "+four\n", "line 7: more lines than the hunk header of line 3 counts"),
        (PLAIN + "@@ -1,1 +1,1 @@\n-a\n+b\n", "line 7: stands before the end of the hunk of line 3"),
        (PLAIN.replace("+two", " two").replace("-1,2", "-1,3"), "line 3: a hunk that changes nothing"),
        (PLAIN.replace("-1,2", "-0,2"), "line 3: line numbers of a hunk start at 1"),
        (PLAIN[: PLAIN.index("@@")], "line 1: file names without a hunk after them; the diff is cut short"),
        (PLAIN.replace("b/x.py", "b/../../x.py"), "line 1: b/../../x.py climbs out with '..'"),
        (
            PLAIN.replace("b/x.py", "/etc/x.py"),
            "line 1: /etc/x.py is an absolute path; "
            "set strip to the number of its parts before the package, and one more",
        ),
        (PLAIN.replace("b/x.py", "x.py"), "line 1: nothing is left of x.py without its first 1 parts; set strip"),
        (PLAIN.replace("b/x.py", '"b/\\000"'), "line 1: 'b/\\x00' is no file name"),
        (PLAIN.replace("b/x.py", "b/" + "x" * 5000), "line 1: 'b/" + "x" * 397 + "..."),
        (PLAIN.replace("b/x.py", "../b/\udcff"), "line 1: ../b/\\xff climbs out with '..'"),
        (PLAIN.replace("b/x.py", "b/."), "line 1: 'b/.' is no file name"),
        (
            PLAIN.replace("a/x.py", "/dev/null").replace("b/x.py", "/dev/null"),
            "line 1: neither an old nor a new file",
        ),
        (
            PLAIN.replace("a/x.py", "/dev/null"),
            "line 1: x.py is new or deleted, but its hunks also show what was there",
        ),
        (PLAIN + PLAIN, "line 7: x.py again, first in line 1; make one diff of the whole series"),
        (GIT, "line 1: no hunk of x.py follows; the diff is cut short"),
        (GIT + "index 1234567..89abcde 100644\n", "line 1: no hunk of x.py follows; the diff is cut short"),
        (
            GIT + "new file mode 100644\nindex 0000000..89abcde\n",
            "line 1: no hunk of x.py follows; the diff is cut short",
        ),
        (GIT + "index zero\n", "line 2: 'index zero': no blob ids"),
        (GIT + "new mode rwx\n", "line 2: 'new mode rwx': no file mode"),
        (GIT + "new file mode 160000\n", "line 1: x.py is a submodule, which an environment has none of"),
        (
            GIT + "Binary files a/x.py and b/x.py differ\n",
            "line 1: x.py is binary and has no blob ids in an index line; make the diff with git diff --full-index",
        ),
        (
            PLAIN + "Binary files a/y and b/y differ\n",
            "line 7: binary files, of which diff says no more; make the diff with git diff --full-index",
        ),
        (
            "diff --git a/x b/y\nold mode 100644\nnew mode 100755\n",
            "line 1: the file's name cannot be told; make the diff with git diff, without --no-prefix",
        ),
        (
            GIT + "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+x\n",
            "line 2: /dev/null without new file mode or deleted file mode",
        ),
        (GIT + "rename from ../x.py\n", "line 2: a/../x.py climbs out with '..'"),
    ],
)
def test_a_malformed_diff_is_named_by_its_line(text: str, said: str) -> None:
    with pytest.raises(DiffError) as raised:
        parse(text)
    assert str(raised.value) == said


def test_a_line_without_end_takes_no_time() -> None:
    line = b"Binary files " + b" and " * 200_000 + b"\n"
    assert parse_diff(line + PLAIN.encode(), 1) == parse_diff(b"\n" + PLAIN.encode(), 1)


def test_random_damage_gives_a_diff_or_an_error(repository: Path) -> None:
    whole = git(repository, "diff", "--cached", "-M", "--binary") + PLAIN.encode()
    chance = random.Random(7)
    refused = 0
    for _round in range(400):
        data = bytearray(whole)
        for _one in range(chance.randrange(1, 5)):
            place = chance.randrange(len(data))
            turn = chance.randrange(3)
            if turn == 0:
                data[place] = chance.choice(b'\0\n\r\t +-@\\"/a1')
            elif turn == 1:
                del data[place : place + chance.randrange(1, 40)]
            else:
                data[place:place] = data[chance.randrange(len(data)) :][: chance.randrange(1, 60)]
        try:
            parse_diff(bytes(data), 1)
        except DiffError as error:
            assert str(error).startswith("line ")
            refused += 1
    assert refused > 200
