# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drives real agents: processes started as a leg starts them, with the relay's end of their channel in a test's hands."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional, Sequence, TypeVar, Union, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    MAGIC,
    Channel,
    Frame,
    Message,
    PeerError,
    Row,
    check_rows,
    parse_message,
    send_rows,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import tree_digest
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP, bundle

PATIENCE_S = 60
Place = Union[Path, str]
AnyAgent = TypeVar("AnyAgent", bound="Agent")


class Agent:
    """One agent process. Use as a context manager; one that hangs is killed, which fails the test instead of stopping it."""

    def __init__(self, python: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [python, "-c", BOOTSTRAP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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

    def complaint(self, *passed: str) -> str:
        """The error that the agent ends with; messages ``passed`` before it do not count."""
        try:
            while True:
                self.answer(*passed)
        except PeerError as error:
            return str(error)

    def __enter__(self: AnyAgent) -> AnyAgent:
        return self

    def __exit__(self, *_: object) -> None:
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

    def scan(self, src: Place, exclude: Sequence[str] = (), full: bool = False) -> Message:
        return self.ask("scan", "tree", src=os.fsdecode(src), exclude=list(exclude), full=full)

    def frames(self, op: str, last: str, **fields: Any) -> List[Frame]:
        """What the source answers up to and with its message ``last``."""
        self.tell(op, **fields)
        found: List[Frame] = []
        while True:
            kind, payload = self.channel.receive_frame()
            found.append((kind, payload))
            if kind in (1, 5) and parse_message((kind, payload))["op"] == last:
                return found


class Destination(Agent):
    """An agent that receives a tree."""

    def open(
        self, dest: Place, check: bool = False, full: bool = False, run: str = "run", take_over: bool = False
    ) -> Message:
        fields = {"check": check, "full": full, "run": run, "take_over": take_over}
        return self.ask("open", "opened", dest=os.fsdecode(dest), who="tester", **fields)

    def look(self, digest: str, repair: bool = False) -> Message:
        return self.ask("look", "state", digest=digest, repair=repair)

    def prepare(self, digest: str, environment: Optional[Dict[str, Any]] = None, bytecode: bool = True) -> None:
        self.tell(
            "prepare", digest=digest, environment=environment or {}, source="src-host", src="/src", bytecode=bytecode
        )

    def send(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self.channel.send_frame(*frame)
        self.channel.flush()

    def offer(self, dest: Place, rows: List[Row], digest: str = "") -> Message:
        """Bring a listing of the test's own making as far as ``need``."""
        digest = digest or tree_digest(*check_rows(rows))
        self.open(dest)
        assert not self.look(digest)["present"]
        self.prepare(digest)
        send_rows(self.channel, "folders", [["", "0" * 64]])
        self.answer("unknown")
        send_rows(self.channel, "entries", rows)
        return self.answer("need")


def need(source: Source, target: Destination, tree: Message, repair: bool = False, bytecode: bool = True) -> Message:
    """Play the relay from ``look`` to ``need`` for a release that the target lacks."""
    assert not target.look(tree["digest"], repair)["present"]
    target.prepare(tree["digest"], tree["environment"], bytecode)
    target.send(source.frames("folders", "end"))
    unknown = target.answer("unknown")["want"]
    target.send(source.frames("list", "end", want=unknown))
    return target.answer("need")


def deliver(source: Source, target: Destination, want: List[int]) -> Message:
    """Play the relay from ``build`` to the commit."""
    target.ask("build", "built")
    target.send(source.frames("send", "sent", want=want))
    return target.answer("committed")


def copy(src: Place, dest: Place, python: str = sys.executable, repair: bool = False) -> Dict[str, Any]:
    """Stream a tree to a target that lacks it; gives the source's ``tree`` and the target's ``need`` and ``done``."""
    with Source(python) as source, Destination(python) as target:
        tree = source.scan(src)
        target.open(dest)
        wanted = need(source, target, tree, repair)
        done = deliver(source, target, wanted["want"])
    return {"tree": tree, "need": wanted, "done": done}


def copy_in_a_hurry(src: Place, dest: Place, python: str = sys.executable, repair: bool = False) -> Dict[str, Any]:
    """The same without ``done``: ends the target once the release stands, without the two seconds that its index waits for."""
    with Source(python) as source, Destination(python) as target:
        tree = source.scan(src)
        target.open(dest)
        wanted = need(source, target, tree, repair)
        deliver_in_a_hurry(source, target, wanted["want"], dest)
    return {"tree": tree, "need": wanted}


def deliver_in_a_hurry(source: Source, target: Destination, want: List[int], dest: Place) -> None:
    """Play the relay from ``build`` until the release stands, then end the target."""
    target.ask("build", "built")
    target.send(source.frames("send", "sent", want=want))
    staging = f"{os.fsdecode(dest)}.releases/staging"
    while os.path.exists(staging) and target.process.poll() is None:
        time.sleep(0.01)
    if os.path.exists(staging):
        target.answer("committed")
    target.process.terminate()


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
