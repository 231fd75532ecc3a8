# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of checks of one file. A new kind is one function beside those above ``KINDS`` and its line there."""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._syntax import Mark, Syntax


class Source(NamedTuple):
    """What a check may look at: one file of the environment. ``syntax`` is there for kinds that ask for it."""

    text: str
    syntax: Optional[Syntax]


def _literal(source: Source, wanted: str) -> List[int]:
    places = []
    start = source.text.find(wanted)
    while start >= 0:
        places.append(start)
        start = source.text.find(wanted, start + len(wanted))
    return _line_numbers(source.text, places)


def _regex(source: Source, wanted: str) -> List[int]:
    return _line_numbers(source.text, [match.start() for match in re.finditer(wanted, source.text, re.MULTILINE)])


def _defines(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.defines if source.syntax else [], wanted)


def _calls(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.calls if source.syntax else [], wanted)


def _line_numbers(text: str, places: Iterable[int]) -> List[int]:
    """The lines of ascending places in a text."""
    lines, line, counted = [], 1, 0
    for place in places:
        line += text.count("\n", counted, place)
        counted = place
        lines.append(line)
    return lines


def _named(found: Iterable[Mark], wanted: str) -> List[int]:
    """A dotted name must match fully, a plain one matches the last part."""
    return sorted(line for name, line in found if wanted == (name if "." in wanted else name.rpartition(".")[2]))


def _malformed_regex(wanted: str) -> str:
    try:
        re.compile(wanted, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{wanted!r} is no regular expression: {error}"
    return ""


def _malformed_name(wanted: str) -> str:
    return (
        ""
        if all(part.isidentifier() for part in wanted.split("."))
        else f"{wanted!r} is no name such as f, x.f or Class.method"
    )


class Kind(NamedTuple):
    """One kind of check.

    ``find`` gives the line of every occurrence of the wanted text in a file, ``malformed`` what is wrong with a wanted text.
    """

    find: Callable[[Source, str], List[int]]
    malformed: Callable[[str], str] = lambda wanted: ""
    needs_syntax: bool = False


KINDS: Dict[str, Kind] = {
    "literal": Kind(_literal),
    "regex": Kind(_regex, _malformed_regex),
    "defines": Kind(_defines, _malformed_name, needs_syntax=True),
    "calls": Kind(_calls, _malformed_name, needs_syntax=True),
}
