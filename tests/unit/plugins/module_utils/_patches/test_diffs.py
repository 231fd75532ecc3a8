# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import diffs as diffs_module
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import environment as environment_module
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError
from ansible_collections.ddtree.fleet.tests.unit.patched import SPEC, Fake, failed, git

STOCK = "".join(f"line_{number} = {number}\n" for number in range(40))
FILE = "sglang/srt/args.py"


class Change:
    """What a file was in a git repository, what it is in an environment, and the diff between them."""

    def __init__(self, fake: Fake, repository: Path) -> None:
        self.fake = fake
        self.repository = repository

    def before(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._write(self.repository / path, content, mode)

    def after(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._write(self.fake.site / path, content, mode)

    def _write(self, path: Path, content: bytes, mode: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)

    def diff(self, *paths: str, options: str = "-M") -> str:
        """What became of all files that were there before, and of ``paths``."""
        if not (self.repository / ".git").exists():
            git(self.repository, "init", "-q")
            git(self.repository, "add", "-A")
            git(self.repository, "commit", "-q", "--allow-empty", "-m", "before")
        shutil.rmtree(self.repository / "sglang", ignore_errors=True)
        shutil.rmtree(self.repository / "tools", ignore_errors=True)
        for path in paths:
            if os.path.lexists(self.fake.site / path):
                (self.repository / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.fake.site / path, self.repository / path, follow_symlinks=False)
        git(self.repository, "add", "-A")
        return git(self.repository, "diff", "--cached", *options.split()).decode()


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "venv")


@pytest.fixture(name="change")
def change_fixture(fake: Fake, tmp_path: Path) -> Change:
    (tmp_path / "repository").mkdir()
    return Change(fake, tmp_path / "repository")


def names(fake: Fake, text: str, **more: Any) -> Dict[str, bool]:
    return {check.name: check.passed for check in fake.look(diffs=[{"text": text, **more}]).checks}


def said(fake: Fake, text: str, **more: Any) -> List[str]:
    return failed(fake.look(diffs=[{"text": text, **more}]))


def edited(change: Change) -> str:
    """A diff of two hunks that is applied."""
    change.before(FILE, STOCK.encode())
    patched = STOCK.replace("line_5 = 5", "line_5 = 55").replace("line_30 = 30\n", "line_30 = 30\nadded = 1\n")
    change.after(FILE, patched.encode())
    return change.diff(FILE)


def test_every_hunk_is_one_check(fake: Fake, change: Change) -> None:
    text = edited(change)
    checks = fake.look(diffs=[{"text": text, "name": "budget"}]).checks
    assert [check.result() for check in checks] == [
        {"name": "compiles", "passed": True, "expected": "no error", "found": "no error", "file": FILE},
        *(
            {"name": f"budget: hunk {number} of args.py", "passed": True, "expected": "applied", "found": "applied"}
            | {"file": FILE, "line": line}
            for number, line in ((1, 6), (2, 32))
        ),
    ]
    change.after(FILE, ("x = 1\n" + (fake.site / FILE).read_text()).encode())
    assert [check.found for check in fake.look(diffs=[{"text": text}]).checks][1:] == [
        "applied, 1 line below its place in the diff"
    ] * 2


def test_what_is_not_applied_says_where_and_why(fake: Fake, change: Change) -> None:
    text = edited(change)
    whole = (fake.site / FILE).read_text()
    change.after(FILE, STOCK.encode())
    assert said(fake, text) == [
        f"hunk 1 of args.py in {FILE}:6: expected applied, found absent: the old text stands at line 6 "
        "(the patch is not applied here)",
        f"hunk 2 of args.py in {FILE}:32: expected applied, found absent: the old text stands at line 32 "
        "(the patch is not applied here)",
    ]
    change.after(FILE, whole.replace("line_4 = 4", "line_4 = 44").encode())
    assert said(fake, text) == [
        f"hunk 1 of args.py in {FILE}:5: expected applied, "
        "found conflicting: line 5 is 'line_4 = 44\\n', the diff has 'line_4 = 4\\n' "
        "(restore the file and apply the diff, or make the diff anew from what is meant)",
    ]
    (fake.site / FILE).unlink()
    assert said(fake, text) == [
        f"file of a diff, args.py in {FILE}: expected a readable file, found No such file or directory "
        f"(the diff's files are relative to {fake.site}; see strip and directory)",
    ]


def test_files_of_diffs_must_compile(fake: Fake, change: Change) -> None:
    change.before(FILE, b"x = 1\n")
    change.after(FILE, b"x = (\n")
    text = change.diff(FILE)
    assert [one.split(":")[0] for one in said(fake, text)] == [f"compiles in {FILE}"]
    assert not failed(fake.look(diffs=[{"text": text}], compile_files=False))


def test_a_new_file_must_be_exactly_that(fake: Fake, change: Change) -> None:
    change.after(FILE, b"x = 1\ny = 2\n")
    text = change.diff(FILE)
    assert names(fake, text)["new file args.py"]
    change.after(FILE, b"x = 1\ny = 2\nz = 3\n")
    assert said(fake, text) == [
        f"new file args.py in {FILE}:3: expected exactly the new file of the diff, found another file, from line 3 on "
        "(restore the file and apply the diff, or make the diff anew from what is meant)",
    ]
    change.after(FILE, b"x = 1\ny = 2")
    assert [one.split(":")[0] for one in said(fake, text)] == [f"new file args.py in {FILE}"]
    (fake.site / FILE).unlink()
    assert "found No such file or directory (the patch is not applied here)" in said(fake, text)[0]


def test_a_new_empty_file_must_be_empty(fake: Fake, change: Change) -> None:
    change.after(FILE, b"")
    text = change.diff(FILE)
    assert names(fake, text)["new file args.py"]
    change.after(FILE, b"x = 1\n")
    assert not names(fake, text)["new file args.py"]


def test_a_deleted_file_must_be_gone(fake: Fake, change: Change) -> None:
    change.before(FILE, STOCK.encode())
    text = change.diff(FILE)
    assert names(fake, text) == {"deletion of args.py": True}
    change.after(FILE, STOCK.encode())
    assert said(fake, text) == [
        f"deletion of args.py in {FILE}: expected no file, found a file (the patch is not applied here)"
    ]


def test_a_renamed_file_must_be_there_and_the_old_one_gone(fake: Fake, change: Change) -> None:
    change.before("sglang/old name.py", STOCK.encode())
    change.after(FILE, STOCK.replace("line_9 = 9", "line_9 = 99").encode())
    text = change.diff(FILE)
    assert "rename from" in text
    assert names(fake, text) == {"compiles": True, "rename of sglang/old name.py": True, "hunk 1 of args.py": True}
    change.after("sglang/old name.py", b"")
    assert said(fake, text) == [
        f"rename of sglang/old name.py in {FILE}: expected only the new one is there, found both are there "
        "(remove sglang/old name.py)"
    ]


def test_files_that_change_places_are_both_there(fake: Fake, change: Change) -> None:
    change.after("sglang/a.py", b"a = 1\n")
    change.after("sglang/b.py", b"b = 1\n")
    rename = (
        "diff --git a/sglang/{0} b/sglang/{1}\nsimilarity index 100%\nrename from sglang/{0}\nrename to sglang/{1}\n"
    )
    assert all(names(fake, rename.format("a.py", "b.py") + rename.format("b.py", "a.py")).values())


def test_a_copied_file_must_be_there(fake: Fake, change: Change) -> None:
    change.before("sglang/template.py", STOCK.encode())
    change.after("sglang/template.py", STOCK.encode())
    change.after(FILE, STOCK.replace("line_9 = 9", "line_9 = 99").encode())
    text = change.diff(FILE, "sglang/template.py", options="-C --find-copies-harder")
    assert "copy from sglang/template.py" in text
    assert names(fake, text) == {"compiles": True, "copy of sglang/template.py": True, "hunk 1 of args.py": True}
    (fake.site / FILE).unlink()
    assert "found No such file or directory" in said(fake, text)[0]


@pytest.mark.parametrize(("old", "new", "word"), [(0o644, 0o755, "executable"), (0o755, 0o644, "not executable")])
def test_modes_are_held(fake: Fake, change: Change, old: int, new: int, word: str) -> None:
    change.before("sglang/run", b"x\n", old)
    change.after("sglang/run", b"x\n", new)
    text = change.diff("sglang/run")
    assert names(fake, text) == {"mode of run": True}
    (fake.site / "sglang/run").chmod(old)
    (one,) = said(fake, text)
    assert one.startswith(f"mode of run in sglang/run: expected {word}, found ")


def test_binary_files_are_proved_by_their_blob_id(fake: Fake, change: Change) -> None:
    change.before("sglang/x.so", b"\0one")
    change.after("sglang/x.so", b"\0two")
    for options in ("-M", "--binary", "--full-index --binary"):
        text = change.diff("sglang/x.so", options=options)
        assert names(fake, text) == {"content of x.so": True}
    change.after("sglang/x.so", b"\0one")
    (one,) = said(fake, text)
    assert one.startswith("content of x.so in sglang/x.so: expected blob ")
    assert one.endswith("(the patch is not applied here)")
    change.after("sglang/x.so", b"\0three")
    assert "make the diff anew" in said(fake, text)[0]


def test_the_blob_id_decides_where_equal_lines_leave_it_open(fake: Fake, change: Change) -> None:
    old, new = b"x = 1\n" * 9, b"x = 1\n" * 10
    change.before(FILE, old)
    change.after(FILE, new)
    header = change.diff(FILE).partition("@@")[0]
    hunk = "@@ -3,4 +3,5 @@\n x = 1\n x = 1\n+x = 1\n x = 1\n x = 1\n"
    assert not failed(fake.look(diffs=[{"text": header + hunk}]))
    change.after(FILE, old)
    assert "found absent: the old text stands at line 5" in said(fake, header + hunk)[0]
    for content in (old, new):
        change.after(FILE, content)
        without = header[header.index("---") :] + hunk
        assert "found conflicting: its lines stand there, but not so that" in said(fake, without)[0]


def test_links_are_proved_by_their_target(fake: Fake, change: Change) -> None:
    (fake.site / "sglang/link").symlink_to("srt")
    text = change.diff("sglang/link")
    assert "120000" in text
    assert names(fake, text) == {"new file link": True}
    (fake.site / "sglang/link").unlink()
    (fake.site / "sglang/link").symlink_to("elsewhere")
    assert not names(fake, text)["new file link"]
    (fake.site / "sglang/link").unlink()
    (fake.site / "sglang/link").write_text("srt")
    assert "expected a symbolic link, found no symbolic link" in said(fake, text)[0]


def test_files_with_other_line_ends_and_odd_names(fake: Fake, change: Change) -> None:
    path = 'sglang/sp ä\t"ce.py'
    change.before(path, b"x = 1\r\ny = 2\r\n")
    change.after(path, b"x = 1\r\ny = 3\r\n")
    text = change.diff(path)
    assert all(names(fake, text).values())
    change.after(path, b"x = 1\ny = 3\n")
    assert len(said(fake, text)) == 1


def test_diffs_that_were_made_elsewhere(fake: Fake, change: Change) -> None:
    text = edited(change)
    checkout = text.replace("a/sglang/", "a/python/sglang/").replace("b/sglang/", "b/python/sglang/")
    assert all(names(fake, checkout, strip=2).values())
    package = text.replace("a/sglang/srt/", "a/").replace("b/sglang/srt/", "b/")
    assert all(names(fake, package, directory="sglang/srt/").values())
    assert len(said(fake, package)) == 1


def test_a_diff_on_the_host_is_read_there(fake: Fake, change: Change, tmp_path: Path) -> None:
    (tmp_path / "a.diff").write_text(edited(change))
    assert not failed(fake.look(diffs=[{"src": str(tmp_path / "a.diff")}]))


def test_files_of_diffs_count_as_declared(fake: Fake, change: Change) -> None:
    stock = (fake.site / SPEC).read_bytes()
    change.before(SPEC, stock)
    change.before("tools/tag.py", b"x = 1\n")
    change.after(SPEC, stock + b"x = 1\n")
    (fake.site / "tools/tag.py").unlink()
    change.after(FILE, b"new = 1\n")
    text = change.diff(SPEC, FILE, "tools/tag.py", options="--no-renames")
    record = Baseline("record", ["sglang"])
    assert not failed(fake.look(diffs=[{"text": text}], baseline=record))
    assert [one.split(":")[0] for one in failed(fake.look(baseline=record))] == ["modified", "added", "missing"]
    change.after("sglang/other.py", b"")
    assert [one.split(":")[0] for one in failed(fake.look(diffs=[{"text": text}], baseline=record))] == ["added"]


def test_files_that_may_not_be_large_are_not_read(fake: Fake, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    text = edited(change)
    monkeypatch.setattr(diffs_module, "MAX_LINES", 40)
    assert "found more than 40 lines (declare its sha256 in checks instead)" in said(fake, text)[0]
    monkeypatch.setattr(environment_module, "MAX_FILE_BYTES", 100)
    assert "expected a readable file, found larger than 0 MiB" in said(fake, text)[0]


def test_a_malformed_diff_is_named_by_index_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**diff: Any) -> str:
        with pytest.raises(PatchError) as raised:
            parse_diffs([{"text": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}, diff])
        return str(raised.value)

    assert refused() == "diffs[1] (no name): exactly one of text and src is needed"
    assert refused(text="x", src="y") == "diffs[1] (y): exactly one of text and src is needed"
    assert refused(name="n", txt="x") == (
        "diffs[1] (n): unknown key txt (did you mean text?); known are name, text, src, strip, directory"
    )
    assert refused(text=["x"]) == "diffs[1] (no name): text: \"['x']\" is no text"
    assert refused(text="x", strip=-1) == "diffs[1] (no name): strip: -1 is no number from 0 up"
    assert refused(text="x", directory="../x") == (
        "diffs[1] (no name): directory: climbs out with '..'; it must be relative to site-packages"
    )
    assert refused(name="n", text="x") == (
        "diffs[1] (n): line 1: holds no unified diff; make it with git diff or diff -u"
    )
    assert refused(src=str(tmp_path)) == f"diffs[1] ({tmp_path}): src {tmp_path}: a directory"
    assert refused(src="/nowhere") == "diffs[1] (/nowhere): src /nowhere: No such file or directory"
    monkeypatch.setattr(diffs_module, "MAX_DIFF_BYTES", 50)
    assert "larger than 0 MiB; declare the files' sha256" in refused(text="x" * 60)
    monkeypatch.setattr(diffs_module, "MAX_HUNKS", 0)
    with pytest.raises(PatchError, match="^diffs: more than 0 hunks; declare the files' sha256 in checks instead$"):
        parse_diffs([{"text": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"}])
