# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

RunModule = Callable[..., Dict[str, Any]]


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("x")
    (root / "link").symlink_to("bin")
    return root


def present(tree: Path, **more: Any) -> Dict[str, Any]:
    return {"path": str(tree), "manifest": str(tree.parent / "m"), "state": "present", **more}


def test_writing_is_idempotent_and_true_in_check_mode(run_module: RunModule, tree: Path) -> None:
    manifest = tree.parent / "m"
    would = run_module("manifest_sha256", present(tree, label="tp8"), check=True, diff=True)
    assert (would["changed"], manifest.exists()) == (True, False)
    first = run_module("manifest_sha256", present(tree, label="tp8"), diff=True)
    assert {**first, "rc": 0} == {**would, "rc": 0}
    assert (first["files"], first["bytes"], first["label"]) == (1, 1, "tp8")
    assert "+#: l ./link\tbin\n" in first["diff"]["prepared"]
    before = manifest.stat()
    second = run_module("manifest_sha256", present(tree, label="tp8"), diff=True)
    assert second["changed"] is False
    assert "diff" not in second
    assert second["digest"] == first["digest"]
    after = manifest.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    subprocess.run(["sha256sum", "-c", "--strict", manifest], cwd=tree, check=True, capture_output=True)


def test_a_changed_tree_is_written_down_again_and_the_mode_kept(run_module: RunModule, tree: Path) -> None:
    manifest = tree.parent / "m"
    run_module("manifest_sha256", present(tree))
    manifest.chmod(0o600)
    (tree / "bin" / "run").write_text("y")
    assert run_module("manifest_sha256", present(tree))["changed"] is True
    assert manifest.stat().st_mode & 0o777 == 0o600
    assert run_module("manifest_sha256", {"path": str(tree), "manifest": str(manifest)})["rc"] == 0
    assert sorted(os.listdir(tree.parent)) == ["m", "tree"]


def test_a_manifest_inside_the_tree_does_not_count(run_module: RunModule, tree: Path) -> None:
    outside = run_module("manifest_sha256", present(tree))
    inside = run_module("manifest_sha256", present(tree, manifest=str(tree / "MANIFEST.sha256")))
    again = run_module("manifest_sha256", present(tree, manifest=str(tree / "MANIFEST.sha256")))
    assert (inside["digest"], inside["changed"], again["changed"]) == (outside["digest"], True, False)
    assert run_module("manifest_sha256", {"path": str(tree), "manifest": str(tree / "MANIFEST.sha256")})["rc"] == 0


def test_verification_names_what_differs_also_in_check_mode(run_module: RunModule, tree: Path) -> None:
    run_module("manifest_sha256", present(tree))
    args = {"path": str(tree), "manifest": str(tree.parent / "m")}
    good = run_module("manifest_sha256", args)
    assert (good["rc"], good["changed"], good["differences"]["counts"]["extra"]) == (0, False, 0)
    (tree / "new").write_text("")
    for check in (False, True):
        bad = run_module("manifest_sha256", args, check=check)
        assert bad["msg"] == (
            f"manifest gate failed for {tree}: 1 differences from {tree.parent}/m (1 extra)\n"
            "- extra: new: expected nothing, found a file"
        )
        assert bad["differences"]["extra"] == [{"path": "new", "expected": "nothing", "found": "a file"}]
        assert bad["digest"] != good["digest"]


def test_exclude_is_remembered_by_the_manifest(run_module: RunModule, tree: Path) -> None:
    (tree / "a.log").write_text("")
    run_module("manifest_sha256", present(tree, exclude=["*.log"]))
    (tree / "b.log").write_text("")
    (tree / "c.tmp").write_text("")
    args = {"path": str(tree), "manifest": str(tree.parent / "m")}
    assert "- extra: c.tmp:" in run_module("manifest_sha256", args)["msg"]
    assert run_module("manifest_sha256", {**args, "exclude": ["*.tmp"]})["rc"] == 0


def test_a_tree_is_verified_by_its_digest_alone(run_module: RunModule, tree: Path) -> None:
    digest = run_module("manifest_sha256", present(tree))["digest"]
    good = run_module("manifest_sha256", {"path": str(tree), "digest": digest.upper()})
    assert (good["rc"], "differences" in good) == (0, False)
    other = "0" * 64
    bad = run_module("manifest_sha256", {"path": str(tree), "manifest": str(tree.parent / "m"), "digest": other})
    assert bad["msg"] == f"manifest gate failed for {tree}: expected the tree digest {other}, found {digest}"


def test_what_cannot_be_done_is_one_message(run_module: RunModule, tree: Path) -> None:
    def said(**args: Any) -> str:
        result = run_module("manifest_sha256", {"path": str(tree), **args})
        assert result["rc"] == 1
        return str(result["msg"])

    gone, m = str(tree.parent / "gone"), str(tree.parent / "m")
    assert said() == "state is verified but any of the following are missing: manifest, digest"
    assert said(state="present") == "state is present but all of the following are missing: manifest"
    assert said(manifest=m, state="present", digest="0" * 64) == (
        "digest is for state=verified; state=present writes down the tree as it stands"
    )
    assert said(manifest=m, label="x") == "label is for state=present; state=verified reports the label it finds"
    assert said(digest="abc") == "digest 'abc' is not a SHA-256 of 64 hex digits"
    assert said(manifest=gone) == f"manifest {gone} cannot be read: No such file or directory"
    assert said(manifest=str(tree), state="present") == f"manifest {tree} cannot be read: Is a directory"
    assert (
        said(manifest=gone + "/m", state="present")
        == f"manifest {gone}/m cannot be written: its directory is not there"
    )
    assert said(path=gone, digest="0" * 64) == f"{gone}: No such file or directory"
    assert said(path=str(tree / "bin/run"), digest="0" * 64) == f"{tree}/bin/run: Not a directory"
    Path(m).write_text("hello\n")
    assert said(manifest=m) == f"manifest {m} line 1 is not '<64 hex digits>  <path>'"
    os.mkfifo(tree / "pipe")
    assert said(digest="0" * 64) == f"{tree}/pipe is a FIFO, which no environment needs; remove it or exclude it"
