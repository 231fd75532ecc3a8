# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rounds: each brings content to all targets that still lack some, and ends early when a connection or a target is lost.

Then those that live say what they still lack, new chains are made without what was lost, and the next round brings the rest. A
round that nothing happens in is the only one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.pace import idle_seconds
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import RELAY
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    Message,
    message_frame,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._board import Board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._chains import Chain, Group, Linker, groups
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._slow import Slow, Watch
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target

FRUITLESS = 3  # rounds in a row after which nobody is wiser


@dataclass
class Sent:
    """What the source did in all rounds together; ``chains`` are those of the last one."""

    rounds: int = 0
    read: int = 0
    bytes: int = 0
    peak_memory: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    set_aside: list[str] = field(default_factory=list)
    chains: list[list[str]] = field(default_factory=list)

    def add(self, sent: Message) -> None:
        """Add what the source says at the end of a round."""
        self.read += sent["read"]
        self.bytes += sent["bytes"]
        self.peak_memory, self.seconds = sent["peak_memory"], sent["seconds"]
        self.rates = sent["rates"] or self.rates


class Rounds:
    """All rounds of one stream."""

    def __init__(
        self, request: Request, leg: Leg, source: Endpoint, tree: Message, board: Board, pool: ThreadPoolExecutor
    ) -> None:
        self.sent = Sent()
        self._request = request
        self._leg = leg
        self._codec = bool(tree["codec"])
        self._board = board
        self._pool = pool
        self._linker = Linker(request, leg, source, tree["processors"], pool)
        self._aside: list[Target] = []  # those that the others do not wait for any more
        self._moved = False  # a head to the end of its chain, since nobody knew whether it is slow

    def run(self, targets: Sequence[Target]) -> None:
        """Bring every target what it lacks, as far as that can be done. Raises LegError when the source fails."""
        for number, target in enumerate(targets, RELAY + 1):
            target.number = number
        compress = self._agree_on_compression(targets)
        order, fruitless = list(targets), 0
        while any(target.waits for target in order):
            before = [target for target in order if target.waits]
            first = [target for target in before if target not in self._aside]
            chains = self._linker.form(first or before, apart=not first)
            if not chains:
                continue
            current = self._round(chains, compress, judge=bool(first))
            found = current.broken is not None and self._blame(chains, *current.broken)
            if current.slow:
                self._take_in_hand(current.slow, order)
            news = found or current.slow or before != [target for target in order if target.waits]
            fruitless = 0 if news else fruitless + 1
            if fruitless == FRUITLESS:
                for target in (target for target in before if target.waits):
                    target.fail(f"{target.verdict.host}: its content stopped again and again: {target.why_short}")

    def _take_in_hand(self, slow: Slow, order: list[Target]) -> None:
        """Set a slow target aside, or have it last in the chain to see whether it is slow."""
        if slow.proved:
            self._aside.append(slow.target)
            self.sent.set_aside.append(slow.target.verdict.host)
            slow.target.note(slow.notice())
        else:
            self._moved = True
            order.remove(slow.target)
            order.append(slow.target)

    def _agree_on_compression(self, targets: Sequence[Target]) -> str:
        request = self._request
        able = self._codec and all(target.codec for target in targets)
        compress = request.compress if able else "none"
        for target in targets:
            target.verdict.compress = compress
            if request.compress == "zstd" and not (self._codec and target.codec):
                lacking = request.source if not self._codec else target.verdict.host
                target.note(f"{lacking}: there is no zstd, so content goes uncompressed; install libzstd")
        return compress

    def _round(self, chains: list[Chain], compress: str, judge: bool) -> Round:
        """See one round through. ``judge``: slow targets need not be waited for."""
        self.sent.rounds += 1
        if judge:
            self.sent.chains = [[target.verdict.host for target in chain.members] for chain in chains]
        self._board.begin([target for chain in chains for target in chain.members])
        # Where only the source may feed a head, another one may be out of its reach.
        move = not self._moved and self._request.path != "direct"
        current = Round(self._request, self._leg, chains, self._board, judge, move)
        sent = current.run(self._pool, compress)
        if sent:
            self.sent.add(sent)
        return current

    def _blame(self, chains: list[Chain], target: Target, why: str) -> bool:
        """Do not trust a connection for ever that broke while both its ends live; gives whether it was one."""
        (chain,) = (chain for chain in chains if target in chain.members)
        if not all(member.alive for member in chain.members[: chain.members.index(target) + 1]):
            return False
        self._linker.broke(target.feeder, target.verdict.host, why)
        target.note(
            f"{target.verdict.host}: content from {target.feeder} stopped ({why}); the rest came in another round"
        )
        return True


class Round:
    """One round. Threads see to the targets, one each, while the caller's passes on what goes through this process."""

    def __init__(self, request: Request, leg: Leg, chains: list[Chain], board: Board, judge: bool, move: bool) -> None:
        """``judge``: the round ends when a target is found to be slow; ``move``: also when a head may be."""
        self.slow: Slow | None = None
        self.broken: tuple[Target, str] | None = None  # the target that first got no content any more, and why
        self._watch = Watch(chains)
        self._judge = judge
        self._move = move
        self._request = request
        self._leg = leg
        self._chains = chains
        self._board = board
        self._members = {target.number: target for chain in chains for target in chain.members}
        self._left = dict(self._members)  # those that are not through yet
        self._lock = threading.Lock()
        self._stopped = False
        self._over = False  # the source has sent what there is, or stopped

    def run(self, pool: ThreadPoolExecutor, compress: str) -> Message:
        """Give what the source says at the end, nothing where that does not matter any more. Raises LegError when the source fails."""
        leg, chains = self._leg, self._chains
        heads = [chain.members[0] for chain in chains if not chain.direct]
        for target in self._members.values():
            target.alone = target in heads and len(chains) == 1 and hasattr(os, "splice")
            target.watch = self._heard
        asked = list(groups(chains))
        waiting: list[Future[None]] = []
        sent: Message = {}
        with feeding([*self._members.values()], heads):
            # All is asked for before anybody may say stop, which must not overtake it.
            for chain in chains:
                for target in chain.members:
                    target.verdict.topology = "chain" if len(chain.members) > 1 else "star"
                    target.begin(chain.feeds_directly(target), [behind.number for behind in chain.after(target)])
            try:
                messages = [group.message() for group in asked]
                leg.tell("send", groups=messages, compress=compress, rate=self._request.rate)
                waiting = [pool.submit(self._see, chain, target) for chain in chains for target in chain.members]
                sent = self._pass_blocks([group for group in asked if RELAY in group.sinks()])
            except LegError:
                if any(target.waits for target in self._members.values()):
                    raise
            with self._lock:
                self._over = True
            self._lose(sent)
            for head in heads:  # a source tells those that it is connected to itself
                head.put(message_frame("stop" if sent.get("stopped") else "end"))
        for future in waiting:
            future.result()
        return sent

    def _pass_blocks(self, relayed: list[Group]) -> Message:
        """Hand the source's groups to the targets that get them through here; gives what the source says at the end."""
        leg = self._leg
        taking: Sequence[Target] = ()
        while True:
            with leg.named():
                kind, length = leg.channel.receive_header()
                if kind == BLOCK and taking and taking[0].alone:
                    taking[0].put_block(leg, length)
                    continue
                kind, payload = leg.channel.receive_content(kind, length)
                message = parse_message((kind, payload), "group", "sent", "progress") if kind != BLOCK else {}
            if message.get("op") == "progress":
                self._board.heard(self._request.source, message)
                self._lose(message)
                self._look(message)
                continue
            if message.get("op") == "sent":
                return message
            if message:
                taking = [chain.members[0] for chain in relayed.pop(0).chains if not chain.direct]
            for target in taking:
                target.put((kind, payload))

    def _see(self, chain: Chain, target: Target) -> None:
        """See one target through the round."""
        direct = chain.feeds_directly(target)
        target.take(direct)
        with self._lock:
            self._left.pop(target.number)
            cut_off = not target.alive and self._waits_behind(target)
            nobody = not self._left
            if target.why_short and not self._stopped:
                self.broken = target, target.why_short
        if target.why_short or cut_off or nobody:
            self._stop()

    def _heard(self, target: Target, progress: Message) -> None:
        self._lose(progress)
        self._look(progress)

    def _lose(self, progress: Message) -> None:
        """End the round when a sender cannot send to a target any more that others wait behind; what has none behind it says so itself."""
        with self._lock:
            lost = [
                (self._left[int(n)], str(why)) for n, why in progress.get("lost", {}).items() if int(n) in self._left
            ]
            cut = [(target, why) for target, why in lost if self._waits_behind(target)]
            if cut and not self._stopped:
                self.broken = cut[0]
        if cut:
            self._stop()

    def _waits_behind(self, target: Target) -> bool:
        """Whether somebody who is not through yet gets content by way of a target."""
        (chain,) = (chain for chain in self._chains if target in chain.members)
        return any(behind.number in self._left for behind in chain.after(target))

    def _look(self, progress: Message) -> None:
        """Judge by what a sender says of those that it sends to, and by what this process sees of those that it feeds itself."""
        links = dict(progress.get("links", {}))
        with self._lock:
            if not self._judge or self._stopped or self._over:
                return
            for number, (waited, taken, best) in links.items():
                target = self._members.get(int(number))
                if target:
                    self._watch.heard(target, waited, taken, best, progress.get("came", 0.0), progress["idle"])
            if progress["phase"] == "send":
                for chain in self._chains:
                    if not chain.direct and chain.members[0].waits:
                        waited, taken, best = chain.members[0].waited_for()
                        self._watch.heard(chain.members[0], waited, taken, best, idle=idle_seconds() or 0.0)
            slow = self._watch.slow()
            if slow is None or not (slow.proved or self._move):
                return
            self.slow = slow
        self._stop()

    def _stop(self) -> None:
        """End the round for everybody, so that the next one can begin without what was lost."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            if not self._over:
                self._leg.call_out("stop")
            for chain in self._chains:
                for target in chain.members[0 if chain.direct else 1 :]:  # others hear of it among what they get
                    if target.number in self._left and target.leg:
                        target.leg.call_out("stop")


@contextlib.contextmanager
def feeding(targets: Sequence[Target], fed: Sequence[Target] | None = None) -> Iterator[None]:
    """Tell the thread of every target that is ``fed`` here, all by default, when no frame follows.

    When the source fails, no target is left waiting for it.
    """
    try:
        yield
    except BaseException:
        for target in targets:
            if not target.done:
                target.abandon()
        raise
    for target in targets if fed is None else fed:
        target.put(None)
