# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong and when, drawn from a seed."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import bundle
from engine import SOURCE, TARGET

SHORT_IDLE_S = 2.0  # for what is given up only because nothing comes; less than the quiet time after a commit takes
LONG_IDLE_S = 30.0
STALL_S = 1.0
AGENT_BYTES = len(bundle())  # damage to the program itself is not the engine's to report
SMALL_TALK_BYTES = 150  # what certainly goes to a source or comes from a target after the agent has started
FIRST_LINE_BYTES = 40  # of an agent, or a little more
LATEST_S = 0.2  # before the end of the quickest run
PHASES = ("lock", "staging", "release")
ASKED = "ask"  # the wire stops at its point until the fault has been made from outside


@dataclass(frozen=True)
class Moment:
    """When: ``number`` bytes have passed in ``direction`` of ``host``'s wire, or have arrived in the store, or so many
    seconds have gone since the start, or ``phase`` is seen in the file system."""

    how: str
    number: float = 0
    host: str = ""
    direction: str = ""
    phase: str = ""

    def __str__(self) -> str:
        if self.how == "bytes":
            return f"{self.number / 1e6:.3f} MB {self.direction} {self.host}"
        if self.how == "arrived":
            return f"{self.number / 1e6:.3f} MB arrived"
        return f"{self.number:.2f} s" if self.how == "time" else self.phase


@dataclass(frozen=True)
class Fault:
    """One fault. ``what`` is what a wire does or, where the moment is not the wire's own, what the case does to ``victim``.

    ``idle`` is the run's time-out. A message about the fault has ``must_name`` in it.
    """

    kind: str
    what: str
    moment: Moment
    victim: str = ""
    by_wire: bool = False
    idle: float = LONG_IDLE_S
    must_succeed: bool = False
    must_name: str = ""

    def __str__(self) -> str:
        detail = " ".join(word for word in (self.victim, self.what) if word and word not in self.kind)
        return f"{self.kind}{f' ({detail})' if detail else ''} at {self.moment}"


def _to_source_or_from_target(rng: random.Random, to_source: bool) -> Moment:
    """A point in the few bytes that steer: they take as many faults as the content does."""
    number = rng.randrange(1, SMALL_TALK_BYTES)
    if to_source:
        return Moment("bytes", AGENT_BYTES + number, SOURCE, "to")
    return Moment("bytes", number, TARGET, "from")


def _content(rng: random.Random, size: int, host: str) -> Moment:
    """A point while the listing or content passes: to the target, or from the source. ``size`` is what will pass at least."""
    number = int(2 ** rng.uniform(5, 17)) if rng.random() < 0.3 else rng.randrange(1, int(size * 0.95))
    start = AGENT_BYTES if host == TARGET else 0
    return Moment("bytes", start + number, host, "to" if host == TARGET else "from")


def _on_the_wire(rng: random.Random, size: int) -> Moment:
    choice = rng.randrange(6)
    if choice < 4:
        return _content(rng, size, TARGET if choice < 2 else SOURCE)
    return _to_source_or_from_target(rng, choice == 4)


def _any_time(rng: random.Random, size: int, direct: bool) -> Moment:
    choice = rng.random()
    if choice < 0.6:
        if direct:
            return Moment("arrived", rng.randrange(1, int(size * 0.95)))
        return _content(rng, size, rng.choice((SOURCE, TARGET)))
    if choice < 0.8:
        return Moment("time", rng.uniform(0, LATEST_S))
    return Moment("phase", phase=rng.choice(PHASES))


def _signalled(kind: str, rng: random.Random, size: int, direct: bool) -> Fault:
    sent, victim = kind.split("-")
    if sent == "stop":
        # Later than this, the idle time that the other end is given would end a healthy run.
        moment = _any_time(rng, size, direct)
        if moment.phase == "release":
            moment = Moment("phase", phase="staging")
        return Fault(kind, rng.choice(("continued", "killed")), moment, victim, idle=SHORT_IDLE_S)
    name = rng.choice((signal.SIGKILL, signal.SIGTERM)).name
    return Fault(kind, "SIGKILL" if victim == "control" else name, _any_time(rng, size, direct), victim)


def _wired(kind: str, rng: random.Random, size: int, direct: bool) -> Fault:
    if direct:
        moment, stall = Moment("arrived", rng.randrange(1, int(size * 0.95))), kind == "stall"
        return Fault(kind, kind, moment, "link", idle=LONG_IDLE_S if stall else SHORT_IDLE_S, must_succeed=stall)
    if kind == "stall":
        moment = _content(rng, size, rng.choice((SOURCE, TARGET)))
        return Fault(kind, f"stall={STALL_S}", moment, by_wire=True, must_succeed=True)
    moment = _content(rng, size, TARGET) if kind == "linger" else _on_the_wire(rng, size)
    if kind == "flip" and moment.direction == "from":  # a damaged first line is what a login printed
        moment = Moment("bytes", moment.number + FIRST_LINE_BYTES, moment.host, "from")
    idle = LONG_IDLE_S if kind in ("cut", "drop") else SHORT_IDLE_S
    return Fault(kind, kind, moment, by_wire=True, idle=idle)


def _disk_full(kind: str, rng: random.Random, size: int, direct: bool) -> Fault:
    return Fault(
        kind, rng.choice(("blocks", "blocks", "inodes")), _any_time(rng, size, direct), "disk", must_name="/venv."
    )


def _source_changed(kind: str, rng: random.Random, size: int, direct: bool) -> Fault:
    what = rng.choice(("rewritten", "removed", "cut short", "appended to", "replaced"))
    return Fault(kind, what, _any_time(rng, size, direct), "file")


KINDS = {
    "kill-sender": _signalled,
    "kill-receiver": _signalled,
    "kill-relay": _signalled,
    "kill-control": _signalled,
    "stop-sender": _signalled,
    "stop-receiver": _signalled,
    "flip": _wired,
    "cut": _wired,
    "drop": _wired,
    "stall": _wired,
    "hang": _wired,
    "linger": _wired,
    "disk-full": _disk_full,
    "source-changed": _source_changed,
}
ONLY_BY_WIRE = ("flip", "linger")  # a link between the agents cannot do these from outside


def kind_of(seed: int, path: str) -> str:
    """Kinds take turns, so that every count has its share of each."""
    kinds = [kind for kind in KINDS if path == "relay" or kind not in ONLY_BY_WIRE]
    return kinds[seed % len(kinds)]


def draw(kind: str, rng: random.Random, size: int, path: str) -> Fault:
    """A fault of a kind for a stream that has at least ``size`` bytes to carry which no compression makes less."""
    return KINDS[kind](kind, rng, size, path == "direct")
