# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's end of a stream: finds what is already here, receives the rest into staging, proves it, commits it.

Nothing is visible under dest at any time, and a release appears under its name in one rename, after every byte of it was
hashed and the digest of the whole tree was found equal to the source's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest, _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._index import OWN_QUIET_NS
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import bytecode, environment
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.listing import (
    check_rows,
    folder_digest,
    folders,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.local import Local, LocalTree
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.receiver import FrameReader, Prefixes, Receiver
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.staging import Plan, Staging
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    Channel,
    Message,
    PeerError,
    decode_path,
    receive_rows,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    FILE,
    LINK,
    SPECIAL_BITS,
    Entry,
    TreeError,
    scan,
    show,
    tree_digest,
)

if TYPE_CHECKING:
    from ansible_collections.ddtree.fleet.plugins.module_utils._stream.relocation import Move, Relocated

DRIFT_SHOWN = 5
CHANGES_SHOWN = 50


class Target:
    """One stream into one store: the releases of a dest, or its interpreters."""

    def __init__(self, channel: Channel, request: Message) -> None:
        self.channel = channel
        store = _releases.Store(request["dest"])
        self.dest = os.fsencode(store.dest)
        self.environments = store
        self.store = store.interpreters() if request["interpreter"] else store
        self.check = bool(request["check"])
        self.who = request["who"]
        self.local = Local(channel, self.store, request["seeds"], bool(request["full"]))
        self.staging = Staging(self.store)
        self.link = bool(request["link"])
        self.plan: Optional[Plan] = None
        self.prefixes: Dict[int, Prefixes] = {}
        self.moves: List[Move] = []
        self.receiver: Optional[Receiver] = None
        self.seconds: Dict[str, float] = {}

    # what is here

    def look(self, digest: str, repair: bool) -> Dict[str, Any]:
        """Whether the release is here and whole. Raises TreeError when it is here and was changed, unless it is to be repaired."""
        release = _releases.release_id(digest)
        if release not in self.store.releases():
            return {"present": False, "release": release}
        facts = self.store.describe(release)
        tree = self.local.release(release)
        installed = facts.get("installed_digest", digest)
        if tree_digest(tree.entries, tree.hashes) == installed and facts.get("received_digest", digest) == digest:
            if not self.check:
                self.local.save()
                if release not in {
                    event.get("release") for event in self.store.history()
                }:  # its agent was killed before
                    self.store.record("committed", release, actor=self.who)
            return {"present": True, "release": release, "installed": installed}
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
        with self._timed("compare"):
            staged = self.staging.read(self.local)
            wanted, hashes = self._listing(staged)
            if tree_digest(wanted, hashes) != request["digest"]:
                raise PeerError("the source's listing does not have the digest that the source named")
            links = self._check_environment(request, wanted)
            special = {decode_path(path) for path, mode in request["special"]}
            plan = self.plan = Plan(wanted, hashes, staged, self.link, special)
            plan.decide(self.local.find({hashes[e.path]: e.size for e in wanted if e.kind == FILE}))
            self.staging.check_space(plan.space())
            self.prefixes = self.staging.prefixes(plan)
            if not self.check:
                self.local.save()
        sent = plan.sent()
        reused, origins = plan.figures()
        return {
            "want": sent,
            "partial": [[number, found.listed()] for number, found in self.prefixes.items()],
            "bytes": sum(wanted[number].size for number in sent),
            "reused": reused,
            "origins": origins,
            "links": links,
            "changes": self._changes(wanted, hashes) if request["changes"] else {},
            "missing_seeds": self.local.missing_seeds,
        }

    def _check_environment(self, request: Message, wanted: List[Entry]) -> List[str]:
        """Raise TreeError when the environment could not work here; gives the links that lead out of it."""
        from ansible_collections.ddtree.fleet.plugins.module_utils._stream import interpreter, relocation

        described, shipped = request["environment"], request["shipped"]
        at = os.fsencode(self.environments.interpreters().path(shipped)) if shipped else None
        if not shipped:
            environment.check_interpreter(described, self.dest)
        self.moves = interpreter.moves_for(described, self.dest, at)
        release = self.store.path(_releases.release_id(request["digest"]))
        self.moves += [relocation.Move(decode_path(old), os.fsencode(release)) for old in request["prefixes"]]
        moved = relocation.moved_links(wanted, self.moves)
        links = [entry._replace(target=moved.get(entry.path, entry.target)) for entry in wanted if entry.kind == LINK]
        if at:  # proved by running it before the commit
            links = [entry for entry in links if not entry.target.startswith(at + b"/")]
        return environment.check_outside_links(links, self.dest, os.fsencode(release))

    def _listing(self, staged: Optional[LocalTree]) -> Tuple[List[Entry], Dict[bytes, str]]:
        """The source's listing; only directories that neither staging nor the likeliest release has just so are asked for."""
        entries: List[Entry] = []
        hashes: Dict[bytes, str] = {}
        known: Dict[Tuple[bytes, str], Tuple[LocalTree, List[Entry]]] = {}
        for tree in (self.local.base(), staged):
            if tree:
                for path, children in folders(tree.entries).items():
                    known[path, folder_digest(children, tree.hashes)] = tree, children
        unknown: List[int] = []
        here: Set[bytes] = set()
        for number, row in enumerate(receive_rows(self.channel, "folders")):
            try:
                path = decode_path(row[0])
                tree, children = known.get((path, row[1]), (None, []))
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise PeerError("the source listed a directory in a form that is not understood") from error
            if tree is None:
                unknown.append(number)
                continue
            here.add(path)
            entries += children
            hashes.update((entry.path, tree.hashes[entry.path]) for entry in children if entry.kind == FILE)
        self.channel.send("unknown", want=unknown)
        return check_rows(receive_rows(self.channel, "entries"), entries, hashes, here)

    def _changes(self, wanted: List[Entry], hashes: Dict[bytes, str]) -> Dict[str, Any]:
        """What differs from the release that is likely to be replaced, each list cut off; for a diff."""
        base = self.local.base()
        before = base.by_path if base else {}
        old_hashes = base.hashes if base else {}
        after = {entry.path: entry for entry in wanted}
        lists = {
            "added": [path for path in after if path not in before],
            "changed": [
                path
                for path, new in after.items()
                if path in before
                and (new.kind, new.mode, new.target, hashes.get(path))
                != (before[path].kind, before[path].mode, before[path].target, old_hashes.get(path))
            ],
            "removed": [path for path in before if path not in after],
        }
        return {
            "against": base.release if base and base.release else "dest" if base else "",
            "counts": {kind: len(found) for kind, found in lists.items()},
            "sizes": {
                show(path): after[path].size for path in (lists["added"] + lists["changed"])[: 2 * CHANGES_SHOWN]
            },
            **{kind: [show(path) for path in found[:CHANGES_SHOWN]] for kind, found in lists.items()},
        }

    # the release

    def build(self) -> Plan:
        plan = self._planned()
        with self._timed("reuse"):
            self.staging.build(plan, self.prefixes, Progress(self.channel, "reuse"))
        return plan

    def receive(self, peer: FrameReader, heals: bool, more: Callable[[], Message]) -> str:
        """Take the files of the stream, as far as they come; gives why they ended early, empty when all are here.

        ``heals``: see ``Receiver``. ``more`` is told to the relay with the progress.
        """
        plan = self._planned()
        with self._timed("receive"):
            if self.receiver is None:
                progress = Progress(self.channel, "receive")
                sent = set(plan.sent())
                self.receiver = Receiver(self.staging.tree, plan.wanted, plan.hashes, sent, self.prefixes, progress)
            short = self.receiver.receive(peer, heals, more)
            if not short:
                self.staging.repeat(plan)
        return short

    def lacking(self) -> Dict[str, Any]:
        """What has still to come after a pass that ended early."""
        if self.receiver is None:
            return {"want": [], "partial": []}
        return {"want": to_runs(self.receiver.lacking()), "partial": self.receiver.partial()}

    def commit(self, request: Message) -> Dict[str, Any]:
        """Prove the staged tree, adapt it to this host, compile its bytecode, make it durable, and give it its name."""
        plan, digest = self._planned(), request["digest"]
        with self._timed("prove"):
            self.staging.finish_directories(plan.wanted)
            staged, seen_ns = self._scan_quiet()
            if tree_digest(staged, {entry.path: plan.hashes.get(entry.path, "") for entry in staged}) != digest:
                raise TreeError("the staged tree is not the source's tree; something else writes to staging")
        hashes, relocated = plan.hashes, None
        if self.moves:
            with self._timed("relocate"):
                relocated = self._relocate(staged)
                hashes = {**plan.hashes, **relocated.rewritten}
                staged, seen_ns = self._scan_quiet()
        self._check_runs(request["environment"])
        self._set_special(request["special"])
        compiled = {"compiled": 0, "reused": 0, "refused": 0}
        if request["bytecode"] and request["environment"]:
            with self._timed("bytecode"):
                compiled = self._compile(plan, request)
        with self._timed("sync"), Progress(self.channel, "sync").heartbeat():
            sync_filesystem(self.staging.tree)
        with self._timed("commit"):
            release = _releases.release_id(digest)
            installed = tree_digest(staged, hashes) if relocated else digest
            facts = self._facts(request, installed, relocated)
            manifest = _manifest.render(staged, hashes, _manifest.Provenance(label=f"release {release}"))
            _releases.write_atomically(self.store.manifest_path(release), manifest)
            self.store.write_meta(release, facts)
            self.staging.publish(os.fsencode(self.store.path(release)))
            for entry in staged:
                if entry.kind == FILE:
                    self.local.index.add(entry, hashes[entry.path], seen_ns, OWN_QUIET_NS)
            self.local.index.save()
            self.store.record("committed", release, actor=self.who, source=request["source"])
        return {
            "installed": installed,
            "relocated": facts["relocated"],
            "bytecode": compiled,
            "reused": plan.figures()[0],
            "resumed": self.receiver.resumed if self.receiver else 0,
        }

    def _relocate(self, staged: List[Entry]) -> Relocated:
        from ansible_collections.ddtree.fleet.plugins.module_utils._stream import relocation

        return relocation.relocate(self.staging.tree, staged, self.moves)

    def _check_runs(self, described: Dict[str, Any]) -> None:
        """Raise TreeError unless the staged environment's interpreter runs here and is the version it was on the source."""
        if described:
            from ansible_collections.ddtree.fleet.plugins.module_utils._stream.interpreter import works

            problem = works(os.path.join(self.staging.tree, b"bin/python"), described["version"])
            if problem:
                raise TreeError(f"bin/python of the release does not work here: {problem}")

    def _facts(self, request: Message, installed: str, relocated: Optional[Relocated]) -> Dict[str, Any]:
        files = [entry for entry in self._planned().wanted if entry.kind == FILE]
        return {
            "received_digest": request["digest"],
            "installed_digest": installed,
            "committed": _releases.now(),
            "files": len(files),
            "bytes": sum(entry.size for entry in files),
            "entries": len(self._planned().wanted),
            "environment": request["environment"],
            "interpreter": request["shipped"],
            "source": request["source"],
            "src": request["src"],
            "bytecode": request["bytecode"],
            "relocated": _describe(relocated, self.moves) if relocated else {},
        }

    def _set_special(self, special: List[Tuple[str, int]]) -> None:
        """Give files the set-user-ID bits that were asked for."""
        files = {entry.path: entry for entry in self._planned().wanted if entry.kind == FILE}
        for path, mode in special:
            entry = files.get(decode_path(path))
            if entry:
                os.chmod(os.path.join(self.staging.tree, entry.path), entry.mode | mode & SPECIAL_BITS)

    def _compile(self, plan: Plan, request: Message) -> Dict[str, int]:
        tag = bytecode.cache_tag(self.staging.tree)
        base = self.local.base()
        # Not from the release that is being repaired, whose bytecode nobody has checked.
        usable = base and base.release not in ("", _releases.release_id(request["digest"]))
        compiled = base if base and usable and self.store.describe(base.release).get("bytecode") else None
        needed, reused = [], 0
        for entry in bytecode.modules(plan.wanted):
            target = bytecode.bytecode_path(entry.path, tag)
            full = os.path.join(self.staging.tree, target)
            os.makedirs(os.path.dirname(full), mode=0o755, exist_ok=True)
            if os.path.lexists(full):
                os.unlink(full)
            if compiled and compiled.hashes.get(entry.path) == plan.hashes[entry.path]:
                with contextlib.suppress(OSError):
                    (os.link if self.link else shutil.copyfile)(os.path.join(compiled.root, target), full)
                    reused += 1
                    continue
            needed.append(entry.path)
        progress = Progress(self.channel, "bytecode")
        figures = bytecode.compile_modules(self.staging.tree, self.dest, needed, tag, lambda count: progress.add(1))
        return {**figures, "reused": reused}

    def _scan_quiet(self) -> Tuple[List[Entry], int]:
        """The staged tree, and when it was looked at: so late that a change after that shows in a file's ctime."""
        time.sleep((OWN_QUIET_NS + 1_000_000) / 1e9)
        seen_ns = time.time_ns()
        return scan(self.staging.tree), seen_ns

    def _planned(self) -> Plan:
        if self.plan is None:
            raise PeerError("the relay asked for a release before it said which one")
        return self.plan

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - started, 3)


def _describe(relocated: Relocated, moves: List[Move]) -> Dict[str, Any]:
    return {
        "moves": [[show(move.old), show(move.new)] for move in moves],
        "files": [show(path) for path in sorted(relocated.rewritten)],
        "links": [show(path) for path in sorted(relocated.links)],
        "leftovers": relocated.leftovers,
        "leftover_count": relocated.leftover_count,
    }


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
