# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import hashlib
import os
import venv
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible_collections.ddtree.fleet.tests.unit.libraries import container, library, sass

RunModule = Callable[..., Dict[str, Any]]

STOCK = {
    "sglang/__init__.py": "",
    "sglang/_version.py": "__version__ = '0.5.11'\n",
    "sglang/patched.py": "def stock():\n    pass\n",
}


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    """A virtual environment in which one file of a small sglang is patched."""
    root = tmp_path / "venv"
    venv.create(root, with_pip=False, symlinks=True)
    (site,) = root.glob("lib/python3.*/site-packages")
    (site / "sglang").mkdir()
    lines = ["sglang-0.5.11.dist-info/RECORD,,"]
    for name, text in STOCK.items():
        (site / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}")
    (site / "sglang-0.5.11.dist-info").mkdir()
    (site / "sglang-0.5.11.dist-info" / "RECORD").write_text("\n".join(lines))
    (site / "sglang" / "patched.py").write_text("# tree()\ndef tree():\n    assert 1 is not 'a'\n\n\ntree()\n")
    return root


def declaration(root: Path, **more: Any) -> Dict[str, Any]:
    checks = [
        {"file": "sglang/patched.py", "defines": "tree", "count": 1},
        {"file": "sglang/patched.py", "calls": "tree", "count": 1},
    ]
    return {
        "root": str(root),
        "files": ["sglang/patched.py"],
        "checks": checks,
        "baseline": {},
        "version": "0.5.11",
        **more,
    }


@pytest.mark.parametrize("check", [False, True])
def test_a_patched_environment_passes(run_module: RunModule, root: Path, check: bool) -> None:
    before = sorted(root.rglob("*"))
    result = run_module("patch_assert", declaration(root), check=check)
    assert (result["rc"], result["changed"], result["failed_checks"]) == (0, False, 0)
    assert [one["name"] for one in result["checks"]] == [
        "declared file",
        "compiles",
        "defines 'tree'",
        "calls 'tree'",
        "version",
        "modified",
        "added",
        "missing",
        "unmodified",
        "backups",
    ]
    assert result["checks"][2] == {
        "name": "defines 'tree'",
        "passed": True,
        "expected": "exactly 1",
        "found": "1",
        "file": "sglang/patched.py",
        "line": 2,
    }
    assert result["inventory"]["modified"] == ["sglang/patched.py"]
    assert result["versions"] == {"dist_info": "0.5.11", "package": "0.5.11"}
    (warning,) = result["warnings"]
    assert 'sglang/patched.py:3: "is not" with ' in str(warning)
    assert "deprecations" not in result
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("check", [False, True])
def test_an_unpatched_environment_fails_with_all_that_is_wrong(run_module: RunModule, root: Path, check: bool) -> None:
    (site,) = root.glob("lib/python3.*/site-packages")
    (site / "sglang" / "patched.py").write_text(STOCK["sglang/patched.py"])
    result = run_module("patch_assert", declaration(root), check=check)
    assert (result["rc"], result["failed_checks"]) == (1, 3)
    assert result.get("changed", False) is False
    assert result["msg"].splitlines() == [
        f"patches gate failed for {root}: 3 of 10 checks",
        "- defines 'tree' in sglang/patched.py: expected exactly 1, found 0",
        "- calls 'tree' in sglang/patched.py: expected exactly 1, found 0",
        "- unmodified: expected every declared file to differ from RECORD of sglang-0.5.11.dist-info, "
        "found 1: sglang/patched.py (these are as they were before: the patch is not applied)",
    ]


DIFF = """\
diff --git a/python/sglang/patched.py b/python/sglang/patched.py
--- a/python/sglang/patched.py
+++ b/python/sglang/patched.py
@@ -1,2 +1,6 @@
-def stock():
-    pass
+# tree()
+def tree():
+    assert 1 is not 'a'
+
+
+tree()
"""


@pytest.mark.parametrize("check", [False, True])
def test_a_diff_is_proved_and_its_files_are_declared(run_module: RunModule, root: Path, check: bool) -> None:
    args = {"root": str(root), "diffs": [{"name": "tree", "text": DIFF, "strip": "2"}], "baseline": {}}
    result = run_module("patch_assert", args, check=check)
    assert (result["rc"], result["changed"], result["failed_checks"]) == (0, False, 0)
    assert result["checks"][1] == {
        "name": "tree: hunk 1 of patched.py",
        "passed": True,
        "expected": "applied",
        "found": "applied",
        "file": "sglang/patched.py",
        "line": 1,
    }
    (site,) = root.glob("lib/python3.*/site-packages")
    (site / "sglang" / "patched.py").write_text(STOCK["sglang/patched.py"])
    result = run_module("patch_assert", args, check=check)
    assert result["msg"].splitlines()[1:] == [
        "- tree: hunk 1 of patched.py in sglang/patched.py:1: expected applied, found absent: the old text stands at line 1 "
        "(the patch is not applied here)",
        "- unmodified: expected every declared file to differ from RECORD of sglang-0.5.11.dist-info, "
        "found 1: sglang/patched.py (these are as they were before: the patch is not applied)",
    ]


def test_a_directory_of_packages_without_an_interpreter(run_module: RunModule, root: Path) -> None:
    (site,) = root.glob("lib/python3.*/site-packages")
    args = {"root": str(site), "site_packages": ".", "files": ["sglang/patched.py"]}
    failed = run_module("patch_assert", args)
    assert f"- interpreter in {site}/bin/python: expected it runs, found No such file or directory" in failed["msg"]
    assert run_module("patch_assert", {**args, "compile": False})["rc"] == 0
    assert run_module("patch_assert", {**args, "interpreter": str(root / "bin" / "python")})["rc"] == 0


def test_what_cannot_be_done_is_one_message(run_module: RunModule, root: Path) -> None:
    def said(**args: Any) -> str:
        result = run_module("patch_assert", {"root": str(root), **args})
        assert result["rc"] == 1
        return str(result["msg"])

    assert said() == "nothing to assert: give files, checks, diffs, baseline or native"
    assert said(version="0.5.11") == "missing parameter(s) required by 'version': baseline"
    assert said(files=["../x"]) == "files[0] (../x): climbs out with '..'; it must be relative to site-packages"
    malformed = {"file": "a.py", "literal": "x", "counts": 2}
    assert said(root="/nowhere", checks=[malformed]) == (
        "checks[0] (a.py): unknown key counts (did you mean count?); known are file, literal, regex, defines, calls, assigns, imports, sha256, count, min, max, name, hint"
    )
    assert said(root="/nowhere", diffs=[{"name": "tree", "text": DIFF[:-8]}]) == (
        "diffs[0] (tree): line 4: the header counts 2 old and 6 new lines, 2 and 5 are there; the diff is cut short"
    )
    assert said(root="/nowhere", files=["a.py"]) == "root /nowhere: no such directory"
    assert "value of kind must be one of: record, wheel, snapshot, backups, got: x" in said(baseline={"kind": "x"})
    for kind in ("wheel", "snapshot"):
        missing = f"kind is {kind} but all of the following are missing: path found in baseline"
        assert said(baseline={"kind": kind}) == missing
    assert said(policy={}) == "missing parameter(s) required by 'policy': baseline"
    assert said(baseline={"path": "/x"}) == "baseline.path is for kinds wheel and snapshot, not for record"
    assert said(baseline={"distribution": ["all", "torch"]}) == (
        "baseline.distribution: all includes the others, so nothing can stand beside it"
    )
    assert said(baseline={"distribution": []}) == (
        "baseline.distribution names none; give a name, a list of names, or all"
    )
    assert said(baseline={"distribution": "all"}, version="1") == (
        "version is for one distribution, but baseline.distribution names more"
    )
    for pattern in ("orig", "*", "*/x.orig"):
        assert said(baseline={"kind": "backups", "patterns": [pattern]}) == (
            f"baseline.patterns: {pattern!r} does not say how a backup is named; "
            "it must be like *.orig, with * for the name of the file"
        )


def test_native_libraries_are_held_against_what_is_asked(run_module: RunModule, root: Path) -> None:
    (site,) = root.glob("lib/python3.*/site-packages")
    machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    code = container(sass(90), sass(103, 0x100000))
    (site / "kernel.so").write_bytes(library(needed=["libc.so.6"], sections={".nv_fatbin": code}, machine=machine))
    result = run_module("patch_assert", {"root": str(root), "native": {"files": ["*.so"], "require_arch": ["sm_103"]}})
    assert (result["rc"], result["changed"], result["failed_checks"], len(result["checks"])) == (0, False, 0, 4)
    assert result["native"]["files"][0]["sass"] == ["sm_90", "sm_103a"]
    entry = {"files": "*.so", "require_arch": ["sm_120"]}
    result = run_module("patch_assert", {"root": str(root), "native": {"files": [entry]}})
    assert result["rc"] == 1
    assert result["msg"].splitlines() == [
        f"patches gate failed for {root}: 1 of 4 checks",
        "- GPU code for sm_120 in *.so: expected one library with code for it, found sm_90, sm_103a "
        "(install a build of the package for this GPU, or name the library that this GPU loads)",
    ]
    result = run_module("patch_assert", {"root": str(root), "native": {"files": [{"files": "*.so", "arch": "sm_90"}]}})
    assert result["msg"] == "native.files[0]: unknown key arch; known are files, require_arch"


def test_a_policy_lets_a_difference_pass_with_a_warning_and_shows_it(run_module: RunModule, root: Path) -> None:
    (site,) = root.glob("lib/python3.*/site-packages")
    (site / "sglang" / "patched.py.orig").write_text(STOCK["sglang/patched.py"])
    (site / "sglang" / "__init__.py").write_text("x = 1\n")
    (site / "sglang" / "__init__.py.orig").write_text("")
    baseline = {"kind": "backups", "distribution": "sglang"}
    failed = run_module("patch_assert", declaration(root, baseline=baseline))
    assert (failed["rc"], failed["failed_checks"]) == (1, 1)
    warned = run_module("patch_assert", declaration(root, baseline=baseline, policy={"modified": "warn"}))
    assert (warned["rc"], warned["inventory"]) == (0, failed["inventory"])
    said = "no undeclared file whose content differs from backups, found 1: sglang/__init__.py"
    assert any(said in str(warning) for warning in warned["warnings"])
    assert warned["drift"] == failed["drift"]
    assert [one["file"] for one in warned["drift"]] == ["sglang/__init__.py", "sglang/patched.py"]
    assert "-def stock():\n" in warned["drift"][1]["diff"]
