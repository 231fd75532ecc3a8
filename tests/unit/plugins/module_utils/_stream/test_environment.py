# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, TreeError

# What the activation scripts of these programs hold, as they wrote them for /opt/venv and "/opt/my venv".
ACTIVATE = {
    "CPython 3.9": ('VIRTUAL_ENV="/opt/venv"\nexport VIRTUAL_ENV\n', "/opt/venv"),
    "CPython 3.12": (
        'if [ "${OSTYPE:-}" = "cygwin" ] ; then\n    export VIRTUAL_ENV=$(cygpath "/opt/venv")\nelse\n    export VIRTUAL_ENV="/opt/venv"\nfi\n',
        "/opt/venv",
    ),
    "CPython 3.13 with a blank": (
        "case \"$(uname)\" in\n    CYGWIN*)\n        VIRTUAL_ENV=$(cygpath '/opt/my venv')\n        ;;\n    *)\n"
        "        export VIRTUAL_ENV='/opt/my venv'\n        ;;\nesac\n",
        "/opt/my venv",
    ),
    "uv": (
        'VIRTUAL_ENV=\'/opt/venv\'\nif [ "$OSTYPE" = "cygwin" ]; then\n    VIRTUAL_ENV=$(cygpath -u "$VIRTUAL_ENV")\nfi\n',
        "/opt/venv",
    ),
    "relocatable": ('VIRTUAL_ENV="$(dirname -- "$(dirname -- "$(realpath -- "$SCRIPT_PATH")")")"\n', ""),
    "virtualenv": ("VIRTUAL_ENV='/opt/venv'\nexport VIRTUAL_ENV\n", "/opt/venv"),
    "uv with a quote": ("VIRTUAL_ENV='/opt/it'\"'\"'s venv'\n", "/opt/it's venv"),
    "bare": ("VIRTUAL_ENV=/opt/venv\n", "/opt/venv"),
    "nothing": ("# VIRTUAL_ENV=/opt/venv\n", ""),
}


def make(root: Path, activate: str) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "activate").write_text(activate)
    (root / "bin" / "python").symlink_to(sys.executable)
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return root


@pytest.mark.parametrize(("text", "built_at"), ACTIVATE.values(), ids=ACTIVATE.keys())
def test_where_an_environment_was_built_is_found(tmp_path: Path, text: str, built_at: str) -> None:
    root = make(tmp_path / "venv", text)
    found = environment.describe(os.fsencode(root), {})
    assert found["built_at"] == built_at
    assert found["home"] == "/usr/bin"
    assert found["version"] == ".".join(str(part) for part in sys.version_info[:3])
    assert found["interpreter"] == os.path.realpath(sys.executable)


@pytest.mark.parametrize(
    ("lines", "built_at"),
    [
        (
            ["#!/opt/venv/bin/python", "#!/opt/venv/bin/python3.11 -E", "#!/opt/other/bin/python", "#!/bin/sh"],
            "/opt/venv",
        ),
        (["#!/bin/sh\n'''exec' '/opt/it'\"'\"'s/bin/python' \"$0\" \"$@\""], "/opt/it's"),
        (['#!/bin/sh\n\'\'\'exec\' "/opt/my venv/bin/python" "$0" "$@"'], "/opt/my venv"),
        (["#!/usr/bin/python3", "#!/usr/bin/python3", "#!/opt/venv/bin/python"], "/opt/venv"),
        (["#!/usr/bin/env python3"], ""),
    ],
)
def test_without_an_activation_script_the_launchers_tell_where_it_was_built(
    tmp_path: Path, lines: List[str], built_at: str
) -> None:
    root = make(tmp_path / "venv", "")
    for number, line in enumerate(lines):
        (root / "bin" / f"tool{number}").write_text(f"{line}\nimport sys\n")
    assert environment.describe(os.fsencode(root), {})["built_at"] == built_at


@pytest.mark.parametrize(
    ("command", "built_at"),
    [
        ("/usr/bin/python3 -m venv /opt/venv", "/opt/venv"),
        ("/usr/bin/python3 -m venv --copies --without-pip /opt/my venv", "/opt/my venv"),
        ("/usr/bin/python3 -m virtualenv -p /usr/bin/python3 /opt/venv", "/opt/venv"),
        ("/usr/bin/python3 -m venv venv", ""),
    ],
)
def test_without_launchers_the_command_tells_where_it_was_built(tmp_path: Path, command: str, built_at: str) -> None:
    root = make(tmp_path / "venv", "")
    with open(root / "pyvenv.cfg", "a", encoding="utf-8") as file:
        file.write(f"command = {command}\nversion = 3\n")
    found = environment.describe(os.fsencode(root), {})
    assert found["built_at"] == built_at
    assert found["built_as"] == ([built_at, str(root)] if built_at else [])


def test_the_script_of_this_python_is_understood(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "my venv"], check=True)
    assert environment.describe(os.fsencode(tmp_path / "my venv"), {})["built_at"] == f"{tmp_path}/my venv"


def test_a_tree_that_is_no_environment_is_described_by_nothing(tmp_path: Path) -> None:
    assert environment.describe(os.fsencode(tmp_path), {}) == {}
    environment.check_interpreter({}, b"/anywhere")


def test_an_interpreter_inside_the_tree_needs_nothing_outside(tmp_path: Path) -> None:
    root = make(tmp_path / "venv", "")
    (root / "bin" / "python").unlink()
    (root / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (root / "bin" / "python").chmod(0o755)
    found = environment.describe(os.fsencode(root), {})
    assert found["interpreter"] == ""
    environment.check_interpreter(found, os.fsencode(root))


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (None, "bin/python does not run: .*No such file"),
        (
            "#!/bin/sh\necho 'No module named encodings' >&2; exit 1\n",
            "bin/python does not run: No module named encodings",
        ),
        ("#!/bin/sh\nexit 3\n", "bin/python does not run: exit status 3"),
        ("#!/nowhere\n", "bin/python does not run: .*No such file"),
    ],
)
def test_a_source_whose_interpreter_does_not_run_is_refused(tmp_path: Path, script: str | None, problem: str) -> None:
    root = make(tmp_path / "venv", "")
    (root / "bin" / "python").unlink()
    if script:
        (root / "bin" / "python").write_text(script)
        (root / "bin" / "python").chmod(0o755)
    with pytest.raises(TreeError, match=problem):
        environment.describe(os.fsencode(root), {})


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, "l", 0, 0, target, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("target", "outside"),
    [
        (b"lib", False),
        (b"../lib", False),
        (b"/opt/venv/lib", False),
        (b"/opt/venv", False),
        (b"/opt/venv2/lib", True),
        (b"../../shared", True),
        (b"/usr/bin/python3", True),
        (b"../bin/../../venv-old/x", True),
        (b"/opt/venv/../other", True),
    ],
)
def test_links_that_leave_the_tree_are_told_from_those_that_do_not(target: bytes, outside: bool) -> None:
    entry = link(b"bin/x", target)
    assert environment.outside_links([entry], b"/opt/venv") == ([entry] if outside else [])


def test_a_relative_link_is_followed_from_the_release(tmp_path: Path) -> None:
    dest, release = os.fsencode(tmp_path / "venv"), os.fsencode(tmp_path / "venv.releases" / "0" / "x")
    (tmp_path / "shared").mkdir()
    with pytest.raises(
        TreeError, match="seen from .*venv.releases.*: cache -> ../shared; create it, make the links absolute"
    ):
        environment.check_outside_links([link(b"cache", b"../shared")], dest, release)
    (tmp_path / "venv.releases" / "0").mkdir(parents=True)
    (tmp_path / "venv.releases" / "0" / "shared").mkdir()
    assert environment.check_outside_links([link(b"cache", b"../shared")], dest, release) == ["cache -> ../shared"]


def test_many_missing_links_are_counted() -> None:
    links: List[Entry] = [link(b"%d" % number, b"/nowhere/%d" % number) for number in range(9)]
    with pytest.raises(TreeError, match="0 -> /nowhere/0, .*4 -> /nowhere/4 and 4 more"):
        environment.check_outside_links(links, b"/opt/venv", b"/opt/venv.releases/x")


def test_the_kernels_digest_follows_kernel_packages_only() -> None:
    site = b"lib/python3.12/site-packages/"
    base = {
        site + b"torch-2.9.dist-info/RECORD": "1",
        site + b"sglang-0.5.11.dist-info/RECORD": "2",
        site + b"torch/x.py": "3",
    }
    digest = environment.kernels_digest(base)
    assert (
        environment.kernels_digest({**base, site + b"torch/x.py": "4", site + b"sglang-0.5.11.dist-info/RECORD": "5"})
        == digest
    )
    assert environment.kernels_digest({**base, site + b"torch-2.9.dist-info/RECORD": "9"}) != digest
    assert environment.kernels_digest({**base, site + b"nvidia_nccl_cu13-2.dist-info/RECORD": "1"}) != digest
