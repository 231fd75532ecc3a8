# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Staging: the tree that a release is made in, beside the releases. An interrupted one is what the next stream goes on with."""

from __future__ import annotations

import os
import shutil
from typing import AbstractSet, Dict, List, Optional, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import bytecode
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.large import RESUME_FROM, Prefixes
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.local import Found, Local, LocalTree, Origin
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.place import COPIED, LINKED, REFLINKED, Placer
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    DIRECTORY,
    FILE,
    IGNORED_NAME,
    LINK,
    Entry,
    TreeError,
    scan,
    show,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._workers import batches_in_order, processors, run_workers

BLOCK = 4096
SPARE_BYTES = 64 << 20
ALONE_FILES = 256  # below, starting processes takes longer than placing
KEPT, REPEATED, SENT = "kept", "repeated", "sent"
WAYS = (KEPT, REFLINKED, LINKED, COPIED, REPEATED, SENT)

Figures = Dict[str, Dict[str, int]]


class Plan:
    """Where the content of every wanted file comes from."""

    def __init__(
        self,
        wanted: List[Entry],
        hashes: Dict[bytes, str],
        staged: Optional[LocalTree],
        link: bool,
        special: AbstractSet[bytes] = frozenset(),
    ) -> None:
        """``link``: inodes may be shared, but never those of ``special`` files, which get set-user-ID bits in the end."""
        self.wanted = wanted
        self.hashes = hashes
        self._link = link
        self._special = special
        self.staged = staged
        self.how: Dict[bytes, str] = {}
        self.origins: Dict[bytes, Tuple[Origin, bool]] = {}  # and whether the inode may be shared

    def decide(self, found: Found) -> None:
        """Staged content first, then what the host has, then what arrives anyway under another name, then the stream."""
        files = [entry for entry in self.wanted if entry.kind == FILE]
        for entry in files:
            if self._keepable(entry):
                self.how[entry.path] = KEPT
        arriving = {self.hashes[path] for path in self.how}
        for entry in files:
            if entry.path in self.how:
                continue
            sha256 = self.hashes[entry.path]
            same = found.same(sha256, entry) if self.may_share(entry) else None
            other = same or found.any(sha256)
            if other:
                self.how[entry.path] = LINKED if same else COPIED
                self.origins[entry.path] = other, bool(same)
            elif sha256 in arriving:
                self.how[entry.path] = REPEATED
            else:
                arriving.add(sha256)
                self.how[entry.path] = SENT

    def _keepable(self, new: Entry) -> bool:
        """Whether the staged file may become the wanted one in place: an inode shared with a release must not be changed."""
        if not self.staged or self.staged.hashes.get(new.path) != self.hashes.get(new.path):
            return False
        old = self.staged.by_path[new.path]
        return old.nlink == 1 or (self.may_share(new) and (old.mode, old.mtime_ns) == (new.mode, new.mtime_ns))

    def may_share(self, entry: Entry) -> bool:
        return self._link and entry.path not in self._special

    def sent(self) -> List[int]:
        """The numbers of the files that must come."""
        return [number for number, entry in enumerate(self.wanted) if self.how.get(entry.path) == SENT]

    def figures(self) -> Tuple[Figures, Figures]:
        """Files and bytes by how they come to be, and those that are here already by where they are taken from."""
        how: Figures = {way: {"files": 0, "bytes": 0} for way in WAYS}
        where: Figures = {}
        for entry in self.wanted:
            if entry.kind == FILE:
                _count(how[self.how[entry.path]], entry)
                if entry.path in self.origins:
                    _count(where.setdefault(self.origins[entry.path][0].where, {"files": 0, "bytes": 0}), entry)
        return how, where

    def space(self) -> int:
        """Bytes that the tree takes on the disk beyond what it shares, its bytecode included."""
        new = [e for e in self.wanted if e.kind == FILE and self.how[e.path] in (COPIED, REPEATED, SENT)]
        needed = sum(-(-entry.size // BLOCK) * BLOCK for entry in new) + BLOCK * len(new)
        return needed + sum(entry.size for entry in bytecode.modules(new)) + SPARE_BYTES


def _count(figures: Dict[str, int], entry: Entry) -> None:
    figures["files"] += 1
    figures["bytes"] += entry.size


class Staging:
    """The staged tree of one store."""

    def __init__(self, store: _releases.Store) -> None:
        self._store = store
        self.tree = os.fsencode(os.path.join(store.staging, "tree"))
        self._placer = Placer(self.tree)

    def read(self, local: Local) -> Optional[LocalTree]:
        for path in (os.fsencode(self._store.staging), self.tree):
            if os.path.islink(path):
                raise TreeError(f"{show(path)} is a link, which no stream makes; remove it and run again")
        return local.read(self.tree) if os.path.isdir(self.tree) else None

    def prefixes(self, plan: Plan) -> Dict[int, Prefixes]:
        """The beginnings of large files that an interrupted stream left, by the number of the file."""
        found: Dict[int, Prefixes] = {}
        for number in plan.sent():
            entry = plan.wanted[number]
            old = plan.staged.by_path.get(entry.path) if plan.staged else None
            if old and old.kind == FILE and old.nlink == 1 and min(old.size, entry.size) >= RESUME_FROM:
                found[number] = Prefixes(os.path.join(self.tree, entry.path), entry.size)
        return found

    def build(self, plan: Plan, resumed: Dict[int, Prefixes], progress: Progress) -> None:
        """Put directories, links and everything that is already on this host into the tree."""
        self._store.create()
        os.makedirs(self.tree, mode=0o755, exist_ok=True)
        self._clear(plan, {plan.wanted[number].path for number in resumed})
        files = []
        for entry in plan.wanted:
            path = os.path.join(self.tree, entry.path)
            if entry.kind == DIRECTORY:
                if not os.path.isdir(path):
                    os.mkdir(path, 0o700)
            elif entry.kind == LINK:
                _make_link(path, entry)
            elif entry.path in plan.origins or plan.how[entry.path] == KEPT:
                files.append(entry)

        def work(place: int) -> bytes:
            return self._reuse(plan, files[place]).encode()

        def take(place: int, how: bytes) -> None:
            plan.how[files[place].path] = how.decode()
            progress.add(1, files[place].size)

        if processors() > 1 and len(files) >= ALONE_FILES:
            run_workers(batches_in_order([entry.size for entry in files]), processors(), work, take)
        else:
            for place in range(len(files)):
                take(place, work(place))

    def _clear(self, plan: Plan, resumed: Set[bytes]) -> None:
        """Remove what the wanted tree has not, or has as something else, and all bytecode, which nothing lists."""
        for folder, names, files in os.walk(self.tree):
            path = os.path.join(folder, IGNORED_NAME)
            if IGNORED_NAME in names:
                names.remove(IGNORED_NAME)
            if os.path.islink(path) or IGNORED_NAME in files:
                os.unlink(path)
            elif os.path.isdir(path):
                shutil.rmtree(path)
        wanted = {entry.path: entry for entry in plan.wanted}
        for old in scan(self.tree):
            path, new = os.path.join(self.tree, old.path), wanted.get(old.path)
            if new is not None and new.kind == old.kind:
                if old.kind != FILE or plan.how[new.path] == KEPT or old.path in resumed:
                    continue
            if not os.path.lexists(path):  # went with its directory
                continue
            if old.kind == DIRECTORY:
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def _reuse(self, plan: Plan, entry: Entry) -> str:
        if plan.how[entry.path] == KEPT:
            path = os.path.join(self.tree, entry.path)
            os.chmod(path, entry.mode)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
            return KEPT
        origin, link = plan.origins[entry.path]
        sha256 = plan.hashes[entry.path]
        return self._placer.place(origin.root, origin.entry, entry, sha256, link, origin.trusted)

    def repeat(self, plan: Plan) -> None:
        """Make the files whose content has arrived under another name."""
        first = {plan.hashes[e.path]: e for e in plan.wanted if plan.how.get(e.path) in (SENT, KEPT)}
        for entry in plan.wanted:
            if plan.how.get(entry.path) == REPEATED:
                sent = first[plan.hashes[entry.path]]
                st = os.lstat(os.path.join(self.tree, sent.path))
                old = sent._replace(inode=st.st_ino, ctime_ns=st.st_ctime_ns)
                link = plan.may_share(sent) and plan.may_share(entry)
                link = link and (old.mode, old.mtime_ns) == (entry.mode, entry.mtime_ns)
                self._placer.place(self.tree, old, entry, plan.hashes[entry.path], link, True)

    def finish_directories(self, wanted: List[Entry]) -> None:
        os.chmod(self.tree, 0o755)
        for entry in reversed(wanted):
            if entry.kind == DIRECTORY:
                os.chmod(os.path.join(self.tree, entry.path), entry.mode)

    def publish(self, release: bytes) -> None:
        """Give the tree its name, in one rename or, where a damaged release is repaired, one exchange."""
        if os.path.isdir(release):
            _releases.exchange(os.fsdecode(self.tree), os.fsdecode(release))
        else:
            os.rename(self.tree, release)
        _releases.sync_directory(self._store.root)
        shutil.rmtree(self._store.staging)

    def check_space(self, needed: int) -> None:
        """Raise TreeError when the disk has less free than the plan needs."""
        place = self._store.root
        while not os.path.exists(place):
            place = os.path.dirname(place)
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        if free < needed:
            raise TreeError(
                f"{self._store.root} has {readable_size(free)} free, the release needs {readable_size(needed)}; free space, "
                "prune old releases, or set dest to another file system"
            )


def _make_link(path: bytes, entry: Entry) -> None:
    if os.path.lexists(path):
        if os.readlink(path) == entry.target:
            return
        os.unlink(path)
    os.symlink(entry.target, path)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


def readable_size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
