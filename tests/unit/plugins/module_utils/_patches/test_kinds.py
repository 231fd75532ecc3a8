# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import declaration, kinds
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError
from ansible_collections.ddtree.fleet.tests.unit.patched import Fake, one_check

X_DIGEST = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"  # of "x" and a line end


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
        ("# x = 1\ny = 'x = 1'\nx == 1\nx[0] = 1\n", {"assigns": "x", "count": 0}, "0", 0),
        ("\nx = 1\n", {"assigns": "x"}, "1", 2),
        ("class C:\n  x: int = 1\n  y: int\n", {"assigns": "C.x", "count": 1}, "1", 2),
        ("class C:\n  x: int = 1\n  y: int\n", {"assigns": "y", "count": 0}, "0", 0),
        ("class C:\n  def m(self):\n    self.x = 1\n    self.a.x = 2\n", {"assigns": "self.x", "count": 1}, "1", 3),
        ("C.x = 1\nx = 2\nd.C.x = 3\n", {"assigns": "x", "count": 3}, "3", 1),
        ("C.x = 1\nx = 2\nd.C.x = 3\n", {"assigns": "C.x", "count": 1}, "1", 1),
        ("x += 1\n(a, [x, *b]) = y\nif (x := 2): pass\n", {"assigns": "x", "count": 3}, "3", 1),
        ("(a, [x, *b]) = y\n", {"assigns": "b"}, "1", 1),
        ("# import a.b\nx = 'import a.b'\n", {"imports": "a.b", "max": 0}, "0", 0),
        ("if x:\n  import a.b as c\n", {"imports": "a.b"}, "1", 2),
        ("import a.b as c\n", {"imports": "b"}, "1", 1),
        ("import a.b as c\n", {"imports": "c", "count": 0}, "0", 0),
        ("from a import (\n  b,\n  c as d)\n", {"imports": "a.c", "count": 1}, "1", 1),
        ("from a.b import c\n", {"imports": "a.b", "count": 1}, "1", 1),
        ("from . import x\nfrom .a import x\n", {"imports": ".x", "count": 1}, "1", 1),
        ("from . import x\nfrom ..a import x\n", {"imports": "..a.x", "count": 1}, "1", 2),
        ("from . import x\nfrom ..a import x\n", {"imports": "x", "count": 2}, "2", 1),
        ("from a import *\n", {"imports": "a.*"}, "1", 1),
        ("x = " + "1 + " * 1200 + "f()\n", {"calls": "f"}, "1", 1),
        ("x\n", {"sha256": X_DIGEST}, X_DIGEST, 0),
        ("x\n", {"sha256": X_DIGEST.upper()}, X_DIGEST, 0),
        ("x\n", {"sha256": ["0" * 64, X_DIGEST]}, X_DIGEST, 0),
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
        ({"assigns": "C.x"}, "assigns 'C.x' in sglang/one.py: expected at least 1, found 0"),
        ({"imports": "f"}, "imports 'f' in sglang/one.py: expected at least 1, found 0"),
        (
            {"sha256": ["0" * 64, "1" * 64]},
            f"sha256 in sglang/one.py: expected {'0' * 64} or {'1' * 64}, "
            "found 2b5d67980400ea5c05f10b2840fe4e693362a748d7d18a4b2a39997f22abb28d",
        ),
    ],
)
def test_a_failed_check_says_what_was_expected_and_found(fake: Fake, check: Dict[str, Any], said: str) -> None:
    result = one_check(fake, "x = 1\n# f()\nx = 2\n", **check)
    assert (result.passed, result.sentence()) == (False, said)


def test_hints_are_for_failures(fake: Fake) -> None:
    assert one_check(fake, "x\n", literal="x", hint="copy it").hint == ""


def test_an_expression_that_takes_without_end_is_named(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "REGEX_SECONDS", 0.1)
    with pytest.raises(
        PatchError, match=r"one.py: the regular expression '\(a\+\)\+\$' takes longer than 0.1 s; make it"
    ):
        one_check(fake, "a" * 60 + "!", regex="(a+)+$")
    assert one_check(fake, "a" * 60, regex="(a+)+$").passed


def test_a_new_kind_is_one_function(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.KINDS, "ends", kinds.Kind(lambda source, wanted: [1] * source.text.endswith(wanted)))
    monkeypatch.setattr(declaration, "KEYS", (*declaration.KEYS, "ends"))
    assert one_check(fake, "x = 1\n", ends="1\n").passed
