# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shipped patch set finds what it looks for in the stand-in patch set of the tests, and nowhere in what that starts from.

A file here is what the diffs show of it; scenario verify holds the patch set against whole files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest
import yaml
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import Rule, parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import parse_diff

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = yaml.safe_load((ROOT / "roles/ddtree/vars/main/patch_set.yml").read_text(encoding="utf-8"))
RULES = parse_rules(SHIPPED["_ddtree_patch_set"]["checks"])
SHOWN = {"literal": "{}", "defines": "def {}(", "calls": "{}("}


def sides(mark: str) -> Dict[str, str]:
    """The lines of each patched file before (-) or after (+) the change, context included."""
    found: Dict[str, str] = {}
    for diff in sorted((ROOT / "tests/input/patchset").glob("*.diff")):
        for change in parse_diff(diff.read_bytes(), 1):
            lines = [line for hunk in change.hunks for line in hunk.side(mark)]
            found[change.path] = found.get(change.path, "") + b"".join(lines).decode()
    return found


def occurrences(rule: Rule, text: str) -> int:
    return text.count(SHOWN[rule.kind].format(rule.wanted))


def test_it_declares_the_files_that_the_patches_change() -> None:
    assert parse_files(SHIPPED["_ddtree_patch_set"]["files"]) == sorted(sides("+"))
    assert {rule.file for rule in RULES} <= set(SHIPPED["_ddtree_patch_set"]["files"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.file}-{rule.name}")
def test_every_check_finds_the_patch_and_nothing_without_it(rule: Rule) -> None:
    assert occurrences(rule, sides("+")[rule.file]) >= rule.least
    assert rule.most is None or occurrences(rule, sides("+")[rule.file]) <= rule.most
    assert occurrences(rule, sides("-")[rule.file]) == 0


def test_the_four_markers_that_were_looked_for_by_hand_are_among_the_checks() -> None:
    markers = {(rule.file.rpartition("/")[2], rule.wanted, rule.least) for rule in RULES if rule.kind == "literal"}
    assert markers >= {
        ("cuda_graph_runner.py", "is_ddtree()", 1),
        ("triton_backend.py", "speculative_ddtree_budget) + 1", 1),
        ("dflash_info.py", "_sample_tree_paths", 2),
        ("ddtree_utils.py", "compile_ddtree_retrieve", 1),
    }
