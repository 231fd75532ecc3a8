# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The counters of a server's /metrics (Prometheus text) that tell how its forward passes ran."""

from __future__ import annotations

import re
from typing import Dict, Sequence

# True in 0.5.11, unlike the gauge sglang:is_cuda_graph, which is never set.
GRAPH_PASSES = "sglang:cuda_graph_passes_total"
IN_GRAPHS, EAGER = "decode_cuda_graph", "decode_none"
_SAMPLE = re.compile(
    rf"""^{re.escape(GRAPH_PASSES)}\{{[^}}]*?\bmode="(?P<mode>[^"]*)"[^}}]*\}}\s+(?P<value>[0-9.eE+]+)(?:\s|$)"""
)


def graph_passes(lines: Sequence[str]) -> Dict[str, int]:
    """Passes by mode, such as ``decode_cuda_graph``, over all ranks."""
    passes: Dict[str, int] = {}
    for line in lines:
        sample = _SAMPLE.match(line)
        if sample:
            mode = sample.group("mode")
            passes[mode] = passes.get(mode, 0) + int(float(sample.group("value")))
    return passes


def gained(before: Dict[str, int], after: Dict[str, int]) -> Dict[str, int]:
    """What was counted in between, by mode; a mode shows up with its first pass."""
    return {mode: count - before.get(mode, 0) for mode, count in after.items() if count != before.get(mode, 0)}
