# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How files differ from what a baseline has: unified diffs that people can read, bounded, without control characters."""

from __future__ import annotations

import difflib
import os
import time
from collections import Counter
from typing import AnyStr, Dict, Iterator, List, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Reference
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning, show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

FILES = 20
LINES = 100
WIDTH = 200
REDACTED_WIDTH = 4096  # wider than what is shown, since half a key is no longer recognised as one
BYTES = 512 << 10
SECONDS = 5  # after which no other file is compared; one within the bounds below takes 8 at worst
COMPARED_LINES = 10_000
OUT_OF_TIME = "not shown: the files before took too long to compare"
PAIRS = 200_000  # of equal lines; the largest source files of torch and sglang have 75,000


def drift(site: str, places: Sequence[Tuple[str, Reference]]) -> List[Dict[str, str]]:
    """The diffs of the first files, each with the baseline that has its content."""
    redact, started = Redactor(), time.monotonic()
    shown = []
    for path, reference in places[:FILES]:
        if reference.content is None:
            continue
        if time.monotonic() - started > SECONDS:
            shown.append({"file": show_name(path), "baseline": reference.name, "diff": OUT_OF_TIME})
            continue
        try:
            after = read_beginning(os.path.join(site, path), BYTES + 1)
        except OSError as error:
            text = f"not compared: {error.strerror}"
        else:
            text = _diff(show_name(path), reference.content(path, BYTES + 1), after, redact)
        shown.append({"file": show_name(path), "baseline": reference.name, "diff": text})
    return shown


def _diff(name: str, before: bytes, after: bytes, redact: Redactor) -> str:
    if max(len(before), len(after)) > BYTES:
        return f"not shown: larger than {BYTES >> 10} KiB"
    sides = []
    for data in (before, after):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            return f"binary: {len(before)} bytes in the baseline, {len(after)} here"
        sides.append(text.split("\n"))
    lengths = [len(side) for side in sides]
    if takes_long(*sides):
        return f"not shown: {lengths[0]} lines in the baseline and {lengths[1]} here take too long to compare"
    lines: List[str] = []
    for line in difflib.unified_diff(sides[0], sides[1], f"a/{name}", f"b/{name}", lineterm=""):
        if len(lines) == LINES:
            lines.append("(more lines are not shown)")
            break
        lines.append(_shown(redact.text(line[:REDACTED_WIDTH])))
    return "\n".join(lines)


def takes_long(before: Sequence[AnyStr], after: Sequence[AnyStr]) -> bool:
    """Whether difflib would take more than seconds to compare these lines."""
    return max(len(before), len(after)) > COMPARED_LINES or _pairs(before, after) > PAIRS


def _pairs(before: Sequence[AnyStr], after: Sequence[AnyStr]) -> int:
    """How many pairs of equal lines difflib goes through again and again; it leaves out the frequent ones of a long text."""
    counts = Counter(before)
    frequent = len(after) // 100 + 1 if len(after) >= 200 else len(after)
    return sum(number * counts[line] for line, number in Counter(after).items() if number <= frequent)


def _shown(line: str) -> str:
    shown = "".join(_escaped(line[: WIDTH + 1]))
    return shown if len(shown) <= WIDTH else shown[: WIDTH - 3] + "..."


def _escaped(line: str) -> Iterator[str]:
    for character in line:
        if character == "\t" or character.isprintable():
            yield character
        else:
            code = ord(character)
            yield f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
