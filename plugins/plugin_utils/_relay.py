# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The relay: one source feeds any number of targets, through this process's memory or, where they see each other, directly.

Nothing is stored here. Every target ends with a verdict of its own. Only what is wrong with the source, or with the request,
ends the whole stream.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import peak_memory
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    PROTOCOL,
    Message,
    message_frame,
    parse_message,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._board import Board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import make_pair
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import RELAY, Request, Target

LAST_WORDS_SECONDS = 0.3
DIRECT_FROM = 64 << 20  # bytes; below, setting up a connection between the hosts is not worth it
MAX_STREAMS = 4
SPECIAL_SHOWN = 100
TREE: dict[str, type] = {  # what a source says of its tree
    **dict.fromkeys(("digest", "codec"), str),
    **dict.fromkeys(("files", "bytes", "entries", "hashed", "hashed_bytes", "shared", "processors"), int),
    "environment": dict,
    "special": list,
}
FIGURES = ("files_sent", "bytes_sent", "bytes_resumed", "wire_bytes", "mib_per_s", "reused", "origins", "seconds")


@dataclass(frozen=True)
class Group:
    """Files that the same targets want in the same way; ``partial`` holds the hashes of what those targets have of some."""

    numbers: list[int]
    partial: list[list[Any]]
    targets: list[Target]

    def message(self) -> dict[str, Any]:
        sinks = sorted({target.sink for target in self.targets})
        return {"runs": to_runs(self.numbers), "partial": self.partial, "sinks": sinks}


class Relay:
    """One stream. ``say`` is told a line now and then on long ones."""

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._started = time.monotonic()
        self._board = Board(request.source, say)
        self._ended = False
        self._sent: Message = {"rates": {}, "seconds": {}, "peak_memory": 0, "lost": {}}

    def run(self, source: Endpoint, source_python: str, targets: Sequence[Target]) -> dict[str, Any]:
        """Stream; gives figures of the source's tree. Raises LegError when the source fails. Verdicts are in ``targets``."""
        request = self._request
        memory = peak_memory()
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(targets) + 1) as pool:
            opening = [pool.submit(target.open, request, self._board, stack) for target in targets]
            leg = stack.enter_context(Leg(source, source_python, request.idle, self._board.heard))
            tree = leg.ask(
                "scan",
                "tree",
                protocol=PROTOCOL,
                src=request.src,
                exclude=list(request.exclude),
                full=request.full,
                check=request.check,
                interpreter=bool(request.interpreter),
            )
            _check_tree(request.source, tree)
            for future in opening:
                future.result()
            self._all(pool, targets, lambda target: target.look(tree["digest"], request.repair))
            lacking = [target for target in targets if target.alive and target.verdict.changed]
            if lacking and request.ship and tree["environment"]:
                self._ship(source, source_python, tree["environment"], lacking)
                lacking = [target for target in lacking if target.alive]
            if lacking:
                self._list(pool, leg, tree, lacking)
            lacking = [target for target in lacking if target.alive]
            if lacking and not request.check:
                self._choose_paths(leg, source, tree, lacking)
                self._send(pool, leg, tree, [target for target in lacking if target.alive])
            for target in targets:
                if target.leg:
                    target.verdict.wire_bytes += target.leg.channel.sent
            if not self._ended:
                leg.tell("bye")
        return self._figures(tree, memory)

    def _figures(self, tree: Message, memory: int) -> dict[str, Any]:
        kept = ("digest", "files", "bytes", "entries", "hashed", "hashed_bytes", "environment")
        return {
            **{name: tree[name] for name in kept},
            "shared_inodes": tree["shared"],
            "special": [path for path, mode in tree["special"][:SPECIAL_SHOWN]],
            "source_seconds": self._sent["seconds"],
            "source_peak_memory": self._sent["peak_memory"],
            "rates": self._sent["rates"],
            "relay_peak_memory": peak_memory(),
            "relay_own_memory": max(0, peak_memory() - memory),
            "seconds": round(time.monotonic() - self._started, 3),
        }

    @staticmethod
    def _all(pool: ThreadPoolExecutor, targets: Sequence[Target], step: Callable[[Target], None]) -> None:
        for future in [pool.submit(step, target) for target in targets if target.alive]:
            future.result()

    def _ship(
        self, source: Endpoint, source_python: str, environment: dict[str, Any], targets: Sequence[Target]
    ) -> None:
        """Bring the base interpreter to those targets that it does not run on."""
        reasons = {target.verdict.host: target.why_not(environment) for target in targets}
        lacking = [target for target in targets if target.alive and reasons[target.verdict.host]]
        if not lacking:
            return
        if not environment["shippable"]:
            for target in lacking:
                target.fail(f"{target.verdict.host}: {reasons[target.verdict.host]}")
            return
        request = dataclasses.replace(
            self._request,
            src=environment["prefix"],
            exclude=(),
            interpreter=environment["prefixes"],
            ship=False,
            changes=False,
            special=False,
        )
        doubles = [Target(target.endpoint, target.python) for target in lacking]
        Relay(request, self._say).run(source, source_python, doubles)
        for target, double in zip(lacking, doubles):
            target.shipped = target.verdict.interpreter = double.verdict.release
            target.verdict.interpreter_stream = {name: getattr(double.verdict, name) for name in FIGURES}
            if double.verdict.failed:
                target.fail(double.verdict.msg)

    def _list(self, pool: ThreadPoolExecutor, leg: Leg, tree: Message, targets: Sequence[Target]) -> None:
        """Hand the source's listing to every target that lacks the release, and learn what each needs.

        First one digest a directory, then the entries of those directories that any target does not know.
        """
        request, entries = self._request, int(tree["entries"])
        for target in targets:
            with target.judged():
                target.connected().tell(
                    "prepare",
                    digest=tree["digest"],
                    environment=tree["environment"],
                    source=request.source,
                    src=request.src,
                    bytecode=request.bytecode,
                    shipped=target.shipped,
                    prefixes=list(request.interpreter),
                    special=tree["special"] if request.special else [],
                    changes=request.changes,
                )
        self._forward(pool, leg, targets, lambda target: target.learn_unknown(entries), "folders")
        unknown = sorted(set().union(*(target.unknown for target in targets)))
        self._forward(pool, leg, targets, lambda target: target.learn_need(entries), "list", want=unknown)

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

    def _choose_paths(self, leg: Leg, source: Endpoint, tree: Message, targets: Sequence[Target]) -> None:
        """Give every target that the source can reach a connection of its own, unless the relay is asked for or as good."""
        request = self._request
        most = max(target.verdict.bytes_sent for target in targets)
        if request.path == "relay" or (request.path == "auto" and most < DIRECT_FROM):
            return
        own, peers = make_pair("source"), []
        problems: dict[str, str] = {}
        streams = request.streams or max(1, min(MAX_STREAMS, tree["processors"] // 4))
        for number, target in enumerate(targets, RELAY + 1):
            with target.judged():
                peer = target.listen(request, own.certificate, streams)
                if peer.get("problem"):
                    problems[target.verdict.host] = f"it cannot be connected to directly: {peer['problem']}"
                    continue
                if target.endpoint.connection == source.connection:
                    peer["addresses"].append(["127.0.0.1", peer["port"]])
                peers.append({**peer, "sink": number, "certificate": own.certificate, "key": own.key})
                target.sink = number
        # The source must give up a target that hangs before this process gives up the source, which waits for it.
        failed = leg.ask("connect", "connected", peers=peers, idle=request.idle / 2)["failed"] if peers else {}
        for target in targets:
            host = target.verdict.host
            if str(target.sink) in failed:
                problems[host] = f"{request.source} cannot connect to it directly: {failed[str(target.sink)]}"
            if host not in problems:
                continue
            why = f"{host}: {problems[host]}"
            if request.path == "direct":
                target.fail(f"{why}; open the ports to the source, set direct_ports, or use path auto or relay")
            else:
                target.sink = RELAY
                target.verdict.notices.append(f"{why}; its content goes through the control node")

    def _send(self, pool: ThreadPoolExecutor, leg: Leg, tree: Message, targets: Sequence[Target]) -> None:
        """Have the source read every file that any target needs once, and hand it to those that do."""
        if not targets:
            return
        request = self._request
        able = bool(tree["codec"]) and all(target.codec for target in targets)
        compress = request.compress if able else "none"
        for target in targets:
            target.verdict.compress = compress
            if request.compress == "zstd" and not (tree["codec"] and target.codec):
                lacking = request.source if not tree["codec"] else target.verdict.host
                target.verdict.notices.append(
                    f"{lacking}: there is no zstd, so content goes uncompressed; install libzstd"
                )
        groups = list(_groups(targets))
        targets[0].alone = len(targets) == 1 and targets[0].sink == RELAY and hasattr(os, "splice")
        heard = threading.Event()  # the source has ended by itself, and said why
        waiting = [pool.submit(target.take_files) for target in targets]
        for future in waiting:
            future.add_done_callback(lambda future: self._end_without_targets(leg, targets, heard))
        relayed = [group for group in groups if any(target.sink == RELAY for target in group.targets)]
        self._board.begin(targets)
        with self._feeding(targets):
            asked = [group.message() for group in groups]
            try:
                leg.tell("send", groups=asked, compress=compress, rate=request.rate)
                self._sent = self._pass_blocks(leg, relayed)
            except LegError:
                if not self._ended:
                    raise
            finally:
                heard.set()
            for target in targets:
                if target.sink == RELAY:  # a source tells those that it is connected to itself
                    target.put(message_frame("end"))
        for future in waiting:
            future.result()

    def _pass_blocks(self, leg: Leg, relayed: list[Group]) -> Message:
        """Hand the source's groups to the targets that get them through here; gives what the source says at the end."""
        taking: Sequence[Target] = ()
        while True:
            with leg.named():
                kind, length = leg.channel.receive_header()
                if kind == BLOCK and taking and taking[0].alone:
                    if not taking[0].put_block(leg, length):
                        self._end_source(leg)
                    continue
                kind, payload = leg.channel.receive_content(kind, length)
                message = parse_message((kind, payload), "group", "sent", "progress") if kind != BLOCK else {}
            if message.get("op") == "progress":
                self._board.heard(self._request.source, message)
                continue
            if message.get("op") == "sent":
                return message
            if message:
                taking = [target for target in relayed.pop(0).targets if target.sink == RELAY]
            for target in taking:
                target.put((kind, payload))

    def _end_without_targets(self, leg: Leg, targets: Sequence[Target], heard: threading.Event) -> None:
        """End the source when nobody is left to read the rest for.

        Where they are connected directly it may be the source that fails, which says why first, and is listened to for a moment.
        """
        if any(target.alive for target in targets):
            return
        if any(target.sink != RELAY for target in targets) and heard.wait(LAST_WORDS_SECONDS):
            return
        self._end_source(leg)

    def _end_source(self, leg: Leg) -> None:
        self._ended = True
        leg.kill()

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


def _check_tree(source: str, tree: Message) -> None:
    """Raise LegError where a source describes its tree in another form than it should."""
    if not all(isinstance(tree.get(name), kind) for name, kind in TREE.items()):
        raise LegError(f"{source}: the stream is corrupt: the source garbles what its tree is")


def _groups(targets: Sequence[Target]) -> Iterator[Group]:
    """The wanted files by who wants them, each file in one group."""
    wanting: dict[int, list[Target]] = {}
    for target in targets:
        for number in target.want:
            wanting.setdefault(number, []).append(target)
    found: dict[tuple[int, ...], Group] = {}
    for number in sorted(wanting):
        having: dict[str, list[Target]] = {}
        for target in wanting[number]:
            having.setdefault(repr(target.partial.get(number)), []).append(target)
        for those in having.values():
            group = found.setdefault(tuple(id(target) for target in those), Group([], [], those))
            group.numbers.append(number)
            if number in those[0].partial:
                group.partial.append([number, those[0].partial[number]])
    yield from found.values()
