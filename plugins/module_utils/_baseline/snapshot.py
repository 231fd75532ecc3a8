# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A snapshot of the environment as it should be: a directory that looks like it, or a manifest of one.

The directory is another environment or release, its site-packages, or an unpacked wheel. The manifest is one that
``manifest_sha256`` or sha256sum wrote, at the top of an environment, in its site-packages, or above either.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import (
    Distribution,
    Installed,
    is_compiled,
    is_installers,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import (
    Baseline,
    BaselineError,
    Expected,
    Reference,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.wheel import installed_path
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning, show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._manifest import MAX_BYTES, ManifestError, parse
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    DIRECTORY,
    LINK,
    Entry,
    TreeError,
    scan,
)

SITE = re.compile(r"(?P<prefix>(?:.*/)?)(?:lib(?:64)?/python3[^/]*/)?site-packages/")


class SnapshotBaseline:
    """Distributions, or all of site-packages, against one snapshot."""

    def __init__(self, installed: Installed, baseline: Baseline) -> None:
        self.installed = installed
        self.path = baseline.path or ""
        self.hashes: Dict[str, bytes] = {}
        self.paths: Dict[str, bytes] = {}  # of a directory, by where the file is in the environment
        self.other: Optional[Installed] = None
        self.links = True
        if os.path.isdir(self.path):
            self.entries = self._read_directory()
        else:
            self.entries = self._read_manifest()

    def reference(self, distribution: Optional[Distribution], versions: Sequence[str]) -> Reference:
        mine = self._entries_of(distribution)
        if not mine:
            what = f"nothing of {distribution.name}" if distribution else "nothing of site-packages"
            raise BaselineError(
                f"{what} in {show_name(self.path)}",
                "a snapshot is of an environment, of its site-packages, or of an unpacked wheel",
            )
        hashes = self.hashes
        if self.other:
            wanted = {self.paths[path]: path for path in mine}
            found = hash_tree(os.fsencode(self.path), [entry for entry in mine.values() if entry.kind != LINK])
            hashes = {wanted[name]: bytes.fromhex(digest) for name, digest in found.items()}
        files = {
            path: Expected(LINK, entry.target) if entry.kind == LINK else Expected("sha256", hashes[path])
            for path, entry in mine.items()
        }
        content = self.content if self.other else None
        return Reference(f"snapshot {show_name(self.path)}", files, content, links=self.links)

    def content(self, path: str, limit: int) -> bytes:
        return read_beginning(os.path.join(self.path, os.fsdecode(self.paths[path])), limit)

    def _entries_of(self, distribution: Optional[Distribution]) -> Dict[str, Entry]:
        if distribution is None:
            listed = self.installed.listed
            return {path: entry for path, entry in self.entries.items() if not path.startswith("../") or path in listed}
        own = set(distribution.files)
        if self.other:
            try:
                own |= set(self.other.find(distribution.name).files)
            except BaselineError:
                pass  # a snapshot of a package without its dist-info
        territory = self.installed.territory(distribution, own)
        return {path: entry for path, entry in self.entries.items() if path in own or territory.has(path)}

    def _read_directory(self) -> Dict[str, Entry]:
        """Raises BaselineError for a directory that does not look like any of those that it may be."""
        sites = [
            os.path.join("lib", name, "site-packages")
            for name in sorted(_names(os.path.join(self.path, "lib")))
            if name.startswith("python3") and os.path.isdir(os.path.join(self.path, "lib", name, "site-packages"))
        ]
        if len(sites) > 1:
            raise BaselineError(f"{show_name(self.path)} with {', '.join(sites)}", "name one of them in path")
        site = os.path.join(self.path, *sites)
        entries: Dict[str, Entry] = {}
        try:
            self.other = Installed(self.path, site)
            for entry in scan(os.fsencode(self.path)):
                path = self._place(os.fsdecode(entry.path), sites[0] if sites else "")
                if path is not None and entry.kind != DIRECTORY:
                    entries[path] = entry
                    self.paths[path] = entry.path
        except (OSError, TreeError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise BaselineError(
                f"snapshot {show_name(self.path)}: {said}", "name a directory that can be read"
            ) from error
        return _counting(entries)

    def _place(self, path: str, site: str) -> Optional[str]:
        if not site:
            return installed_path(path, self.installed, path.partition("-")[0])
        if path.startswith(site + "/"):
            return path[len(site) + 1 :]
        return os.path.relpath(os.path.join(self.installed.root, path), self.installed.site)

    def _read_manifest(self) -> Dict[str, Entry]:
        shown = show_name(self.path)
        try:
            manifest = parse(read_beginning(self.path, MAX_BYTES + 1))
        except OSError as error:
            raise BaselineError(
                f"snapshot {shown}: {error.strerror}", "name a directory or a manifest in path"
            ) from error
        except ManifestError as error:
            raise BaselineError(f"manifest {shown} {error}", "write it again from a good environment") from error
        self.links = manifest.full
        names = {os.fsdecode(entry.path): entry for entry in manifest.entries if entry.kind != DIRECTORY}
        start = next((match for match in map(SITE.match, names) if match), None)
        entries = {}
        for name, entry in names.items():
            if start is None:
                place = name
            elif name.startswith(start[0]):
                place = name[len(start[0]) :]
            elif name.startswith(start["prefix"]):
                full = os.path.join(self.installed.root, name[len(start["prefix"]) :])
                place = os.path.relpath(full, self.installed.site)
            else:
                continue
            entries[place] = entry
            if entry.path in manifest.hashes:
                self.hashes[place] = bytes.fromhex(manifest.hashes[entry.path])
        return _counting(entries)


def _counting(entries: Dict[str, Entry]) -> Dict[str, Entry]:
    """Without what differs between two installs of the same."""
    return {
        path: entry
        for path, entry in entries.items()
        if not (is_compiled(path) or is_installers(path) or (path.endswith(".pyc") and path[:-1] in entries))
    }


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
