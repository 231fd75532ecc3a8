# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"literal": "x"}, "checks[1] (no file): file: a path relative to site-packages is needed"),
        ({"file": ".", "literal": "x"}, "checks[1] (.): file: a path relative to site-packages is needed"),
        (
            {"file": "/a.py", "literal": "x"},
            "checks[1] (/a.py): file: an absolute path; it must be relative to site-packages",
        ),
        (
            {"file": "a/../../b.py", "literal": "x"},
            "checks[1] (a/../../b.py): file: climbs out with '..'; it must be relative to site-packages",
        ),
        ({"file": "a\0.py", "literal": "x"}, "checks[1] (a\0.py): file: holds a NUL character"),
        (
            {"file": "a.py"},
            "checks[1] (a.py): exactly one of literal, regex, defines, calls, assigns, imports, sha256 is needed, given: none",
        ),
        (
            {"file": "a.py", "literal": "x", "calls": "f"},
            "checks[1] (a.py): exactly one of literal, regex, defines, calls, assigns, imports, sha256 is needed, "
            "given: literal, calls",
        ),
        (
            {"file": "a.py", "litteral": "x"},
            "checks[1] (a.py): unknown key litteral (did you mean literal?); "
            "known are file, literal, regex, defines, calls, assigns, imports, sha256, count, min, max, name, hint",
        ),
        ({"file": "a.py", "literal": ""}, "checks[1] (a.py): literal: the text to look for is empty"),
        ({"file": "a.py", "literal": ["x"]}, "checks[1] (a.py): literal: ['x'] is no text"),
        (
            {"file": "a.py", "regex": "("},
            "checks[1] (a.py): regex: '(' is no regular expression: missing ), unterminated subpattern at position 0",
        ),
        ({"file": "a.py", "calls": "f("}, "checks[1] (a.py): calls: 'f(' is no name such as f, x.f or Class.method"),
        (
            {"file": "a.py", "defines": "C."},
            "checks[1] (a.py): defines: 'C.' is no name such as f, x.f or Class.method",
        ),
        (
            {"file": "a.py", "assigns": "x[0]"},
            "checks[1] (a.py): assigns: 'x[0]' is no name such as f, x.f or Class.method",
        ),
        ({"file": "a.py", "imports": "a b"}, "checks[1] (a.py): imports: 'a b' is no name such as a, a.b, .a.b or a.*"),
        ({"file": "a.py", "imports": ".."}, "checks[1] (a.py): imports: '..' is no name such as a, a.b, .a.b or a.*"),
        (
            {"file": "a.py", "sha256": ["0" * 64, "abc"]},
            "checks[1] (a.py): sha256: 'abc' is no SHA-256, which has 64 hexadecimal digits",
        ),
        ({"file": "a.py", "sha256": []}, "checks[1] (a.py): sha256: the text to look for is empty"),
        ({"file": "a.py", "sha256": [["x"]]}, "checks[1] (a.py): sha256: ['x'] is no text"),
        (
            {"file": "a.py", "sha256": "0" * 64, "min": 1},
            "checks[1] (a.py): sha256 is of the whole file, so min cannot stand beside it",
        ),
        ({"file": "a.py", "literal": "x", "count": -1}, "checks[1] (a.py): count: -1 is no number from 0 up"),
        ({"file": "a.py", "literal": "x", "min": "two"}, "checks[1] (a.py): min: 'two' is no number from 0 up"),
        ({"file": "a.py", "literal": "x", "max": True}, "checks[1] (a.py): max: True is no number from 0 up"),
        (
            {"file": "a.py", "literal": "x", "count": 1, "min": 1},
            "checks[1] (a.py): count is exact, so min and max cannot stand beside it",
        ),
        ({"file": "a.py", "literal": "x", "min": 3, "max": 2}, "checks[1] (a.py): min 3 is more than max 2"),
    ],
)
def test_a_malformed_check_is_named_by_index_and_file(check: Dict[str, Any], said: str) -> None:
    with pytest.raises(PatchError) as raised:
        parse_rules([{"file": "good.py", "literal": "x"}, check])
    assert str(raised.value) == said


def test_keys_without_a_value_do_not_count() -> None:
    (rule,) = parse_rules([{"file": "./a//b.py", "literal": "x", "regex": None, "count": None}])
    assert (rule.file, rule.kind, rule.least, rule.most) == ("a/b.py", "literal", 1, None)


def test_malformed_files_are_refused_and_doubles_dropped() -> None:
    assert parse_files(["a.py", "./a.py", "b"]) == ["a.py", "b"]
    with pytest.raises(
        PatchError, match=r"^files\[1\] \(/b\): an absolute path; it must be relative to site-packages$"
    ):
        parse_files(["a.py", "/b"])
    with pytest.raises(PatchError, match=r"a character that no file name has$"):
        parse_files(["\ud800"])
