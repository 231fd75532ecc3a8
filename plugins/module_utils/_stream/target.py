# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's end of a stream: finds what is already here, receives the rest into staging, proves it, commits it.

Nothing is visible under dest at any time, and a release appears under its name in one rename, after every byte of it was
hashed and the digest of the whole tree was found equal to the source's.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest, _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._index import QUIET_NS, HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import bytecode, environment
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.source import hash_known
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    DATA,
    FILE_INDEX,
    INDEX,
    SUM,
    Channel,
    Message,
    PeerError,
    Row,
    check_rows,
    decode_path,
    entry_row,
    folder_digest,
    folders,
    parse_message,
    receive_rows,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    DIRECTORY,
    FILE,
    IGNORED_NAME,
    LINK,
    Entry,
    TreeError,
    read_file,
    scan,
    show,
    tree_digest,
)

BLOCK = 4096
SPARE_BYTES = 64 << 20
DRIFT_SHOWN = 5


@dataclass
class LocalTree:
    """A tree on this host whose content can be used again. Only a release may share inodes with a new one."""

    root: bytes
    entries: List[Entry]
    hashes: Dict[bytes, str]
    release: str = ""
    by_path: Dict[bytes, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.by_path = {entry.path: entry for entry in self.entries}


@dataclass(frozen=True)
class Origin:
    """Where a wanted file's content comes from: a local file, or the stream when ``tree`` is None."""

    tree: Optional[LocalTree]
    entry: Optional[Entry] = None
    how: str = "sent"  # "kept" (already in staging), "linked", "copied", "sent", "repeated" (same content as a sent or kept one)


class Receiver:
    """One stream into one dest."""

    def __init__(self, channel: Channel, request: Message) -> None:
        self.channel = channel
        self.store = _releases.Store(request["dest"])
        self.dest = os.fsencode(self.store.dest)
        self.check = bool(request["check"])
        self.full = bool(request["full"])
        self.who = request["who"]
        self.tree = os.fsencode(os.path.join(self.store.staging, "tree"))
        self.incoming = os.fsencode(os.path.join(self.store.staging, "incoming"))
        self.index = HashIndex(index_path(os.fsencode(self.store.root)))
        self.local: List[LocalTree] = []
        self.staged: Optional[LocalTree] = None
        self.wanted: List[Entry] = []
        self.hashes: Dict[bytes, str] = {}
        self.origins: Dict[bytes, Origin] = {}
        self.seconds: Dict[str, float] = {}

    # what is here

    def read_local(self) -> None:
        """List and hash the releases, the directory at dest if there is one, and an interrupted staging."""
        progress = Progress(self.channel, "local")
        for release in self.store.releases():
            self.local.append(self._read_tree(os.fsencode(self.store.path(release)), progress, release))
        if self.store.dest_kind() == "directory":
            self.local.append(self._read_tree(self.dest, progress))
        if os.path.isdir(self.tree):
            self.staged = self._read_tree(self.tree, progress)
        if self.local and not self.check:
            self.index.save()

    def _read_tree(self, root: bytes, progress: Progress, release: str = "") -> LocalTree:
        entries = scan(root)
        return LocalTree(root, entries, hash_known(root, entries, self.index, self.full, progress), release)

    def look(self, digest: str, repair: bool) -> Dict[str, Any]:
        """Whether the release is here and whole. Raises TreeError when it is here and was changed, unless it is to be repaired."""
        release = _releases.release_id(digest)
        tree = next((tree for tree in self.local if tree.release == release), None)
        if tree is None:
            return {"present": False, "release": release}
        if tree_digest(tree.entries, tree.hashes) == digest:
            return {"present": True, "release": release, "active": self.store.active() == release}
        if repair:
            return {"present": False, "release": release}
        raise TreeError(
            f"release {release} in {self.store.root} was changed after it was committed: {self._drift(tree)}; "
            "set repair (ddtree_repair in a deployment) to put the source's content back"
        )

    def _drift(self, tree: LocalTree) -> str:
        try:
            with open(self.store.manifest_path(tree.release), "rb") as file:
                manifest = _manifest.parse(file.read())
        except (OSError, _manifest.ManifestError):
            return "its manifest is missing or damaged too"
        differences = _manifest.compare(manifest, tree.entries, tree.hashes).lists()
        names = [f"{kind} {show(one.path)}" for kind, found in differences.items() for one in found]
        more = f" and {len(names) - DRIFT_SHOWN} more" if len(names) > DRIFT_SHOWN else ""
        return ", ".join(names[:DRIFT_SHOWN]) + more

    # what is needed

    def prepare(self, request: Message) -> Dict[str, Any]:
        """Learn the source's listing, check that it can stand here, and decide where every file comes from."""
        self.wanted, self.hashes = check_rows(self._listing())
        if tree_digest(self.wanted, self.hashes) != request["digest"]:
            raise PeerError("the source's listing does not have the digest that the source named")
        environment.check_interpreter(request["environment"], self.dest)
        release = self.store.path(_releases.release_id(request["digest"]))
        links = environment.check_outside_links(self.wanted, self.dest, os.fsencode(release))
        self._decide()
        self._check_space()
        want = [number for number, entry in enumerate(self.wanted) if self._how(entry) == "sent"]
        return {
            "want": want,
            "bytes": sum(self.wanted[number].size for number in want),
            "reused": self._figures(),
            "links": links,
        }

    def _listing(self) -> List[Row]:
        """All rows of the source's listing; only directories that no local tree has just so are asked for."""
        known: Dict[Tuple[bytes, str], List[Row]] = {}
        for tree in self.local + ([self.staged] if self.staged else []):
            for path, children in folders(tree.entries).items():
                known[path, folder_digest(children, tree.hashes)] = [
                    entry_row(entry, tree.hashes) for entry in children
                ]
        rows: List[Row] = []
        unknown = []
        for number, (path, digest) in enumerate(receive_rows(self.channel, "folders")):
            if (decode_path(path), digest) in known:
                rows += known[decode_path(path), digest]
            else:
                unknown.append(number)
        self.channel.send("unknown", want=unknown)
        return rows + receive_rows(self.channel, "entries")

    def _decide(self) -> None:
        staged = self.staged
        kept = {entry.path for entry in self.wanted if entry.kind == FILE and self._keepable(entry)}
        arriving = {self.hashes[path] for path in kept}  # content that is in staging once the stream ends
        by_hash: Dict[str, Tuple[LocalTree, Entry]] = {}
        for tree in self.local:  # not from staging, which is changed while files are copied
            for path, sha256 in tree.hashes.items():
                by_hash.setdefault(sha256, (tree, tree.by_path[path]))
        for entry in self.wanted:
            if entry.kind != FILE:
                continue
            sha256 = self.hashes[entry.path]
            if staged and entry.path in kept:
                self.origins[entry.path] = Origin(staged, staged.by_path[entry.path], "kept")
                continue
            link = self._linkable(entry, sha256)
            found = by_hash.get(sha256)
            if link:
                self.origins[entry.path] = link
            elif found:
                self.origins[entry.path] = Origin(found[0], found[1], "copied")
            elif sha256 in arriving:
                self.origins[entry.path] = Origin(None, None, "repeated")
            else:
                arriving.add(sha256)
                self.origins[entry.path] = Origin(None)

    def _keepable(self, new: Entry) -> bool:
        """Whether the staged file may become the wanted one in place: an inode shared with a release must not be changed."""
        if not self.staged or self.staged.hashes.get(new.path) != self.hashes.get(new.path):
            return False
        old = self.staged.by_path[new.path]
        return old.nlink == 1 or (old.mode, old.mtime_ns) == (new.mode, new.mtime_ns)

    def _linkable(self, entry: Entry, sha256: str) -> Optional[Origin]:
        """The same file of an earlier release, if it is the same in all that an inode holds."""
        for tree in reversed(self.local):
            other = tree.by_path.get(entry.path)
            if tree.release and other and tree.hashes.get(entry.path) == sha256:
                if (other.mode, other.mtime_ns) == (entry.mode, entry.mtime_ns):
                    return Origin(tree, other, "linked")
        return None

    def _how(self, entry: Entry) -> str:
        return self.origins[entry.path].how if entry.kind == FILE else ""

    def _figures(self) -> Dict[str, Dict[str, int]]:
        figures = {how: {"files": 0, "bytes": 0} for how in ("kept", "linked", "copied", "sent", "repeated")}
        for entry in self.wanted:
            if entry.kind == FILE:
                figures[self._how(entry)]["files"] += 1
                figures[self._how(entry)]["bytes"] += entry.size
        return figures

    def _check_space(self) -> None:
        new = [entry for entry in self.wanted if self._how(entry) in ("copied", "sent", "repeated")]
        needed = sum(-(-entry.size // BLOCK) * BLOCK for entry in new) + BLOCK * len(new)
        needed += sum(entry.size for entry in bytecode.modules(new)) + SPARE_BYTES
        place = self.store.root
        while not os.path.exists(place):
            place = os.path.dirname(place)
        status = os.statvfs(place)
        free = status.f_bavail * status.f_frsize
        if free < needed:
            raise TreeError(
                f"{self.store.root} has {readable_size(free)} free, the release needs {readable_size(needed)}; free space, "
                "prune old releases, or set dest to another file system"
            )

    # the release

    def build(self) -> None:
        """Put directories, links and everything that is already on this host into staging."""
        started = time.monotonic()
        self.store.create()
        os.makedirs(self.tree, mode=0o755, exist_ok=True)
        shutil.rmtree(self.incoming, ignore_errors=True)
        os.mkdir(self.incoming, 0o700)
        self._clear_staging()
        progress = Progress(self.channel, "reuse")
        for entry in self.wanted:
            path = os.path.join(self.tree, entry.path)
            if entry.kind == DIRECTORY:
                if not os.path.isdir(path):
                    os.mkdir(path, 0o700)
            elif entry.kind == LINK:
                self._make_link(path, entry)
            else:
                self._reuse(path, entry)
                progress.add(1, entry.size)
        self.seconds["reuse"] = time.monotonic() - started

    def _clear_staging(self) -> None:
        """Remove from staging what the wanted tree has not, or has as something else, and all bytecode, which nothing lists."""
        for folder, names, files in os.walk(self.tree):
            path = os.path.join(folder, IGNORED_NAME)
            if IGNORED_NAME in names:
                names.remove(IGNORED_NAME)
            if os.path.islink(path) or IGNORED_NAME in files:
                os.unlink(path)
            elif os.path.isdir(path):
                shutil.rmtree(path)
        wanted = {entry.path: entry for entry in self.wanted}
        for old in scan(self.tree):
            path, new = os.path.join(self.tree, old.path), wanted.get(old.path)
            if new is not None and new.kind == old.kind and (old.kind != FILE or self._how(new) == "kept"):
                continue
            if not os.path.lexists(path):  # went with its directory
                continue
            if old.kind == DIRECTORY:
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def _make_link(self, path: bytes, entry: Entry) -> None:
        if os.path.lexists(path):
            if os.readlink(path) == entry.target:
                return
            os.unlink(path)
        os.symlink(entry.target, path)
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def _reuse(self, path: bytes, entry: Entry) -> None:
        origin = self.origins[entry.path]
        if origin.how == "kept":
            os.chmod(path, entry.mode)
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
        elif origin.tree and origin.entry and origin.how == "linked":
            os.link(os.path.join(origin.tree.root, origin.entry.path), path, follow_symlinks=False)
        elif origin.tree and origin.entry:
            self._copy(origin.tree.root, origin.entry, entry)

    def _copy(self, root: bytes, old: Entry, new: Entry) -> None:
        """Copy a local file, hashing what is read: a hash remembered for it must still hold."""
        with Incoming(self, new) as incoming:
            for data in read_file(root, old):
                incoming.write(data)
        incoming.finish(
            f"{show(os.path.join(root, old.path))} is not what it was when it was hashed; run again with verify: full"
        )

    def receive(self) -> None:
        """Take the files of the stream until ``sent``; each must be one that was asked for, with the hash that was listed."""
        started = time.monotonic()
        progress = Progress(self.channel, "receive")
        waiting = {number for number, entry in enumerate(self.wanted) if self._how(entry) == "sent"}
        while True:
            kind, payload = self.channel.receive_frame()
            if kind != FILE_INDEX:
                parse_message((kind, payload), "sent")
                break
            (number,) = INDEX.unpack(payload)
            if number not in waiting:
                raise PeerError(f"the source sent file {number}, which was not asked for")
            waiting.remove(number)
            self._receive_file(self.wanted[number])
            progress.add(1, self.wanted[number].size)
        if waiting:
            raise PeerError(f"the source ended without {len(waiting)} of the files that were asked for")
        self._repeat()
        self.seconds["receive"] = time.monotonic() - started

    def _receive_file(self, entry: Entry) -> None:
        with Incoming(self, entry) as incoming:
            while True:
                kind, payload = self.channel.receive_frame()
                if kind == SUM:
                    break
                if kind != DATA:
                    parse_message((kind, payload))
                    raise PeerError("the source stopped in the middle of a file")
                incoming.write(payload)
        incoming.finish(f"{show(entry.path)} arrived with other content than the source listed; run again")

    def _repeat(self) -> None:
        first = {self.hashes[entry.path]: entry for entry in self.wanted if self._how(entry) in ("sent", "kept")}
        for entry in self.wanted:
            if self._how(entry) == "repeated":
                sent = first[self.hashes[entry.path]]
                st = os.lstat(os.path.join(self.tree, sent.path))
                self._copy(self.tree, sent._replace(inode=st.st_ino), entry)

    def commit(self, request: Message) -> Dict[str, Any]:
        """Prove the staged tree, compile its bytecode, make it durable, and give it its name."""
        self._finish_directories()
        staged = scan(self.tree)
        digest = request["digest"]
        listed = {entry.path: self.hashes.get(entry.path, "") for entry in staged}
        if tree_digest(staged, listed) != digest:
            raise TreeError("the staged tree is not the source's tree; something else writes to staging")
        compiled = (
            self._compile(request)
            if request["bytecode"] and request["environment"]
            else {"compiled": 0, "reused": 0, "refused": 0}
        )
        started = time.monotonic()
        with Progress(self.channel, "sync").heartbeat():
            sync_filesystem(self.tree)
        self.seconds["sync"] = time.monotonic() - started
        release = _releases.release_id(digest)
        files = [entry for entry in self.wanted if entry.kind == FILE]
        facts = {
            "received_digest": digest,
            "installed_digest": digest,
            "committed": _releases.now(),
            "files": len(files),
            "bytes": sum(entry.size for entry in files),
            "entries": len(self.wanted),
            "environment": request["environment"],
            "source": request["source"],
            "src": request["src"],
            "bytecode": request["bytecode"],
        }
        _releases.write_atomically(
            self.store.manifest_path(release), _manifest.render(staged, self.hashes, label=f"release {release}")
        )
        self.store.write_meta(release, facts)
        self._publish(os.fsencode(self.store.path(release)))
        self._remember(os.fsencode(self.store.path(release)))
        self.store.record("committed", release, actor=self.who, source=request["source"])
        return {"bytecode": compiled, "seconds": {name: round(value, 3) for name, value in self.seconds.items()}}

    def _finish_directories(self) -> None:
        os.chmod(self.tree, 0o755)
        for entry in reversed(self.wanted):
            if entry.kind == DIRECTORY:
                os.chmod(os.path.join(self.tree, entry.path), entry.mode)

    def _compile(self, request: Message) -> Dict[str, int]:
        started = time.monotonic()
        tag = bytecode.cache_tag(self.tree)
        release = _releases.release_id(request["digest"])
        others = [tree for tree in reversed(self.local) if tree.release and tree.release != release]
        compiled = [tree for tree in others if self.store.describe(tree.release).get("bytecode")]
        needed, reused = [], 0
        for entry in bytecode.modules(self.wanted):
            target = bytecode.bytecode_path(entry.path, tag)
            full = os.path.join(self.tree, target)
            os.makedirs(os.path.dirname(full), mode=0o755, exist_ok=True)
            if os.path.lexists(full):
                os.unlink(full)
            old = self._old_bytecode(compiled, entry, target)
            if old:
                os.link(old, full)
                reused += 1
            else:
                needed.append(entry.path)
        progress = Progress(self.channel, "bytecode")
        figures = bytecode.compile_modules(self.tree, self.dest, needed, tag, lambda count: progress.add(1))
        self.seconds["bytecode"] = time.monotonic() - started
        return {**figures, "reused": reused}

    def _old_bytecode(self, trees: List[LocalTree], entry: Entry, target: bytes) -> Optional[bytes]:
        """Bytecode that this collection compiled from the same module at the same path, in one of ``trees``."""
        for tree in trees:
            path = os.path.join(tree.root, target)
            if tree.hashes.get(entry.path) == self.hashes[entry.path] and os.path.isfile(path):
                return path
        return None

    def _publish(self, release: bytes) -> None:
        if os.path.isdir(release):  # being repaired
            _releases.exchange(os.fsdecode(self.tree), os.fsdecode(release))
        else:
            os.rename(self.tree, release)
        _releases.sync_directory(self.store.root)
        shutil.rmtree(self.store.staging)

    def _remember(self, release: bytes) -> None:
        """Index the release as it stands, once its files have been quiet for long enough for their ctimes to tell."""
        entries = [entry for entry in scan(release) if entry.kind == FILE]
        youngest = max((entry.ctime_ns for entry in entries), default=0)
        time.sleep(max(0.0, (youngest + QUIET_NS - time.time_ns()) / 1e9 + 0.01))
        for entry in entries:
            self.index.add(entry, self.hashes[entry.path])
        self.index.save()


class Incoming:
    """A file being written beside the staged tree; ``finish`` moves it in, but only with the listed size and hash."""

    def __init__(self, receiver: Receiver, entry: Entry) -> None:
        self._receiver = receiver
        self._entry = entry
        self._path = os.path.join(receiver.incoming, b"file")
        self._digest = hashlib.sha256()
        self._left = entry.size

    def __enter__(self) -> Incoming:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = open(os.open(self._path, flags, 0o600), "wb", buffering=0)
        return self

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise PeerError(f"{show(self._entry.path)} is longer than the source listed")
        self._digest.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise TreeError(
                f"{show(self._path)}: {error.strerror}; what arrived stays there, and the next run goes on with it"
            ) from error

    def __exit__(self, *_: object) -> None:
        os.fchmod(self._file.fileno(), stat.S_IMODE(self._entry.mode))
        os.utime(self._file.fileno(), ns=(self._entry.mtime_ns, self._entry.mtime_ns))
        self._file.close()

    def finish(self, problem: str) -> None:
        if self._left or self._digest.hexdigest() != self._receiver.hashes[self._entry.path]:
            os.unlink(self._path)
            raise PeerError(problem)
        os.replace(self._path, os.path.join(self._receiver.tree, self._entry.path))


def serve(channel: Channel, request: Message) -> None:
    """Answer one relay; ``open`` has ``dest``, ``run``, ``who``, ``take_over``, ``check`` and ``full``. See docs/protocol.md."""
    receiver = Receiver(channel, request)
    lease, run = Lease(receiver.store.dest), request["run"]
    if receiver.check:
        _converse(channel, receiver)
        return
    taken = lease.acquire(run, request["who"], take_over=request["take_over"])
    try:
        _converse(channel, receiver)
    finally:
        if taken:
            lease.release(run)


def _converse(channel: Channel, receiver: Receiver) -> None:
    receiver.read_local()
    channel.send("opened", releases=receiver.store.releases(), dest_kind=receiver.store.dest_kind())
    question = channel.receive("look", "bye")
    if question["op"] == "bye":
        return
    channel.send("state", **receiver.look(question["digest"], question["repair"]))
    request = channel.receive("prepare", "bye")
    if request["op"] == "bye":
        return
    channel.send("need", **receiver.prepare(request))
    if channel.receive("build", "bye")["op"] == "bye":
        return
    receiver.build()
    channel.send("built")
    receiver.receive()
    channel.send("committed", **receiver.commit(request))


def sync_filesystem(path: bytes) -> None:
    """Write one file system's data out (syncfs), or all of them where the C library has no syncfs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def readable_size(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
