# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.interpreter import moves_for, prefix_of, works
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.relocation import Move, relocate
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, scan
from ansible_collections.ddtree.fleet.tests.unit.environments import (
    BASE_PYTHON,
    SYSTEM_PYTHON,
    build,
    files_naming,
    managed_python,
    output,
)


@pytest.fixture(name="alias")
def alias_fixture(tmp_path: Path) -> Path:
    """A managed Python under the name that uv gives it in the environments it makes."""
    return managed_python(tmp_path / "uv" / "python")


VERSION = output(SYSTEM_PYTHON, "-c", "import platform; print(platform.python_version())")[0]


def python_of(environment_path: Path) -> bytes:
    return os.fsencode(environment_path / "bin" / "python")


def without_libc(program: Path) -> None:
    """Make a program or library need a shared library that no host has."""
    content = program.read_bytes()
    assert b"libc.so.6\0" in content
    program.unlink()
    program.write_bytes(content.replace(b"libc.so.6\0", b"libx.so.6\0"))
    program.chmod(0o755)


@pytest.mark.parametrize("options", [[], ["--copies"]], ids=["links", "copies"])
def test_a_managed_interpreter_is_found_under_all_its_names(tmp_path: Path, alias: Path, options: list[str]) -> None:
    build(tmp_path / "venv", *options, python=alias / "bin" / SYSTEM_PYTHON.name)
    prefix = str(alias.resolve())
    assert prefix_of(python_of(tmp_path / "venv")) == {
        "prefix": prefix,
        "python": f"{prefix}/bin/{SYSTEM_PYTHON.name}",
        "version": VERSION,
        "shippable": True,
        "why": "",
        "prefixes": [prefix, str(alias)],
    }


@pytest.mark.parametrize("options", [[], ["--copies"]], ids=["links", "copies"])
def test_an_environment_runs_on_an_interpreter_that_was_sent_along(
    tmp_path: Path, alias: Path, options: list[str]
) -> None:
    old, new, shipped = tmp_path / "venv", tmp_path / "new", tmp_path / "new.releases" / "interpreters" / "0"
    build(old, *options, python=alias / "bin" / SYSTEM_PYTHON.name)
    described = environment.describe(os.fsencode(old), {})
    moves = moves_for(described, os.fsencode(new), os.fsencode(shipped))
    shutil.copytree(alias.resolve(), shipped, symlinks=True)
    shutil.rmtree(alias.parent)
    os.rename(old, new)
    done = relocate(os.fsencode(new), scan(os.fsencode(new)), moves)
    says = output(new / "bin" / "python", "-c", "import sys; print(sys.prefix, sys.base_prefix, sep='\\n')")
    assert says == [str(new), str(shipped)]
    assert files_naming(new, str(old)) == files_naming(new, str(alias.parent)) == []
    assert (b"bin/" + SYSTEM_PYTHON.name.encode() in done.links or b"bin/python" in done.links) == (not options)
    assert works(python_of(new), VERSION) == ""


def test_the_base_interpreter_of_the_distribution_is_not_sent_along(tmp_path: Path) -> None:
    build(tmp_path / "venv", python=SYSTEM_PYTHON)
    found = prefix_of(python_of(tmp_path / "venv"))
    assert (found["prefix"], found["python"], found["shippable"]) == ("/usr", str(SYSTEM_PYTHON), False)
    assert found["why"] == (
        f"/usr holds other software, too; install {SYSTEM_PYTHON.name} ({VERSION}) from the distribution"
    )


@pytest.mark.parametrize(
    ("directories", "why"),
    [
        (["etc", "share"], ""),
        (["sbin", "games"], r"holds more than Python \(games, sbin\); install Python .* at the same path"),
        ([".ssh"], r"holds more than Python \(\.ssh\)"),
        (["conda-meta", "sbin", "var"], ""),
        (["conda-meta", "envs", "pkgs"], r"holds more than Python \(envs, pkgs\)"),
    ],
)
def test_only_a_directory_that_is_a_python_is_sent_along(
    tmp_path: Path, alias: Path, directories: list[str], why: str
) -> None:
    for name in directories:
        (alias / name).mkdir()
    build(tmp_path / "venv", python=alias / "bin" / SYSTEM_PYTHON.name)
    found = prefix_of(python_of(tmp_path / "venv"))
    assert found["shippable"] == (not why)
    assert re.search(why, found["why"]) if why else found["why"] == ""


@pytest.mark.skipif(
    not list(BASE_PYTHON.parent.parent.glob("lib/libpython*.so.*")) or str(BASE_PYTHON).startswith("/usr/"),
    reason="the Python that runs the tests has no shared library in a directory of its own",
)
def test_an_interpreter_that_finds_its_library_by_an_absolute_path_is_not_sent_along(tmp_path: Path) -> None:
    build(tmp_path / "venv")
    found = prefix_of(python_of(tmp_path / "venv"))
    assert not found["shippable"]
    library = str(BASE_PYTHON.parent.parent / "lib")
    assert re.match(f"its program takes libpython.* from {library} wherever it stands; install Python ", found["why"])


def test_an_environment_inside_of_its_interpreters_directory_is_not_sent_twice(alias: Path) -> None:
    build(alias / "share" / "venv", python=alias / "bin" / SYSTEM_PYTHON.name)
    found = prefix_of(python_of(alias.resolve() / "share" / "venv"))
    assert not found["shippable"]
    assert found["why"] == f"the environment itself stands in {alias.resolve()}; build it outside of that"


def test_an_interpreter_inside_of_the_environment_goes_with_it(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    base = managed_python(venv / "base")
    build(venv, python=base / "bin" / SYSTEM_PYTHON.name)
    found = environment.describe(os.fsencode(venv), {})
    assert (found["prefix"], found["python"], found["prefixes"], found["interpreter"]) == ("", "", [], "")
    environment.check_interpreter(found, os.fsencode(venv))


def test_an_interpreter_works_or_says_why_not(tmp_path: Path, alias: Path) -> None:
    python = alias / "bin" / SYSTEM_PYTHON.name
    assert works(os.fsencode(python), VERSION) == ""
    assert works(os.fsencode(python), "3.1.4") == f"{python} is Python {VERSION}, not 3.1.4"
    assert works(os.fsencode(tmp_path / "none"), VERSION).startswith(f"{tmp_path}/none does not run: ")


def test_a_program_without_its_library_names_the_library(alias: Path) -> None:
    python = alias / "bin" / SYSTEM_PYTHON.name
    without_libc(python)
    assert "libx.so.6: cannot open shared object file" in works(os.fsencode(python), VERSION)


def test_a_module_without_its_library_names_the_library(alias: Path) -> None:
    modules = alias / "lib" / SYSTEM_PYTHON.name / "lib-dynload"
    original = modules.resolve()
    modules.unlink()
    shutil.copytree(original, modules)
    without_libc(next(modules.glob("_ctypes.*.so")))
    next(modules.glob("_bz2.*.so")).unlink()  # never built: nothing that this host could mend
    python = alias / "bin" / SYSTEM_PYTHON.name
    says = works(os.fsencode(python), VERSION)
    assert says == (
        f"{python} cannot load _ctypes libx.so.6: cannot open shared object file: No such file or directory"
    )


def described(tmp_path: Path, **changes: object) -> dict[str, object]:
    build(tmp_path / "venv")
    return {**environment.describe(os.fsencode(tmp_path / "venv"), {}), **changes}


def test_nothing_moves_where_nothing_changes(tmp_path: Path) -> None:
    assert moves_for({}, b"/srv/venv", None) == []
    assert moves_for(described(tmp_path), os.fsencode(tmp_path / "venv"), None) == []


def test_every_name_of_the_environment_moves(tmp_path: Path) -> None:
    """One built at a link is named by the link in activate, and by its real path in what resolved that."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    build(tmp_path / "link" / "venv")
    found = environment.describe(os.fsencode(tmp_path / "link" / "venv"), {})
    old = [os.fsencode(tmp_path / name / "venv") for name in ("link", "real")]
    assert moves_for(found, b"/srv/venv", None) == [Move(path, b"/srv/venv") for path in old]
    assert moves_for(found, old[0], None) == []
    base = os.fsencode(BASE_PYTHON.parent.parent)
    assert Move(base, b"/srv/python") in moves_for(found, old[0], b"/srv/python")


def test_a_place_that_is_not_known_cannot_be_left(tmp_path: Path) -> None:
    found = described(tmp_path, built_as=[])
    with pytest.raises(TreeError, match="tells where it was built.* for /srv/venv; restore bin/activate on the source"):
        moves_for(found, b"/srv/venv", None)
    assert moves_for({**found, "relocatable": True}, b"/srv/venv", None) == []


def test_a_missing_interpreter_is_refused_with_the_way_out(tmp_path: Path, alias: Path) -> None:
    build(tmp_path / "venv", python=alias / "bin" / SYSTEM_PYTHON.name)
    found = environment.describe(os.fsencode(tmp_path / "venv"), {})
    environment.check_interpreter(found, b"/srv/venv")
    shutil.rmtree(alias.parent)
    what = f"base interpreter {found['python']} .Python {VERSION}. of the environment for /srv/venv does not exist here"
    with pytest.raises(TreeError, match=f"{what}; install it at that path, or set interpreter: ship"):
        environment.check_interpreter(found, b"/srv/venv")
    with pytest.raises(TreeError, match=f"{what}; it cannot be sent along: it is old"):
        environment.check_interpreter({**found, "shippable": False, "why": "it is old"}, b"/srv/venv")


def test_a_copy_needs_the_library_of_its_interpreter(tmp_path: Path, alias: Path) -> None:
    build(tmp_path / "venv", "--copies", python=alias / "bin" / SYSTEM_PYTHON.name)
    found = environment.describe(os.fsencode(tmp_path / "venv"), {})
    assert found["interpreter"] == ""
    shutil.rmtree(alias.parent)
    with pytest.raises(TreeError, match=f"base interpreter {found['python']} .* does not exist here"):
        environment.check_interpreter(found, b"/srv/venv")


def test_another_version_at_the_path_is_refused(tmp_path: Path) -> None:
    found = described(tmp_path, version="3.1.4")
    with pytest.raises(TreeError, match="does not work here: .* is Python .*, not 3.1.4; "):
        environment.check_interpreter(found, b"/srv/venv")
    assert os.path.realpath(sys.executable) == found["interpreter"]
