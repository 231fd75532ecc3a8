# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small pieces that the page is made of; every text that comes from a run goes through ``text``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Check, Gate, Host

NONE = "\N{EN DASH}"
SHOWN_ID = 16
_NAMED_HOSTS = 12


def text(value: str) -> str:
    """A text that stays one, in content and in attributes."""
    return escape(value)


def anchor_of(host: Host) -> str:
    """An identifier that any name has, and no two names share."""
    return "h-" + hashlib.sha256(host.name.encode()).hexdigest()[:10]


def cell(label: str, content: str, value: str = "") -> str:
    """A cell that says on a small screen what it is; ``value`` is what it is sorted by where that is not its text."""
    if not content:
        return f'<td class="no" data-label="{label}">{NONE}'
    return f'<td data-label="{label}"' + (f' data-v="{value}"' if value else "") + f">{content}"


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values as a list, nothing where there are none."""
    return f"<dl>{''.join(f'<dt>{text(name)}<dd>{text(value)}' for name, value in pairs)}</dl>" if pairs else ""


def refused(gate: Gate) -> str:
    """The checks that a gate failed, nothing where it failed none."""
    if not gate.failed_checks:
        return ""
    caption = f"{gate.name} gate: {len(gate.failed_checks)} of {len(gate.checks)} checks failed"
    return _checks_table(caption, gate.failed_checks)


def _checks_table(caption: str, checks: Iterable[Check]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{text(check.name)}{f"<small>{text(check.place)}</small>" if check.place else ""}'
        f'<td data-label="expected">{text(check.expected)}<td data-label="found">{text(check.found)}'
        f"{f'<small>{text(check.hint)}</small>' if check.hint else ''}"
        for check in checks
    )
    return (
        f'<table class="checks"><caption>{text(caption)}</caption><thead><tr><th scope="col">check'
        f'<th scope="col">expected<th scope="col">found</thead><tbody>{rows}</tbody></table>'
    )


def heading_of(hosts: Sequence[Host]) -> str:
    """The heading of a failure: its host, or how many there are and which."""
    links = [f'<a href="#{anchor_of(host)}"><bdi>{text(host.name)}</bdi></a>' for host in hosts]
    if len(links) == 1:
        return f"<h3>{links[0]}</h3>"
    named, more = links[:_NAMED_HOSTS], links[_NAMED_HOSTS:]
    rest = f", <details><summary>and {len(more)} more</summary>{', '.join(more)}</details>" if more else ""
    return f'<h3>{len(hosts)} hosts</h3><div class="names">{", ".join(named)}{rest}</div>'


def whose(hosts: Sequence[str], total: int) -> str:
    """The hosts of a statement in a few words, of ``total`` in the run."""
    if len(hosts) == total and total > 1:
        return f"all {total} hosts"
    named = ", ".join(text(host) for host in hosts[:_NAMED_HOSTS])
    more = len(hosts) - _NAMED_HOSTS
    return f"{named} and {more} more" if more > 0 else named


def count(number: float, what: str) -> str:
    """So many of a thing."""
    return f"{number:,.0f} {what}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1000 or unit == "GiB":
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return ""


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
