# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The base interpreter of an environment: where it stands, whether it works, and whether it can be sent along."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any, Dict, Iterable, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.relocation import Move, below
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import decode_path, encode_path
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError, show

PREFIX_PROGRAM = """
import json, platform, sys
base = getattr(sys, "_base_executable", None) or ""
print(json.dumps([sys.base_prefix, base, platform.python_version()]))
"""
# Prints one line for each module whose file is there and cannot be loaded; one that was never built is no fault of this host.
LOAD_PROGRAM = """
import importlib, platform
print(platform.python_version())
for name in ("encodings.idna", "_ctypes", "_ssl", "_hashlib", "zlib", "_sqlite3", "_bz2", "_lzma", "_uuid", "pyexpat"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
    except ImportError as error:
        print(name, error)
"""
# What a Python has in its own directory. Anything else there belongs to other software, or to somebody.
OWN_NAMES = {b"bin", b"include", b"lib", b"lib32", b"lib64", b"libexec", b"share", b"etc", b"man", b"licenses", b"ssl"}
SHARED_PREFIXES = {b"/", b"/usr", b"/usr/local", b"/opt", b"/opt/local", b"/home", b"/root", b"/srv", b"/var"}
# As the dynamic loader prints them under LD_TRACE_LOADED_OBJECTS, and where a distribution keeps its own.
LOADED_LIBRARY = re.compile(rb" => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
SYSTEM_LIBRARIES = (b"/lib/", b"/lib64/", b"/usr/lib/", b"/usr/lib64/")
PATH_SETTINGS = {b"home", b"executable", b"base-prefix", b"base-exec-prefix", b"base-executable"}


def ask_python(python: bytes, program: str) -> str:
    """What a program prints in an interpreter; raises TreeError with what that says when it does not run here."""
    command = [python, b"-I", b"-B", b"-S", b"-c", program.encode()]
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function  # an agent has no module's run_command
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TreeError(f"{show(python)} does not run: {error}") from error
    if done.returncode:
        raise TreeError(
            f"{show(python)} does not run: {show(done.stderr.strip()[-300:]) or f'exit status {done.returncode}'}"
        )
    return done.stdout.decode().strip()


def works(python: bytes, version: str) -> str:
    """Empty when the interpreter runs here, has the version and loads its own libraries, else the reason, in words.

    A missing shared library is named as the dynamic loader names it.
    """
    try:
        found, *broken = ask_python(python, LOAD_PROGRAM).splitlines()
    except TreeError as error:
        return str(error)
    if found != version:
        return f"{show(python)} is Python {found}, not {version}"
    return f"{show(python)} cannot load {'; '.join(broken)}" if broken else ""


def prefix_of(python: bytes) -> Dict[str, Any]:
    """Where the base interpreter of an environment stands, by running ``bin/python`` of it.

    ``prefix`` is the real path of its directory, ``python`` that of its program, ``version`` what it says it is, ``shippable``
    whether that directory holds nothing but this Python, and ``why`` what to do instead when it does not. ``prefixes`` are all
    spellings of the prefix that the environment uses, its real path first. Prefix and program are empty when they lie in the
    environment itself. Paths are encoded as the wire does. Raises TreeError when ``python`` does not run.
    """
    *told, version = json.loads(ask_python(python, PREFIX_PROGRAM))
    root = os.path.dirname(os.path.dirname(python))
    prefix, real_root = os.path.realpath(decode_path(told[0])), os.path.realpath(root)
    if below(prefix, real_root):
        why = "it is part of the environment"
        return {"prefix": "", "python": "", "version": version, "shippable": False, "why": why, "prefixes": []}
    named = [path for path in [*map(decode_path, told), *_named_paths(root)] if path and not below(path, root)]
    program = os.path.realpath(python)
    if below(program, real_root):  # a copy; the program it was copied from stands in the prefix
        named_too = os.path.join(prefix, b"bin", f"python{_short(version)}".encode())
        programs = [os.path.realpath(path) for path in [*named, named_too] if os.path.isfile(path)]
        program = next((path for path in programs if below(path, prefix)), b"")
    why = _why_not(prefix, program, version, real_root)
    return {
        "prefix": encode_path(prefix),
        "python": encode_path(program),
        "version": version,
        "shippable": not why,
        "why": why,
        "prefixes": [encode_path(path) for path in [prefix, *_aliases(prefix, named)]],
    }


def read_settings(root: bytes) -> Dict[bytes, bytes]:
    """The settings in an environment's pyvenv.cfg."""
    with open(os.path.join(root, b"pyvenv.cfg"), "rb") as file:
        pairs = [line.partition(b"=") for line in file]
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _named_paths(root: bytes) -> List[bytes]:
    """The absolute paths of a base interpreter that an environment's pyvenv.cfg and the links in its bin name."""
    named = [value for key, value in read_settings(root).items() if key in PATH_SETTINGS]
    with os.scandir(os.path.join(root, b"bin")) as found:
        named += [os.readlink(item.path) for item in found if item.name.startswith(b"python") and item.is_symlink()]
    return [path for path in named if path.startswith(b"/")]


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _aliases(prefix: bytes, named: Iterable[bytes]) -> List[bytes]:
    """The directories among ``named`` and above them that are the prefix under another name."""
    found = set()
    for path in named:
        directory = os.path.normpath(path)
        while directory.strip(b"/"):
            if directory != prefix and os.path.realpath(directory) == prefix:
                found.add(directory)
            directory = os.path.dirname(directory)
    return sorted(found)


def _why_not(prefix: bytes, program: bytes, version: str, root: bytes) -> str:
    """Why this base interpreter cannot be sent along, and the way out; empty when it can."""
    place, home = show(prefix), os.path.realpath(os.path.expanduser(b"~"))
    module = os.path.join(prefix, b"lib", f"python{_short(version)}".encode(), b"os.py")
    same = f"install Python {version} at the same path"
    if prefix in SHARED_PREFIXES or below(home, prefix) or os.path.basename(prefix) == b".local":
        return f"{place} holds other software, too; install python{_short(version)} ({version}) from the distribution"
    if not program or not below(program, prefix):
        return f"its program is not below {place}; {same}"
    if not os.path.isfile(module):
        return f"{show(module)} does not exist; {same}"
    if below(root, prefix):
        return f"the environment itself stands in {place}; build it outside of that"
    others = _other_contents(prefix)
    if others:
        return f"{place} holds more than Python ({', '.join(map(show, others[:3]))}); {same}"
    library = _bound_library(program, prefix)
    if library:
        name, directory = show(os.path.basename(library)), show(os.path.dirname(library))
        return f"its program takes {name} from {directory} wherever it stands; {same}"
    return ""


def _bound_library(program: bytes, prefix: bytes) -> bytes:
    """A shared library that the program would not find on another host or from another directory; empty when there is none."""
    try:
        traced = subprocess.run(  # pylint: disable=ansible-bad-function  # an agent has no module's run_command
            [program, b"-I", b"-c", b""],
            env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        ).stdout
        with open(program, "rb") as file:
            relative = b"$ORIGIN" in file.read()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TreeError(f"{show(program)} does not run: {error}") from error
    for path in LOADED_LIBRARY.findall(traced):
        inside = below(os.path.normpath(path), prefix)
        if not (relative if inside else path.startswith(SYSTEM_LIBRARIES)):
            return bytes(path)
    return b""


def _other_contents(prefix: bytes) -> List[bytes]:
    """Directories in a prefix that no Python installs there. A conda environment tells itself what it is."""
    with os.scandir(prefix) as found:
        names = {item.name for item in found if item.is_dir(follow_symlinks=False)}
    if b"conda-meta" in names:
        return sorted(names & {b"envs", b"pkgs"})
    return sorted(names - OWN_NAMES)


def moves_for(environment: Dict[str, Any], dest: bytes, shipped_at: Optional[bytes]) -> List[Move]:
    """What has to be rewritten for a described environment to work at ``dest``, with its base interpreter at ``shipped_at``.

    ``shipped_at`` is None when the interpreter stands where it does on the source. Empty when nothing has to be. Raises
    TreeError when it is not known where the environment was built.
    """
    if not environment:
        return []
    moves: Dict[bytes, bytes] = {}
    built_as = [decode_path(path) for path in environment["built_as"]]
    if not built_as and not environment["relocatable"]:
        raise TreeError(
            "no bin/activate, script or pyvenv.cfg of the environment tells where it was built, so it is not known what has to be "
            f"rewritten for {show(dest)}; restore bin/activate on the source"
        )
    if dest not in built_as[:1]:
        moves.update(dict.fromkeys(built_as, dest))
    if shipped_at is not None:
        moves.update(dict.fromkeys(map(decode_path, environment["prefixes"]), shipped_at))
    return [Move(old, new) for old, new in moves.items() if old != new]
