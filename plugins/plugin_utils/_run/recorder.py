# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bookkeeping of a run: from one result after another to what is known of each host."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run import findings
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import (
    GO_BACK,
    OUTCOMES,
    PHASES,
    STREAM,
    Failure,
    Gate,
    Host,
    Run,
    Span,
)

COLLECTION = "ddtree.fleet."
_GATES = {"patch_assert": findings.patches, "manifest_sha256": findings.manifest, "sglang_smoke": findings.smoke}
# Seconds without a task after which a host has waited for others.
_WAITED = 1.0
_DIGITS = re.compile("([0-9]+)")
# The last word on what came back is that of its own gate, or of its health where no key for a gate is known.
_PROOFS_OF_THE_WAY_BACK = ("sglang_smoke", "uri")
_SERVICE_STATES = ("armed", "switched", "confirmed", "restored")


@dataclass(frozen=True)
class Event:
    """A task's result on one host. ``action``: the module, by its short name; ``ours``: it is of this collection.

    ``found`` is the result; ``state`` the task's own ``state`` where it is spelled out; ``began`` and ``ended`` seconds
    since the run began; ``source``: the host is a source; ``check``: the task only looks; ``of_our_role``: it stands in
    a role of this collection.
    """

    host: str
    action: str
    found: Mapping[str, Any]
    began: float
    ended: float
    ours: bool = False
    of_our_role: bool = False
    task: str = ""
    phase: str = ""
    state: str = ""
    source: bool = False
    check: bool = False


@dataclass
class Recorder:
    """Hears every event of a run, in order."""

    run: Run
    deploys: bool = False
    _ours: bool = False
    _hosts: dict[str, Host] = field(default_factory=dict)
    _heard: int = 0

    def ok(self, event: Event) -> None:
        host = self._hear(event)
        if host.restored and _proves_the_way_back(event):
            host.restored_well = True
        if event.action == "set_fact":
            self._remember(host, findings.mapping(event.found.get("ansible_facts")))
        elif not event.ours:
            host.changed = host.changed or (event.phase in PHASES and event.found.get("changed") is True)
        else:
            for found in _items(event.found):
                self._take(host, event, found)

    def failed(self, event: Event, ignored: bool = False) -> None:
        host = self._hear(event)
        for found in _items(event.found) if event.ours else []:
            if event.action in _GATES and not found.get("skipped"):
                host.gates.append(self._gate(event, found))
        if host.restored and _proves_the_way_back(event):
            host.restored_well = False
        if not ignored:
            reason = findings.reason(event.found)
            host.failures.append(Failure(self._heard, reason, _plain_name(event.task), event.phase))

    def unreachable(self, event: Event) -> None:
        host = self._hear(event)
        reason = f"unreachable: {findings.reason(event.found)}"
        host.failures.append(Failure(self._heard, reason, _plain_name(event.task), event.phase, unreachable=True))

    def end(self, ended: float, failed: Collection[str], unreachable: Collection[str], finished: bool = True) -> Run:
        """Settle what became of each host; ``failed`` and ``unreachable``: by Ansible, which knows what was rescued."""
        run = self.run
        run.ended, run.finished = ended, finished
        everything = not run.tags and not run.skip_tags and not run.check
        for host in self._hosts.values():
            host.settle(host.name in failed, host.name in unreachable, finished, everything)
        run.hosts = sorted(self._hosts.values(), key=_urgency)
        return run

    @property
    def worth_telling(self) -> bool:
        """Whether the run deployed something, or failed on the way to it; call it after ``end``."""
        return self.deploys or (self._ours and any(host.failed for host in self.run.hosts))

    def _hear(self, event: Event) -> Host:
        self._heard += 1
        self._ours = self._ours or event.ours or event.of_our_role
        host = self._hosts.setdefault(event.host, Host(findings.text(event.host, 120)))
        host.source = host.source or event.source
        host.tried = host.tried or bool(host.stage and event.ours)
        if event.phase:
            last = host.spans[-1] if host.spans else None
            if last and last.phase == event.phase and event.began - last.ended < _WAITED:
                last.ended = event.ended
            else:
                host.spans.append(Span(event.phase, event.began, event.ended))
        return host

    def _take(self, host: Host, event: Event, found: Mapping[str, Any]) -> None:
        if event.action == "venv_stream":
            self._stream(event, found)
            return
        if found.get("skipped"):
            return
        if not event.check:
            host.changed = host.changed or found.get("changed") is True
        if event.action in _GATES:
            # Writing a manifest down proves nothing.
            if event.action != "manifest_sha256" or event.state != "present":
                host.gates.append(self._gate(event, found))
        elif event.action == "gpu_host_info":
            host.hardware.update(findings.hardware(found))
        elif event.action in ("venv_release", "service_release"):
            self._release(host, event, found)

    def _gate(self, event: Event, found: Mapping[str, Any]) -> Gate:
        gate = _GATES[event.action](found, self._heard)
        return replace(gate, subject=gate.subject or _plain_name(event.task), way_back=event.phase == GO_BACK)

    def _release(self, host: Host, event: Event, found: Mapping[str, Any]) -> None:
        active = findings.text(found.get("active"), 64)
        if not event.check:
            host.before = host.before if host.releases_seen else active
            host.releases_seen = True
            host.serves = active
        if event.action == "service_release":
            self._add_warnings(
                host,
                [
                    f"unit file {name} differs from what was confirmed"
                    for name in findings.statements(found.get("drift"))
                ],
            )
            self._add_warnings(host, findings.statements(found.get("remarks")))
            if event.state in _SERVICE_STATES and not event.check:
                self.deploys = True
                host.confirmed = event.state == "confirmed" or (host.confirmed and event.state != "restored")
                if event.state == "restored" and host.failures:
                    # Where nothing serves there is nothing to prove.
                    host.restored, host.restored_well = True, not found.get("serves")

    def _stream(self, event: Event, found: Mapping[str, Any]) -> None:
        """One task for many hosts: each has a verdict of its own."""
        self.deploys = True
        if found.get("tree"):
            self.run.streams.append(findings.stream(found))
        for name, verdict in findings.mapping(found.get("targets")).items():
            verdict = findings.mapping(verdict)
            host = self._hosts.setdefault(name, Host(findings.text(name, 120)))
            host.tried = True
            host.wanted = findings.text(verdict.get("release"), 64)
            host.changed = host.changed or (verdict.get("changed") is True and not verdict.get("failed"))
            host.transfer = findings.transfer(verdict)
            self._add_warnings(host, findings.statements(verdict.get("notices")))
            if name != event.host:
                host.spans.append(Span(STREAM, event.began, event.ended))

    def _remember(self, host: Host, facts: Mapping[str, Any]) -> None:
        """The facts by which the playbook says what only it knows."""
        if "ddtree_run_id" in facts:
            self.run.id = findings.text(facts["ddtree_run_id"], 120)
        if "preflight_chosen" in facts:
            host.hardware["profile"] = findings.text(facts["preflight_chosen"], 80)
        if "ddtree_rollout_stage" in facts:
            self.deploys = True
            host.stage, host.tried = findings.text(facts["ddtree_rollout_stage"], 40), False
        if "ddtree_taken_back" in facts:
            host.taken_back = facts["ddtree_taken_back"] is True
        if "ddtree_failed" in facts:
            verdict = findings.mapping(facts["ddtree_failed"])
            reason = findings.text(verdict.get("reason"), findings.LONG)
            away = reason.startswith("unreachable: ")
            host.verdict = Failure(self._heard, reason, unreachable=away) if verdict else None

    @staticmethod
    def _add_warnings(host: Host, said: Collection[str]) -> None:
        host.warnings += [text for text in said if text not in host.warnings]


def _proves_the_way_back(event: Event) -> bool:
    """Whether it is one of our own proofs; the tasks of a user's hook may ask other servers."""
    return event.phase == GO_BACK and event.action in _PROOFS_OF_THE_WAY_BACK


def _urgency(host: Host) -> tuple[Any, ...]:
    """What needs a look comes first."""
    return list(OUTCOMES).index(host.outcome), host.fell_with_the_fleet, host.source, natural(host.name)


def natural(name: str) -> list[tuple[int, Any]]:
    """Sorts host-2 before host-10."""
    parts: list[tuple[int, Any]] = []
    for part in _DIGITS.split(name):
        parts.append((0, int(part)) if part.isdecimal() else (1, part))
    return parts


def _plain_name(task: str) -> str:
    """A task's name without that of its role."""
    return findings.text(task.rpartition(" : ")[2])


def _items(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results of a loop, or the one result there is."""
    return [findings.mapping(item) for item in found["results"]] if isinstance(found.get("results"), list) else [found]
