# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _expectations
from ansible_collections.ddtree.fleet.plugins.plugin_utils._expectations import ExpectationError, compiled

INFO = json.loads(
    (Path(__file__).resolve().parents[4] / "tests" / "recorded" / "dflash_accepted" / "server_info.json").read_text()
)


@pytest.mark.parametrize(
    ("item", "passed", "found"),
    [
        ({"query": "speculative_algorithm", "equals": "DFLASH"}, True, "'DFLASH'"),
        ({"query": "speculative_algorithm", "equals": "DDTREE"}, False, "'DFLASH'"),
        ({"query": "disable_cuda_graph", "equals": True}, True, "True"),
        ({"query": "tp_size", "equals": True}, False, "1"),
        ({"query": "tp_size", "equals": 1}, True, "1"),
        ({"query": "admin_api_key", "equals": None}, True, "None"),
        ({"query": "nothing.there", "min": 1}, False, "None"),
        ({"query": "internal_states[0].memory_usage.graph", "min": 0.01}, False, "0"),
        (
            {"query": "internal_states[].avg_spec_accept_length | min(@)", "min": "7", "max": 8},
            True,
            "7.608695652173913",
        ),
        ({"query": "version", "matches": r"^0\.5\.11"}, True, "'0.5.11'"),
        ({"query": "tp_size", "matches": "1"}, False, "1"),
        ({"query": "disable_cuda_graph", "min": 0}, False, "True"),
        ({"query": "length(tp_size)", "min": 0}, False, "the query cannot be applied"),
    ],
)
def test_expectations_on_recorded_server_info(item: Any, passed: bool, found: str) -> None:
    check = compiled([item])[0].check(INFO)
    assert check.passed is passed
    assert str(check.found).startswith(found)
    assert check.name == item["query"]


def test_a_name_names_the_check() -> None:
    assert compiled([{"query": "a", "equals": 1, "name": "a is one"}])[0].check({"a": 1}).name == "a is one"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("a", "expect must be a list"),
        ({"query": "a"}, "expect must be a list"),
        (["a"], "expect[0] must be a dictionary with a query"),
        ([{"query": "a", "equals": 1}, {"equals": 1}], "expect[1] must be a dictionary with a query"),
        ([{"query": "a"}], "expect[0] says nothing to compare with"),
        ([{"query": "a", "equal": 1}], "expect[0] has unknown keys: equal"),
        ([{"query": "a", "min": "many"}], "expect[0].min must be a number, not 'many'"),
        ([{"query": "a", "max": True}], "expect[0].max must be a number, not True"),
        ([{"query": "a", "matches": "("}], "expect[0].matches '(' is no regular expression"),
        ([{"query": "a.[", "equals": 1}], "expect[0].query 'a.[' is no JMESPath expression: wrong at position 3"),
        ([{"query": "a b", "equals": 1}], "expect[0].query 'a b' is no JMESPath expression: wrong at position 2"),
        ([{"query": "a #", "equals": 1}], "expect[0].query 'a #' is no JMESPath expression"),
        ([{"query": "", "equals": 1}], "expect[0].query '' is no JMESPath expression"),
        ([{"query": "a.sum_up(@)", "equals": 1}], "calls sum_up(), which JMESPath does not have"),
    ],
)
def test_a_malformed_expectation_is_named_before_anything_runs(items: Any, message: str) -> None:
    with pytest.raises(ExpectationError) as raised:
        compiled(items)
    assert message in str(raised.value)


def test_a_missing_jmespath_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_expectations, "jmespath", None)
    assert compiled([]) == []
    with pytest.raises(ExpectationError, match="jmespath on the control node"):
        compiled([{"query": "a", "equals": 1}])
