# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual environments: where one was built, and which interpreter outside of it it cannot live without."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from typing import Any, Dict, Iterator, List

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.interpreter import (
    prefix_of,
    read_settings,
    works,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import decode_path, encode_path
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import LINK, Entry, TreeError, show

ACTIVATE_LINE = re.compile(
    rb"^\s*(?:export )?VIRTUAL_ENV=(?:'(/(?:[^'\n]|'\"'\"'|'\\'')*)'|\"(/[^\"\n]*)\"|(/\S*))", re.MULTILINE
)
COMMAND_LINE = re.compile(rb"^command\s*=.* -m (?:venv (?:[^/\n]* )?(/.*)|virtualenv .*?(/\S*))$", re.MULTILINE)
SCRIPT_LINE = re.compile(rb"#!(?:/bin/sh\n'''exec')?[ \t]*['\"]?(/.*)/bin/(?:python|pypy)[\w.]*(?:['\"\s]|\Z)")
KERNEL_RECORD = re.compile(
    rb"/site-packages/(?:torch|triton|flashinfer|sgl_kernel|sglang_kernel|deep_gemm|tilelang|nvidia)[^/]*[.]dist-info/RECORD\Z"
)
HEAD_SIZE = 65536


def describe(root: bytes, hashes: Dict[bytes, str]) -> Dict[str, Any]:
    """What a target must know of the environment at ``root``. Empty for a tree that is not a virtual environment.

    ``built_at`` is the path it was built at, empty when that cannot be told; ``built_as`` are all paths that it may be named by,
    that one first, encoded as the wire does. ``relocatable`` says that it was made to work at any path. ``interpreter`` is the
    real path that ``bin/python`` leads to, empty when that lies inside the tree. ``home`` is what pyvenv.cfg says. ``version``,
    ``prefix``, ``python``, ``prefixes``, ``shippable`` and ``why`` are of the base interpreter, see ``interpreter.prefix_of``.
    ``kernels`` is a digest of the packages that compile kernels. Raises TreeError when ``bin/python`` does not run, since then
    the source does not work.
    """
    if not os.path.isfile(os.path.join(root, b"pyvenv.cfg")):
        return {}
    python = os.path.join(root, b"bin/python")
    real, real_root = os.path.realpath(python), os.path.realpath(root)
    base = prefix_of(python)
    settings = read_settings(root)
    built_at = _built_at(root, [decode_path(path) for path in base["prefixes"]])
    return {
        **base,
        "built_at": show(built_at),
        "built_as": [encode_path(path) for path in dict.fromkeys([built_at, real_root])] if built_at else [],
        "relocatable": settings.get(b"relocatable") == b"true",
        "interpreter": "" if real.startswith(real_root + b"/") else show(real),
        "home": show(settings.get(b"home", b"")),
        "kernels": kernels_digest(hashes),
    }


def kernels_digest(hashes: Dict[bytes, str]) -> str:
    """SHA-256 over the installation records of the packages that kernels are compiled by or for: caches are valid for one."""
    records = sorted((path, sha256) for path, sha256 in hashes.items() if KERNEL_RECORD.search(path))
    return hashlib.sha256(repr(records).encode()).hexdigest()


def _built_at(root: bytes, base_prefixes: List[bytes]) -> bytes:
    """Where an environment says that it stands: in its activation script, else in its other scripts, else in pyvenv.cfg."""
    found = ACTIVATE_LINE.search(_head(os.path.join(root, b"bin/activate")))
    if found:
        return found[found.lastindex or 0].replace(b"'\"'\"'", b"'").replace(b"'\\''", b"'")
    named = Counter(_named_by_scripts(root))
    for other in [b"/usr", b"/usr/local", *base_prefixes]:
        del named[other]
    if named:
        return max(sorted(named), key=lambda path: named[path])
    found = COMMAND_LINE.search(_head(os.path.join(root, b"pyvenv.cfg")))
    return found[found.lastindex or 0].strip() if found else b""


def _named_by_scripts(root: bytes) -> Iterator[bytes]:
    """For each script in bin that is started with ``<path>/bin/python``: that path."""
    with os.scandir(os.path.join(root, b"bin")) as items:
        for item in items:
            found = SCRIPT_LINE.match(_head(item.path)) if item.is_file(follow_symlinks=False) else None
            if found:
                yield found[1].replace(b"'\"'\"'", b"'")


def _head(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEAD_SIZE)
    except OSError:
        return b""


def check_interpreter(environment: Dict[str, Any], dest: bytes) -> None:
    """Raise TreeError unless the base interpreter of the described environment works here as it does on the source."""
    if not environment:
        return
    python, version = environment["interpreter"] or environment["python"], environment["version"]
    if not python:
        return
    way_out = f"it cannot be sent along: {environment['why']}"
    if environment["shippable"]:
        way_out = "install it at that path, or set interpreter: ship"
    what = f"the base interpreter {python} (Python {version}) of the environment for {show(dest)}"
    if not os.access(python, os.X_OK):
        raise TreeError(f"{what} does not exist here; {way_out}")
    problem = works(os.fsencode(python), version)
    if problem:
        raise TreeError(f"{what} does not work here: {problem}; {way_out}")


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
