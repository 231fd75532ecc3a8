# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Union

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline import drift as module
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.drift import drift
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Reference


def shown(tmp_path: Path, before: Union[str, bytes], after: Union[str, bytes], name: str = "a.py") -> str:
    old, new = (text.encode() if isinstance(text, str) else text for text in (before, after))
    (tmp_path / name).write_bytes(new)
    reference = Reference("good", {}, lambda path, limit: old[:limit])
    (one,) = drift(str(tmp_path), [(name, reference)])
    assert (one["file"], one["baseline"]) == (name, "good")
    return one["diff"]


def test_a_change_is_a_unified_diff_with_context(tmp_path: Path) -> None:
    before = "".join(f"line {number}\n" for number in range(20))
    assert shown(tmp_path, before, before.replace("line 10\n", "line ten\n")).split("\n") == [
        "--- a/a.py",
        "+++ b/a.py",
        "@@ -8,7 +8,7 @@",
        " line 7",
        " line 8",
        " line 9",
        "-line 10",
        "+line ten",
        " line 11",
        " line 12",
        " line 13",
    ]


def test_line_ends_and_a_missing_last_one_are_seen(tmp_path: Path) -> None:
    assert "-x\n+x\\x0d" in shown(tmp_path, "x\n", "x\r\n")
    assert shown(tmp_path, "x\n", "x").split("\n")[3:] == [" x", "-"]


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    text = shown(tmp_path, "", "\x1b[31m\u202e\u2028\x07\t\u00e9\U000e0001")
    assert "+\\x1b[31m\\u202e\\u2028\\x07\t\u00e9\\U000e0001" in text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"\0", b"\0\0", "binary: 1 bytes in the baseline, 2 here"),
        (b"x", b"\xff\xfe", "binary: 1 bytes in the baseline, 2 here"),
        (b"x" * (513 << 10), b"", "not shown: larger than 512 KiB"),
    ],
)
def test_what_is_no_text_or_too_large_is_said(tmp_path: Path, before: bytes, after: bytes, said: str) -> None:
    assert shown(tmp_path, before, after) == said


def test_lines_and_files_are_bounded(tmp_path: Path) -> None:
    lines = shown(tmp_path, "", "x" * 100_000 + "\n" + "y\n" * 500).split("\n")
    assert (len(lines), lines[-1]) == (101, "(more lines are not shown)")
    assert max(map(len, lines)) == 200
    (tmp_path / "b").write_text("")
    reference = Reference("good", {}, lambda path, limit: b"x")
    assert len(drift(str(tmp_path), [("b", reference)] * 30)) == 20


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    line = "Environment=SGLANG_API_KEY=sk-verysecret --api-key sk-verysecret " + "x" * 160
    text = shown(tmp_path, f"{line}\n", f"{line} API_KEY=sk-verysecret\n")
    assert "sk-verys" not in text
    assert "REDACTED" in text


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    found: List[Dict[str, str]] = drift(str(tmp_path), [("d", Reference("good", {}, lambda path, limit: b"x"))])
    assert found[0]["diff"] == "not compared: Is a directory"


def test_a_hostile_pair_of_files_is_compared_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = "".join(f"{number % 199}\n" for number in range(20_000 - 1))
    after = "".join(f"{number * 7 % 199}\n" for number in range(20_000 - 1))
    said = "not shown: 20000 lines in the baseline and 20000 here take too long to compare"
    assert shown(tmp_path, before, after) == said
    before, after = ("".join(text.splitlines(True)[:9_000]) for text in (before, after))
    assert "take too long to compare" in shown(tmp_path, before, after)
    assert shown(tmp_path, "x\n" * 9_000, "y\n" * 9_000).startswith("--- a/a.py")
    monkeypatch.setattr(module, "SECONDS", -1)
    assert shown(tmp_path, "x", "y") == "not shown: the files before took too long to compare"
