# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The relay: one source feeds any number of targets through this process's memory; nothing is stored.

Every target ends with a verdict of its own. Only what is wrong with the source, or with the request, ends the whole stream.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    FILE_INDEX,
    INDEX,
    MESSAGE,
    PACKED,
    SUM,
    Frame,
    Message,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError

QUEUED_FRAMES = 16  # of at most 1 MiB of content each, per target
PROGRESS_EVERY_S = 5.0
MIB = 1 << 20


@dataclass(frozen=True)
class Request:
    """What to stream. ``src`` and ``dest`` are absolute paths; ``idle`` is how long a silent peer is waited for, in seconds."""

    src: str
    dest: str
    exclude: Sequence[str]
    source: str
    full: bool
    repair: bool
    bytecode: bool
    check: bool
    run: str
    who: str
    take_over: bool
    idle: float


@dataclass
class Verdict:
    """What came of one target. ``changed`` in check mode: whether a real run would change it."""

    host: str
    failed: bool = False
    changed: bool = False
    msg: str = ""
    release: str = ""
    digest: str = ""
    files_sent: int = 0
    bytes_sent: int = 0
    wire_bytes: int = 0
    reused: dict[str, dict[str, int]] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    bytecode: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Target:
    """One target's leg and what is known of it; every method may end in a failed verdict, never in an exception."""

    def __init__(self, endpoint: Endpoint, python: str) -> None:
        self.verdict = Verdict(endpoint.host)
        self._endpoint = endpoint
        self._python = python
        self.leg: Optional[Leg] = None
        self.unknown: set[int] = set()
        self.want: set[int] = set()
        self.frames: queue.Queue[Optional[Frame]] = queue.Queue(QUEUED_FRAMES)

    @property
    def alive(self) -> bool:
        return not self.verdict.failed

    def connected(self) -> Leg:
        if self.leg is None:
            raise LegError(f"{self.verdict.host}: there is no connection")
        return self.leg

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        try:
            yield
        except LegError as error:
            self.verdict.failed, self.verdict.msg = True, str(error)

    def open(self, request: Request, stack: contextlib.ExitStack) -> None:
        with self.judged():
            self.leg = stack.enter_context(Leg(self._endpoint, self._python, request.idle))
            fields = {"dest": request.dest, "run": request.run, "who": request.who, "take_over": request.take_over}
            self.leg.tell("open", check=request.check, full=request.full, **fields)

    def look(self, digest: str, repair: bool) -> None:
        """Learn whether the release is here already."""
        with self.judged():
            leg = self.connected()
            leg.answer("opened")
            state = leg.ask("look", "state", digest=digest, repair=repair)
            self.verdict.release, self.verdict.digest = state["release"], digest
            self.verdict.changed = not state["present"]
            if state["present"]:
                leg.tell("bye")

    def learn_unknown(self) -> None:
        """Pass the directories' digests on as they arrive, then learn which of them the target does not know."""
        with self.judged():
            leg = self.connected()
            self._pass_frames()
            self.unknown = set(leg.answer("unknown")["want"])

    def learn_need(self) -> None:
        """Pass the listing on as it arrives, then learn what to send."""
        with self.judged():
            leg = self.connected()
            self._pass_frames()
            need = leg.answer("need")
            self.want = set(need["want"])
            self.verdict.files_sent, self.verdict.bytes_sent = len(self.want), need["bytes"]
            self.verdict.reused, self.verdict.links = need["reused"], need["links"]

    def take_files(self) -> None:
        """Pass the wanted files on as they arrive, then wait for the proof and the commit."""
        with self.judged():
            leg = self.connected()
            leg.ask("build", "built")  # until then nothing is read there, however long copying takes
            self._pass_frames()
            done = leg.answer("committed")
            self.verdict.bytecode, self.verdict.seconds = done["bytecode"], done["seconds"]
            leg.tell("bye")

    def _pass_frames(self) -> None:
        leg = self.connected()
        with leg.named():
            while True:
                frame = self.frames.get()
                if frame is None:
                    leg.channel.flush()
                    return
                leg.channel.send_frame(*frame)

    def put(self, frame: Optional[Frame]) -> None:
        """Queue a frame; waits while the target is slower than the source, but never for a target that has failed."""
        while self.alive:
            with contextlib.suppress(queue.Full):
                self.frames.put(frame, timeout=0.2)
                return

    def abandon(self) -> None:
        """End the agent, whatever its thread waits for; what it has staged stays for the next run."""
        self.verdict.failed, self.verdict.msg = True, f"{self.verdict.host}: the stream was abandoned"
        if self.leg:
            self.leg.kill()
        with contextlib.suppress(queue.Empty):
            while True:
                self.frames.get_nowait()
        self.frames.put(None)


class Relay:
    """One stream. ``say`` is told a line now and then on long ones."""

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._started = time.monotonic()

    def run(self, source: Endpoint, source_python: str, targets: Sequence[Target]) -> dict[str, Any]:
        """Stream; gives figures of the source's tree. Raises LegError when the source fails. Verdicts are in ``targets``."""
        request = self._request
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(targets) + 1) as pool:
            opening = [pool.submit(target.open, request, stack) for target in targets]
            leg = stack.enter_context(Leg(source, source_python, request.idle))
            tree = leg.ask("scan", "tree", src=request.src, exclude=list(request.exclude), full=request.full)
            for future in opening:
                future.result()
            self._all(pool, targets, lambda target: target.look(tree["digest"], request.repair))
            lacking = [target for target in targets if target.alive and target.verdict.changed]
            if lacking:
                self._list(pool, leg, tree, lacking)
            if not request.check:
                self._send(pool, leg, [target for target in lacking if target.alive])
            for target in targets:
                if target.leg:
                    target.verdict.wire_bytes = target.leg.channel.sent
            leg.tell("bye")
            return {
                "digest": tree["digest"],
                "files": tree["files"],
                "bytes": tree["bytes"],
                "entries": tree["entries"],
                "hashed": tree["hashed"],
                "shared_inodes": tree["shared"],
                "environment": tree["environment"],
                "seconds": round(time.monotonic() - self._started, 3),
            }

    @staticmethod
    def _all(pool: ThreadPoolExecutor, targets: Sequence[Target], step: Callable[[Target], None]) -> None:
        for future in [pool.submit(step, target) for target in targets if target.alive]:
            future.result()

    def _list(self, pool: ThreadPoolExecutor, leg: Leg, tree: Message, targets: Sequence[Target]) -> None:
        """Hand the source's listing to every target that lacks the release, and learn what each needs.

        First one digest a directory, then the entries of those directories that any target does not know.
        """
        request = self._request
        for target in targets:
            fields = {
                "digest": tree["digest"],
                "environment": tree["environment"],
                "source": request.source,
                "src": request.src,
            }
            with target.judged():
                target.connected().tell("prepare", bytecode=request.bytecode, **fields)
        self._forward(pool, leg, targets, Target.learn_unknown, "folders")
        unknown = sorted(set().union(*(target.unknown for target in targets)))
        self._forward(pool, leg, targets, Target.learn_need, "list", want=unknown)

    def _forward(
        self,
        pool: ThreadPoolExecutor,
        leg: Leg,
        targets: Sequence[Target],
        step: Callable[[Target], None],
        op: str,
        **fields: Any,
    ) -> None:
        """Ask the source for a list and pass it to all targets, each of which then does ``step``."""
        waiting = [pool.submit(step, target) for target in targets if target.alive]
        with self._feeding(targets):
            leg.tell(op, **fields)
            while True:
                with leg.named():
                    frame = leg.channel.receive_frame()
                    message = parse_message(frame)
                for target in targets:
                    target.put(frame)
                if message["op"] == "end":
                    break
        for future in waiting:
            future.result()

    def _send(self, pool: ThreadPoolExecutor, leg: Leg, targets: Sequence[Target]) -> None:
        """Have the source read every file that any target needs once, and hand it to those that do."""
        if not targets:
            return
        waiting = [pool.submit(target.take_files) for target in targets]
        union = sorted(set().union(*(target.want for target in targets)))
        with self._feeding(targets):
            leg.tell("send", want=union)
            taking: Sequence[Target] = ()
            files = size = 0
            told = time.monotonic()
            while True:
                with leg.named():
                    kind, payload = leg.channel.receive_frame()
                    if kind in (MESSAGE, PACKED):
                        parse_message((kind, payload), "sent")
                if kind == FILE_INDEX:
                    (number,) = INDEX.unpack(payload)
                    taking = [target for target in targets if number in target.want]
                for target in targets if kind == MESSAGE else taking:
                    target.put((kind, payload))
                if kind == MESSAGE:
                    break
                files, size = files + (kind == SUM), size + len(payload)
                if time.monotonic() - told > PROGRESS_EVERY_S:
                    told = time.monotonic()
                    self._tell(files, len(union), size, targets)
        for future in waiting:
            future.result()

    @staticmethod
    @contextlib.contextmanager
    def _feeding(targets: Sequence[Target]) -> Iterator[None]:
        """Tell every target's thread when no frame follows. When the source fails, no target is left waiting for it."""
        try:
            yield
        except BaseException:
            for target in targets:
                target.abandon()
            raise
        for target in targets:
            target.put(None)

    def _tell(self, files: int, of_files: int, size: int, targets: Sequence[Target]) -> None:
        seconds = time.monotonic() - self._started
        total = max((target.verdict.bytes_sent for target in targets), default=0)
        self._say(
            f"{self._request.source} -> {', '.join(target.verdict.host for target in targets if target.alive)}: "
            f"{files:,} of {of_files:,} files, {size // MIB:,} of {total // MIB:,} MiB, {size / MIB / seconds:.0f} MiB/s"
        )
