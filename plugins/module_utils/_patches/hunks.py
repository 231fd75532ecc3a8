# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the hunks of a diff stand in a file, as new or as old text.

Every line that a hunk shows must be there exactly; only its place may be another. Each different line is one character of a
string here, so that a hunk is looked for by a search in a text, also in files of many thousand lines.

Where both sides stand somewhere, the place that the diff names decides; hunks that stand in one place only show by how many
lines the others have moved (the drift, counted from the new file's lines). What that leaves open is not guessed: the state is
then ``conflicting``.
"""

from __future__ import annotations

import bisect
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import Hunk
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

APPLIED, ABSENT, PARTIAL, CONFLICTING = "applied", "absent", "partial", "conflicting"
MAX_LINES = 1_000_000  # of a file and its hunks together; there are 1,114,112 characters
LEAST = 2  # lines that tell another place than the diff's; one alone may stand anywhere
TRIES = 5  # places where a partial hunk is looked for, and
WAYS = 8  # ways to read its lines there that are followed, so that many equal lines cost no time
SHOWN = 60
REDACTED_WIDTH = 4096  # more than is shown, since half a key is no longer recognised as one


class Finding(NamedTuple):
    """What became of one hunk: its state, the line (from 1) of its first change, and how far that is from where the diff has it."""

    state: str
    line: int
    offset: int = 0
    detail: str = ""


class _Change(NamedTuple):
    """Removed and added lines without context between them, and the context before them."""

    before: str
    removed: str
    added: str


class _Place(NamedTuple):
    state: str
    start: int
    end: int


class _Step(NamedTuple):
    """How one change of a hunk was read, at which line, and the changes before it."""

    state: str
    line: int
    before: Optional[_Step]


class _Drift(NamedTuple):
    """By how many lines a hunk is moved from where the diff has it, if it and those up to here are applied, or absent."""

    new: int = 0
    old: int = 0


class _Letters:
    """One character for each different line."""

    def __init__(self) -> None:
        self.letters: Dict[bytes, str] = {}

    def of(self, line: bytes) -> str:
        return self.letters.setdefault(line, chr(len(self.letters)))


class _Sides:
    """A hunk in characters. ``after`` is the context behind its last change."""

    def __init__(self, hunk: Hunk, letters: _Letters) -> None:
        self.hunk = hunk
        self.changes: List[_Change] = []
        before = removed = added = ""
        for mark, line in hunk.lines:
            letter = letters.of(line)
            if mark == "-":
                removed += letter
            elif mark == "+":
                added += letter
            else:
                if removed or added:
                    self.changes.append(_Change(before, removed, added))
                    before = removed = added = ""
                before += letter
        if removed or added:
            self.changes.append(_Change(before, removed, added))
            before = ""
        self.after = before
        self.old = "".join(change.before + change.removed for change in self.changes) + self.after
        self.new = "".join(change.before + change.added for change in self.changes) + self.after

    def side(self, state: str) -> str:
        return self.new if state == APPLIED else self.old

    def place(self, state: str, start: int) -> _Place:
        return _Place(state, start, start + len(self.side(state)))

    def drift_before(self, place: _Place) -> _Drift:
        return _Drift(place.start - self.hunk.new_start, place.start - self.hunk.old_start)

    def drift_after(self, place: _Place) -> _Drift:
        new_end, old_end = self.hunk.new_start + len(self.new), self.hunk.old_start + len(self.old)
        return _Drift(place.end - new_end, place.end - old_end)

    def finding(self, place: _Place) -> Finding:
        named = self.hunk.new_start if place.state == APPLIED else self.hunk.old_start
        return Finding(place.state, place.start + len(self.changes[0].before) + 1, place.start - named)


def _steps(last: Optional[_Step]) -> List[_Step]:
    steps = []
    while last:
        steps.append(last)
        last = last.before
    return steps[::-1]


def split_lines(data: bytes) -> List[bytes]:
    """The lines with their ends; only a line feed ends one."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def judge_hunks(lines: Sequence[bytes], hunks: Sequence[Hunk], known: str = "") -> List[Finding]:
    """One finding per hunk, in order. ``known`` is the state of the whole file where its blob id tells it."""
    letters = _Letters()
    text = "".join(map(letters.of, lines))
    sides = [_Sides(hunk, letters) for hunk in hunks]
    if known:
        places = [one.place(known, one.hunk.new_start if known == APPLIED else one.hunk.old_start) for one in sides]
        if all(text.startswith(one.side(known), place.start) for one, place in zip(sides, places)):
            return [one.finding(place) for one, place in zip(sides, places)]
    anchors = _anchors(text, sides)
    following = _following(text, anchors, sides)
    findings: List[Finding] = []
    low, drift = 0, None
    for index, one in enumerate(sides):
        high, drift_before = following[index]
        search = _Search(text, one, low, high, drift or drift_before)
        place = anchors.get(index) or search.place()
        if place:
            low, drift = place.end, one.drift_after(place)
        findings.append(one.finding(place) if place else search.otherwise(lines))
    return findings


def _anchors(text: str, sides: Sequence[_Sides]) -> Dict[int, _Place]:
    """The hunks that stand in one place only, in one state; of those that contradict each other, the ones nearest to their place."""
    places = []
    for index, one in enumerate(sides):
        found = [(state, text.find(one.side(state))) for state in (APPLIED, ABSENT) if one.old and one.new]
        there = [(state, start) for state, start in found if start >= 0]
        if len(there) != 1:
            continue
        place = one.place(*there[0])
        if place.end - place.start >= LEAST and text.rfind(one.side(place.state)) == place.start:
            places.append((index, place))
    kept: Dict[int, _Place] = {}
    order: List[int] = []
    for index, place in sorted(places, key=lambda item: abs(item[1].start - sides[item[0]].hunk.new_start)):
        at = bisect.bisect(order, index)
        if (at == 0 or kept[order[at - 1]].end <= place.start) and (
            at == len(order) or place.end <= kept[order[at]].start
        ):
            order.insert(at, index)
            kept[index] = place
    return kept


def _following(text: str, anchors: Dict[int, _Place], sides: Sequence[_Sides]) -> List[Tuple[int, _Drift]]:
    """For each hunk where the next anchor starts, and the drift that this shows."""
    following = []
    high, drift = len(text), _Drift()
    for index in range(len(sides) - 1, -1, -1):
        following.append((high, drift))
        if index in anchors:
            high, drift = anchors[index].start, sides[index].drift_before(anchors[index])
    return following[::-1]


class _Search:
    """One hunk in the part of a text that is left for it, and where its sides should start there."""

    def __init__(self, text: str, one: _Sides, low: int, high: int, drift: _Drift) -> None:
        self.text = text
        self.one = one
        self.low = low
        self.high = high
        self.at_new = max(one.hunk.new_start + drift.new, low)
        self.at_old = max(one.hunk.old_start + drift.old, low)

    def place(self) -> Optional[_Place]:
        """Where the hunk stands as a whole, in the one state that it can have there."""
        new, old = self._nearest(self.one.new, self.at_new), self._nearest(self.one.old, self.at_old)
        if not (self.one.new and self.one.old):
            return self._without_context(new, old)
        if new is None or old is None:
            state, start = (APPLIED, new) if old is None else (ABSENT, old)
            is_told = len(self.one.side(state)) >= LEAST or start == (self.at_new if state == APPLIED else self.at_old)
            return None if start is None or not is_told else self.one.place(state, start)
        is_new, is_old = new == self.at_new, old == self.at_old
        if is_new and is_old and new != old:
            is_new, is_old = new == self.one.hunk.new_start, old == self.one.hunk.old_start
        if is_new != is_old:
            return self.one.place(APPLIED, new) if is_new else self.one.place(ABSENT, old)
        return self._longer(new, old)

    def _nearest(self, side: str, expected: int) -> Optional[int]:
        if not side:
            return None
        above = self.text.find(side, expected, self.high)
        if above == expected:
            return above
        below = self.text.rfind(side, self.low, min(expected + len(side) - 1, self.high))
        found = [start for start in (below, above) if start >= 0]
        return min(found, key=lambda start: abs(start - expected)) if found else None

    def _without_context(self, new: Optional[int], old: Optional[int]) -> Optional[_Place]:
        """Lines that stand alone in a hunk prove something at their place, or by being nowhere."""
        state, start, expected = (APPLIED, new, self.at_new) if self.one.new else (ABSENT, old, self.at_old)
        if start is None:
            other, at = (ABSENT, self.at_old) if state == APPLIED else (APPLIED, self.at_new)
            return self.one.place(other, min(at, self.high))
        side = self.one.side(state)
        if start != expected or self.text.startswith(side, start + len(side)):
            return None
        return self.one.place(state, start)

    def _longer(self, new: int, old: int) -> Optional[_Place]:
        """At a file's start or end, one side can be a part of the other: then the longer one is what stands there."""
        one = self.one
        longer = APPLIED if len(one.new) > len(one.old) else ABSENT
        start, inner = (new, old) if longer == APPLIED else (old, new)
        side, shorter = one.side(longer), one.side(ABSENT if longer == APPLIED else APPLIED)
        end, lead = start + len(side), side[: max(inner - start, 0)]
        tail = side[len(lead) + len(shorter) :]
        if inner < start or inner + len(shorter) > end or (lead and one.changes[0].before) or (tail and one.after):
            return None
        is_again = (tail and self.text.startswith(tail, end)) or (lead and self.text.endswith(lead, 0, start))
        return None if is_again else one.place(longer, start)

    def otherwise(self, lines: Sequence[bytes]) -> Finding:
        """What is to be said of a hunk that has no place."""
        if self._nearest(self.one.new, self.at_new) is None and self._nearest(self.one.old, self.at_old) is None:
            return self._partial() or self._conflict(lines)
        detail = (
            "its lines stand there, but not so that one place and state can be told; make the diff with more context"
        )
        return Finding(CONFLICTING, min(self.at_new, len(lines)) + 1, 0, detail)

    def _partial(self) -> Optional[Finding]:
        for start in self._starts():
            finding = self._mixed(start)
            if finding:
                return finding
        return None

    def _starts(self) -> Iterator[int]:
        """The places nearest to the expected one where the context before the first change stands."""
        context = self.one.changes[0].before
        if not context:
            yield self.at_new
            return
        above = self.text.find(context, self.at_new, self.high)
        below = self.text.rfind(context, self.low, min(self.at_new + len(context) - 1, self.high))
        for _try in range(TRIES):
            if above >= 0 and (below < 0 or above - self.at_new <= self.at_new - below):
                yield above
                above = self.text.find(context, above + 1, self.high)
            elif below >= 0:
                yield below
                below = self.text.rfind(context, self.low, below + len(context) - 1)

    def _mixed(self, start: int) -> Optional[Finding]:
        """Whether all context stands from there on, and between it only lines of the hunk, some as new and some as old."""
        one = self.one
        reached: Dict[int, Optional[_Step]] = {start + len(one.changes[0].before): None}
        behind = [change.before for change in one.changes[1:]] + [one.after]
        for change, context in zip(one.changes, behind):
            nexts: Dict[int, Optional[_Step]] = {}
            for place, before in reached.items():
                for state, end in self._ends(change, place):
                    # Without context behind, a change ends where the file does.
                    is_end = self.text.startswith(context, end) if context else end == self.high
                    if is_end and end + len(context) <= self.high and len(nexts) < WAYS:
                        nexts.setdefault(end + len(context), _Step(state, place + 1, before))
            reached = nexts
        for last in reached.values():
            steps = _steps(last)
            applied = sum(step.state == APPLIED for step in steps)
            if any(step.state == PARTIAL for step in steps) or 0 < applied < len(steps):
                lacking = [str(step.line) for step in steps if step.state != APPLIED]
                shown = ", ".join(lacking[:10]) + (" and more" if len(lacking) > 10 else "")
                detail = f"{applied} of its {len(steps)} changes stand whole, not at line {shown}"
                return Finding(PARTIAL, int(lacking[0]), start - one.hunk.new_start, detail)
        return None

    def _ends(self, change: _Change, place: int) -> Iterator[Tuple[str, int]]:
        """Where a change ends that starts at ``place``, as old, as new, or with lines of both."""
        for state, block in ((ABSENT, change.removed), (APPLIED, change.added)):
            if self.text.startswith(block, place):
                yield state, place + len(block)
        letters = set(change.removed + change.added)
        end = place
        while end < min(self.high, place + len(change.removed) + len(change.added)) and self.text[end] in letters:
            end += 1
            yield PARTIAL, end

    def _conflict(self, lines: Sequence[bytes]) -> Finding:
        """The first line that is as neither side has it."""
        one, start = self.one, min(self.at_new, len(lines))
        matching, marks = max(
            (self._matching(side, start), marks) for side, marks in ((one.old, " -"), (one.new, " +"))
        )
        wanted = [line for mark, line in one.hunk.lines if mark in marks][matching]
        line = start + matching
        found = (
            f"line {line + 1} is {_shown(lines[line])}" if line < len(lines) else f"the file ends at line {len(lines)}"
        )
        return Finding(CONFLICTING, min(line, len(lines) - 1) + 1, 0, f"{found}, the diff has {_shown(wanted)}")

    def _matching(self, side: str, start: int) -> int:
        """How many lines of a side stand at ``start``, but never all."""
        stands = self.text[start : start + len(side)]
        return next(
            (count for count, pair in enumerate(zip(side, stands)) if pair[0] != pair[1]),
            min(len(stands), len(side) - 1),
        )


def _shown(line: bytes) -> str:
    text = Redactor().text(line[:REDACTED_WIDTH].decode("utf-8", "backslashreplace"))
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 3] + "...")
