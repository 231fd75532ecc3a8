# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of every host against one clock."""

from __future__ import annotations

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.markup import anchor_of, duration, text
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import PHASES, Host, Run

_STEPS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)


def timeline(run: Run) -> str:
    """The phases of every host against one clock."""
    hosts = [host for host in run.hosts if host.spans]
    if not hosts:
        return ""
    whole = max(max(host.spans[-1].ended for host in hosts), 0.001)
    used = [phase for phase in PHASES if any(span.phase == phase for host in hosts for span in host.spans)]
    legend = "".join(f'<li class="p{PHASES.index(phase)}">{phase}' for phase in used)
    rows = "".join(
        f'<tr><th scope="row"><a href="#{anchor_of(host)}"><bdi>{text(host.name)}</bdi></a><td>'
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{text(_said(host))}">'
        f"{_rectangles(host, whole)}</svg>"
        for host in hosts
    )
    axis = "".join(
        f'<span style="left:{at / whole * 100:.2f}%">{duration(at)}</span>' for at in ticks(whole) if at < whole * 0.95
    )
    return (
        f'<section id="timeline"><h2>Timeline</h2><ul class="legend">{legend}</ul>'
        '<table class="time"><caption class="hidden">Phases of each host from the beginning of the run</caption>'
        '<thead><tr><th scope="col">Host<th scope="col">'
        f'<div class="axis">{axis}</div></thead><tbody>{rows}</tbody></table></section>'
    )


def _rectangles(host: Host, whole: float) -> str:
    return "".join(
        f'<rect class="p{PHASES.index(span.phase)}" x="{span.began / whole * 1000:.0f}" '
        f'width="{max(2.0, (span.ended - span.began) / whole * 1000):.0f}" height="10"/>'
        for span in host.spans
        if span.phase in PHASES
    )


def seconds_by_phase(host: Host) -> dict[str, float]:
    """Seconds of each phase, without those that the host waited for others."""
    found: dict[str, float] = {}
    for span in host.spans:
        found[span.phase] = found.get(span.phase, 0.0) + span.ended - span.began
    return found


def _said(host: Host) -> str:
    return ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in seconds_by_phase(host).items())


def ticks(whole: float) -> list[float]:
    """At most six round times from zero, in seconds."""
    step = next((step for step in _STEPS if whole / step <= 6), whole / 5)
    return [step * count for count in range(int(whole / step) + 1)]
