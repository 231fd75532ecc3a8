# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A distribution as pip recorded it: what its RECORD says about the files that stand in site-packages now.

RECORD is a CSV file in the distribution's dist-info directory, one line a file: path, ``algorithm=hash`` (urlsafe base64
without padding), size. See https://packaging.python.org/specifications/recording-installed-packages/.
"""

from __future__ import annotations

import ast
import base64
import csv
import hashlib
import io
import os
import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import show

NAMES_SHOWN = 200
# Where a package says its own version, the generated file before those that may import from it.
VERSION_FILES = ("_version.py", "version.py", "__init__.py")
ALGORITHMS = ("sha256", "sha384", "sha512")


class RecordError(Exception):
    """A distribution whose RECORD is no baseline; ``found`` and ``hint`` are the two halves of a failed check."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(f"{found} ({hint})")
        self.found = found
        self.hint = hint


class Distribution(NamedTuple):
    """One installed distribution. ``hashes`` is what RECORD says by path relative to site-packages ('' where it says nothing)."""

    name: str
    dist_info: str
    version: str
    hashes: Dict[str, str]

    def packages(self) -> List[str]:
        """Its own top-level package directories; a directory without ``__init__.py`` may be shared with others."""
        return sorted(
            path[: -len("/__init__.py")]
            for path in self.hashes
            if path.endswith("/__init__.py") and path.count("/") == 1
        )

    def is_editable(self) -> bool:
        """Whether RECORD lists only a path file that leads to the package elsewhere."""
        return not self.packages() and any(path.endswith(".pth") for path in self.hashes)


class Inventory(NamedTuple):
    """What differs from RECORD, sorted. ``equal`` are the files that are as recorded, ``unknown`` those without a usable hash."""

    modified: List[str]
    missing: List[str]
    added: List[str]
    equal: Set[str]
    unknown: Set[str]

    def result(self) -> Dict[str, Any]:
        lists = {"modified": self.modified, "missing": self.missing, "added": self.added}
        shown: Dict[str, Any] = {key: [show_name(name) for name in names[:NAMES_SHOWN]] for key, names in lists.items()}
        shown["counts"] = {key: len(names) for key, names in lists.items()}
        shown["counts"]["equal"] = len(self.equal)
        return shown


def show_name(path: str) -> str:
    """A file name for people and JSON, also where it is not UTF-8."""
    return show(os.fsencode(path))


def normalized(name: str) -> str:
    """A distribution's name as all its spellings compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_distribution(site: str, name: str) -> Distribution:
    """The one distribution of that name in ``site``; raises RecordError when it is not one or has no readable RECORD."""
    found = sorted(item for item in os.listdir(site) if _is_dist_info_of(item, name))
    if not found:
        raise RecordError(
            "no dist-info directory",
            f"{name} is not installed there by pip or uv, so there is no RECORD to compare with",
        )
    if len(found) > 1:
        raise RecordError(
            ", ".join(found), "remove those that are not the installed one; which RECORD counts cannot be told"
        )
    dist_info = found[0]
    directory = os.path.join(site, dist_info)
    try:
        with open(os.path.join(directory, "RECORD"), encoding="utf-8", errors="surrogateescape", newline="") as file:
            hashes = parse_record(file.read())
    except FileNotFoundError as error:
        raise RecordError(
            f"{dist_info} without a RECORD", "it was not installed from a wheel, so it cannot be compared with one"
        ) from error
    except OSError as error:
        raise RecordError(f"{dist_info}/RECORD: {error.strerror}", "read it as a user that may") from error
    except ValueError as error:
        raise RecordError(
            f"{dist_info}/RECORD {error}", "reinstall the distribution, or compare with another baseline"
        ) from error
    return Distribution(name, dist_info, _recorded_version(directory), hashes)


def _is_dist_info_of(item: str, name: str) -> bool:
    stem, ending = os.path.splitext(item)
    return ending == ".dist-info" and normalized(stem.partition("-")[0]) == normalized(name)


def _recorded_version(directory: str) -> str:
    try:
        with open(os.path.join(directory, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break
                if line.lower().startswith("version:"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # the directory's own name says it too
    return os.path.basename(directory)[: -len(".dist-info")].partition("-")[2]


def parse_record(text: str) -> Dict[str, str]:
    """RECORD's files and hashes; compiled files and directories are left out. Raises ValueError naming the line."""
    hashes: Dict[str, str] = {}
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in rows:
            if not row:
                continue
            path = row[0]
            if len(row) > 3 or not path:
                raise ValueError(f"line {rows.line_num} is not path,hash,size")
            if path.endswith(("/", ".pyc")):
                continue
            hashes[posixpath.normpath(path)] = row[1] if len(row) > 1 else ""
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num} is no CSV: {error}") from error
    if not hashes:
        raise ValueError("lists no file")
    return hashes


def own_version(site: str, distribution: Distribution) -> Optional[str]:
    """The ``__version__`` that the package's own files state as a plain text, read without importing; ``None`` if none does."""
    same_name = normalized(distribution.name)
    for package in sorted(distribution.packages(), key=lambda package: normalized(package) != same_name):
        for name in VERSION_FILES:
            try:
                with open(os.path.join(site, package, name), "rb") as file:
                    stated = _assigned_text(file.read(), "__version__")
            except OSError:
                continue
            if stated:
                return stated
    return None


def _assigned_text(source: bytes, name: str) -> Optional[str]:
    """The text that a module's top level assigns to ``name``; assignments inside try or if may be fallbacks and do not count."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    found = None
    for statement in body:
        targets: Sequence[ast.expr] = ()
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        stated = value.value if isinstance(value, ast.Constant) else None
        if isinstance(stated, str) and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            found = stated
    return found


def same_version(one: str, other: str) -> bool:
    """Whether two spellings mean one version; a local part (``+cu130``) counts only where both have one."""
    first, second = (re.sub(r"[-_.]+", ".", text.strip().lower().lstrip("v")).partition("+") for text in (one, other))
    return first[0] == second[0] and (first[2] == second[2] or not (first[2] and second[2]))


def take_inventory(root: str, site: str, distribution: Distribution) -> Inventory:
    """Compare what RECORD lists, and what stands in the distribution's own packages, with RECORD. Raises OSError."""
    inside = os.path.realpath(root), os.path.realpath(site)
    listed = sorted(path for path in distribution.hashes if _within(os.path.join(inside[1], path), inside))
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 8)) as pool:
        states = list(pool.map(lambda path: _state(site, path, distribution.hashes[path]), listed))
    by_state: Dict[str, List[str]] = {"modified": [], "missing": [], "equal": [], "unknown": []}
    for path, state in zip(listed, states):
        by_state[state].append(path)
    added = sorted(path for path in _package_files(site, distribution.packages()) if path not in distribution.hashes)
    return Inventory(by_state["modified"], by_state["missing"], added, set(by_state["equal"]), set(by_state["unknown"]))


def _within(path: str, directories: Iterable[str]) -> bool:
    path = os.path.normpath(path)
    return any(path.startswith(directory + os.sep) for directory in directories)


def _state(site: str, path: str, recorded: str) -> str:
    full = os.path.normpath(os.path.join(os.path.realpath(site), path))
    if not os.path.lexists(full):
        return "missing"
    algorithm, _separator, expected = recorded.partition("=")
    if algorithm not in ALGORITHMS or not expected or not os.path.isfile(full):
        # What RECORD lists as a file and gives a hash, but is none, is not as recorded.
        return "modified" if expected and not os.path.isfile(full) else "unknown"
    digest = hashlib.new(algorithm)
    with open(full, "rb", buffering=0) as file:
        data = start = file.read(1 << 20)
        while data:
            digest.update(data)
            data = file.read(1 << 20)
    if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=") == expected.rstrip("=").encode():
        return "equal"
    if path.startswith("../") and start.startswith(b"#!"):
        return "unknown"  # a launcher: its first line names the interpreter and is rewritten when an environment moves
    return "modified"


def _package_files(site: str, packages: Iterable[str]) -> Iterable[str]:
    """Every file and every link to a directory below the packages, relative to site-packages; compiled files do not count."""
    for package in packages:
        for directory, names, files in os.walk(os.path.join(site, package), onerror=_raise):
            names[:] = [name for name in names if name != "__pycache__"]
            links = [name for name in names if os.path.islink(os.path.join(directory, name))]
            for name in files + links:
                if not name.endswith(".pyc"):
                    yield os.path.relpath(os.path.join(directory, name), site)


def _raise(error: OSError) -> None:
    raise error
