# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import declaration, kinds
from ansible_collections.ddtree.fleet.tests.unit.patched import Fake, one_check


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "venv")


@pytest.mark.parametrize(
    ("text", "check", "found", "line"),
    [
        ("aaaa", {"literal": "aa"}, "2", 1),
        ("\nx = (budget) + 1\n", {"literal": "budget) + 1"}, "1", 2),
        ("a = 1\r\nb = 2\r\n", {"literal": "1\nb"}, "1", 1),
        ("x = 12\ny = 3\n", {"regex": r"^y = \d+$"}, "1", 2),
        ("# f()\nx = 'def f(): f()'\n", {"defines": "f", "count": 0}, "0", 0),
        ("# f()\nx = 'def f(): f()'\n", {"calls": "f", "max": 0}, "0", 0),
        ("def f(): pass\nasync def g(): pass\nclass C:\n  def m(self): pass\n", {"defines": "m"}, "1", 4),
        ("if True:\n  class C:\n    def m(self): pass\n", {"defines": "C.m"}, "1", 3),
        ("class C:\n  def m(self): pass\ndef m(): pass\n", {"defines": "C.m", "count": 1}, "1", 2),
        ("class C:\n  def m(self): pass\ndef m(): pass\n", {"defines": "m", "count": 2}, "2", 2),
        ("x._sample(1)\ny[0]._sample(2)\n_sample(3)\n", {"calls": "_sample", "count": 3}, "3", 1),
        ("x._sample(1)\nself.x._sample(2)\n", {"calls": "x._sample", "count": 1}, "1", 1),
        ("f(g(h()))\n", {"calls": "h"}, "1", 1),
        ("print(f'{f()}')\n", {"calls": "f"}, "1", 1),
        ("@f\ndef g(): pass\n", {"calls": "f", "count": 0}, "0", 0),
        ("f()()\n", {"calls": "f", "count": 1}, "1", 1),
        ("x\ny\n", {"literal": "x", "count": "1"}, "1", 1),
        ("x = 7\n", {"literal": 7}, "1", 1),
    ],
)
def test_a_check_finds_what_is_there(fake: Fake, text: str, check: Dict[str, Any], found: str, line: int) -> None:
    result = one_check(fake, text, **check)
    assert (result.passed, result.found, result.line) == (True, found, line)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"literal": "z"}, "literal 'z' in sglang/one.py: expected at least 1, found 0"),
        ({"literal": "x", "count": 3}, "literal 'x' in sglang/one.py:1: expected exactly 3, found 2 in lines 1, 3"),
        (
            {"literal": "x", "min": 3, "max": 4},
            "literal 'x' in sglang/one.py:1: expected 3 to 4, found 2 in lines 1, 3",
        ),
        (
            {"regex": "^x", "min": 0, "max": 1},
            "regex '^x' in sglang/one.py:1: expected at most 1, found 2 in lines 1, 3",
        ),
        (
            {"defines": "f", "name": "the patch", "hint": "copy it"},
            "the patch in sglang/one.py: expected at least 1, found 0 (copy it)",
        ),
        ({"calls": "f"}, "calls 'f' in sglang/one.py: expected at least 1, found 0"),
    ],
)
def test_a_failed_check_says_what_was_expected_and_found(fake: Fake, check: Dict[str, Any], said: str) -> None:
    assert one_check(fake, "x = 1\n# f()\nx = 2\n", **check).sentence() == said


def test_hints_are_for_failures(fake: Fake) -> None:
    assert one_check(fake, "x\n", literal="x", hint="copy it").hint == ""


def test_a_new_kind_is_one_function(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, "ends", kinds.Kind(lambda source, wanted: [1] * source.text.endswith(wanted)))
    monkeypatch.setattr(declaration, "KEYS", (*declaration.KEYS, "ends"))
    assert one_check(fake, "x = 1\n", ends="1\n").passed
