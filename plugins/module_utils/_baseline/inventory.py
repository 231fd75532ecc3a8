# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files are as baselines say, which are not, which are gone, and which stand there that no baseline knows."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Container, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import (
    Installed,
    is_compiled,
    is_installers,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import WHOLE, Expected, Reference, Territory
from ansible_collections.ddtree.fleet.plugins.module_utils._files import hash_of, open_regular, read_beginning
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import DIRECTORY, FILE, LINK, Entry, scan

# What stands in site-packages without belonging to a distribution: virtualenv's, ensurepip's and Debian's.
OWNERLESS = ("distutils-precedence.pth", "_virtualenv.py", "_virtualenv.pth", "README.txt")
LAUNCHER_SIZE = 1 << 20


@dataclass
class Inventory:
    """How files stand to one baseline. ``unverified`` are those that it lists without saying what must be in them."""

    modified: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    added: List[str] = field(default_factory=list)
    equal: List[str] = field(default_factory=list)
    unverified: List[str] = field(default_factory=list)

    def lists(self) -> Dict[str, List[str]]:
        return {
            "modified": self.modified,
            "missing": self.missing,
            "added": self.added,
            "equal": self.equal,
            "unverified": self.unverified,
        }


def take_inventories(
    installed: Installed, references: Sequence[Reference], territories: Sequence[Optional[Territory]]
) -> List[Inventory]:
    """One for each baseline, with what was added in its territory, if it has one. Everything is hashed in one go.

    Raises TreeError or OSError for what cannot be read.
    """
    scanned = [scan_territory(installed, territory) for territory in territories]
    hashes = _hashes(installed.site, references, scanned)
    inventories = []
    for reference, territory, seen in zip(references, territories, scanned):
        inventory = Inventory()
        lists = inventory.lists()
        for path in sorted(reference.files):
            if is_compiled(path) or (path.endswith(".pyc") and not reference.files[path].algorithm):
                continue
            lists[_state(installed.site, path, reference, hashes)].append(path)
        if territory:
            counting = seen if reference.links else {path: one for path, one in seen.items() if one.kind == FILE}
            inventory.added = _added(counting, territory, reference.files)
        inventories.append(inventory)
    return inventories


def scan_territory(installed: Installed, territory: Optional[Territory]) -> Dict[str, Entry]:
    """What stands below the directories of a territory, by path relative to site-packages."""
    entries: Dict[str, Entry] = {}
    for root in territory.roots() if territory else []:
        full = os.path.join(installed.site, root)
        for entry in scan(os.fsencode(full)) if os.path.isdir(full) else []:
            path = os.path.join(root, os.fsdecode(entry.path))
            entries[path] = entry._replace(path=os.fsencode(path))
    return entries


def _added(entries: Mapping[str, Entry], territory: Territory, known: Container[str]) -> List[str]:
    """A compiled file counts only where it stands alone, since it is imported then."""
    return sorted(
        path
        for path, entry in entries.items()
        if entry.kind != DIRECTORY
        and path not in known
        and territory.has(path)
        and not (path.endswith(".pyc") and path[:-1] in entries)
        and path not in OWNERLESS
        and not is_installers(path)
    )


def strays(installed: Installed, references: Iterable[Reference]) -> List[str]:
    """The files in all of site-packages that neither a distribution nor a baseline lists; where one lists nothing, none."""
    known = installed.listed.union(*(reference.files for reference in references))
    found = _added(scan_territory(installed, WHOLE), WHOLE, known)
    return [path for path in found if path.partition("/")[0] not in installed.unlisted]


def _hashes(
    site: str, references: Iterable[Reference], scanned: Iterable[Mapping[str, Entry]]
) -> Dict[Tuple[str, str], bytes]:
    """The digest of every file that some baseline has one for, by path and algorithm; all SHA-256 on all processors."""
    known = {path: entry for seen in scanned for path, entry in seen.items()}
    many: Dict[str, Entry] = {}
    hashes: Dict[Tuple[str, str], bytes] = {}
    for reference in references:
        for path, expected in reference.files.items():
            if expected.algorithm in ("", LINK) or path in many or (path, expected.algorithm) in hashes:
                continue
            entry = known.get(path) or file_entry(site, path)
            if entry is not None and entry.kind == FILE and expected.algorithm == "sha256":
                many[path] = entry
            elif os.path.isfile(os.path.join(site, path)):
                with open_regular(os.path.join(site, path)) as file:
                    hashes[path, expected.algorithm] = hash_of(file, expected.algorithm)
    for name, digest in hash_tree(os.fsencode(site), many.values()).items():
        hashes[os.fsdecode(name), "sha256"] = bytes.fromhex(digest)
    return hashes


def file_entry(site: str, path: str) -> Optional[Entry]:
    """``None`` for what is no regular file, also where it is a link to one."""
    try:
        st = os.lstat(os.path.join(site, path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(st.st_mode):
        return None
    name = os.fsencode(path)
    return Entry(
        name, FILE, st.st_mode & 0o777, st.st_size, b"", st.st_mtime_ns, st.st_ctime_ns, st.st_ino, st.st_nlink
    )


def _state(site: str, path: str, reference: Reference, hashes: Dict[Tuple[str, str], bytes]) -> str:
    expected, full = reference.files[path], os.path.join(site, path)
    if expected.algorithm == LINK:
        return _link_state(full, expected)
    found = hashes.get((path, expected.algorithm))
    if found is None:
        if not os.path.lexists(full):
            return "missing"
        return "modified" if expected.algorithm else "unverified"
    if found == expected.digest:
        return "equal"
    if path.startswith("../"):
        return _launcher_state(full, path, reference)
    return "modified"


def _link_state(full: str, expected: Expected) -> str:
    try:
        return "equal" if os.fsencode(os.readlink(full)) == expected.digest else "modified"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "modified"


def _launcher_state(full: str, path: str, reference: Reference) -> str:
    """A launcher's first lines name the interpreter and change with the environment's place; the rest must be equal."""
    found = read_beginning(full, LAUNCHER_SIZE)
    if not found.startswith(b"#!"):
        return "modified"
    if reference.content is None:
        return "unverified"
    return "equal" if after_shebang(found) == after_shebang(reference.content(path, LAUNCHER_SIZE)) else "modified"


def after_shebang(data: bytes) -> bytes:
    """A script without the lines that name its interpreter, also where they are the form for a path that is no shebang."""
    lines = 3 if data.startswith(b"#!/bin/sh\n'''exec' ") else 1 if data.startswith(b"#!") else 0
    return data.split(b"\n", lines)[-1] if lines else data
