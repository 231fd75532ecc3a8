# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path
from typing import Callable, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.hunks import Finding, judge_hunks, split_lines
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import Hunk, parse_diff

Make = Callable[[bytes, bytes, int], List[Hunk]]


@pytest.fixture(name="make", params=["git", "diff"])
def make_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """The hunks between two contents by the real program."""

    def make(old: bytes, new: bytes, context: int) -> List[Hunk]:
        (tmp_path / "old").write_bytes(old)
        (tmp_path / "new").write_bytes(new)
        program = {"git": ["git", "diff", "--no-index", f"-U{context}"], "diff": ["diff", "-a", f"-U{context}"]}
        command = [*program[request.param], "old", "new"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 1, done.stderr
        (change,) = parse_diff(done.stdout, 0 if request.param == "diff" else 1)
        return change.hunks

    return make


def judge(data: bytes, hunks: List[Hunk]) -> List[Finding]:
    return judge_hunks(split_lines(data), hunks)


def states(data: bytes, hunks: List[Hunk]) -> List[str]:
    return [finding.state for finding in judge(data, hunks)]


def numbered(count: int) -> List[bytes]:
    return [b"line %d\n" % number for number in range(count)]


def random_pair(chance: random.Random) -> Tuple[List[bytes], List[bytes]]:
    """A file with many repeated lines, as programs have, and what edits make of it."""
    old = []
    for number in range(chance.randrange(1, 120)):
        common = [b"\n", b"    else:\n", b"        return None\n", b"    pass\r\n"]
        old.append(
            chance.choice(common) if chance.random() < 0.3 else b"    x%d = %d\n" % (number, chance.randrange(1000))
        )
    new: List[bytes] = []
    for line in old:
        turn = chance.random()
        if turn < 0.04:
            continue
        if turn < 0.1:
            new += [b"    new%d\n" % chance.randrange(10**6) for _one in range(chance.randrange(1, 4))]
        new.append(b"    changed%d\n" % chance.randrange(10**6) if 0.1 < turn < 0.14 else line)
    if chance.random() < 0.2:
        new.append(b"no end of line")
    if chance.random() < 0.2:
        old[-1] = old[-1].rstrip(b"\n") + b"x"
    return (old, new) if old != new else random_pair(chance)


def test_random_edits_are_told_in_both_files_also_at_another_place(make: Make) -> None:
    chance, judged = random.Random(20), 0
    for _round in range(25):
        old, new = random_pair(chance)
        hunks = make(b"".join(old), b"".join(new), chance.choice((1, 3, 10)))
        before = [b"unrelated %d\n" % number for number in range(chance.randrange(1, 30))]
        for lines, state in ((new, "applied"), (old, "absent")):
            assert states(b"".join(lines), hunks) == [state] * len(hunks)
            moved = judge(b"".join(before + lines), hunks)
            assert {(one.state, one.offset) for one in moved} == {(state, len(before))}
        judged += len(hunks)
    assert judged > 50


def test_random_damage_is_a_conflict_of_its_hunk_only(make: Make) -> None:
    chance, damaged = random.Random(21), 0
    for _round in range(20):
        old, new = random_pair(chance)
        hunks = make(b"".join(old), b"".join(new), 3)
        index = chance.randrange(len(hunks))
        inside = [place for place, (mark, _line) in enumerate(hunks[index].lines) if mark == " "]
        if not inside:
            continue
        place = chance.choice(inside)
        lines = list(new)
        at = hunks[index].new_start + sum(mark != "-" for mark, _line in hunks[index].lines[:place])
        lines[at] = b"damaged " + lines[at]
        wanted = ["applied"] * len(hunks)
        wanted[index] = "conflicting"
        assert states(b"".join(lines), hunks) == wanted
        damaged += 1
    assert damaged > 10


def test_a_part_of_a_hunk_put_back_is_partial(make: Make) -> None:
    chance = random.Random(22)
    for _round in range(15):
        old = numbered(60)
        first = chance.randrange(5, 50)
        second = first + chance.randrange(2, 6)
        new = list(old)
        new[second : second + 1] = [b"added\n", b"and more\n"][: chance.randrange(1, 3)]
        reverted = list(new)
        new[first] = b"changed\n"
        (hunk,) = make(b"".join(old), b"".join(new), 3)
        (finding,) = judge(b"".join(reverted), [hunk])
        assert finding == Finding("partial", first + 1, 0, f"1 of its 2 changes stand whole, not at line {first + 1}")
        assert judge(b"".join([b"x\n", *reverted]), [hunk])[0].state == "partial"


def test_some_lines_of_one_change_are_partial(make: Make) -> None:
    old, new = numbered(20), numbered(20)
    new[10:10] = [b"one\n", b"two\n", b"three\n"]
    hunks = make(b"".join(old), b"".join(new), 3)
    del new[11]
    assert judge(b"".join(new), hunks) == [Finding("partial", 11, 0, "0 of its 1 changes stand whole, not at line 11")]


def test_one_hunk_that_is_missing_is_told_from_the_others(make: Make) -> None:
    old, new = numbered(100), numbered(100)
    new[20:20] = [b"a\n"] * 4
    new[50] = b"b\n"
    del new[80:83]
    hunks = make(b"".join(old), b"".join(new), 3)
    half = [*new[:20], *new[24:]]
    assert judge(b"".join(half), hunks) == [
        Finding("absent", 21),
        Finding("applied", 47, -4),
        Finding("applied", 77, -4),
    ]


def test_insertions_and_deletions_at_both_ends(make: Make) -> None:
    lines = numbered(12)
    cases = [
        (lines, [b"top\n", *lines]),
        (lines, [*lines, b"end\n"]),
        (lines, [*lines, b"end"]),
        (lines[:4], [b"top\n", *lines[:4], b"end\n"]),
        (lines, [b"x\n"]),
        ([*lines[:-1], b"no end"], [*lines[:-1], b"no end\n"]),
    ]
    for old, new in cases + [(new, old) for old, new in cases]:
        for context in (0, 3):
            hunks = make(b"".join(old), b"".join(new), context)
            assert set(states(b"".join(new), hunks)) == {"applied"}
            assert set(states(b"".join(old), hunks)) == {"absent"}
        if min(len(old), len(new)) > 1:
            assert set(states(b"".join([b"above 1\n", b"above 2\n", *new]), hunks)) == {"applied"}
            assert set(states(b"".join([b"above 1\n", b"above 2\n", *old]), hunks)) == {"absent"}


def test_a_repeated_block_counts_at_its_own_place(make: Make) -> None:
    block = [b"def f():\n", b"    if x:\n", b"        a()\n", b"    else:\n", b"        b()\n", b"\n", b"\n"]
    old = block * 5
    new = list(old)
    new[16] = b"        c()\n"
    hunks = make(b"".join(old), b"".join(new), 3)
    assert judge(b"".join(new), hunks) == [Finding("applied", 17)]
    assert judge(b"".join(old), hunks) == [Finding("absent", 17)]
    elsewhere = list(old)
    elsewhere[9] = b"        c()\n"
    assert judge(b"".join(elsewhere), hunks) == [Finding("absent", 17)]


def test_one_more_of_many_equal_lines_is_told_by_its_place_or_not_at_all(make: Make) -> None:
    old = [*numbered(4), *[b"pass\n"] * 10, b"end 1\n", b"end 2\n", b"end 3\n"]
    new = [*old[:14], b"pass\n", *old[14:]]
    hunks = make(b"".join(old), b"".join(new), 3)
    assert states(b"".join(new), hunks) == ["applied"]
    assert states(b"".join(old), hunks) == ["absent"]
    assert states(b"".join([b"x\n"] * 5 + new), hunks) == ["conflicting"]
    assert states(b"".join([b"x\n"] * 5 + old), hunks) == ["conflicting"]
    (known,) = judge_hunks([b"x\n", *new], hunks, "applied")
    assert known.state == "conflicting"


def test_the_place_decides_where_a_later_hunk_would_allow_both(make: Make) -> None:
    old = [*numbered(4), b"return\n", b"return\n", b"end\n", *numbered(30)]
    new = [*old[:5], *old[6:20], b"new\n", *old[20:]]
    hunks = make(b"".join(old), b"".join(new), 1)
    assert states(b"".join(new), hunks) == ["applied", "applied"]
    assert states(b"".join(old), hunks) == ["absent", "absent"]


def test_the_end_of_a_file_is_told_after_hunks_that_are_absent(make: Make) -> None:
    old = numbered(40)
    new = [*old[:10], *[b"new\n"] * 6, *old[10:-1]]
    hunks = make(b"".join(old), b"".join(new), 3)
    moved = [b"above\n"] * 6 + old
    assert judge(b"".join(moved), hunks) == [Finding("absent", 17, 6), Finding("absent", 46, 6)]
    assert states(b"".join([b"above\n"] * 6 + new), hunks) == ["applied", "applied"]


def test_the_blob_decides_what_lines_cannot(make: Make) -> None:
    old = [b"pass\n"] * 20
    new = [b"pass\n"] * 21
    hunk = Hunk(1, 7, 7, [(" ", b"pass\n")] * 3 + [("+", b"pass\n")] + [(" ", b"pass\n")] * 3)
    for lines, state in ((old, "absent"), (new, "applied")):
        assert states(b"".join(lines), [hunk]) == ["conflicting"]
        assert judge_hunks(lines, [hunk], state) == [Finding(state, 11)]


def test_a_hunk_applied_twice_is_a_conflict(make: Make) -> None:
    for lines in (numbered(6), numbered(12)):
        hunks = make(b"".join(lines), b"".join([*lines[:6], b"a\n", b"b\n", *lines[6:]]), 3)
        twice = [*lines[:6], b"a\n", b"b\n", b"a\n", b"b\n", *lines[6:]]
        assert states(b"".join(twice), hunks) == ["conflicting"]


def test_lines_without_context_prove_something_at_their_place_only(make: Make) -> None:
    old, new = numbered(30), numbered(30)
    new[10:10] = [b"line 20\n"]
    del new[26]
    hunks = make(b"".join(old), b"".join(new), 0)
    assert states(b"".join(new), hunks) == ["applied", "applied"]
    assert states(b"".join(old), hunks) == ["conflicting", "absent"]
    assert states(b"".join([b"x\n", *new]), hunks) == ["conflicting", "applied"]


def test_one_line_elsewhere_proves_nothing(make: Make) -> None:
    old, new = numbered(30), numbered(30)
    new[10] = b"common\n"
    hunks = make(b"".join(old), b"".join(new), 0)
    other = [*numbered(20), b"common\n"]
    other[10] = b"something else\n"
    assert states(b"".join(other), hunks) == ["conflicting"]
    assert states(b"".join(new), hunks) == ["applied"]


def test_hunks_count_in_their_order_and_once(make: Make) -> None:
    old = [*numbered(30)]
    new = list(old)
    new[5], new[25] = b"five\n", b"twenty-five\n"
    hunks = make(b"".join(old), b"".join(new), 3)
    assert states(b"".join([*new[15:], *new[:15]]), hunks) == ["applied", "conflicting"]
    same = Hunk(1, 2, 2, hunks[0].lines)
    assert sorted(states(b"".join(new), [hunks[0], same])) == ["applied", "conflicting"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (4, "line 5 is 'damaged\\n', the diff has 'line 4\\n'"),
        (6, "line 7 is 'damaged\\n', the diff has 'changed\\n'"),
        (9, "line 10 is 'damaged\\n', the diff has 'line 9\\n'"),
    ],
)
def test_a_conflict_names_the_first_line_that_differs(make: Make, line: int, said: str) -> None:
    old, new = numbered(20), numbered(20)
    new[6] = b"changed\n"
    hunks = make(b"".join(old), b"".join(new), 3)
    new[line] = b"damaged\n"
    (finding,) = judge(b"".join(new), hunks)
    assert (finding.state, finding.line) == ("conflicting", line + 1)
    assert finding.detail.startswith(said[:30])
    (short,) = judge(b"".join(old[:5]), hunks)
    assert short.detail == "the file ends at line 5, the diff has 'line 5\\n'"
    assert judge(b"", hunks)[0].detail == "the file ends at line 0, the diff has 'line 3\\n'"


def test_a_conflict_shows_no_secret(make: Make) -> None:
    old, new = numbered(5), numbered(5)
    new[2] = b"changed\n"
    hunks = make(b"".join(old), b"".join(new), 3)
    new[2] = b"api_key = 'hunter2'\n"
    assert "line 3 is 'api_key = REDACTED" in judge(b"".join(new), hunks)[0].detail


def test_fuzz_is_never_taken(make: Make) -> None:
    old, new = numbered(20), numbered(20)
    new[10] = b"changed\n"
    hunks = make(b"".join(old), b"".join(new), 3)
    for line in (7, 8, 9, 11, 12, 13):
        damaged = list(new)
        damaged[line] = damaged[line][:-1] + b" \n"
        assert states(b"".join(damaged), hunks) == ["conflicting"]
    assert states(b"".join(line.replace(b"\n", b"\r\n") for line in new), hunks) == ["conflicting"]


def test_large_files_with_many_hunks_are_quick(make: Make) -> None:
    old = [b"    pass\n" if number % 3 else b"x%d\n" % number for number in range(50_000)]
    new = [b"    y\n" if number % 150 == 75 else line for number, line in enumerate(old)]
    hunks = make(b"".join(old), b"".join(new), 3)
    assert len(hunks) > 300
    equal = [b"    pass\n"] * 50_000
    context, added = [(" ", equal[0])] * 50, ("+", b"    y\n")
    hostile = [
        [Hunk(1, 150 * at, 150 * at, [*context, added, *context]) for at in range(300)],
        [Hunk(1, 9, 9, [*context, *([("+", equal[0])] * 2 + [("-", equal[0])] * 2 + context[:1]) * 3000, added])],
    ]
    started = time.process_time()
    assert set(states(b"".join([b"before\n"] * 40 + new), hunks)) == {"applied"}
    assert set(states(b"".join(old), hunks)) == {"absent"}
    assert set(states(b"".join(equal), hunks)) == {"conflicting"}
    for repeated in hostile:
        judge_hunks(equal, repeated)
        judge_hunks([equal[0], b"x\n"] * 25_000, repeated)
    assert time.process_time() - started < 5
