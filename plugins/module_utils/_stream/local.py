# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a target has already: its releases, an interrupted staging, and seeds, which are other directories that it may copy from."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.source import hash_known
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, TreeError, scan

INTERPRETERS = b"interpreters"


@dataclass
class LocalTree:
    """A tree on this host. ``release`` is its id, empty for anything but a release."""

    root: bytes
    entries: List[Entry]
    hashes: Dict[bytes, str]
    release: str = ""
    by_path: Dict[bytes, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_path = {entry.path: entry for entry in self.entries}


class Origin(NamedTuple):
    """A file on this host with wanted content. ``trusted``: its stat proves that it is still what was hashed."""

    where: str  # "release <id>", "dest" or "seed <path>"
    root: bytes
    entry: Entry
    trusted: bool


class Found:
    """Files with wanted content: any, and such in releases that are the same in all that an inode holds."""

    def __init__(self, wanted: Set[str]) -> None:
        self._wanted = wanted
        self._any: Dict[str, Origin] = {}
        self._same: Dict[Tuple[str, int, int], Origin] = {}

    def add(self, sha256: str, origin: Origin, release: bool) -> None:
        if sha256 in self._wanted:
            self._any.setdefault(sha256, origin)
            if release:
                self._same.setdefault((sha256, origin.entry.mode, origin.entry.mtime_ns), origin)

    def missing(self) -> Set[str]:
        return self._wanted - self._any.keys()

    def any(self, sha256: str) -> Optional[Origin]:
        return self._any.get(sha256)

    def same(self, sha256: str, entry: Entry) -> Optional[Origin]:
        return self._same.get((sha256, entry.mode, entry.mtime_ns))


class Local:
    """The trees of one host around one store. Each is listed when it is asked for, and only once."""

    def __init__(self, channel: Channel, store: _releases.Store, seeds: Sequence[str], full: bool) -> None:
        self._store = store
        self._seeds = [os.path.realpath(os.fsencode(seed)) for seed in seeds]
        self._full = full
        self._progress = Progress(channel, "local")
        self._trees: Dict[str, LocalTree] = {}
        self.index = HashIndex(index_path(os.fsencode(store.root)))
        self._seed_indexes: List[HashIndex] = []
        self.missing_seeds = [seed for seed, real in zip(seeds, self._seeds) if not os.path.isdir(real)]

    def release(self, release: str) -> LocalTree:
        """A release, every file of which is hashed."""
        if release not in self._trees:
            self._trees[release] = self.read(os.fsencode(self._store.path(release)), release)
        return self._trees[release]

    def read(self, root: bytes, release: str = "") -> LocalTree:
        entries = scan(root)
        return LocalTree(root, entries, hash_known(root, entries, self.index, self._full, self._progress), release)

    def base(self) -> Optional[LocalTree]:
        """The tree that is likely to be most like a new one: the active release, else the newest, else the directory at dest."""
        releases = self._store.releases()
        likely = self._store.active() or (releases[-1] if releases else "")
        if likely in releases:
            return self.release(likely)
        if self._store.dest_kind() == "directory":
            if "dest" not in self._trees:
                self._trees["dest"] = self._read_dest()
            return self._trees["dest"]
        return None

    def _read_dest(self) -> LocalTree:
        """The directory at dest as far as it can be read: a server may run from it, with sockets and logs in it."""
        root = os.fsencode(self._store.dest)
        entries = scan(root, strict=False)
        hashes = self._hash_readable(root, [entry for entry in entries if entry.kind == FILE], self.index)
        return LocalTree(root, [entry for entry in entries if entry.kind != FILE or entry.path in hashes], hashes)

    def find(self, wanted: Dict[str, int]) -> Found:
        """Look for content, given as SHA-256 and size: in the likeliest tree, then in others for what was not found yet."""
        found = Found(set(wanted))
        base = self.base()
        if base:
            self._add_tree(found, base)
        for release in reversed(self._store.releases()):
            if release in self._trees:
                self._add_tree(found, self._trees[release])
            elif self._may_have(release, found.missing()):
                root = os.fsencode(self._store.path(release))
                self._search(found, f"release {release}", root, self.index, wanted, True)
        if self._store.dest_kind() == "directory" and "dest" not in self._trees:
            self._search(found, "dest", os.fsencode(self._store.dest), self.index, wanted, False)
        for seed in self._seeds:
            if os.path.isdir(seed):
                index = HashIndex(index_path(seed))
                self._seed_indexes.append(index)
                self._search(found, f"seed {os.fsdecode(seed)}", seed, index, wanted, False)
        return found

    def _may_have(self, release: str, missing: Set[str]) -> bool:
        """Whether a release's manifest lists any of the content; one without a manifest may have it."""
        try:
            with open(self._store.manifest_path(release), "rb") as file:
                listed = {line.lstrip(b"\\")[:64] for line in file}
        except OSError:
            return True
        return any(sha256.encode() in listed for sha256 in missing)

    def _add_tree(self, found: Found, tree: LocalTree) -> None:
        where = f"release {tree.release}" if tree.release else "dest"
        for path, sha256 in tree.hashes.items():
            entry = tree.by_path[path]
            trusted = self.index.lookup(entry) == sha256
            found.add(sha256, Origin(where, tree.root, entry, trusted), bool(tree.release))

    def _search(
        self, found: Found, where: str, root: bytes, index: HashIndex, wanted: Dict[str, int], release: bool
    ) -> None:
        """Add a tree's files, of which only those that have the size of something missing need be hashed."""
        sizes = {wanted[sha256] for sha256 in found.missing()}
        if not sizes:
            return
        entries = [e for e in scan(root, strict=release) if e.kind == FILE and e.size in sizes]
        hashes: Dict[bytes, str] = {}
        if release:
            hashes = hash_known(root, entries, index, self._full, self._progress)
        else:
            hashes = self._hash_readable(root, entries, index)
        for entry in entries:
            sha256 = hashes.get(entry.path)
            if sha256:
                found.add(sha256, Origin(where, root, entry, index.lookup(entry) == sha256), release)

    def _hash_readable(self, root: bytes, entries: List[Entry], index: HashIndex) -> Dict[bytes, str]:
        """Hash what can be read of a directory that others may be writing to; what cannot is no content to use."""
        readable = [entry for entry in entries if os.access(os.path.join(root, entry.path), os.R_OK)]
        try:
            return hash_known(root, readable, index, self._full, self._progress)
        except TreeError:  # one that changed; the others one by one
            hashes: Dict[bytes, str] = {}
            for entry in readable:
                try:
                    hashes.update(hash_known(root, [entry], index, self._full, self._progress))
                except TreeError:
                    continue
            return hashes

    def save(self) -> None:
        """Remember what was hashed. Records of files that are in no release any more are dropped when all were looked at."""
        self.index.save(prune=set(self._store.releases()) <= set(self._trees))
        for index in self._seed_indexes:
            index.save()
