# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, message, table_message

CHECKS = [
    Check("ready", True, "200", "200"),
    Check("accepted drafts", False, "above 0 in every reply", "reply 1: 0 of 441", "look at the drafter"),
    Check("tp_size", False, 8, 1),
]


def test_failed_checks_are_an_aligned_table_with_their_hints_below() -> None:
    assert table_message("server", "x.service", CHECKS).splitlines() == [
        "server gate failed for x.service: 2 of 3 checks",
        "  check           | expected               | found",
        "  accepted drafts | above 0 in every reply | reply 1: 0 of 441",
        "  tp_size         | 8                      | 1",
        "- accepted drafts: look at the drafter",
    ]


def test_a_cell_is_one_line_of_bounded_width() -> None:
    (row,) = table_message("server", "x", [Check("n" * 100, False, "a\nb", "f" * 1000)]).splitlines()[2:]
    name, expected, found = row.strip().split(" | ")
    assert (len(name), name[-1]) == (44, "…")
    assert expected.rstrip() == "a b"
    assert (len(found), found[-1]) == (240, "…")


def test_what_is_too_much_is_counted() -> None:
    checks = [Check(f"check {number}", False, 1, 2, "why") for number in range(25)]
    lines = table_message("server", "x", checks).splitlines()
    assert "and 5 more, all in the result's checks" in lines
    assert len(lines) == 2 + 20 + 1 + 20


def test_other_gates_say_it_in_sentences() -> None:
    assert message("patches", "/venv", CHECKS).splitlines()[1] == (
        "- accepted drafts: expected above 0 in every reply, found reply 1: 0 of 441 (look at the drafter)"
    )
