# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a gate found: one result per check, and the one message that a failing gate ends with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Sequence

# The widest that the columns of a table may be: check, expected, found.
_WIDTHS = (44, 56, 240)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    ``expected`` and ``found`` are short texts or numbers for people and JSON. ``hint`` says what to do when it failed.
    ``file`` and ``line`` (1 for the first) say where, when there is a place.
    """

    name: str
    passed: bool
    expected: Any = None
    found: Any = None
    hint: str = ""
    file: str = ""
    line: int = 0

    def result(self) -> Dict[str, Any]:
        """As it goes into a module's result; empty fields are left out."""
        return {
            key: value for key, value in asdict(self).items() if value not in ("", None) and (key != "line" or value)
        }

    def sentence(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        parts = [self.name, f"in {place}" if place else "", f"expected {self.expected}, found {self.found}"]
        text = " ".join(part for part in parts[:2] if part) + ": " + parts[2]
        return f"{text} ({self.hint})" if self.hint else text


def failures(checks: Sequence[Check]) -> List[Check]:
    return [check for check in checks if not check.passed]


def message(gate: str, subject: str, checks: Sequence[Check], limit: int = 20) -> str:
    """The text a failing gate ends with: which gate, of what, and every failed check up to ``limit``."""
    failed = failures(checks)
    lines = [f"{gate} gate failed for {subject}: {len(failed)} of {len(checks)} checks"]
    lines += [f"- {check.sentence()}" for check in failed[:limit]]
    if len(failed) > limit:
        lines.append(f"- and {len(failed) - limit} more, all in the result's checks")
    return "\n".join(lines)


def table_message(gate: str, subject: str, checks: Sequence[Check], limit: int = 20) -> str:
    """As ``message``, with the failed checks as a table ``check | expected | found`` and their hints below it."""
    failed = failures(checks)
    shown = failed[:limit]
    rows = [("check", "expected", "found"), *((check.name, check.expected, check.found) for check in shown)]
    lines = [f"{gate} gate failed for {subject}: {len(failed)} of {len(checks)} checks", *_table(rows)]
    if len(failed) > limit:
        lines.append(f"and {len(failed) - limit} more, all in the result's checks")
    lines += [f"- {check.name}: {check.hint}" for check in shown if check.hint]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[Any]]) -> List[str]:
    """Aligned columns, each cell on one line and of bounded width; the last column is not padded."""
    cells = [[_cell(value, width) for value, width in zip(row, _WIDTHS)] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_WIDTHS) - 1)]
    return [
        "  " + " | ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in cells
    ]


def _cell(value: Any, width: int) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"
