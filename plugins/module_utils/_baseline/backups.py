# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups that engineers left beside the files they changed: what a backup holds is what its file was before.

Of several backups of one file the oldest by its modification time is the baseline, as it is copied before the first change
and later ones hold what was changed already; of several of one time the one with the shortest name.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import Distribution, Installed
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.inventory import file_entry, scan_territory
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import (
    WHOLE,
    Baseline,
    BaselineError,
    Expected,
    Reference,
    Territory,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning, show_name, some
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry


class BackupsBaseline:
    """Files against their own backups. Of files without one it says nothing, so none is an added one."""

    def __init__(self, installed: Installed, baseline: Baseline) -> None:
        self.installed = installed
        self.patterns = baseline.patterns

    def reference(self, distribution: Optional[Distribution], versions: Sequence[str]) -> Reference:
        territory = self.installed.territory(distribution) if distribution else WHOLE
        files = set(distribution.files) if distribution else set()
        backups: Dict[str, List[Entry]] = {}
        for entry in self._entries(territory, files):
            file = backed_up(os.fsdecode(entry.path), self.patterns)
            if file:
                backups.setdefault(file, []).append(entry)
        if not backups:
            where = f"below {some(territory.roots(), 3)}" if distribution else "in site-packages"
            raise BaselineError(
                f"no file named as a backup ({', '.join(self.patterns)}) {where}",
                "say in patterns how backups are named, or compare with another baseline",
            )
        oldest = {file: min(found, key=_age) for file, found in backups.items()}
        hashes = hash_tree(os.fsencode(self.installed.site), oldest.values())
        warnings = [
            f"{show_name(file)} has {len(found)} backups; "
            f"the oldest, {show_name(os.fsdecode(oldest[file].path))}, is its baseline"
            for file, found in sorted(backups.items())
            if len(found) > 1
        ]

        def content(path: str, limit: int) -> bytes:
            return read_beginning(os.path.join(self.installed.site, os.fsdecode(oldest[path].path)), limit)

        expected = {file: Expected("sha256", bytes.fromhex(hashes[entry.path])) for file, entry in oldest.items()}
        return Reference("backups", expected, content, complete=False, warnings=warnings)

    def _entries(self, territory: Territory, files: Set[str]) -> List[Entry]:
        """Files in a territory, and beside modules that stand in site-packages itself."""
        scanned = scan_territory(self.installed, territory).items()
        found = [entry for path, entry in scanned if entry.kind == FILE and territory.has(path)]
        if "" not in territory.own:
            beside = [name for name in self.installed.names if backed_up(name, self.patterns) in files]
            found += [entry for entry in (file_entry(self.installed.site, name) for name in beside) if entry]
        return found


def _age(entry: Entry) -> Tuple[int, int, bytes]:
    return entry.mtime_ns, len(entry.path), entry.path


def backed_up(path: str, patterns: Sequence[str]) -> str:
    """The file that a backup is of, by the first pattern that matches; '' for what is no backup."""
    directory, name = os.path.split(path)
    for pattern in patterns:
        match = re.fullmatch("(.+?)" + fnmatch.translate(pattern[1:]), name, re.DOTALL)
        if match:
            return os.path.join(directory, match[1])
    return ""


def malformed_pattern(pattern: str) -> str:
    """What is wrong with a pattern, if anything: ``*`` is what the file is called, and the rest tells the backup."""
    if not pattern.startswith("*") or not pattern[1:].strip("*?") or "/" in pattern:
        return (
            f"{pattern!r} does not say how a backup is named; it must be like *.orig, with * for the name of the file"
        )
    return ""
