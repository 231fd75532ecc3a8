# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import capture as capture_module
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.capture import Captured, capture
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError, find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.proof import assert_patches
from ansible_collections.ddtree.fleet.tests.unit.packages import FILES, Packages, wheel

STOCK = {
    **FILES,
    "pkg/tree.py": "class Tree:\n    def walk(self):\n        return 1\n\n\ndef walk():\n    return Tree().walk()\n",
    "pkg/gone.py": "x = 1\n",
    "pkg/template.txt": "text\n",
}
PATCHED = STOCK["pkg/tree.py"].replace(
    "        return 1\n", "        return 2\n\n    def compile(self):\n        return {}\n"
)


class Source:
    """A patched environment, the wheel that it was installed from, and a copy of it before it was patched."""

    def __init__(self, folder: Path) -> None:
        self.packages = Packages(folder / "venv")
        (self.packages.root / "bin" / "python").symlink_to(sys.executable)
        self.packages.install(files=STOCK)
        self.wheel = wheel(folder / "wheels", STOCK)
        self.before = folder / "before"
        shutil.copytree(self.packages.root, self.before, symlinks=True)

    def patch(self) -> Source:
        self.packages.write("pkg/tree.py", PATCHED)
        self.packages.write("pkg/new.py", "def new():\n    return '{{ 1 }}'\n")
        self.packages.write("pkg/template.txt", "{% raw %}\r\nno end")
        (self.packages.site / "pkg" / "gone.py").unlink()
        return self

    def baseline(self, kind: str = "wheel", **more: Any) -> Baseline:
        path = {"wheel": str(self.wheel), "snapshot": str(self.before)}.get(kind)
        return Baseline(kind, ["pkg"], path=path, **more)

    def capture(self, kind: str = "wheel", **more: Any) -> Captured:
        (self.packages.root / "tmp").mkdir(exist_ok=True)
        found = capture(
            find_environment(str(self.packages.root)), self.baseline(kind, **more), str(self.packages.root / "tmp")
        )
        assert not os.listdir(self.packages.root / "tmp")
        return found

    def failed(self, captured: Captured, root: Optional[Path] = None, baseline: Optional[Baseline] = None) -> List[str]:
        """What patch_assert finds wrong with an environment."""
        declared = captured.patch_set
        environment = find_environment(str(root or self.packages.root))
        verdict = assert_patches(
            environment,
            parse_files(declared["files"]),
            parse_rules(declared["checks"]),
            True,
            baseline,
            parse_diffs(declared["diffs"]),
        )
        return [check.sentence() for check in verdict.checks if not check.passed]


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Source:
    return Source(tmp_path)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def named(captured: Captured, file: str) -> List[Dict[str, Any]]:
    return [check for check in captured.patch_set["checks"] if check["file"] == file]


def test_a_patch_set_is_its_files_their_hashes_new_names_and_diffs(source: Source) -> None:
    captured = source.patch().capture()
    assert captured.patch_set["files"] == ["pkg/new.py", "pkg/template.txt", "pkg/tree.py"]
    assert named(captured, "pkg/tree.py") == [
        {"file": "pkg/tree.py", "defines": "Tree.compile"},
        {"file": "pkg/tree.py", "sha256": digest(PATCHED)},
    ]
    assert [next(iter(set(check) - {"file"})) for check in named(captured, "pkg/new.py")] == ["defines", "sha256"]
    texts = [one["text"] for one in captured.patch_set["diffs"]]
    assert [text.splitlines()[0] for text in texts] == [
        f"diff --git a/pkg/{name} b/pkg/{name}" for name in ("gone.py", "new.py", "template.txt", "tree.py")
    ]
    assert texts[0].splitlines()[1] == "deleted file mode 100644"
    assert texts[1].splitlines()[1] == "new file mode 100644"
    assert texts[2].endswith("-text\n+{% raw %}\r\n+no end\n\\ No newline at end of file\n")
    assert (captured.without_diff, captured.warnings) == ([], [])
    assert source.capture() == captured


@pytest.mark.parametrize("kind", ["wheel", "snapshot", "record", "backups"])
def test_what_is_captured_passes_there_and_fails_wherever_a_file_is_as_before(source: Source, kind: str) -> None:
    source.patch()
    if kind in ("record", "backups"):
        source.packages.write("pkg/gone.py", STOCK["pkg/gone.py"])
    if kind == "backups":
        for name in ("tree.py", "template.txt"):
            source.packages.write(f"pkg/{name}.orig", STOCK[f"pkg/{name}"])
    captured, baseline = source.capture(kind), source.baseline(kind)
    assert source.failed(captured, baseline=baseline) == []
    before = source.failed(captured, source.before)
    for file in captured.patch_set["files"]:
        assert any(file in sentence for sentence in before), (file, before)
    for file in captured.patch_set["files"]:
        patched = (source.packages.site / file).read_bytes()
        if file in STOCK:
            source.packages.write(file, STOCK[file])
        else:
            (source.packages.site / file).unlink()
        assert source.failed(captured), file
        (source.packages.site / file).write_bytes(patched)
    assert source.failed(captured) == []
    if kind in ("wheel", "snapshot"):
        source.packages.write("pkg/gone.py", STOCK["pkg/gone.py"])
        assert [one.partition(":")[0] for one in source.failed(captured)] == ["deletion of gone.py in pkg/gone.py"]


def test_a_record_has_hashes_only_and_cannot_say_that_a_file_is_gone(source: Source) -> None:
    captured = source.patch().capture("record")
    assert named(captured, "pkg/tree.py") == [{"file": "pkg/tree.py", "sha256": digest(PATCHED)}]
    assert captured.without_diff == [
        {"file": file, "why": "the baseline has no contents"} for file in ("pkg/template.txt", "pkg/tree.py")
    ]
    assert captured.warnings == [
        "pkg/gone.py is missing and was not captured: the baseline has no contents, so no diff can show it"
    ]
    assert "missing: expected every file of RECORD" in source.failed(captured, baseline=source.baseline("record"))[0]


def test_new_files_have_a_diff_whatever_the_baseline(source: Source) -> None:
    source.packages.write("pkg/new.py", "x = 1\n")
    assert "new file mode" in source.capture("record").patch_set["diffs"][0]["text"]


def test_names_count_as_often_as_they_are_defined(source: Source) -> None:
    source.packages.write("pkg/tree.py", STOCK["pkg/tree.py"] + "\n\nif walk():\n\n    def walk():\n        return 0\n")
    captured = source.capture()
    assert named(captured, "pkg/tree.py")[0] == {"file": "pkg/tree.py", "defines": "walk", "min": 3}
    assert source.failed(captured) == []
    del captured.patch_set["checks"][1:], captured.patch_set["diffs"][:]
    assert "expected at least 3, found 2" in source.failed(captured, source.before)[0]


def test_at_most_so_many_names_are_written_down(source: Source) -> None:
    source.packages.write("pkg/new.py", "".join(f"def f{number:02}(): pass\n" for number in range(30)))
    assert [check.get("defines") for check in named(source.capture(), "pkg/new.py")] == [
        *(f"f{number:02}" for number in range(20)),
        None,
    ]


def test_what_is_no_text_or_large_is_proved_by_its_hash(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    (source.packages.site / "pkg" / "a.py").write_bytes(b"# \xff\n")
    (source.packages.site / "pkg" / "kernel.so").write_bytes(b"\x7fELF\0")
    source.packages.write("pkg/large.txt", "x" * (512 << 10) + "\n")
    source.packages.write("pkg/sub/b.py", "b = 1\n" * 11_000)
    captured = source.capture()
    assert {one["file"]: one["why"] for one in captured.without_diff} == {
        "pkg/a.py": "not UTF-8",
        "pkg/kernel.so": "binary",
        "pkg/large.txt": "larger than 512 KiB",
        "pkg/sub/b.py": "too many lines to compare",
    }
    assert captured.patch_set["diffs"] == []
    assert [sorted(check) for check in captured.patch_set["checks"]] == [["file", "sha256"]] * 4
    monkeypatch.setattr(capture_module, "MAX_DIFF_BYTES", 3000)
    source.packages.write("pkg/a.py", "a = 2\n" * 200)
    source.packages.write("pkg/sub/b.py", "b = 2\n" * 200)
    source.packages.write("pkg/small.py", "")
    captured = source.capture()
    assert captured.without_diff[-1] == {"file": "pkg/sub/b.py", "why": "the diffs would be larger than 2 KiB"}
    assert len(captured.patch_set["diffs"]) == 2


def test_links_are_captured_by_their_targets(source: Source) -> None:
    site = source.packages.site
    (source.before / site.relative_to(source.packages.root) / "pkg" / "link").symlink_to("a.py")
    (site / "pkg" / "link").symlink_to("sub/b.py")
    (site / "pkg" / "other").symlink_to("nowhere")
    (site / "pkg" / "a.py").unlink()
    (site / "pkg" / "a.py").symlink_to("sub/b.py")
    captured = source.capture("snapshot")
    assert captured.patch_set["files"] == []
    assert [one["text"].splitlines()[-2] for one in captured.patch_set["diffs"]] == ["+sub/b.py", "+nowhere"]
    assert captured.warnings == ["pkg/a.py is modified and was not captured: it is a link on one side only"]
    assert source.failed(captured) == []
    (site / "pkg" / "other").unlink()
    assert len(source.failed(captured)) == 1


def test_what_a_declaration_cannot_name_is_left_out_with_a_warning(source: Source) -> None:
    source.packages.write("pkg/a.py", "a = 2\n")
    (source.packages.site / "pkg" / os.fsdecode(b"odd\xff.py")).write_text("")
    captured = source.capture()
    assert captured.patch_set["files"] == ["pkg/a.py"]
    assert captured.warnings == ["pkg/odd\\xff.py is added and was not captured: its name is not UTF-8"]


def test_backups_are_no_part_of_a_patch_set(source: Source) -> None:
    source.packages.write("pkg/a.py", "a = 2\n")
    source.packages.write("pkg/a.py.orig", "a = 1\n")
    captured = source.capture()
    assert captured.patch_set["files"] == ["pkg/a.py"]
    assert "no backup files among the packages" in source.failed(captured, baseline=source.baseline())[0]
    lenient = source.baseline(policy={"backups": "ignore"})
    assert source.failed(captured, baseline=lenient) == []


def test_what_cannot_be_a_patch_set_is_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PatchError, match="nothing differs from its wheel baseline, so there is no patch set"):
        source.capture()
    source.patch()
    monkeypatch.setattr(capture_module, "MAX_FILES", 3)
    with pytest.raises(
        PatchError, match="4 files differ from its wheel baseline, more than 3; that is another version"
    ):
        source.capture()
    source.wheel.unlink()
    with pytest.raises(PatchError, match="baseline wheel of pkg: expected one to compare with, found .*No such file"):
        source.capture()


def test_an_interpreter_that_does_not_run_costs_the_names_only(source: Source) -> None:
    (source.packages.root / "bin" / "python").unlink()
    captured = source.patch().capture()
    assert [sorted(check) for check in captured.patch_set["checks"]] == [["file", "sha256"]] * 3
    assert len(captured.patch_set["diffs"]) == 4
