# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expectations on the journal of one invocation, for what no endpoint of a server shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Pattern, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import regular_expression
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

SHOWN = 200


@dataclass(frozen=True)
class LogExpectation:
    """A regular expression that some line must match, or with ``absent`` none."""

    name: str
    pattern: Pattern[str]
    absent: bool


def log_expectations(items: Sequence[Dict[str, Any]]) -> List[LogExpectation]:
    """The module's ``log_expect``; raises GateError for what is no regular expression."""
    return [
        LogExpectation(
            item.get("name") or item["matches"],
            regular_expression(f"log_expect[{index}].matches", item["matches"]),
            bool(item.get("absent")),
        )
        for index, item in enumerate(items)
    ]


def log_checks(expectations: Sequence[LogExpectation], lines: Iterable[str], redactor: Redactor) -> List[Check]:
    """One pass over ``lines``, of which only the first that matches each expectation is kept."""
    matched: Dict[int, str] = {}
    count = 0
    for line in lines:
        count += 1
        for index, expectation in enumerate(expectations):
            if index not in matched and expectation.pattern.search(line):
                matched[index] = redactor.bounded(line.strip(), SHOWN)
    return [_check(expectation, matched.get(index), count) for index, expectation in enumerate(expectations)]


def _check(expectation: LogExpectation, line: Optional[str], count: int) -> Check:
    wanted = "no line" if expectation.absent else "a line"
    # A journal that lost everything does not prove that something was never said.
    passed = count > 0 and (line is None) is expectation.absent
    found = line if line is not None else f"no such line among {count}"
    hint = "" if count else "the journal holds nothing of this invocation: journald dropped or removed it"
    return Check(
        f"log: {expectation.name}", passed, f"{wanted} that matches {expectation.pattern.pattern!r}", found, hint
    )
