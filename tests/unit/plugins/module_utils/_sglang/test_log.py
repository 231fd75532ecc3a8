# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.log import log_checks, log_expectations
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

LINES = ["api_key='CANARY-1'", "draft_window_size=2048, compact_cache=True", "ready", "ready"]


def judged(lines: List[str], **expectation: Any) -> Check:
    (check,) = log_checks(log_expectations([expectation]), iter(lines), Redactor(["CANARY-1"]))
    return check


def test_a_line_that_must_stand_there_is_quoted() -> None:
    check = judged(LINES, name="window", matches=r"draft_window_size=2048\b.*compact_cache=True")
    assert (check.name, check.passed, check.found) == ("log: window", True, LINES[1])


def test_a_line_that_is_missing_fails() -> None:
    check = judged(LINES, matches="NVLS comm", absent=False)
    assert (check.name, check.passed, check.found) == ("log: NVLS comm", False, "no such line among 4")
    assert check.expected == "a line that matches 'NVLS comm'"


def test_a_line_that_must_not_stand_there_fails_and_keeps_no_secret() -> None:
    assert judged(LINES, matches="falling back", absent=True).passed
    check = judged(["x" * 190 + " CANARY-1"], matches="CANARY-1", absent=True)
    assert not check.passed
    assert "CANARY" not in str(check.found)


@pytest.mark.parametrize("absent", [True, False])
def test_an_empty_journal_proves_nothing(absent: bool) -> None:
    check = judged([], matches="anything", absent=absent)
    assert not check.passed
    assert "journald dropped or removed it" in check.hint


def test_a_pattern_that_is_none_is_named() -> None:
    items: List[Dict[str, Any]] = [{"matches": "ok"}, {"matches": "("}]
    with pytest.raises(GateError, match=r"log_expect\[1\].matches '\(' is no regular expression: missing \)"):
        log_expectations(items)
