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
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import peak_memory
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    PROTOCOL,
    Message,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._board import Board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._rounds import Rounds, Sent, feeding
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target

SPECIAL_SHOWN = 100
TREE: dict[str, type] = {  # what a source says of its tree
    **dict.fromkeys(("digest", "codec"), str),
    **dict.fromkeys(("files", "bytes", "entries", "hashed", "hashed_bytes", "shared", "processors"), int),
    "environment": dict,
    "special": list,
}
FIGURES = ("files_sent", "bytes_sent", "bytes_resumed", "wire_bytes", "mib_per_s", "reused", "origins", "seconds")


class Relay:
    """One stream. ``say`` is told a line now and then on long ones."""

    def __init__(self, request: Request, say: Callable[[str], None]) -> None:
        self._request = request
        self._say = say
        self._started = time.monotonic()
        self._board = Board(request.source, say)
        self._sent = Sent()

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
                self._all(pool, lacking, Target.build)
                rounds = Rounds(request, leg, source, tree, self._board, pool)
                rounds.run([target for target in lacking if target.alive])
                self._sent = rounds.sent
            for target in targets:
                if target.leg:
                    target.verdict.wire_bytes += target.leg.channel.sent
            leg.call_out("bye")
        return self._figures(tree, memory, sum(target.leg.channel.sent for target in targets if target.leg))

    def _figures(self, tree: Message, memory: int, relayed: int) -> dict[str, Any]:
        sent = self._sent
        kept = ("digest", "files", "bytes", "entries", "hashed", "hashed_bytes", "environment")
        return {
            **{name: tree[name] for name in kept},
            "shared_inodes": tree["shared"],
            "special": [path for path, mode in tree["special"][:SPECIAL_SHOWN]],
            "source_seconds": sent.seconds,
            "source_peak_memory": sent.peak_memory,
            "source_bytes_read": sent.read,
            "source_bytes_sent": sent.bytes,
            "relay_bytes_sent": relayed,
            "rounds": sent.rounds,
            "set_aside": sent.set_aside,
            "chains": sent.chains,
            "rates": sent.rates,
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
        with feeding(targets):
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


def _check_tree(source: str, tree: Message) -> None:
    """Raise LegError where a source describes its tree in another form than it should."""
    if not all(isinstance(tree.get(name), kind) for name, kind in TREE.items()):
        raise LegError(f"{source}: the stream is corrupt: the source garbles what its tree is")
