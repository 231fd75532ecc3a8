# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CUDA graphs judged on replies of a real H200, with graphs on and off."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import graphs
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.graphs import Passes
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.metrics import graph_passes
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Reply
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import failures
from ansible_collections.ddtree.fleet.tests.unit.replayed import RECORDED

ON, OFF = "h200_dflash_graphs", "h200_dflash_no_graphs"
DISABLED, CAPTURED = "disable_cuda_graph in server_info", "memory_usage.graph in server_info"
DECODED = "decode passes in CUDA graphs"


def info(folder: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((RECORDED / folder / "server_info.json").read_text())
    return found


def lines(folder: str) -> List[str]:
    return (RECORDED / folder / "metrics.txt").read_text().splitlines()


def counters(*moments: List[str]) -> List[Reply]:
    return [
        Reply("counters", 200, "text/plain; version=0.0.4", None, "", "", 0.1, number, lines=kept)
        for number, kept in enumerate(moments)
    ]


def gained(folder: str) -> Passes:
    """As if all that was recorded had been generated alone."""
    return graphs.passes(counters([], lines(folder), lines(folder)))


def failed(wanted: str, said: Dict[str, Any], counted: Passes) -> Dict[str, str]:
    return {check.name: str(check.found) for check in failures(graphs.graph_checks(wanted, said, counted))}


@pytest.mark.parametrize(
    ("folder", "modes"),
    [
        (ON, {"prefill_none": 5, "decode_cuda_graph": 97}),
        (OFF, {"prefill_none": 5, "decode_none": 97}),
        ("h200_dflash_graphs_no_acceptance", {"prefill_none": 5, "decode_cuda_graph": 772}),
        ("h200_plain_no_graphs", {"prefill_none": 5, "decode_none": 777}),
        ("dflash_accepted", {"prefill_none": 17, "decode_none": 21}),
    ],
)
def test_recorded_counters_are_read(folder: str, modes: Dict[str, int]) -> None:
    assert graph_passes(lines(folder)) == modes


def test_passes_of_several_ranks_are_added() -> None:
    ranks = [
        'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"} 2.0',
        'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="1"} 1e+03',
        'sglang:cuda_graph_passes_total_created{mode="decode_none"} 1.796e+09',
        "# HELP sglang:cuda_graph_passes_total passes",
        "nonsense",
    ]
    assert graph_passes(ranks) == {"decode_none": 1002}


def test_graphs_that_are_used_pass_where_they_are_required_only() -> None:
    assert failed("required", info(ON), gained(ON)) == {}
    assert failed("any", info(ON), gained(ON)) == {}
    assert failed("absent", info(ON), gained(ON)) == {
        DISABLED: "false",
        CAPTURED: "0.04 GB",
        DECODED: "97 decode passes in graphs, 0 without",
    }


def test_graphs_that_are_off_pass_where_they_are_to_be_absent_only() -> None:
    assert failed("absent", info(OFF), gained(OFF)) == {}
    assert failed("any", info(OFF), gained(OFF)) == {}
    assert failed("required", info(OFF), gained(OFF)) == {
        DISABLED: "true",
        CAPTURED: "0 GB",
        DECODED: "0 decode passes in graphs, 97 without",
    }


def test_counters_find_eager_decoding_that_server_info_does_not_admit() -> None:
    assert failed("required", info(ON), gained(OFF)) == {DECODED: "0 decode passes in graphs, 97 without"}


def test_passes_from_before_the_gate_do_not_count() -> None:
    before = lines(ON)
    counted = graphs.passes(counters(before, before, before))
    assert failed("required", info(ON), counted) == {DECODED: "0 decode passes in graphs, 0 without"}


def test_a_state_without_captured_graphs_among_others_fails() -> None:
    said = info(ON)
    said["internal_states"].append({"memory_usage": {"graph": 0}})
    assert failed("required", said, gained(ON)) == {CAPTURED: "0.04 GB, 0 GB"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"status": 404, "excerpt": "Not Found"}, "/metrics: HTTP 404: Not Found"),
        ({"status": None, "error": "no answer in time"}, "/metrics: no answer in time"),
        ({"content_type": "text/html", "excerpt": "<html>"}, "/metrics: content type text/html: <html>"),
        ({"lines": ()}, "/metrics has no sglang:cuda_graph_passes_total"),
    ],
)
def test_without_counters_required_fails_and_absent_is_not_verified_by_them(
    changes: Dict[str, Any], fault: str
) -> None:
    counted = graphs.passes([dataclasses.replace(reply, **changes) for reply in counters(*[lines(ON)] * 3)])
    assert failed("required", info(ON), counted) == {DECODED: fault}
    assert failed("absent", info(OFF), counted) == {}
    assert graphs.unverified("absent", info(OFF), counted) == [f"CUDA graphs by counters: {fault}"]
    assert graphs.unverified("any", info(ON), counted) == [f"CUDA graphs: cuda_graphs is any; {fault}"]


def test_a_gate_that_broke_off_has_no_counters() -> None:
    assert graphs.passes(counters(lines(ON))).fault == "/metrics was not read to the end"


def test_what_a_later_version_does_not_say_is_not_verified() -> None:
    assert graphs.unverified("required", {"internal_states": [{}]}, gained(ON)) == [
        "CUDA graphs: server_info has no disable_cuda_graph",
        "CUDA graphs: server_info has no memory_usage.graph",
    ]
    assert graphs.unverified("required", info(ON), gained(ON)) == []


def test_some_eager_passes_of_larger_batches_are_a_remark_and_none_in_graphs_a_failure() -> None:
    some = Passes({"decode_cuda_graph": 10}, {"decode_cuda_graph": 3, "decode_none": 4})
    assert failed("required", info(ON), some) == {}
    assert graphs.remarks("required", Passes({}, {"decode_none": 4})) == []
    (remark,) = graphs.remarks("required", some)
    assert remark.startswith("4 decode passes of concurrent requests ran without a CUDA graph (3 decode passes in")
    none = Passes({"decode_cuda_graph": 10}, {"decode_none": 4})
    assert failed("required", info(ON), none) == {DECODED: "10 decode passes in graphs, 4 without"}
    alone = Passes({"decode_cuda_graph": 10, "decode_none": 1}, {})
    assert failed("required", info(ON), alone) == {DECODED: "10 decode passes in graphs, 1 without"}
