# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a process: what the environment gate is told, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.tests.unit.conftest import RunModule
from ansible_collections.ddtree.fleet.tests.unit.sglang_environments import fake_gpus, make, with_gpus


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_limit": "much"}, "memory_limit must be an amount of memory such as 32G, or 0 for none, not much"),
        ({"kernels": "some"}, "value of kernels must be one of: auto, required, none, got: some"),
        ({"probes": [{}]}, "one of the following is required: expression, call found in probes"),
        ({"probes": [{"expression": ""}]}, "probe 1 has neither an expression nor a call"),
        (
            {"probes": [{"expression": "1", "call": "json.dumps"}]},
            "parameters are mutually exclusive: expression|call found in probes",
        ),
        ({"probes": [{"expression": "1", "args": [1]}]}, "missing parameter(s) required by 'args': call"),
        (
            {"probes": [{"expression": "1"}, {"call": "json.dumps", "matches": "("}]},
            "probe 2: matches is no regular expression: missing )",
        ),
    ],
)
def test_wrong_options_are_one_clear_error(run_module: RunModule, options: Dict[str, Any], message: str) -> None:
    result = run_module("sglang_smoke", {"gate": "environment", "dest": "/", **options})
    assert result["failed"]
    assert message in result["msg"]


def test_everything_that_the_gate_can_look_at(run_module: RunModule, tmp_path: Path) -> None:
    built = with_gpus(make(tmp_path / "venv"))
    options = {
        "gate": "environment",
        "dest": str(built),
        "version": "0.5.11",
        "imports": ["sglang.srt.spec_info", "torch"],
        "symbols": ["sgl_kernel.tree_speculative_sampling_target_only", "sgl_kernel.gone"],
        "probes": [
            {"call": "json.dumps", "args": [{"b": 1, "a": None}], "kwargs": {"sort_keys": True}, "matches": "^{.a"}
        ],
        "command_line": ["--model-path=/m", "--speculative-algorithm=DDTREE"],
        "kernels": "required",
        "environment": fake_gpus(count=2, fails={"1": {"sgl_kernel": "CUDA error: an odd one"}}),
        "memory_limit": "4G",
    }
    result = run_module("sglang_smoke", options)
    assert [check["name"] for check in result["checks"] if not check["passed"]] == [
        "symbol sgl_kernel.gone",
        "kernels on GPU 1",
    ]
    assert [check["name"] for check in result["checks"]][-5:-2] == [
        "probe json.dumps({'b': 1, 'a': None}, sort_keys=True)",
        "command line",
        "GPUs of torch",
    ]
    assert "- kernels on GPU 1: expected torch and sgl_kernel launch" in result["msg"]
    assert (
        "NVIDIA B300 SXM6 AC, compute capability 10.3: sgl_kernel fails with RuntimeError: CUDA error" in result["msg"]
    )
    assert result["environment"]["gpus"] == 2
