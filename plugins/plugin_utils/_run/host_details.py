# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host of the page opens to: each gate with what was seen, transfer, server, phases and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.markup import (
    count,
    definitions,
    duration,
    refused,
    size,
    text,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Gate, Host
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.timeline import seconds_by_phase

# What a gate measured: its name for people, and how many digits of it mean something.
FIGURES = {
    "accept_length": ("accept length", 2),
    "accept_rate": ("accept rate", 3),
    "tokens_per_second": ("tokens/s, alone", 1),
    "tokens_per_second_concurrent": ("tokens/s, together", 1),
    "time_to_first_token_seconds": ("first token, s", 3),
    "speedup": ("times plain decoding", 2),
    "ready_seconds": ("ready after, s", 1),
    "seconds": ("took, s", 1),
}
_TRANSFER = {"path": "path", "topology": "topology", "fed_by": "fed by", "rounds": "rounds", "compress": "compression"}


def details(host: Host, checks: Checks) -> str:
    blocks = [_gate(gate, checks, "") for gate in host.own_gates()]
    blocks += [_gate(gate, checks, "what came back: ") for gate in host.way_back_gates()]
    server = next((gate.server for gate in reversed(host.own_gates()) if gate.server), {})
    blocks += [
        _list("Phases", [(phase, duration(seconds)) for phase, seconds in seconds_by_phase(host).items()]),
        _list("Transfer", _transfer(host.transfer)),
        _list("Server", [(name.replace("_", " "), str(value)) for name, value in server.items()]),
        _list("Host", [(name, value) for name, value in host.hardware.items() if value]),
    ]
    if host.warnings:
        items = "".join(f"<li>{text(said)}" for said in host.warnings)
        blocks.append(f"<div><h3>Warnings</h3><ul>{items}</ul></div>")
    return "".join(blocks) or "<p>Nothing was done on this host.</p>"


def _gate(gate: Gate, checks: Checks, prefix: str) -> str:
    passed = checks.places(gate)
    word = "passed" if gate.passed else "failed"
    figures = [
        (label, f"{gate.figures[name]:,.{digits}f}" + _recorded(gate.baseline.get(name), digits))
        for name, (label, digits) in FIGURES.items()
        if name in gate.figures
    ]
    subject = f"<p>{text(gate.subject)}</p>" if gate.subject else ""
    listed = (
        f'<details data-checks="{",".join(map(str, passed))}">'
        f"<summary>{count(len(passed), 'passed check')}</summary></details>"
        if passed
        else ""
    )
    return (
        f'<div class="gate"><h3>{prefix}{text(gate.name)} gate <span class="{word}">{word}</span></h3>{subject}'
        f"{refused(gate)}{definitions(figures)}{listed}</div>"
    )


def _recorded(value: Optional[float], digits: int) -> str:
    return "" if value is None else f" ({value:,.{digits}f} recorded)"


def _transfer(sent: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not sent:
        return []
    pairs = [("sent", f"{count(sent.get('files_sent', 0), 'file')}, {size(sent.get('bytes_sent', 0))}")]
    for name, label in (("bytes_resumed", "resumed"), ("wire_bytes", "on the wire")):
        if sent.get(name):
            pairs.append((label, size(sent[name])))
    pairs += [
        (how, f"{count(counts['files'], 'file')}, {size(counts.get('bytes', 0))}")
        for how, counts in sent.get("reused", {}).items()
        if how != "sent"
    ]
    pairs += [(label, str(sent[name])) for name, label in _TRANSFER.items() if sent.get(name)]
    if sent.get("mib_per_s"):
        pairs.append(("rate", f"{sent['mib_per_s']:,.1f} MiB/s"))
    steps = ", ".join(f"{name} {duration(value)}" for name, value in sent.get("seconds", {}).items() if value >= 0.05)
    return pairs + ([("steps", steps)] if steps else [])


def _list(heading: str, pairs: Sequence[tuple[str, str]]) -> str:
    return f"<div><h3>{heading}</h3>{definitions(pairs)}</div>" if pairs else ""
