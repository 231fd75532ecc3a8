# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees for the tests of streams: odd ones, environments, and what counts of them read without the code under test."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Row

MIB = 1 << 20
ODD_NAMES = [b"new\nline", b"quote\"'", b"back\\slash", b"\xff not utf-8", b" blank ", b"-rf", "grün".encode()]


def content_of(root: Path) -> Dict[bytes, Tuple[Any, ...]]:
    """What counts of a tree, and the files' times."""
    found: Dict[bytes, Tuple[Any, ...]] = {}
    top = os.fsencode(root)
    for folder, names, files in os.walk(top):
        if b"__pycache__" in names:
            names.remove(b"__pycache__")
        for name in names + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode & 0o777
            key = os.path.relpath(path, top)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory", mode)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", mode, os.stat(path).st_mtime_ns, hashlib.sha256(file.read()).hexdigest())
    return found


def fill_odd(root: Path) -> None:
    """A tree with everything in it that may be in one and is easy to lose."""
    root.mkdir()
    for number, name in enumerate(ODD_NAMES):
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(b"content %d" % number)
        os.mkdir(os.path.join(os.fsencode(root), b"empty " + name))
        os.symlink(name, os.path.join(os.fsencode(root), b"link " + name))
    (root / "empty").mkdir(mode=0o711)
    (root / "nothing").write_bytes(b"")
    (root / "one").write_bytes(b"hard-linked")
    os.utime(root / "one", ns=(1_500_000_000_123_456_789, 1_500_000_000_123_456_789))
    os.link(root / "one", root / "other")
    with open(root / "sparse", "wb") as file:
        file.truncate(8 * MIB + 5)
        file.seek(4 * MIB)
        file.write(b"in the middle")
    (root / "setuid").write_bytes(b"#!/bin/sh\n")
    (root / "setuid").chmod(0o4755)
    (root / "secret").write_bytes(b"s")
    (root / "secret").chmod(0o600)


def make_environment(at: Path, dest: Path) -> None:
    """A virtual environment built at ``dest`` that stands at ``at``, with some modules in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", dest], check=True)
    packages = next(dest.glob("lib/python*/site-packages"))
    (packages / "engine").mkdir()
    (packages / "engine" / "__init__.py").write_text("import engine.tree\n")
    (packages / "engine" / "tree.py").write_text("WIDTH = 7\n")
    (packages / "engine" / "broken.py").write_text("def (:\n")
    os.rename(dest, at)


def row(path: str, kind: str = "f", content: bytes = b"", mode: int = 0o644, target: str = "", **more: Any) -> Row:
    """A line of a listing as a source sends it."""
    size, digest = (len(content), hashlib.sha256(content).hexdigest()) if kind == "f" else (0, "")
    return [path, kind, mode, more.get("size", size), target, more.get("mtime", 0), more.get("digest", digest)]
