# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.tests.unit.conftest import RunModule
from ansible_collections.ddtree.fleet.tests.unit.environments import SYSTEM_PYTHON
from ansible_collections.ddtree.fleet.tests.unit.packages import FILES, Packages, wheel


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Packages:
    packages = Packages(tmp_path / "venv")
    (packages.root / "bin" / "python").symlink_to(sys.executable)
    packages.install()
    wheel(tmp_path / "wheels")
    return packages


def asked(source: Packages, **more: Any) -> Dict[str, Any]:
    baseline = {"kind": "wheel", "distribution": "pkg", "path": str(source.root.parent / "wheels")}
    return {"root": str(source.root), "baseline": baseline, **more}


def content(source: Packages) -> Dict[str, bytes]:
    return {str(path): path.read_bytes() for path in source.root.rglob("*") if path.is_file()}


def test_what_it_returns_is_taken_by_patch_assert(run_module: RunModule, source: Packages) -> None:
    source.write("pkg/a.py", "a = 1\n\n\ndef is_ddtree():\n    return '{{ a }}'\n")
    before = content(source)
    captured = run_module("patch_capture", asked(source, version="1.0"))
    assert (captured["rc"], captured["changed"], captured["failed_checks"]) == (0, False, 0)
    assert captured["patch_set"]["files"] == ["pkg/a.py"]
    assert captured["patch_set"]["checks"][0] == {"file": "pkg/a.py", "defines": "is_ddtree"}
    assert captured["without_diff"] == []
    assert run_module("patch_capture", asked(source, version="1.0"), check=True) == captured
    assert content(source) == before
    declared = {**asked(source), **captured["patch_set"]}
    assert run_module("patch_assert", declared)["failed_checks"] == 0
    source.write("pkg/a.py", FILES["pkg/a.py"])
    failed = run_module("patch_assert", declared)
    assert (failed["rc"], failed["failed_checks"]) == (1, 4)
    assert "hunk 1 of a.py in pkg/a.py" in failed["msg"] and "absent: the old text stands at line" in failed["msg"]


def test_what_would_fail_on_the_environment_itself_is_not_returned(run_module: RunModule, source: Packages) -> None:
    source.write("pkg/a.py", "a = (\n")
    result = run_module("patch_capture", asked(source))
    assert result["rc"] == 1 and "patch_set" not in result
    assert result["msg"].splitlines()[:2] == [
        f"what can be captured does not describe this environment: patches gate failed for {source.root}: 1 of 9 checks",
        "- compiles in pkg/a.py:1: expected no error, found '(' was never closed",
    ]
    source.write("pkg/a.py", "a = 2\n")
    source.write("pkg/a.py~", "a = 1\n")
    assert "no backup files among the packages, found 1: pkg/a.py~" in run_module("patch_capture", asked(source))["msg"]
    assert run_module("patch_capture", asked(source, policy={"backups": "ignore"}))["rc"] == 0


def test_the_interpreter_of_the_environment_judges_the_syntax_not_the_host_s(
    run_module: RunModule, source: Packages
) -> None:
    newer = "type Number = int\n\n\ndef is_ddtree(): ...\n"  # since Python 3.12
    for python in (sys.executable, str(SYSTEM_PYTHON)):
        (source.root / "bin" / "python").unlink()
        (source.root / "bin" / "python").symlink_to(python)
        program = f"compile({newer!r}, 'a.py', 'exec')"
        taken = subprocess.run([python, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode == 0
        source.write("pkg/a.py", newer)
        result = run_module("patch_capture", asked(source))
        assert (result["rc"] == 0) == taken
        assert ("compiles in pkg/a.py:1" in result.get("msg", "")) == (not taken)


def test_what_could_not_be_captured_is_a_warning_and_its_policy_decides(
    run_module: RunModule, source: Packages
) -> None:
    source.write("pkg/a.py", "a = 2\n")
    source.write(f"pkg/{os.fsdecode(b'odd') + chr(0xDCFF)}.py", "")
    said = "is added and was not captured: its name is not UTF-8"
    refused = run_module("patch_capture", asked(source))
    assert refused["rc"] == 1 and "found 1: pkg/odd\\xff.py" in refused["msg"]
    taken = run_module("patch_capture", asked(source, policy={"added": "warn"}))
    assert taken["rc"] == 0
    assert any(said in str(warning) for warning in taken["warnings"])


def test_what_cannot_be_done_is_one_message(run_module: RunModule, source: Packages, tmp_path: Path) -> None:
    def said(**arguments: Any) -> str:
        result = run_module("patch_capture", {"root": str(source.root), **arguments})
        assert result["rc"] == 1
        return str(result["msg"])

    assert said() == (
        "baseline is missing; it says what the environment is compared with, such as kind wheel with a path"
    )
    assert said(**asked(source)) == (
        f"{source.root}: nothing differs from its wheel baseline, so there is no patch set to capture; "
        "name the environment that is patched"
    )
    assert said(baseline={"kind": "record"}).splitlines()[1].startswith("- baseline record of sglang: expected one")
    assert said(root=str(tmp_path / "nowhere"), baseline={}) == f"root {tmp_path}/nowhere: no such directory"
