# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chains: who gets content from whom, and the connections that this takes.

A target whose predecessor can connect to it is fed by it. Any other is the head of a chain, be it of one target, and is fed by
the source or by the relay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import RELAY
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Message, to_runs
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import Credentials, make_pair
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target

DIRECT_FROM = 64 << 20  # bytes; below, setting up a connection between the hosts is not worth it
MAX_STREAMS = 4
BREAKS = 2  # a connection that broke so often in one stream is not made again


@dataclass
class Chain:
    """Targets each of which passes on to the next; ``direct``: the source is connected to the first."""

    members: list[Target]
    direct: bool = False

    @property
    def sink(self) -> int:
        """Where a source sends what is for this chain."""
        return self.members[0].number if self.direct else RELAY

    def after(self, target: Target) -> list[Target]:
        return self.members[self.members.index(target) + 1 :]

    def feeds_directly(self, target: Target) -> bool:
        """Whether a member's content comes over a connection of its own, and not through the relay."""
        return self.direct or target is not self.members[0]

    def feeder(self, target: Target, source: str) -> str:
        """The host that feeds a member, or ``relay``."""
        place = self.members.index(target)
        if place:
            return self.members[place - 1].verdict.host
        return source if self.direct else "relay"


@dataclass(frozen=True)
class Group:
    """Files that the same targets want; ``partial`` holds the hashes of what each of them has, of those that all have in part."""

    numbers: list[int]
    partial: list[list[Any]]
    chains: list[Chain]
    takers: list[int]

    def sinks(self) -> list[int]:
        return sorted({chain.sink for chain in self.chains})

    def message(self) -> Message:
        runs = to_runs(self.numbers)
        return {"runs": runs, "partial": self.partial, "sinks": self.sinks(), "takers": self.takers}


def groups(chains: Sequence[Chain]) -> Iterator[Group]:
    """The wanted files by who wants them, each file in one group.

    Where every target is fed by itself, those that have another beginning of a file get the rest of it by itself, too. In a chain
    all that one of them lacks passes the others anyway.
    """
    star = all(len(chain.members) == 1 for chain in chains)
    of = {target.number: chain for chain in chains for target in chain.members}
    wanting: dict[int, list[Target]] = {}
    for chain in chains:
        for target in chain.members:
            for number in target.want:
                wanting.setdefault(number, []).append(target)
    found: dict[tuple[int, ...], Group] = {}
    for number in sorted(wanting):
        having: dict[str, list[Target]] = {}
        for target in wanting[number]:
            having.setdefault(repr(target.partial.get(number)) if star else "", []).append(target)
        for those in having.values():
            takers = tuple(sorted(target.number for target in those))
            where = {id(of[taker]): of[taker] for taker in takers}
            group = found.setdefault(takers, Group([], [], list(where.values()), list(takers)))
            group.numbers.append(number)
            if all(number in target.partial for target in those):
                beginnings = {repr(target.partial[number]): target.partial[number] for target in those}
                group.partial.extend([number, beginning] for beginning in beginnings.values())
    yield from found.values()


class Linker:
    """Makes the connections of one stream, anew for every round of it."""

    def __init__(self, request: Request, leg: Leg, source: Endpoint, processors: int, pool: ThreadPoolExecutor) -> None:
        self._request = request
        self._leg = leg
        self._source = source
        self._processors = processors
        self._pool = pool
        self._own = make_pair("source")
        self._breaks: dict[tuple[str, str], list[str]] = {}

    def broke(self, feeder: str, receiver: str, why: str, times: int = 1) -> None:
        """Remember that a connection broke."""
        self._breaks.setdefault((feeder, receiver), []).extend([why] * times)

    def form(self, targets: Sequence[Target], apart: bool = False) -> list[Chain]:
        """Connect those targets that still wait for something; ``apart``: each by itself. One that nobody can feed fails."""
        while True:
            waiting = [target for target in targets if target.waits]
            chains = self._connect(waiting, apart)
            if all(target.waits for chain in chains for target in chain.members):
                return chains
            # One that failed meanwhile leaves those behind it without anybody who feeds them.

    def _connect(self, targets: Sequence[Target], apart: bool) -> list[Chain]:
        problems: dict[int, list[str]] = {target.number: [] for target in targets}
        wanting = [target for target in targets if target.want]
        chained = wanting if self._chains_pay(wanting) and not apart else []
        fed = self._link(list(zip(chained, chained[1:])), problems)
        chains = {target.number: Chain([target]) for target in targets if target.number not in fed}
        heads = list(chains.values())
        most = max((target.verdict.bytes_sent for target in wanting), default=0)
        if self._request.path == "direct" or (self._request.path == "auto" and most >= DIRECT_FROM):
            self._feed_heads([chain for chain in heads if chain.members[0].want and chain.members[0].alive], problems)
        for target in chained:  # in order, so that its predecessor has its chain already
            if target.number in fed:
                chains[target.number] = chains[fed[target.number]]
                chains[target.number].members.append(target)
        for target in targets:
            self._note(chains[target.number], target, problems[target.number])
        return heads

    def _note(self, chain: Chain, target: Target, problems: list[str]) -> None:
        """Say what did not go as it should, or fail the target when nothing did."""
        host, request = target.verdict.host, self._request
        target.feeder = chain.feeder(target, request.source)
        if not problems or not target.alive:
            return
        why = f"{host}: {'; '.join(dict.fromkeys(problems))}"
        if target.feeder != "relay":
            target.note(f"{why}; its content comes from {target.feeder}")
        elif request.path == "direct":
            target.fail(f"{why}; open the ports to the source, set direct_ports, or use path auto or relay")
        else:
            target.note(f"{why}; its content goes through the control node")

    def _chains_pay(self, wanting: Sequence[Target]) -> bool:
        if self._request.topology == "auto":
            return sum(target.verdict.bytes_sent >= DIRECT_FROM for target in wanting) > 1
        return self._request.topology == "chain" and len(wanting) > 1

    def _link(self, pairs: list[tuple[Target, Target]], problems: dict[int, list[str]]) -> dict[int, int]:
        """Connect the first of each pair to the second; gives the number of the first by that of the second, where that worked."""
        usable = [pair for pair in pairs if self._may(pair[0].verdict.host, pair[1].verdict.host)]
        fed: dict[int, int] = {}

        def listen(pair: tuple[Target, Target]) -> Message:
            first, second = pair
            return self._listen(second, first.credentials, first.endpoint, first.processors)

        def connect(place: int, peer: Message) -> None:
            first, second = usable[place]
            if not first.alive:
                return
            with first.judged():
                problem = str(peer.get("problem", ""))
                if not problem:
                    # Who is further down loses patience first, so that nobody is given up for what hangs behind it.
                    idle = self._request.idle / 2 * (1 - (place + 1) / (2 * len(usable) + 2))
                    failed = first.connected().ask("connect", "connected", peers=[peer], idle=idle)["failed"]
                    problem = str(failed.get(str(second.number), ""))
                    problem = f"{first.verdict.host} cannot connect to it directly: {problem}" if problem else ""
                if problem:
                    self.broke(first.verdict.host, second.verdict.host, problem, BREAKS)
                    problems[second.number].append(problem)
                elif second.alive:
                    fed[second.number] = first.number

        peers = list(self._pool.map(listen, usable))
        list(self._pool.map(connect, range(len(usable)), peers))
        return fed

    def _may(self, feeder: str, receiver: str) -> bool:
        return len(self._breaks.get((feeder, receiver), ())) < BREAKS

    def _listen(self, target: Target, caller: Credentials, endpoint: Endpoint, processors: int) -> Message:
        """Have a target wait for a caller; gives what the caller must know, or the ``problem``."""
        streams = self._request.streams or max(1, min(MAX_STREAMS, processors // 4))
        peer: Message = {"problem": "it failed"}
        with target.judged():
            peer = target.listen(self._request, caller.certificate, streams)
            if peer.get("problem"):
                return {"problem": f"it cannot be connected to directly: {peer['problem']}"}
            if target.endpoint.connection == endpoint.connection:
                peer["addresses"].append(["127.0.0.1", peer["port"]])
            peer.update(certificate=caller.certificate, key=caller.key)
        return peer

    def _feed_heads(self, heads: Sequence[Chain], problems: dict[int, list[str]]) -> None:
        """Connect the source to the heads of chains."""
        request, source = self._request, self._request.source
        chosen = {chain.members[0].number: chain for chain in heads if self._may(source, chain.members[0].verdict.host)}
        for chain in heads:
            head = chain.members[0]
            if head.number not in chosen:
                why = self._breaks[source, head.verdict.host][-1]
                problems[head.number].append(f"{source} cannot feed it directly: {why}")

        def listen(chain: Chain) -> Message:
            return self._listen(chain.members[0], self._own, self._source, self._processors)

        peers = dict(zip(chosen, self._pool.map(listen, chosen.values())))
        usable = [peer for peer in peers.values() if not peer.get("problem")]
        # The source must give up a target that hangs before this process gives up the source, which waits for it.
        asked = {"peers": usable, "idle": request.idle / 2}
        failed = self._leg.ask("connect", "connected", **asked)["failed"] if usable else {}
        for number, chain in chosen.items():
            problem = str(peers[number].get("problem", ""))
            if str(number) in failed:
                problem = f"{source} cannot connect to it directly: {failed[str(number)]}"
            chain.direct = not problem
            if problem:
                self.broke(source, chain.members[0].verdict.host, problem, BREAKS)
                problems[number].append(problem)
