# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drives real agents: processes started as a leg starts them, with the relay's end of their channel in a test's hands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Sequence, TypeVar, Union, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.listing import check_rows
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    MAGIC,
    PROTOCOL,
    Channel,
    Frame,
    Message,
    PeerError,
    Row,
    message_frame,
    parse_message,
    send_rows,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import tree_digest
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP, bundle

PATIENCE_S = 60
# Runs before the agent on a host that has no zstd in any form.
WITHOUT_CODEC = """
import ctypes, shutil, sys
class CDLL(ctypes.CDLL):
    def __init__(self, name, *more, **options):
        if name and "zstd" in name:
            raise OSError(name)
        super().__init__(name, *more, **options)
ctypes.CDLL = CDLL
shutil.which = lambda *more, **options: None
sys.modules["compression.zstd"] = sys.modules["zstandard"] = None
"""
Place = Union[Path, str]
AnyAgent = TypeVar("AnyAgent", bound="Agent")


class EndsAfter:
    """A connection that gives some frames, then ends."""

    def __init__(self, *frames: Frame) -> None:
        self._frames = list(frames)

    def receive_frame(self) -> Frame:
        if not self._frames:
            raise PeerError("gone")
        return self._frames.pop(0)


class Agent:
    """One agent process. Use as a context manager; one that hangs is killed, which fails the test instead of stopping it."""

    def __init__(self, python: str = sys.executable, before: str = "") -> None:
        self.process = subprocess.Popen(
            [python, "-c", before + BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdin and self.process.stdout
        assert self.process.stdout.readline().startswith(MAGIC.encode() + b" ")
        self.process.stdin.write(bundle())
        self.channel = Channel(cast(BinaryIO, self.process.stdout), cast(BinaryIO, self.process.stdin))
        self._guard = threading.Timer(PATIENCE_S, self.process.kill)
        self._guard.start()

    def tell(self, op: str, **fields: Any) -> None:
        self.channel.send(op, **fields)

    def answer(self, *ops: str) -> Message:
        """The next message that is no progress; an error of the agent is raised as PeerError."""
        while True:
            message = self.channel.receive("progress", *ops)
            if message["op"] != "progress":
                return message

    def ask(self, op: str, *ops: str, **fields: Any) -> Message:
        self.tell(op, **fields)
        return self.answer(*ops)

    def send(self, frames: Sequence[Frame]) -> None:
        """Send frames; an agent that has ended meanwhile has said why, which is raised as PeerError."""
        try:
            for frame in frames:
                self.channel.send_frame(*frame)
            self.channel.flush()
        except BrokenPipeError:
            raise PeerError(self.complaint()) from None

    def complaint(self, *passed: str) -> str:
        """The error that the agent ends with; messages ``passed`` before it do not count."""
        try:
            while True:
                self.answer(*passed)
        except PeerError as error:
            return str(error)

    def cut(self) -> str:
        """Break the connection off; gives what the agent says of it."""
        assert self.process.stdin
        self.process.stdin.close()
        return self.complaint()

    def __enter__(self: AnyAgent) -> AnyAgent:
        return self

    def __exit__(self, *_exception: object) -> None:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdout.close()
        said = self.process.stderr.read().decode()
        self.process.stderr.close()
        self.process.wait()
        self._guard.cancel()
        assert "Traceback" not in said, said


class Source(Agent):
    """An agent that reads a tree."""

    def scan(
        self, src: Place, exclude: Sequence[str] = (), full: bool = False, check: bool = False, **more: Any
    ) -> Message:
        fields = {"protocol": PROTOCOL, "interpreter": False, "check": check, "full": full, **more}
        return self.ask("scan", "tree", src=os.fsdecode(src), exclude=list(exclude), **fields)

    def frames(self, op: str, last: str, **fields: Any) -> List[Frame]:
        """What the source answers up to and with its message ``last``; progress is left out."""
        self.tell(op, **fields)
        found: List[Frame] = []
        while True:
            frame = self.channel.receive_frame()
            name = parse_message(frame)["op"] if frame[0] != BLOCK else ""
            if name != "progress":
                found.append(frame)
            if name == last:
                return found

    def content(
        self, want: Sequence[int], partial: Sequence[Any] = (), compress: str = "none", rate: int = 0
    ) -> List[Frame]:
        """The frames of one group, without what ends them."""
        group = {"runs": to_runs(want), "partial": list(partial), "sinks": [0], "takers": [1]}
        return self.frames("send", "sent", groups=[group], compress=compress, rate=rate)[:-1]


class Destination(Agent):
    """An agent that receives a tree."""

    def open(self, dest: Place, seeds: Sequence[Place] = (), **more: Any) -> Message:
        fields = {"protocol": PROTOCOL, "interpreter": False, "check": False, "full": False, "link": True, **more}
        fields = {"idle": 20, **fields}
        fields = {"run": "run", "who": "tester", "take_over": False, **fields}
        return self.ask("open", "opened", dest=os.fsdecode(dest), seeds=[os.fsdecode(seed) for seed in seeds], **fields)

    def look(self, digest: str, repair: bool = False) -> Message:
        return self.ask("look", "state", digest=digest, repair=repair)

    def prepare(self, digest: str, **more: Any) -> None:
        fields = {"environment": {}, "bytecode": True, "shipped": "", "special": [], "changes": False}
        fields = {"prefixes": [], **fields, **more}
        self.tell("prepare", digest=digest, source="src-host", src="/src", **fields)

    def build(self) -> None:
        self.ask("build", "built")
        self.tell("take", direct=False, number=1, after=[])

    def take(self, content: Sequence[Frame]) -> Message:
        """Build, take content, and commit."""
        self.build()
        self.send([*content, message_frame("end")])
        return self.answer("committed")

    def offer(self, dest: Place, rows: List[Row], digest: str = "", **more: Any) -> Message:
        """Bring a listing of the test's own making as far as ``need``."""
        digest = digest or tree_digest(*check_rows(rows))
        self.open(dest)
        assert not self.look(digest)["present"]
        self.prepare(digest, **more)
        send_rows(self.channel, "folders", [["", "0" * 64]])
        self.answer("unknown")
        send_rows(self.channel, "entries", rows)
        return self.answer("need")


def need(source: Source, target: Destination, tree: Message, repair: bool = False, **more: Any) -> Message:
    """Play the relay from ``look`` to ``need`` for a release that the target lacks."""
    assert not target.look(tree["digest"], repair)["present"]
    target.prepare(tree["digest"], environment=tree["environment"], **more)
    target.send(source.frames("folders", "end"))
    unknown = target.answer("unknown")["want"]
    target.send(source.frames("list", "end", want=unknown))
    return target.answer("need")


def copy(
    src: Place,
    dest: Place,
    python: str = sys.executable,
    repair: bool = False,
    compress: str = "none",
    special: bool = False,
    changes: bool = False,
    **opening: Any,
) -> Dict[str, Any]:
    """Stream a tree to a target that lacks it; gives ``tree``, ``opened``, ``need``, ``content`` (its frames) and ``done``."""
    with Source(python) as source, Destination(python) as target:
        tree = source.scan(src)
        opened = target.open(dest, **opening)
        kept = tree["special"] if special else []
        wanted = need(source, target, tree, repair, special=kept, changes=changes)
        content = source.content(wanted["want"], wanted["partial"], compress)
        done = target.take(content)
    return {"tree": tree, "opened": opened, "need": wanted, "content": content, "done": done}


def interrupt(src: Place, dest: Place, blocks: int, seeds: Sequence[Place] = ()) -> None:
    """Stream a tree until so many blocks have arrived, then break off."""
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest, seeds)
        wanted = need(source, target, tree)
        target.build()
        target.send(source.content(wanted["want"], wanted["partial"])[: 1 + blocks])
        assert "connection ended" in target.cut()


def content_bytes(frames: Sequence[Frame]) -> int:
    """How much the blocks among ``frames`` take on the wire."""
    return sum(len(payload) for kind, payload in frames if kind == BLOCK)


def packings(frames: Sequence[Frame]) -> List[int]:
    """How each block among ``frames`` is packed."""
    return [payload[0] for kind, payload in frames if kind == BLOCK]


def listing(*roots: Path) -> Dict[str, Any]:
    """Everything below ``roots``, with what a writer would change: kind, mode, size, mtime, ctime, inode."""
    found: Dict[str, Any] = {}
    for root in roots:
        for folder, names, files in os.walk(os.fsencode(root)):
            for path in [folder, *(os.path.join(folder, name) for name in names + files)]:
                st = os.lstat(path)
                found[os.fsdecode(path)] = (st.st_mode, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
    return found


def forget(top: Path) -> None:
    """Remove the hash indexes that agents of this user made for directories at or near ``top``."""
    pending = [(os.path.realpath(os.fsencode(top)), 3)]
    while pending:
        folder, depth = pending.pop()
        for path in (folder, folder + b".releases"):
            if os.path.exists(index_path(path)):
                os.unlink(index_path(path))
        if depth:
            with os.scandir(folder) as found:
                pending += [(item.path, depth - 1) for item in found if item.is_dir(follow_symlinks=False)]


def releases(dest: Path) -> List[str]:
    """The names of the committed releases beside ``dest``."""
    store = Path(f"{dest}.releases")
    return sorted(name for name in os.listdir(store) if len(name) == 16) if store.exists() else []
