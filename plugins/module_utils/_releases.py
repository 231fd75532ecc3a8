# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases: the store beside a dest, what is active in it, and what is known of each release.

The store of ``/root/venv`` is ``/root/venv.releases``::

    <id>/             a release: one tree, never changed once committed; the id is the start of its received tree digest
    meta/<id>.json    its digests, size and origin, written before the release appears
    meta/<id>.sha256  its manifest
    meta/<id>.unit/   the unit files it served with, drop-ins and what enables them, saved when another release took over
    history.jsonl     one event a line, fsynced: what became active when, and what its server gate said
    staging/          what is being received
    failed/           what is kept of releases that were taken back, for diagnosis
    <family>.reserve  space that going back needs on a full disk, while a release is not confirmed
    interpreters/     base interpreters that were shipped with releases, each under the id of its own tree

``dest`` is a symbolic link to the active release. A directory at ``dest`` is one that was never deployed; it can be adopted.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from typing import Any, Dict, List, Optional, Sequence

RELEASE_ID = re.compile(r"[0-9a-f]{16}\Z")
ID_LENGTH = 16
GOOD = ("passed", "adopted")
NO_RELEASE = "before"  # in place of an id: what was there before there was any release
AT_FDCWD = -100
RENAME_EXCHANGE = 2


class ReleaseError(Exception):
    """What was asked of the store cannot be done; the message names the release or path and the way out."""


def release_id(digest: str) -> str:
    return digest[:ID_LENGTH]


class Store:
    """The releases of one dest (an absolute path). Creates nothing until something is written."""

    def __init__(self, dest: str, root: str = "") -> None:
        if not os.path.isabs(dest) or os.path.normpath(dest) in ("/", "//"):
            raise ReleaseError(f"dest must be an absolute path of a directory of its own, not {dest!r}")
        self.dest = os.path.normpath(dest)
        self.root = root or self.dest + ".releases"
        self.meta = os.path.join(self.root, "meta")
        self.staging = os.path.join(self.root, "staging")
        self.history_path = os.path.join(self.root, "history.jsonl")

    def interpreters(self) -> Store:
        """The store of shipped interpreters, none of which is ever active."""
        root = os.path.join(self.root, "interpreters")
        return Store(os.path.join(root, "active"), root)

    def path(self, release: str) -> str:
        return os.path.join(self.root, release)

    def manifest_path(self, release: str) -> str:
        return os.path.join(self.meta, release + ".sha256")

    def create(self) -> None:
        for directory in (self.root, self.meta):
            os.makedirs(directory, mode=0o755, exist_ok=True)

    # what is there

    def releases(self) -> List[str]:
        """Ids of the committed releases, the newest commit last."""
        try:
            with os.scandir(self.root) as found:  # a link is what an adoption left that was cut off
                names = [
                    item.name for item in found if RELEASE_ID.match(item.name) and item.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        return sorted(names, key=lambda name: (self.describe(name).get("committed", ""), name))

    def describe(self, release: str) -> Dict[str, Any]:
        """The release's metadata; empty when it has none, only ``damaged`` when it cannot be read."""
        try:
            with open(os.path.join(self.meta, release + ".json"), encoding="utf-8") as file:
                data: Dict[str, Any] = json.load(file)
                return data
        except FileNotFoundError:
            return {}
        except ValueError as error:
            return {"damaged": f"{file.name} is damaged ({error}); remove the release and deploy it again"}

    def write_meta(self, release: str, data: Dict[str, Any]) -> None:
        self.create()
        write_atomically(os.path.join(self.meta, release + ".json"), json.dumps(data, indent=1, sort_keys=True) + "\n")

    def dest_kind(self) -> str:
        """What stands at dest: ``absent``, ``release`` (a link into the store), ``link``, ``directory``, ``empty``, ``other``."""
        try:
            mode = os.lstat(self.dest).st_mode
        except FileNotFoundError:
            return "absent"
        if stat.S_ISLNK(mode):
            return "release" if self.active() else "link"
        if stat.S_ISDIR(mode):
            return "directory" if os.listdir(self.dest) else "empty"
        return "other"

    def active(self) -> Optional[str]:
        """The id of the release that dest leads to; ``None`` when dest is no link into the store."""
        try:
            target = os.path.join(os.path.dirname(self.dest), os.readlink(self.dest))
        except OSError:
            return None
        name = os.path.basename(target)
        inside = os.path.normpath(os.path.dirname(target)) == self.root
        return name if inside and RELEASE_ID.match(name) else None

    def history(self) -> List[Dict[str, Any]]:
        """All events, the oldest first; a line that a crash cut off is passed over."""
        try:
            with open(self.history_path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        events = []
        for line in lines:
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
        return events

    def verdict(self, release: str) -> str:
        """What the last server gate of a release said: ``passed``, ``failed``, ``adopted``, or empty when none ran."""
        verdicts = [
            event["verdict"] for event in self.history() if event.get("release") == release and event.get("verdict")
        ]
        return str(verdicts[-1]) if verdicts else "adopted" if self.describe(release).get("adopted") else ""

    def previous(self) -> Optional[str]:
        """The way back: the last release before the active one that served well and is still here. Never the newest by date."""
        active, present = self.active(), set(self.releases())
        for event in reversed(self.history()):
            release = event.get("release")
            if event.get("event") in ("activated", "adopted") and release != active and release in present:
                if self.verdict(release) in GOOD:
                    return str(release)
        return None

    def way_back(self) -> str:
        """What a deployment now would go back to: the active release unless its last server gate failed, else the previous good one."""
        active = self.active()
        return active if active and self.verdict(active) != "failed" else self.previous() or ""

    def listing(self) -> Dict[str, Any]:
        """Everything above as data, for a module's result."""
        return {
            "dest": self.dest,
            "dest_kind": self.dest_kind(),
            "active": self.active(),
            "previous": self.previous(),
            "releases": [
                {"id": name, "verdict": self.verdict(name), "path": self.path(name), **self.describe(name)}
                for name in self.releases()
            ],
            "history": self.history()[-50:],
        }

    # what changes it

    def record(self, event: str, release: str, **fields: Any) -> None:
        """Append one event to the history, on disk before this returns."""
        self.create()
        line = json.dumps({"time": now(), "event": event, "release": release, **fields}, sort_keys=True)
        with open(self.history_path, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a crash cut the last line off
                    file.write(b"\n")
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def need(self, release: str) -> str:
        """The path of a committed release; raises ReleaseError when there is none of that id."""
        if release not in self.releases():
            known = ", ".join(self.releases()) or "none"
            raise ReleaseError(f"no release {release} in {self.root}; it has: {known}")
        return self.path(release)

    def activate(self, release: str, actor: str = "") -> bool:
        """Let dest lead to a release, in one rename. Gives whether that changed anything."""
        if not self.would_activate(release):
            return False
        if self.dest_kind() == "empty":
            os.rmdir(self.dest)
        before = self.active()
        if before and before not in {event.get("release") for event in self.history()}:
            self.record("adopted", before, actor=actor, verdict="adopted")  # a crash came between exchange and record
        temporary = os.path.join(self.root, "next")
        remove_link(temporary)
        os.symlink(os.path.join(os.path.basename(self.root), release), temporary)
        os.replace(temporary, self.dest)
        sync_directory(os.path.dirname(self.dest))
        self.record("activated", release, actor=actor, before=before)
        return True

    def would_activate(self, release: str) -> bool:
        """Whether activating a release would change anything; raises ReleaseError when it cannot be done."""
        self.need(release)
        if self.active() == release:
            return False
        kind = self.dest_kind()
        if kind in ("directory", "other", "link"):
            what = {"directory": "a directory", "other": "no directory", "link": "a link to somewhere else"}[kind]
            way_out = "adopt it first" if kind == "directory" else "move it away"
            raise ReleaseError(f"{self.dest} is {what}, not a release; {way_out}")
        return True

    def adoption_id(self, digest: str) -> str:
        """The id that the directory at dest gets. A release of the same tree keeps its own: each has a unit of its own."""
        release = release_id(digest)
        if release in self.releases():
            return release_id(hashlib.sha256(b"adopted " + digest.encode()).hexdigest())
        return release

    def adopt(self, release: str, actor: str = "") -> None:
        """Make the directory at dest a release and dest a link to it, in one atomic exchange.

        Its metadata, manifest and unit are written before, so that a crash leaves either a directory or a whole release.
        """
        path = self.path(release)
        remove_link(path)
        os.symlink(os.path.join(os.path.basename(self.root), release), path)
        try:
            exchange(self.dest, path)
        except OSError as error:
            remove_link(path)
            raise ReleaseError(
                f"cannot exchange {self.dest} with {path}: {error.strerror}; both must be on one file system"
            ) from error
        sync_directory(self.root)
        sync_directory(os.path.dirname(self.dest))
        self.record("adopted", release, actor=actor, verdict="adopted")

    def judge(self, release: str, verdict: str, actor: str = "") -> bool:
        """Record what a release's server gate said. Gives whether that is news."""
        self.need(release)
        if self.verdict(release) == verdict:
            return False
        self.record("judged", release, actor=actor, verdict=verdict)
        return True

    def deactivate(self, actor: str = "") -> None:
        """Remove the link at dest, so that no release is live."""
        active = self.active()
        if active:
            os.unlink(self.dest)
            sync_directory(os.path.dirname(self.dest))
            self.record("deactivated", active, actor=actor)

    def check_removable(self, release: str) -> None:
        """Raise ReleaseError for the release that is live and for the way back from it."""
        if release == self.active():
            raise ReleaseError(
                f"release {release} is active at {self.dest} and cannot be removed; activate another one first"
            )
        if release == self.previous():
            raise ReleaseError(f"release {release} is the way back from the active one and cannot be removed")

    def remove(self, release: str, actor: str = "") -> None:
        """Delete a release that is neither active nor the way back."""
        self.check_removable(release)
        doomed = os.path.join(self.root, f"removed-{release}")
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(self.path(release), doomed)
        self.record("removed", release, actor=actor)
        shutil.rmtree(doomed)
        for name in (release + ".json", release + ".sha256"):
            remove_link(os.path.join(self.meta, name))
        shutil.rmtree(self.unit_copy(release), ignore_errors=True)

    def unused_interpreters(self, without: Sequence[str] = ()) -> List[str]:
        """Ids of the shipped interpreters that no release uses, or would use ``without`` some of them."""
        used = {self.describe(name).get("interpreter") for name in self.releases() if name not in without}
        return [name for name in self.interpreters().releases() if name not in used]

    def prunable(self, keep: int) -> List[str]:
        """What pruning removes: all but the newest ``keep``, the active one and the way back."""
        names = self.releases()
        kept = {self.active(), self.previous(), *(names[-keep:] if keep else [])}
        return [name for name in names if name not in kept]

    def unit_copy(self, release: str) -> str:
        """The folder of the unit files that a release served with; ``_service.family`` reads and writes it."""
        return os.path.join(self.meta, release + ".unit")


def exchange(one: str, other: str) -> None:
    """Swap two paths of one file system atomically (renameat2 with RENAME_EXCHANGE)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "this C library has no renameat2")
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_atomically(path: str, content: str | bytes, mode: int = 0o644) -> None:
    """Replace a file in one rename, on disk before this returns."""
    temporary = f"{path}.{os.getpid()}.new"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove_link(temporary)
        raise
    sync_directory(os.path.dirname(path))


def remove_link(path: str) -> None:
    """Delete a file or symbolic link if there is one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def now() -> str:
    """The time in UTC, such as ``2026-01-31T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
