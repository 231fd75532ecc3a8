# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.text import degenerate


@pytest.mark.parametrize(
    ("text", "ids", "reason"),
    [
        ("", [0] * 64, "token 0 makes up 64 of 64 tokens"),
        ("a" + "!" * 63, [5] + [0] * 63, "token 0 makes up 63 of 64 tokens"),
        ("", [], "empty text"),
        (" \n", [1, 2], "empty text"),
        ("!!!!", [], "'!' 4 times and nothing else"),
        ("ok " * 8, [], "the word 'ok' 8 times and nothing else"),
        ("ha ho " * 20, [], "the same 2 words over and over: ha ho"),
        ("!?" * 40, [], "the same 2 characters over and over: ! ?"),
        ("x y z and so on", [1, 2, 3] * 20, "the same 3 tokens over and over: 1 2 3"),
        ("x y", [9, 8, 7] + [1, 2] * 30, "the same 2 tokens over and over: 1 2"),
        # What sound models say at temperature 0 may go round in sentences.
        ("The capital of France is Paris. " * 10, list(range(7)) * 10, ""),
        ("0.3333333333333333333333333333333333333333", [], ""),
        ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17", [5, 11, 6, 11, 7, 11, 8, 11] * 2, ""),
        (".", [7], ""),
        ("Paris is the capital.", [1, 2, 3, 4, 5], ""),
    ],
)
def test_degenerate_text_is_told_from_text(text: str, ids: List[int], reason: str) -> None:
    assert degenerate(text, ids) == reason
