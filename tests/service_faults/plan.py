# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a seed draws: a fault, the phase of a deployment that it hits, the release that is deployed, and the moment."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL, HANG, CUT, BAD, DISK, REBOOT, POWER = "kill", "hang", "cut", "bad-release", "disk-full", "reboot", "power-off"
FAULTS = (KILL, HANG, CUT, BAD, DISK, REBOOT, POWER)
ARMED, SWITCHING, GATE, RESTORING, CONFIRMING = "armed", "switching", "gate", "restoring", "confirming"
PHASES = (ARMED, SWITCHING, GATE, RESTORING, CONFIRMING)

GOOD = "good"
# What is wrong with a bad release that no gate before its start shows.
DAMAGED, BAD_UNIT, CRASHES = "file lost once armed", "unit that cannot start", "server killed once proved"
VICTIMS = ("controller", "controller and module", "module")


@dataclass(frozen=True)
class Behaviour:
    """How one kind of server makes the phases: seconds within which a fault comes after the phase has begun, and the bad releases."""

    window: dict[str, float]
    bad: tuple[str, ...]
    bad_while_restoring: str


REPLAY = Behaviour(
    {ARMED: 0.6, SWITCHING: 1.4, GATE: 1.6, RESTORING: 1.2, CONFIRMING: 1.5},
    ("exits", "never-ready", "no-speculation", "hangs", "one-token", "html", "dies"),
    "stubborn",
)
REAL = Behaviour(
    {ARMED: 0.6, SWITCHING: 3.0, GATE: 30.0, RESTORING: 3.0, CONFIRMING: 1.5},
    ("no-start", "no-answer", "no-speculation"),
    "no-speculation",
)


@dataclass(frozen=True)
class Plan:
    """One run. ``delay``: seconds from the begin of the phase to the fault; ``detail``: which process, or what is bad."""

    seed: int
    fault: str
    phase: str
    release: str
    detail: str
    delay: float

    def __str__(self) -> str:
        return f"{self.fault} while {self.phase}" + (f" ({self.detail})" if self.detail else "")


def draw(seed: int, behaviour: Behaviour) -> Plan:
    """Every pair of fault and phase comes once in 35 seeds that follow one another."""
    pairs = [(fault, phase) for fault in FAULTS for phase in PHASES]
    random.Random("pairs").shuffle(pairs)
    fault, phase = pairs[(seed - 1) % len(pairs)]
    rng = random.Random(seed)
    delay = rng.uniform(0, behaviour.window[phase])
    bad = rng.choice(behaviour.bad)
    victim = rng.choice(VICTIMS)
    if fault == BAD:
        # Before the start and after the gate another thing than the server's own behaviour has to be bad.
        detail = {ARMED: DAMAGED, SWITCHING: BAD_UNIT, CONFIRMING: CRASHES}.get(phase, "")
        release = GOOD if detail else behaviour.bad_while_restoring if phase == RESTORING else bad
        return Plan(seed, fault, phase, release, detail or release, delay)
    release = {RESTORING: bad, CONFIRMING: GOOD}.get(phase) or rng.choice((GOOD, bad))
    return Plan(seed, fault, phase, release, victim if fault == KILL else "", delay)
