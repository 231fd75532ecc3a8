# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of the hosts, what needs a look first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.host_details import FIGURES, details
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.markup import (
    SHOWN_ID,
    anchor_of,
    cell,
    duration,
    size,
    text,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import OUTCOMES, SERVED, UNCHANGED, Host, Run

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


def hosts_table(run: Run, checks: Checks) -> str:
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
    note = '<p class="note">The line in a bar is the recorded baseline of the host.</p>' if _has_baseline(run) else ""
    return (
        '<section id="hosts"><h2>Hosts</h2><p class="tools"><label>Find <input type="search" id="find" '
        'placeholder="host, release, GPU"></label> '
        '<button type="button" id="fold" aria-pressed="false">Open all</button> '
        '<span id="shown" role="status"></span></p>'
        '<table class="hosts"><caption class="hidden">Hosts, what needs a look first</caption>'
        f"<thead><tr>{heads}</thead>{rows}</table>{note}</section>"
    )


def _has_baseline(run: Run) -> bool:
    return any(host.figures(name)[1] is not None for host in run.hosts for name in _BARS)


def _row(host: Host, word: str, most: Mapping[str, float], checks: Checks) -> str:
    """A table body of two rows: the host, and its details, which the script folds away."""
    own = host.own_gates()
    passed = [gate for gate in own if gate.passed]
    gates = f"{len(passed)} of {len(own)}" if own else ""
    gates += "".join(f'<small class="bad">{text(gate.name)}</small>' for gate in own if not gate.passed)
    sent = host.transfer.get("bytes_sent")
    about = " · ".join(filter(None, ("source" if host.source else host.stage, host.hardware.get("gpus", ""))))
    name = text(host.name)
    anchor = anchor_of(host)
    return (
        f'<tbody class="o-{host.outcome}" data-outcome="{host.outcome}" id="{anchor}"><tr>'
        f'<th scope="row" data-v="{name}"><button type="button" class="open" aria-expanded="true" '
        f'aria-controls="{anchor}-d"><bdi>{name}</bdi></button>{f"<small>{text(about)}</small>" if about else ""}'
        f'<td data-label="result" data-v="{list(OUTCOMES).index(host.outcome)}"><span class="dot">{word}</span>'
        + cell("release", _release(host))
        + cell("gates", gates, f"{len(passed) - len(own) * 100}")
        + "".join(_bar(host, name, most[name]) for name in _BARS)
        + cell("sent", f"{size(sent)}{_via(host)}" if sent is not None else "", _plain(sent))
        + cell("time", duration(host.seconds) if host.spans else "", f"{host.seconds:.1f}")
        + f'<tr class="d" id="{anchor}-d"><td colspan="{len(_COLUMNS)}">'
        f'<div class="details">{details(host, checks)}</div></tbody>'
    )


def _release(host: Host) -> str:
    before, now = host.before, host.serves or host.wanted
    new = host.wanted if host.outcome not in (SERVED, UNCHANGED) and host.wanted not in ("", now) else ""
    shown = f"<code>{text(now[:SHOWN_ID])}</code>" if now else ""
    if before and now and before != now:
        shown = f'<code>{text(before[:SHOWN_ID])}</code> <span class="to">→</span> {shown}'
    elif not before and now and host.outcome == SERVED:
        shown += "<small>the first release</small>"
    return shown + (f"<small>not serving: {text(new[:SHOWN_ID])}</small>" if new else "")


def _via(host: Host) -> str:
    sent = host.transfer
    if not sent.get("bytes_sent"):
        return ""
    by = str(sent.get("fed_by") or sent.get("path") or "")
    rate = f"{sent['mib_per_s']:,.0f} MiB/s" if sent.get("mib_per_s", 0) >= 1 else ""
    return f"<small>{text(' · '.join(filter(None, (by, rate))))}</small>" if by or rate else ""


def _bar(host: Host, name: str, most: float) -> str:
    value, recorded = host.figures(name)
    label, digits = FIGURES[name][0], FIGURES[name][1]
    if value is None:
        return cell(label, "")
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


def _plain(number: Optional[float]) -> str:
    return "" if number is None else f"{number:.0f}"
