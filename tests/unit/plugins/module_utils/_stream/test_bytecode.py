# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import importlib.util
import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import bytecode
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, scan, show

TAG = sys.implementation.cache_tag


@pytest.fixture(name="root")
def root_fixture(tmp_path: Path) -> Path:
    root = tmp_path / "staging"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").symlink_to(sys.executable)
    (root / "lib" / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "lib" / "pkg" / "good.py").write_text("NAME = 'first'\n")
    (root / "lib" / "pkg" / "bad.py").write_text("def (:\n")
    (root / "lib" / "pkg" / "data.txt").write_text("")
    (root / "bin" / "tool.py").write_text("")
    return root


def compile_all(root: Path, names: List[bytes]) -> dict[str, int]:
    return bytecode.compile_modules(os.fsencode(root), b"/opt/venv", names, TAG, lambda count: None)


def test_modules_are_those_below_lib(root: Path) -> None:
    assert [entry.path for entry in bytecode.modules(scan(os.fsencode(root)))] == [
        b"lib/pkg/bad.py",
        b"lib/pkg/good.py",
    ]


def test_names_are_those_the_interpreter_looks_for() -> None:
    assert show(bytecode.bytecode_path(b"lib/pkg/good.py", TAG)) == importlib.util.cache_from_source("lib/pkg/good.py")


def test_the_tag_is_the_interpreters(root: Path) -> None:
    assert bytecode.cache_tag(os.fsencode(root)) == TAG


def test_an_interpreter_that_does_not_run_says_why(root: Path) -> None:
    (root / "bin" / "python").unlink()
    (root / "bin" / "python").write_text(
        "#!/bin/sh\necho 'libpython3.12.so.1.0: cannot open shared object file' >&2\nexit 127\n"
    )
    (root / "bin" / "python").chmod(0o755)
    with pytest.raises(TreeError) as caught:
        bytecode.cache_tag(os.fsencode(root))
    assert str(caught.value) == f"{root}/bin/python does not run: libpython3.12.so.1.0: cannot open shared object file"


def test_bytecode_is_for_dest_and_never_looks_at_its_source(root: Path) -> None:
    assert compile_all(root, [b"lib/pkg/good.py", b"lib/pkg/bad.py"]) == {"compiled": 1, "refused": 1}
    assert os.listdir(root / "lib" / "pkg" / "__pycache__") == [f"good.{TAG}.pyc"]
    code = marshal.loads((root / "lib" / "pkg" / "__pycache__" / f"good.{TAG}.pyc").read_bytes()[16:])
    assert code.co_filename == "/opt/venv/lib/pkg/good.py"
    (root / "lib" / "pkg" / "good.py").write_text("NAME = 'compiled anew'\n")
    program = "import good; print(good.NAME)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=root / "lib" / "pkg", capture_output=True, text=True, check=True
    )
    assert done.stdout == "first\n"


def test_odd_names_and_many_modules(root: Path) -> None:
    names = [b"lib/pkg/%d.py" % number for number in range(50)]
    names += [b"lib/pkg/new\nline.py", b"lib/pkg/\xff.py", b"lib/pkg/quote\"'.py"]
    for name in names:
        with open(os.path.join(os.fsencode(root), name), "w", encoding="ascii") as file:
            file.write("x = 1\n")
    assert compile_all(root, names) == {"compiled": 53, "refused": 0}
    assert compile_all(root, []) == {"compiled": 0, "refused": 0}


def test_a_compiler_that_dies_is_an_error(root: Path) -> None:
    (root / "bin" / "python").unlink()
    (root / "bin" / "python").symlink_to("/bin/false")
    with pytest.raises(TreeError, match="compiling bytecode ended early: 0 of 1 modules"):
        compile_all(root, [b"lib/pkg/good.py"])
