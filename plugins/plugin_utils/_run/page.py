# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run as one HTML page that needs no network; it can be read without its script, which only folds, sorts and filters.

End tags that HTML does not ask for are left out, since a hundred hosts are a hundred times that.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks, timestamp
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.hosts_table import hosts_table
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.markup import (
    SHOWN_ID,
    cell,
    count,
    duration,
    heading_of,
    refused,
    size,
    text,
    whose,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import (
    CHANGED,
    NOT_WELL,
    OUTCOMES,
    ROLLED_BACK,
    SERVED,
    UNCHANGED,
    Host,
    Run,
    grouped,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.timeline import timeline

_HERE = Path(__file__).parent


def page(run: Run, checks: Checks, json_name: str) -> str:
    """The page. ``checks``: those that the JSON of the run has numbered; ``json_name``: its file beside the page."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    sections = (
        _failures(run),
        hosts_table(run, checks),
        timeline(run),
        _streams(run),
        _unverified(run),
        _warnings(run),
    )
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">',
            f"<title>{text(title(run))} · {timestamp(run.began)[:10]}</title>",
            f"<style>{style}</style><script>{script}</script></head><body>",
            '<a class="skip" href="#hosts">Skip to the hosts</a>',
            _header(run),
            "<main>",
            *sections,
            "</main>",
            _footer(run, json_name),
            f'<script type="application/json" id="checks">{_embedded(checks)}</script>',
            "</body></html>\n",
        )
    )


def title(run: Run) -> str:
    """What a reader must know if it is the only line that is read."""
    counted = run.counts()
    total, bad = sum(counted.values()), sum(counted.get(outcome, 0) for outcome in NOT_WELL)
    if bad:
        taken = sum(host.fell_with_the_fleet for host in run.hosts)
        also = f", {taken} taken back with the fleet" if taken else ""
        return f"{bad - taken} of {total} hosts failed{also}" if total != 1 else f"{run.hosts[0].name} failed"
    if not run.finished:
        return "Interrupted before its end"
    releases = {host.serves for host in run.targets() if host.outcome in (SERVED, UNCHANGED)} - {""}
    serving = counted.get(SERVED, 0) + counted.get(UNCHANGED, 0)
    proved = all(any(gate.name == "server" for gate in host.gates) for host in run.targets())
    if total and serving == total and proved and len(releases) == 1 and not run.check:
        who = "All " + count(total, "host") + " serve" if total > 1 else "1 host serves"
        return f"{who} release {releases.pop()[:SHOWN_ID]}"
    if run.check:
        changes = counted.get(CHANGED, 0) + counted.get(SERVED, 0)
        return f"{count(changes, 'host')} of {total} would change" if changes else "Nothing would change"
    return run.headline()


def _header(run: Run) -> str:
    counted = run.counts()
    facts = [
        f'<time datetime="{timestamp(run.began)}">{timestamp(run.began).replace("T", " ").replace("Z", " UTC")}</time>',
        duration(run.ended - run.began),
        *(f"{name} <code>{text(value)}</code>" for name, value in _asked(run)),
    ]
    badges = [word for word, holds in (("check mode", run.check), ("interrupted", not run.finished)) if holds]
    share = "".join(f'<span class="o-{outcome}" style="flex:{number}"></span>' for outcome, number in counted.items())
    buttons = "".join(
        f'<li><button type="button" class="o-{outcome}" data-outcome="{outcome}" aria-pressed="false">'
        f"<b>{number}</b> {run.word(outcome)}</button>"
        for outcome, number in counted.items()
    )
    return (
        f'<header><p class="kicker">DDTree fleet{" · " + text(run.playbook) if run.playbook else ""}'
        + "".join(f' <span class="badge">{badge}</span>' for badge in badges)
        + f'</p><h1>{text(title(run))}</h1><p class="facts">{" <i>·</i> ".join(facts)}</p>'
        f'<div class="share" aria-hidden="true">{share}</div>'
        f'<ul class="counts" aria-label="Hosts by result; choose which are shown">{buttons}</ul></header>'
    )


def _asked(run: Run) -> list[tuple[str, str]]:
    asked = [
        ("limit", run.limit),
        ("tags", ", ".join(run.tags)),
        ("skipped tags", ", ".join(run.skip_tags)),
    ]
    return [(name, value) for name, value in asked if value]


def _failures(run: Run) -> str:
    articles = "".join(_failure(reason, hosts) for reason, hosts in run.reasons())
    return f'<section id="failed"><h2>What failed</h2>{articles}</section>' if articles else ""


def _failure(reason: str, hosts: Sequence[Host]) -> str:
    """One reason with its hosts. What the gate of the first of them refused stands in a table, before the message."""
    host = hosts[0]
    first = host.first_failure
    where = [OUTCOMES[host.outcome]]
    if host.source:
        where.append("the source")
    if first and first.phase:
        where.append(f"phase {text(first.phase)}")
    if first and first.task:
        where.append(text(first.task))
    head, rest = [*reason.split("\n", 1), ""][:2]
    # Both are said in the line above.
    head = head.removeprefix("unreachable: ").removeprefix(f"{first.task}: " if first and first.task else "")
    # A gate's own message repeats its checks; the table says them better.
    tables = "".join(refused(gate) for gate in host.own_gates())
    message = ""
    if rest:
        lines = rest.count("\n") + 1
        message = f"<pre>{text(rest)}</pre>"
        if tables or lines > 12:
            message = f"<details><summary>The whole message, {lines} more lines</summary>{message}</details>"
    return (
        f'<article class="o-{host.outcome}">{heading_of(hosts)}<p class="where">{" <i>·</i> ".join(where)}</p>'
        f'<p class="reason">{text(head)}</p>{tables}{_outcome_of_way_back(host)}{message}</article>'
    )


def _outcome_of_way_back(host: Host) -> str:
    if host.outcome == ROLLED_BACK:
        release = f"Release <code>{text(host.serves[:SHOWN_ID])}</code> serves again."
        return f'<p class="back">{release if host.serves else "What was there before is back."}</p>'
    if host.restored and host.restored_well:
        return (
            f'<p class="back">The way back failed: release <code>{text(host.serves[:SHOWN_ID])}</code> serves on.</p>'
        )
    if host.restored:
        return '<p class="back">The way back was taken, but what came back was not proved. Look at the host now.</p>'
    return ""


def _streams(run: Run) -> str:
    """One row a stream; a column that no stream knows anything for is left out."""
    if not run.streams:
        return ""
    cells = [_stream(stream) for stream in run.streams]
    columns = [name for name in cells[0] if any(row[name] for row in cells)]
    heads = "".join(f'<th scope="col">{name}' for name in ("Source", *columns))
    rows = "".join(
        f'<tr><th scope="row">{text(stream["source"]) or "the targets themselves"}'
        + "".join(cell(name.lower(), row[name]) for name in columns)
        for stream, row in zip(run.streams, cells)
    )
    return (
        '<section id="transfer"><h2>Transfer</h2>'
        '<table class="plain"><caption class="hidden">One row a stream</caption>'
        f"<thead><tr>{heads}</thead><tbody>{rows}</tbody></table></section>"
    )


def _stream(stream: Mapping[str, Any]) -> dict[str, str]:
    chains = "; ".join(" → ".join(chain) for chain in stream["chains"] if len(chain) > 1)
    aside = ", ".join(stream["set_aside"])
    notes = [f"chain {text(chains)}" if chains else "", f"set aside as slow: {text(aside)}" if aside else ""]
    amounts = {
        label: size(stream[name]) if name in stream else ""
        for label, name in (
            ("Read at source", "source_bytes_read"),
            ("Source sent", "source_bytes_sent"),
            ("Relay sent", "relay_bytes_sent"),
        )
    }
    about = f"{count(stream.get('files', 0), 'file')}, {size(stream.get('bytes', 0))}"
    return {
        "Targets": f"{len(stream['targets'])}" + "".join(f"<small>{note}</small>" for note in notes if note),
        "Tree": f"<code>{text(stream['digest'][:SHOWN_ID])}</code><small>{about}</small>",
        **amounts,
        "Took": duration(stream["seconds"]) if "seconds" in stream else "",
    }


def _unverified(run: Run) -> str:
    said = grouped(
        (f"{gate.name} gate: {what}", host.name)
        for host in run.hosts
        for gate in host.own_gates()
        for what in gate.not_verified
    )
    return _statements(
        "unverified",
        "Not verified",
        "What no gate of this run has looked at. Do not take it for proved.",
        said,
        len(run.hosts),
    )


def _warnings(run: Run) -> str:
    said = grouped(
        [(what, host.name) for host in run.hosts for what in host.warnings]
        + [
            (f"{gate.name} gate: {what}", host.name)
            for host in run.hosts
            for gate in host.own_gates()
            for what in gate.remarks
        ]
    )
    return _statements(
        "warnings", "Warnings and drift", "What did not fail anything but is worth a look.", said, len(run.hosts)
    )


def _statements(anchor: str, heading: str, about: str, said: Sequence[tuple[str, Sequence[str]]], total: int) -> str:
    if not said:
        return ""
    items = "".join(f"<li>{text(what)}<small>{whose(hosts, total)}</small>" for what, hosts in said)
    return (
        f'<section id="{anchor}"><h2>{heading}</h2><p class="note">{about}</p><ul class="said">{items}</ul></section>'
    )


def _footer(run: Run, json_name: str) -> str:
    facts = [
        f"run <code>{text(run.id)}</code>",
        *(f"{text(name)} {text(version)}" for name, version in run.versions.items()),
    ]
    return (
        f'<footer><p>The same for machines: <a href="{text(json_name)}">{text(json_name)}</a>'
        f"<p>{' <i>·</i> '.join(facts)}</footer>"
    )


def _embedded(checks: Checks) -> str:
    rows = [[check.name, check.expected, check.found, check.place] for check in checks.known()]
    # Nothing in a script element is markup but what ends it.
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
