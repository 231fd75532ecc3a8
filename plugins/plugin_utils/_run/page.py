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
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks, timestamp
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import (
    CHANGED,
    NOT_WELL,
    OUTCOMES,
    PHASES,
    SERVED,
    UNCHANGED,
    Check,
    Gate,
    Host,
    Run,
    grouped,
)

_HERE = Path(__file__).parent
_NONE = "\N{EN DASH}"
_SHOWN_ID = 16
_NAMED_HOSTS = 12
_FIGURES = {
    "accept_length": ("accept length", 2),
    "accept_rate": ("accept rate", 3),
    "tokens_per_second": ("tokens/s, alone", 1),
    "tokens_per_second_concurrent": ("tokens/s, together", 1),
    "time_to_first_token_seconds": ("first token, s", 3),
    "speedup": ("times plain decoding", 2),
    "ready_seconds": ("ready after, s", 1),
    "seconds": ("took, s", 1),
}
_BARS = ("accept_length", "tokens_per_second")
_COLUMNS = (
    ("Host", "text"),
    ("Result", "number"),
    ("Release", "text"),
    ("Gates", "number"),
    ("Accept length", "number"),
    ("Tokens/s", "number"),
    ("Sent", "number"),
    ("Time", "number"),
)


def page(run: Run, checks: Checks, json_name: str) -> str:
    """The page. ``checks`` are those that the JSON of the run has numbered, ``json_name`` is its file beside the page."""
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    sections = (_failures(run), _hosts(run, checks), _timeline(run), _streams(run), _unverified(run), _warnings(run))
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">',
            f"<title>{_e(title(run))} · {timestamp(run.began)[:10]}</title>",
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
        return f"{bad} of {total} hosts failed" if total != 1 else f"{run.hosts[0].name} failed"
    if not run.finished:
        return "Interrupted before its end"
    releases = {host.serves for host in run.targets() if host.outcome in (SERVED, UNCHANGED)}
    serving = counted.get(SERVED, 0) + counted.get(UNCHANGED, 0)
    if total and serving == total and len(releases - {""}) == 1 and not run.check:
        return f"{'All ' if total > 1 else ''}{_count(total, 'host')} {'serves' if total == 1 else 'serve'} release {releases.pop()[:_SHOWN_ID]}"
    if run.check:
        changes = counted.get(CHANGED, 0) + counted.get(SERVED, 0)
        return f"{_count(changes, 'host')} of {total} would change" if changes else "Nothing would change"
    return run.headline()


def _header(run: Run) -> str:
    counted = run.counts()
    facts = [
        f'<time datetime="{timestamp(run.began)}">{timestamp(run.began).replace("T", " ").replace("Z", " UTC")}</time>',
        duration(run.ended - run.began),
        *(f"{name} <code>{_e(value)}</code>" for name, value in _asked(run)),
    ]
    badges = [word for word, holds in (("check mode", run.check), ("interrupted", not run.finished)) if holds]
    share = "".join(f'<span class="o-{outcome}" style="flex:{number}"></span>' for outcome, number in counted.items())
    buttons = "".join(
        f'<li><button type="button" class="o-{outcome}" data-outcome="{outcome}" aria-pressed="false">'
        f"<b>{number}</b> {run.word(outcome)}</button>"
        for outcome, number in counted.items()
    )
    return (
        f'<header><p class="kicker">DDTree fleet{" · " + _e(run.playbook) if run.playbook else ""}'
        + "".join(f' <span class="badge">{badge}</span>' for badge in badges)
        + f'</p><h1>{_e(title(run))}</h1><p class="facts">{" <i>·</i> ".join(facts)}</p>'
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
    reasons = run.reasons()
    if not reasons:
        return ""
    return f'<section id="failed"><h2>What failed</h2>{"".join(_failure(reason, hosts) for reason, hosts in reasons)}</section>'


def _failure(reason: str, hosts: Sequence[Host]) -> str:
    """One reason with its hosts. What the gate of the first of them refused stands in a table, before the message."""
    host = hosts[0]
    first = host.first_failure
    where = [f"{_e(OUTCOMES[host.outcome])}"]
    if host.taken_back:
        where.append("taken back with the fleet")
    if host.source:
        where.append("the source")
    if first and first.phase:
        where.append(f"while: {_e(first.phase)}")
    if first and first.task:
        where.append(_e(first.task))
    head, _, rest = reason.partition("\n")
    refused = [gate for gate in host.own_gates() if not gate.passed]
    # A gate's own message repeats its checks; the table says them better.
    tables = "".join(_refused(gate) for gate in refused)
    message = ""
    if rest:
        lines = rest.count("\n") + 1
        message = f"<pre>{_e(rest)}</pre>"
        if tables or lines > 12:
            message = f"<details><summary>The whole message, {lines} more lines</summary>{message}</details>"
    return (
        f'<article class="o-{host.outcome}"><h3>{_names(hosts)}</h3><p class="where">{" <i>·</i> ".join(where)}</p>'
        f'<p class="reason">{_e(head)}</p>{tables}{_outcome_of_way_back(host)}{message}</article>'
    )


def _outcome_of_way_back(host: Host) -> str:
    if host.restored and host.restored_well:
        said = (
            f"Release <code>{_e(host.serves[:_SHOWN_ID])}</code> serves again."
            if host.serves
            else "What was there before is back."
        )
        return f'<p class="back">{said}</p>'
    if host.restored:
        return '<p class="back">The way back was taken, but what came back was not proved. Look at the host now.</p>'
    return ""


def _refused(gate: Gate) -> str:
    if not gate.failed_checks:
        return ""
    return _checks_table(
        f"{gate.name} gate: {len(gate.failed_checks)} of {len(gate.checks)} checks failed", gate.failed_checks
    )


def _checks_table(caption: str, checks: Iterable[Check]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_e(check.name)}{f"<small>{_e(check.place)}</small>" if check.place else ""}'
        f'<td data-label="expected">{_e(check.expected)}<td data-label="found">{_e(check.found)}'
        f"{f'<small>{_e(check.hint)}</small>' if check.hint else ''}"
        for check in checks
    )
    return (
        f'<table class="checks"><caption>{_e(caption)}</caption>'
        f'<thead><tr><th scope="col">check<th scope="col">expected<th scope="col">found</thead><tbody>{rows}</tbody></table>'
    )


def _hosts(run: Run, checks: Checks) -> str:
    known = [value for host in run.hosts for name in _BARS for value in host.figures(name) if value is not None]
    if not run.hosts:
        return '<section id="hosts"><h2>Hosts</h2><p>No host was reached.</p></section>'
    most = {
        name: max((value for host in run.hosts for value in host.figures(name) if value is not None), default=0.0)
        for name in _BARS
    }
    heads = "".join(
        f'<th scope="col" data-sort="{kind}"><button type="button">{name}</button>' for name, kind in _COLUMNS
    )
    rows = "".join(_row(host, run.word(host.outcome), most, checks) for host in run.hosts)
    note = (
        '<p class="note">The line in a bar is the recorded baseline of the host.</p>'
        if _has_baseline(run) and known
        else ""
    )
    return (
        '<section id="hosts"><h2>Hosts</h2><p class="tools"><label>Find <input type="search" id="find" '
        'placeholder="host, release, GPU"></label> <button type="button" id="fold" aria-pressed="false">Open all</button> '
        f'<span id="shown" role="status"></span></p><table class="hosts"><caption class="hidden">Hosts, what needs a look '
        f"first</caption><thead><tr>{heads}</thead>{rows}</table>{note}</section>"
    )


def _has_baseline(run: Run) -> bool:
    return any(host.figures(name)[1] is not None for host in run.hosts for name in _BARS)


def _row(host: Host, word: str, most: Mapping[str, float], checks: Checks) -> str:
    """A table body of two rows: the host, and its details, which the script folds away."""
    own = host.own_gates()
    passed = [gate for gate in own if gate.passed]
    gates = f"{len(passed)} of {len(own)}" if own else ""
    gates += "".join(f'<small class="bad">{_e(gate.name)}</small>' for gate in own if not gate.passed)
    sent = host.transfer.get("bytes_sent")
    about = " · ".join(filter(None, ("source" if host.source else host.stage, host.hardware.get("gpus", ""))))
    name = _e(host.name)
    anchor = _anchor(host)
    return (
        f'<tbody class="o-{host.outcome}" data-outcome="{host.outcome}" id="{anchor}"><tr>'
        f'<th scope="row" data-v="{name}"><button type="button" class="open" aria-expanded="true" '
        f'aria-controls="{anchor}-d"><bdi>{name}</bdi></button>{f"<small>{_e(about)}</small>" if about else ""}'
        f'<td data-label="result" data-v="{list(OUTCOMES).index(host.outcome)}"><span class="dot">{word}</span>'
        + _cell("release", _release(host))
        + _cell("gates", gates, f"{len(passed) - len(own) * 100}")
        + "".join(_bar(host, name, most[name]) for name in _BARS)
        + _cell("sent", f"{size(sent)}{_via(host)}" if sent is not None else "", _plain(sent))
        + _cell("time", duration(host.seconds) if host.spans else "", f"{host.seconds:.1f}")
        + f'<tr class="d" id="{anchor}-d"><td colspan="{len(_COLUMNS)}"><div class="details">{_details(host, checks)}</div></tbody>'
    )


def _cell(label: str, content: str, value: str = "") -> str:
    """A cell of the hosts' table; ``value`` is what it is sorted by where that is not its text."""
    if not content:
        return f'<td class="no" data-label="{label}">{_NONE}'
    return f'<td data-label="{label}"' + (f' data-v="{value}"' if value else "") + f">{content}"


def _release(host: Host) -> str:
    before, now = host.before, host.serves or host.wanted
    new = host.wanted if host.outcome not in (SERVED, UNCHANGED) and host.wanted not in ("", now) else ""
    text = f"<code>{_e(now[:_SHOWN_ID])}</code>" if now else ""
    if before and now and before != now:
        text = f'<code>{_e(before[:_SHOWN_ID])}</code> <span class="to">→</span> {text}'
    elif not before and now and host.outcome == SERVED:
        text += "<small>the first release</small>"
    return text + (f"<small>not serving: {_e(new[:_SHOWN_ID])}</small>" if new else "")


def _via(host: Host) -> str:
    sent = host.transfer
    if not sent.get("bytes_sent"):
        return ""
    by = str(sent.get("fed_by") or sent.get("path") or "")
    rate = f"{sent['mib_per_s']:,.0f} MiB/s" if sent.get("mib_per_s", 0) >= 1 else ""
    return f"<small>{_e(' · '.join(filter(None, (by, rate))))}</small>" if by or rate else ""


def _bar(host: Host, name: str, most: float) -> str:
    value, recorded = host.figures(name)
    label, digits = _FIGURES[name][0], _FIGURES[name][1]
    if value is None:
        return _cell(label, "")
    style = f"--v:{_share(value, most)}" + (f";--b:{_share(recorded, most)}" if recorded else "")
    against = f"<small>{_against(value, recorded)} {recorded:,.{digits}f}</small>" if recorded else ""
    return (
        f'<td data-label="{label}" data-v="{value:.6g}">{value:,.{digits}f}'
        f'<span class="bar{" b" if recorded else ""}" style="{style}"></span>{against}'
    )


def _against(value: float, recorded: float) -> str:
    percent = round((value / recorded - 1) * 100)
    return f"{percent:+d} % of" if percent else "as recorded,"


def _share(value: float, most: float) -> str:
    return f"{min(100.0, max(0.0, value / most * 100 if most else 0.0)):.0f}%"


def _details(host: Host, checks: Checks) -> str:
    blocks = [_gate(gate, checks, "") for gate in host.own_gates()]
    blocks += [_gate(gate, checks, "what came back: ") for gate in host.way_back_gates()]
    server = next((gate.server for gate in reversed(host.own_gates()) if gate.server), {})
    blocks += [
        _list("Phases", [(phase, duration(seconds)) for phase, seconds in _phases(host).items()]),
        _list("Transfer", _transfer(host.transfer)),
        _list("Server", [(name.replace("_", " "), str(value)) for name, value in server.items()]),
        _list("Host", [(name, value) for name, value in host.hardware.items() if value]),
    ]
    if host.warnings:
        items = "".join(f"<li>{_e(said)}" for said in host.warnings)
        blocks.append(f"<div><h3>Warnings</h3><ul>{items}</ul></div>")
    return "".join(blocks) or "<p>Nothing was done on this host.</p>"


def _gate(gate: Gate, checks: Checks, prefix: str) -> str:
    passed = checks.places(gate)
    word = "passed" if gate.passed else "failed"
    figures = [
        (label, f"{gate.figures[name]:,.{digits}f}" + _recorded(gate.baseline.get(name), digits))
        for name, (label, digits) in _FIGURES.items()
        if name in gate.figures
    ]
    subject = f"<p>{_e(gate.subject)}</p>" if gate.subject else ""
    listed = (
        f'<details data-checks="{",".join(map(str, passed))}"><summary>{_count(len(passed), "passed check")}</summary></details>'
        if passed
        else ""
    )
    return (
        f'<div class="gate"><h3>{prefix}{_e(gate.name)} gate <span class="{word}">{word}</span></h3>{subject}'
        f"{_refused(gate)}{_pairs(figures)}{listed}</div>"
    )


def _recorded(value: Optional[float], digits: int) -> str:
    return "" if value is None else f" ({value:,.{digits}f} recorded)"


def _transfer(sent: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not sent:
        return []
    pairs = [("sent", f"{_count(sent.get('files_sent', 0), 'file')}, {size(sent.get('bytes_sent', 0))}")]
    for name, label in (("bytes_resumed", "resumed"), ("wire_bytes", "on the wire")):
        if sent.get(name):
            pairs.append((label, size(sent[name])))
    pairs += [
        (how, f"{_count(counts['files'], 'file')}, {size(counts.get('bytes', 0))}")
        for how, counts in sent.get("reused", {}).items()
        if how != "sent"
    ]
    pairs += [(label, str(sent[name])) for name, label in _TRANSFER.items() if sent.get(name)]
    if sent.get("mib_per_s"):
        pairs.append(("rate", f"{sent['mib_per_s']:,.1f} MiB/s"))
    steps = ", ".join(f"{name} {duration(value)}" for name, value in sent.get("seconds", {}).items() if value >= 0.05)
    return pairs + ([("steps", steps)] if steps else [])


_TRANSFER = {"path": "path", "topology": "topology", "fed_by": "fed by", "rounds": "rounds", "compress": "compression"}


def _list(heading: str, pairs: Sequence[tuple[str, str]]) -> str:
    return f"<div><h3>{heading}</h3>{_pairs(pairs)}</div>" if pairs else ""


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{_e(name)}<dd>{_e(value)}' for name, value in pairs)}</dl>" if pairs else ""


def _timeline(run: Run) -> str:
    """The phases of every host against one clock."""
    hosts = [host for host in run.hosts if host.spans]
    if not hosts:
        return ""
    whole = max(max(host.spans[-1].ended for host in hosts), 0.001)
    used = [phase for phase in PHASES if any(span.phase == phase for host in hosts for span in host.spans)]
    legend = "".join(f'<li class="p{PHASES.index(phase)}">{phase}' for phase in used)
    rows = "".join(
        f'<tr><th scope="row"><a href="#{_anchor(host)}"><bdi>{_e(host.name)}</bdi></a><td>'
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{_e(_said(host))}">{_rectangles(host, whole)}</svg>'
        for host in hosts
    )
    axis = "".join(
        f'<span style="left:{at / whole * 100:.2f}%">{duration(at)}</span>' for at in ticks(whole) if at < whole * 0.95
    )
    return (
        f'<section id="timeline"><h2>Timeline</h2><ul class="legend">{legend}</ul><table class="time"><caption class="hidden">'
        'Phases of each host from the beginning of the run</caption><thead><tr><th scope="col">Host<th scope="col">'
        f'<div class="axis">{axis}</div></thead><tbody>{rows}</tbody></table></section>'
    )


def _rectangles(host: Host, whole: float) -> str:
    return "".join(
        f'<rect class="p{PHASES.index(span.phase)}" x="{span.began / whole * 1000:.0f}" '
        f'width="{max(2.0, (span.ended - span.began) / whole * 1000):.0f}" height="10"/>'
        for span in host.spans
        if span.phase in PHASES
    )


def _phases(host: Host) -> dict[str, float]:
    """Seconds of each phase, without those that the host waited for others."""
    found: dict[str, float] = {}
    for span in host.spans:
        found[span.phase] = found.get(span.phase, 0.0) + span.ended - span.began
    return found


def _said(host: Host) -> str:
    return ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in _phases(host).items())


def ticks(whole: float) -> list[float]:
    """At most six round times from zero, in seconds."""
    step = next((step for step in _STEPS if whole / step <= 6), whole / 5)
    return [step * count for count in range(int(whole / step) + 1)]


_STEPS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)


def _streams(run: Run) -> str:
    """One row a stream; a column that no stream knows anything for is left out."""
    if not run.streams:
        return ""
    cells = [_stream(stream) for stream in run.streams]
    columns = [name for name in cells[0] if any(row[name] for row in cells)]
    heads = "".join(f'<th scope="col">{name}' for name in ("Source", *columns))
    rows = "".join(
        f'<tr><th scope="row">{_e(stream["source"]) or "the targets themselves"}'
        + "".join(_cell(name.lower(), row[name]) for name in columns)
        for stream, row in zip(run.streams, cells)
    )
    return (
        '<section id="transfer"><h2>Transfer</h2><table class="plain"><caption class="hidden">One row a stream</caption>'
        f"<thead><tr>{heads}</thead><tbody>{rows}</tbody></table></section>"
    )


def _stream(stream: Mapping[str, Any]) -> dict[str, str]:
    chains = "; ".join(" → ".join(chain) for chain in stream["chains"] if len(chain) > 1)
    aside = ", ".join(stream["set_aside"])
    notes = [f"chain {_e(chains)}" if chains else "", f"set aside as slow: {_e(aside)}" if aside else ""]
    amounts = {
        label: size(stream[name]) if name in stream else ""
        for label, name in (
            ("Read at source", "source_bytes_read"),
            ("Source sent", "source_bytes_sent"),
            ("Relay sent", "relay_bytes_sent"),
        )
    }
    about = f"{_count(stream.get('files', 0), 'file')}, {size(stream.get('bytes', 0))}"
    return {
        "Targets": f"{len(stream['targets'])}" + "".join(f"<small>{note}</small>" for note in notes if note),
        "Tree": f"<code>{_e(stream['digest'][:_SHOWN_ID])}</code><small>{about}</small>",
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
    items = "".join(f"<li>{_e(what)}<small>{_whose(hosts, total)}</small>" for what, hosts in said)
    return (
        f'<section id="{anchor}"><h2>{heading}</h2><p class="note">{about}</p><ul class="said">{items}</ul></section>'
    )


def _whose(hosts: Sequence[str], total: int) -> str:
    if len(hosts) == total and total > 1:
        return f"all {total} hosts"
    named = ", ".join(_e(host) for host in hosts[:_NAMED_HOSTS])
    more = len(hosts) - _NAMED_HOSTS
    return f"{named} and {more} more" if more > 0 else named


def _footer(run: Run, json_name: str) -> str:
    facts = [f"run <code>{_e(run.id)}</code>", *(f"{_e(name)} {_e(version)}" for name, version in run.versions.items())]
    return (
        f'<footer><p>The same for machines: <a href="{_e(json_name)}">{_e(json_name)}</a>'
        f"<p>{' <i>·</i> '.join(facts)}</footer>"
    )


def _names(hosts: Sequence[Host]) -> str:
    links = ", ".join(f'<a href="#{_anchor(host)}"><bdi>{_e(host.name)}</bdi></a>' for host in hosts)
    return f"{len(hosts)} hosts: {links}" if len(hosts) > 1 else links


def _anchor(host: Host) -> str:
    """An identifier that any name has, and no two names share."""
    return "h-" + hashlib.sha256(host.name.encode()).hexdigest()[:10]


def _embedded(checks: Checks) -> str:
    rows = [[check.name, check.expected, check.found, check.place] for check in checks.known()]
    # Nothing in a script element is markup but what ends it.
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _count(number: float, what: str) -> str:
    return f"{number:,.0f} {what}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1000 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return ""


def _plain(number: Optional[float]) -> str:
    return "" if number is None else f"{number:.0f}"


def duration(seconds: float) -> str:
    """Seconds for people: tenths below ten, then minutes and hours."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _e(text: str) -> str:
    return escape(text)
