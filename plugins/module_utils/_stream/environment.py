# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual environments: where one was built, and which interpreter outside of it it cannot live without."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from typing import Any, Dict, List

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import LINK, Entry, TreeError, show

ACTIVATE_LINE = re.compile(rb"^\s*(?:export )?VIRTUAL_ENV=(?:'(/[^'\n]*)'|\"(/[^\"\n]*)\"|(/\S*))", re.MULTILINE)
KERNEL_RECORD = re.compile(
    rb"/site-packages/(?:torch|triton|flashinfer|sgl_kernel|sglang_kernel|deep_gemm|tilelang|nvidia)[^/]*[.]dist-info/RECORD\Z"
)
VERSION_PROGRAM = "import platform; print(platform.python_version())"


def describe(root: bytes, hashes: Dict[bytes, str]) -> Dict[str, Any]:
    """What a target must know of the environment at ``root``: ``built_at``, ``interpreter``, ``home``, ``version``, ``kernels``.

    Empty for a tree that is not a virtual environment. ``interpreter`` is the real path that ``bin/python`` leads to, empty
    when that lies inside the tree. ``kernels`` is a digest of the packages that compile kernels. Raises TreeError when
    ``bin/python`` does not run, since then the source does not work.
    """
    if not os.path.isfile(os.path.join(root, b"pyvenv.cfg")):
        return {}
    python = os.path.join(root, b"bin/python")
    real = os.path.realpath(python)
    return {
        "built_at": show(_built_at(root)),
        "interpreter": "" if real.startswith(os.path.realpath(root) + b"/") else show(real),
        "home": show(_home(root)),
        "version": python_version(python),
        "kernels": kernels_digest(hashes),
    }


def kernels_digest(hashes: Dict[bytes, str]) -> str:
    """SHA-256 over the installation records of the packages that kernels are compiled by or for: caches are valid for one."""
    records = sorted((path, sha256) for path, sha256 in hashes.items() if KERNEL_RECORD.search(path))
    return hashlib.sha256(repr(records).encode()).hexdigest()


def _built_at(root: bytes) -> bytes:
    try:
        with open(os.path.join(root, b"bin/activate"), "rb") as file:
            found = ACTIVATE_LINE.search(file.read(65536))
    except OSError:
        return b""
    return found[found.lastindex or 0] if found else b""


def _home(root: bytes) -> bytes:
    with open(os.path.join(root, b"pyvenv.cfg"), "rb") as file:
        for line in file:
            key, _equals, value = line.partition(b"=")
            if key.strip() == b"home":
                return value.strip()
    return b""


def python_version(python: bytes) -> str:
    """The version an interpreter says it is, such as ``3.12.3``; raises TreeError when it does not run."""
    return ask_python(python, VERSION_PROGRAM)


def ask_python(python: bytes, program: str) -> str:
    """What a one-line program prints in an interpreter; raises TreeError with what that says when it does not run here."""
    command = [python, b"-I", b"-B", b"-S", b"-c", program.encode()]
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TreeError(f"{show(python)} does not run: {error}") from error
    if done.returncode:
        raise TreeError(
            f"{show(python)} does not run: {show(done.stderr.strip()[-300:]) or f'exit status {done.returncode}'}"
        )
    return done.stdout.decode().strip()


def check_interpreter(environment: Dict[str, Any], dest: bytes) -> None:
    """Raise TreeError unless this host can run the described environment at ``dest``."""
    if not environment:
        return
    built_at = environment["built_at"]
    if built_at and os.fsencode(built_at) != dest:
        raise TreeError(
            f"the environment was built at {built_at} and names that path in its scripts, so it cannot work at {show(dest)}; "
            f"set dest to {built_at}"
        )
    interpreter, version = environment["interpreter"], environment["version"]
    if not interpreter:
        return
    if not os.access(interpreter, os.X_OK):
        raise TreeError(
            f"the environment's base interpreter {interpreter} (Python {version}) does not exist here; install it at that path"
        )
    found = python_version(os.fsencode(interpreter))
    if found != version:
        raise TreeError(
            f"the environment's base interpreter {interpreter} is Python {found} here and {version} on the source; "
            "install the same version"
        )


def outside_links(entries: List[Entry], dest: bytes) -> List[Entry]:
    """Links that lead out of the tree once it stands at ``dest``."""
    found = []
    for entry in entries:
        if entry.kind == LINK:
            where = os.path.normpath(os.path.join(dest, os.path.dirname(entry.path), entry.target))
            if where != dest and not where.startswith(dest + b"/"):
                found.append(entry)
    return found


def check_outside_links(entries: List[Entry], dest: bytes, release: bytes) -> List[str]:
    """The links that lead out of the tree, for the report; raises TreeError when one leads to what this host has not.

    A relative link leads on from where the tree really stands, which is ``release``, not from the link at ``dest``.
    """
    links = outside_links(entries, dest)
    missing = [
        f"{show(entry.path)} -> {show(entry.target)}"
        for entry in links
        if not os.path.exists(os.path.normpath(os.path.join(release, os.path.dirname(entry.path), entry.target)))
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise TreeError(
            f"links lead out of the environment to what does not exist here, seen from {show(release)}: "
            f"{', '.join(missing[:5])}{more}; create it, make the links absolute, or exclude them"
        )
    return [f"{show(entry.path)} -> {show(entry.target)}" for entry in links[:20]]
