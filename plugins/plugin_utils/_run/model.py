# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of one run: its hosts, what was found on each, and what became of it in the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

FAILED, UNREACHABLE, ROLLED_BACK, UNFINISHED, HELD_BACK = (
    "failed",
    "unreachable",
    "rolled_back",
    "unfinished",
    "held_back",
)
SERVED, CHANGED, UNCHANGED, PROVED = "served", "changed", "unchanged", "proved"
# Every outcome and its words, what needs a look first.
OUTCOMES = {
    FAILED: "failed",
    UNREACHABLE: "unreachable",
    ROLLED_BACK: "rolled back",
    UNFINISHED: "not finished",
    HELD_BACK: "held back",
    SERVED: "served",
    CHANGED: "changed",
    UNCHANGED: "unchanged",
    PROVED: "proved",
}
NOT_WELL = (FAILED, UNREACHABLE, ROLLED_BACK)
PREFLIGHT, STREAM, PROVE, SERVE, GO_BACK = "preflight", "stream", "prove", "serve", "go back"
PHASES = (PREFLIGHT, STREAM, PROVE, SERVE, GO_BACK)


@dataclass(frozen=True)
class Check:
    """One thing that a gate looked at; ``found`` and ``expected`` are short texts."""

    name: str
    passed: bool
    expected: str = ""
    found: str = ""
    hint: str = ""
    place: str = ""


@dataclass(frozen=True)
class Gate:
    """One gate as it ran once.

    ``at``: its place among all results of the run, before or after a failure; ``way_back``: it judged what came back.
    """

    name: str
    at: int
    passed: bool
    way_back: bool = False
    subject: str = ""
    checks: tuple[Check, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    not_verified: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def failed_checks(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


@dataclass(frozen=True)
class Failure:
    """A task that failed on a host, or the verdict that the playbook remembered for it."""

    at: int
    reason: str
    task: str = ""
    phase: str = ""
    unreachable: bool = False


@dataclass
class Span:
    """Time that a host spent in one phase without another between; seconds since the run began."""

    phase: str
    began: float
    ended: float


@dataclass
class Host:
    """What the run found and did on one host; ``outcome`` is set when the run ends.

    ``stage`` is canary or batch in a rollout. ``before`` and ``serves`` are the releases that were active first and
    last, ``wanted`` the one that was brought. ``restored``: the way back was taken after a failure;
    ``restored_well``: what came back was proved, too. ``tried``: a module of ours ran since the host got its stage.
    ``verdict`` is the failure that a rescue remembered, which counts although Ansible saw it rescued.
    """

    name: str
    source: bool = False
    stage: str = ""
    outcome: str = ""
    before: str = ""
    wanted: str = ""
    serves: str = ""
    changed: bool = False
    confirmed: bool = False
    restored: bool = False
    restored_well: bool = False
    taken_back: bool = False
    tried: bool = False
    releases_seen: bool = False
    hardware: dict[str, str] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    transfer: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    verdict: Optional[Failure] = None

    @property
    def failed(self) -> bool:
        return self.outcome in NOT_WELL

    @property
    def went_back(self) -> bool:
        """The way back was taken, and what serves was proved and is what served before, not what was to be left."""
        return self.restored and self.restored_well and (self.serves != self.wanted or self.before == self.wanted)

    @property
    def fell_with_the_fleet(self) -> bool:
        """Nothing was wrong with it, but the whole rollout was taken back."""
        return self.taken_back and self.outcome == ROLLED_BACK and not self.failures and self.verdict is None

    @property
    def reason(self) -> str:
        """Why it failed: the last word, since what follows the first failure may be the way back."""
        if not self.failed:
            return ""
        if self.fell_with_the_fleet:
            return "taken back with the rest of the fleet, since the rollout stopped"
        last = self.verdict or (self.failures[-1] if self.failures else None)
        return last.reason if last and last.reason else "no reason was given"

    @property
    def first_failure(self) -> Optional[Failure]:
        """Where it began; a rescued failure of a host that is well does not count."""
        return next(iter(self.failures), self.verdict) if self.failed else None

    def own_gates(self) -> list[Gate]:
        """The gates of what was deployed: those up to the first failure, unless it was rescued."""
        first = self.first_failure
        return [gate for gate in self.gates if not gate.way_back and (first is None or gate.at <= first.at)]

    def way_back_gates(self) -> list[Gate]:
        """The gates of what came back."""
        own = self.own_gates()
        return [gate for gate in self.gates if gate not in own]

    def figures(self, name: str) -> tuple[Optional[float], Optional[float]]:
        """A figure of the last gate that measured it, and the recorded one, None where there is none."""
        for gate in reversed(self.own_gates()):
            if name in gate.figures:
                return gate.figures[name], gate.baseline.get(name)
        return None, None

    @property
    def seconds(self) -> float:
        return self.spans[-1].ended - self.spans[0].began if self.spans else 0.0

    def settle(self, failed: bool, unreachable: bool, finished: bool, everything: bool) -> None:
        """Decide what became of it.

        ``failed``, ``unreachable``: by Ansible's own count; ``finished``: the run reached its end; ``everything``: it
        was a real run of all phases, so that a host of a rollout must have been proved.
        """
        self.source = self.source and not self.stage and not self.transfer
        failed = failed or self.verdict is not None or (not finished and bool(self.failures))
        if unreachable or (self.verdict is not None and self.verdict.unreachable):
            self.outcome = UNREACHABLE
        elif self.taken_back or (failed and self.went_back):
            self.outcome = ROLLED_BACK
        elif failed:
            self.outcome = FAILED
        elif self.source:
            self.outcome = PROVED if self.gates and finished else UNFINISHED
        elif self.stage and not self.tried:
            self.outcome = HELD_BACK
        elif self.confirmed:
            self.outcome = SERVED
        elif not finished or (everything and self.stage and not any(gate.name == "server" for gate in self.gates)):
            self.outcome = UNFINISHED
        else:
            self.outcome = CHANGED if self.changed else UNCHANGED


@dataclass
class Run:
    """A whole run. ``finished`` is false when it was interrupted; times are seconds since 1970."""

    id: str
    playbook: str
    began: float
    ended: float
    finished: bool = True
    check: bool = False
    limit: str = ""
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    hosts: list[Host] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)

    def targets(self) -> list[Host]:
        return [host for host in self.hosts if not host.source]

    def counts(self) -> dict[str, int]:
        """How many hosts came to each outcome, those that need a look first; a source counts only when it failed."""
        counted = Counter(host.outcome for host in self.hosts if not host.source or host.failed)
        return {outcome: counted[outcome] for outcome in OUTCOMES if counted[outcome]}

    def word(self, outcome: str) -> str:
        """An outcome for people."""
        return "would change" if self.check and outcome == CHANGED else OUTCOMES[outcome]

    def headline(self) -> str:
        """One line: how many hosts, and what became of them."""
        counts = self.counts()
        total = sum(counts.values())
        said = ", ".join(f"{number} {self.word(outcome)}" for outcome, number in counts.items())
        return f"{total} host{'s' if total != 1 else ''}: {said}" if counts else "no hosts"

    def reasons(self) -> list[tuple[str, list[Host]]]:
        """The reasons of what failed, each once with its hosts: a hundred hosts often have one fault."""
        groups: dict[tuple[str, str, str], list[Host]] = {}
        for host in self.hosts:
            if host.failed:
                reason = re.sub(rf"^{re.escape(host.name)}: ", "", host.reason, flags=re.MULTILINE).strip()
                groups.setdefault((host.outcome, host.serves, reason), []).append(host)
        return [(said[2], hosts) for said, hosts in groups.items()]


def grouped(statements: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Statements of hosts (text, host), each once with its hosts, those of most hosts first."""
    groups: dict[str, list[str]] = {}
    for text, host in statements:
        hosts = groups.setdefault(text, [])
        if host not in hosts:
            hosts.append(host)
    return sorted(groups.items(), key=lambda item: -len(item[1]))
