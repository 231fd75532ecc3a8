# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs `ansible-test sanity`, without an ignore file, on a copy of what is published, at the path that it wants.

ansible-test installs its own pinned linters with a pip that it downloads from outside the package index. Where that cannot be
reached, the pip that comes with Python does the same: a file of the expected name in ansible-test's cache says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ansible_test

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".cache" / "sanity"
COPY = WORK / "ansible_collections" / "ddtree" / "fleet"
NOT_PUBLISHED = (".", "extensions/", "tests/", "Makefile", "pyproject.toml", "requirements-dev.lock", "ansible.cfg")
PIP_FROM_PYTHON = "import ensurepip\nensurepip.bootstrap(default_pip=True)\n"


def copy_collection() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    shutil.rmtree(COPY, ignore_errors=True)
    for name in listed.decode().split("\0"):
        source = ROOT / name
        if name and not name.startswith(NOT_PUBLISHED) and source.is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, COPY / name, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet", "."], cwd=COPY, check=True)


def provide_pip(home: Path) -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(ansible_test.__file__).parent.rglob("*requirements.py")
    )
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in set(re.findall(r"['\"](\d\d\.\d(?:\.\d)?)['\"]", source)):
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(PIP_FROM_PYTHON, encoding="utf-8")


def main() -> int:
    copy_collection()
    home = WORK / "home"
    provide_pip(home)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = ["ansible-test", "sanity", "--local", "--python", version, "--color", "no", *sys.argv[1:]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return subprocess.run(command, cwd=COPY, env={**environment, "HOME": str(home)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
