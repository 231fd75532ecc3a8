# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run as JSON for machines; docs/report.md says what each field means."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import (
    NOT_WELL,
    UNFINISHED,
    Check,
    Gate,
    Host,
    Run,
)

# Raised when a field changes its meaning or goes away; new fields alone do not raise it.
SCHEMA_VERSION = 1


def document(run: Run, checks: Checks) -> dict[str, Any]:
    """The whole report; fields that nothing is known of are left out. ``checks`` gathers the passed ones."""
    hosts = [_host(host, checks) for host in run.hosts]
    return _known(
        {
            "schema_version": SCHEMA_VERSION,
            "run": _known(
                {
                    "id": run.id,
                    "playbook": run.playbook,
                    "began": timestamp(run.began),
                    "ended": timestamp(run.ended),
                    "seconds": _seconds(run.ended - run.began),
                    "finished": run.finished,
                    "check_mode": run.check,
                    "limit": run.limit,
                    "tags": list(run.tags),
                    "skip_tags": list(run.skip_tags),
                    "versions": run.versions,
                }
            ),
            "well": run.finished and not any(outcome in (*NOT_WELL, UNFINISHED) for outcome in run.counts()),
            "counts": run.counts(),
            "streams": run.streams,
            "hosts": hosts,
            "checks": [_check(check) for check in checks.known()],
        }
    )


class Checks:
    """Passed checks, each once: those of a hundred hosts are mostly the same, and the report names them by number."""

    def __init__(self) -> None:
        self._places: dict[Check, int] = {}

    def places(self, gate: Gate) -> list[int]:
        """Where the passed checks of a gate stand in ``known``."""
        return [self._places.setdefault(check, len(self._places)) for check in gate.checks if check.passed]

    def known(self) -> list[Check]:
        return list(self._places)


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _host(host: Host, checks: Checks) -> dict[str, Any]:
    first = host.first_failure
    return _known(
        {
            "name": host.name,
            "role": "source" if host.source else "target",
            "stage": host.stage,
            "outcome": host.outcome,
            "failure": _known({"phase": first.phase, "task": first.task, "reason": host.reason}) if first else None,
            "taken_back": host.taken_back,
            "changed": host.changed,
            "release": _known({"before": host.before, "wanted": host.wanted, "serves": host.serves}),
            "hardware": _known(host.hardware),
            "gates": [_gate(gate, checks) for gate in host.own_gates()],
            "way_back_gates": [_gate(gate, checks) for gate in host.way_back_gates()],
            "transfer": host.transfer,
            "seconds": _seconds(host.seconds),
            "timeline": [
                {"phase": span.phase, "began": _seconds(span.began), "seconds": _seconds(span.ended - span.began)}
                for span in host.spans
            ],
            "warnings": host.warnings,
        }
    )


def _gate(gate: Gate, checks: Checks) -> dict[str, Any]:
    return _known(
        {
            "gate": gate.name,
            "subject": gate.subject,
            "passed": gate.passed,
            "failed_checks": [_check(check) for check in gate.failed_checks],
            "passed_checks": checks.places(gate),
            "figures": dict(gate.figures),
            "baseline": dict(gate.baseline),
            "server": dict(gate.server),
            "not_verified": list(gate.not_verified),
            "remarks": list(gate.remarks),
        }
    )


def _check(check: Check) -> dict[str, str]:
    fields = {
        "name": check.name,
        "expected": check.expected,
        "found": check.found,
        "hint": check.hint,
        "place": check.place,
    }
    return {name: value for name, value in fields.items() if value}


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what is empty; false and zero are known."""
    return {name: value for name, value in fields.items() if value not in ("", None, [], {}, ())}


def _seconds(value: float) -> float:
    return round(value, 3)
