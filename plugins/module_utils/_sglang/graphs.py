# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether decoding ran in CUDA graphs: what the server says of itself, and what its counters gained meanwhile.

A flag proves nothing: backends switch graphs off with no more than a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.metrics import EAGER, IN_GRAPHS, gained, graph_passes
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Reply
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

ABSENT, ANY, REQUIRED = "absent", "any", "required"
_DISABLED = "disable_cuda_graph in server_info"
_CAPTURED = "memory_usage.graph in server_info"
_DECODED = "decode passes in CUDA graphs"
_SLOW = "eager decoding is several times slower; look for 'cuda graph' in the journal"


@dataclass(frozen=True)
class Passes:
    """Forward passes by mode that the counters gained during our own generations; ``fault``: why they are not known."""

    alone: Dict[str, int] = field(default_factory=dict)
    concurrent: Dict[str, int] = field(default_factory=dict)
    fault: str = ""

    @property
    def all(self) -> Dict[str, int]:
        modes = sorted({*self.alone, *self.concurrent})
        return {mode: self.alone.get(mode, 0) + self.concurrent.get(mode, 0) for mode in modes}


def passes(counters: Sequence[Reply]) -> Passes:
    """From the replies of /metrics before, between and after our sequential and our concurrent generations."""
    fault = next((reply.fault for reply in counters if reply.fault), "")
    if fault or len(counters) < 3:
        return Passes(fault=f"/metrics: {fault}" if fault else "/metrics was not read to the end")
    before, between, after = (graph_passes(reply.lines) for reply in counters[:3])
    if not after:
        return Passes(fault="/metrics has no sglang:cuda_graph_passes_total")
    return Passes(gained(before, between), gained(between, after))


def graph_checks(wanted: str, info: Dict[str, Any], counted: Passes) -> List[Check]:
    """``wanted`` is required, absent or any; any judges nothing."""
    if wanted == ANY:
        return []
    return _info_checks(wanted == REQUIRED, info) + _pass_checks(wanted == REQUIRED, counted)


def unverified(wanted: str, info: Dict[str, Any], counted: Passes) -> List[str]:
    """What ``graph_checks`` did not judge, in sentences."""
    if wanted == ANY:
        seen = _shown(counted.all) if not counted.fault else counted.fault
        return [f"CUDA graphs: cuda_graphs is any; {seen}"]
    missing = [
        f"CUDA graphs: server_info has no {what}"
        for what, known in (
            ("disable_cuda_graph", isinstance(info.get("disable_cuda_graph"), bool)),
            ("memory_usage.graph", bool(_captured(info))),
        )
        if not known
    ]
    if wanted == ABSENT and counted.fault:
        missing.append(f"CUDA graphs by counters: {counted.fault}")
    return missing


def remarks(wanted: str, counted: Passes) -> List[str]:
    """Some eager passes of our concurrent generations: batches larger than what was captured run so, and may."""
    eager = counted.concurrent.get(EAGER, 0)
    if wanted != REQUIRED or not eager or not counted.concurrent.get(IN_GRAPHS):
        return []
    return [
        f"{eager} decode passes of concurrent requests ran without a CUDA graph ({_shown(counted.concurrent)}); "
        "batches above cuda-graph-max-bs do"
    ]


def _info_checks(required: bool, info: Dict[str, Any]) -> List[Check]:
    checks = []
    disabled = info.get("disable_cuda_graph")
    if isinstance(disabled, bool):
        passed = disabled is not required
        hint = "" if passed else _hint(required)
        checks.append(Check(_DISABLED, passed, str(not required).lower(), str(disabled).lower(), hint))
    captured = _captured(info)
    if captured:
        passed = all(captured) if required else not any(captured)
        found = ", ".join(f"{size:g} GB" for size in captured)
        expected = "above 0 GB everywhere" if required else "0 GB"
        checks.append(Check(_CAPTURED, passed, expected, found, "" if passed else _hint(required)))
    return checks


def _pass_checks(required: bool, counted: Passes) -> List[Check]:
    if counted.fault:
        # Absent graphs are proved by what was never captured; used ones only by these counters.
        hint = "start the server with enable-metrics, or set cuda_graphs to any and accept that it is not verified"
        return [Check(_DECODED, False, "all of them", counted.fault, hint)] if required else []
    if required:
        alone = counted.alone.get(IN_GRAPHS, 0) > 0 and not counted.alone.get(EAGER, 0)
        together = counted.concurrent.get(IN_GRAPHS, 0) > 0 or not counted.concurrent.get(EAGER, 0)
        passed = alone and together
        return [Check(_DECODED, passed, "all of them", _shown(counted.all), "" if passed else _hint(required))]
    used = counted.all.get(IN_GRAPHS, 0)
    return [Check(_DECODED, not used, "none", _shown(counted.all), "" if not used else _hint(required))]


def _captured(info: Dict[str, Any]) -> List[float]:
    """GB of captured graphs of each internal state that says so."""
    states = info.get("internal_states")
    sizes = []
    for state in states if isinstance(states, list) else []:
        usage = state.get("memory_usage") if isinstance(state, dict) else None
        size = usage.get("graph") if isinstance(usage, dict) else None
        if isinstance(size, (int, float)):
            sizes.append(float(size))
    return sizes


def _shown(modes: Dict[str, int]) -> str:
    return f"{modes.get(IN_GRAPHS, 0)} decode passes in graphs, {modes.get(EAGER, 0)} without"


def _hint(required: bool) -> str:
    return _SLOW if required else "graphs were asked to be absent; set disable-cuda-graph in the server's arguments"
