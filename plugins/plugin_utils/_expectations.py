# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Expectations on a server's server_info, written as JMESPath queries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

try:
    import jmespath
    import jmespath.exceptions
    import jmespath.functions
except ImportError:
    jmespath = None

_COMPARISONS = ("equals", "min", "max", "matches")


class ExpectationError(Exception):
    """An expectation that cannot be meant: names its index, and the position in a query."""


@dataclass(frozen=True)
class Expectation:
    """One checked expectation. ``comparisons`` holds those of equals, min, max and matches that were given."""

    name: str
    query: Any
    comparisons: Mapping[str, Any]

    def check(self, info: Mapping[str, Any]) -> Check:
        expected = ", ".join(_words(kind, value) for kind, value in self.comparisons.items())
        try:
            found = self.query.search(info)
        except jmespath.exceptions.JMESPathError as error:
            return Check(self.name, False, expected, f"the query cannot be applied: {error}")
        passed = all(_holds(kind, value, found) for kind, value in self.comparisons.items())
        shown = repr(found)
        hint = "" if passed or found is not None else "server_info has nothing there; null also means switched off"
        return Check(self.name, passed, expected, shown if len(shown) <= 200 else shown[:199] + "…", hint)


def compiled(expectations: Any) -> list[Expectation]:
    """The expectations, all checked before anything runs. Raises ExpectationError."""
    if not isinstance(expectations, Sequence) or isinstance(expectations, str):
        raise ExpectationError(f"expect must be a list of dictionaries, not {expectations!r}")
    if expectations and jmespath is None:
        raise ExpectationError(
            "expect needs the Python package jmespath on the control node; install it beside ansible-core"
        )
    return [_expectation(index, item) for index, item in enumerate(expectations)]


def _expectation(index: int, item: Any) -> Expectation:
    place = f"expect[{index}]"
    if not isinstance(item, Mapping) or not isinstance(item.get("query"), str):
        raise ExpectationError(f"{place} must be a dictionary with a query, not {item!r}")
    unknown = sorted(str(key) for key in item if key not in ("query", "name", *_COMPARISONS))
    if unknown:
        raise ExpectationError(
            f"{place} has unknown keys: {', '.join(unknown)}; known are query, name, {', '.join(_COMPARISONS)}"
        )
    comparisons = {kind: item[kind] for kind in _COMPARISONS if kind in item}
    if not comparisons:
        raise ExpectationError(f"{place} says nothing to compare with: give one of {', '.join(_COMPARISONS)}")
    for kind in ("min", "max"):
        if kind in comparisons:
            comparisons[kind] = _bound(f"{place}.{kind}", comparisons[kind])
    if "matches" in comparisons:
        try:
            re.compile(str(comparisons["matches"]))
        except re.error as error:
            raise ExpectationError(
                f"{place}.matches {comparisons['matches']!r} is no regular expression: {error}"
            ) from None
    return Expectation(str(item.get("name") or item["query"]), _query(place, item["query"]), comparisons)


def _query(place: str, text: str) -> Any:
    try:
        query = jmespath.compile(str(text))
    except jmespath.exceptions.ParseError as error:
        position = error.lex_position if error.lex_position is not None and error.lex_position >= 0 else len(text)
        raise ExpectationError(
            f"{place}.query {text!r} is no JMESPath expression: wrong at position {position}"
        ) from None
    except jmespath.exceptions.JMESPathError as error:
        raise ExpectationError(f"{place}.query {text!r} is no JMESPath expression: {error}") from None
    for name in _functions(query.parsed):
        if name not in jmespath.functions.Functions.FUNCTION_TABLE:
            raise ExpectationError(f"{place}.query {text!r} calls {name}(), which JMESPath does not have")
    return query


def _functions(node: Any) -> list[str]:
    if not isinstance(node, Mapping):
        return []
    own = [str(node["value"])] if node.get("type") == "function_expression" else []
    return own + [name for child in node.get("children", ()) for name in _functions(child)]


def _bound(place: str, value: Any) -> float:
    """Templates give numbers as text: those are numbers too."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise ExpectationError(f"{place} must be a number, not {value!r}") from None


def _holds(kind: str, value: Any, found: Any) -> bool:
    if kind == "equals":
        if isinstance(value, bool) or isinstance(found, bool):
            return isinstance(value, bool) and isinstance(found, bool) and value == found
        return bool(value == found)
    if kind == "matches":
        return isinstance(found, str) and re.search(str(value), found) is not None
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return False
    return found >= value if kind == "min" else found <= value


def _words(kind: str, value: Any) -> str:
    return {
        "equals": repr(value),
        "min": f"at least {value}",
        "max": f"at most {value}",
        "matches": f"text that matches {value!r}",
    }[kind]
