# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of checks of one file. A new kind is one function beside those above ``KINDS`` and its line there."""

from __future__ import annotations

import re
import signal
from functools import cached_property
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._files import hash_of
from ansible_collections.ddtree.fleet.plugins.module_utils._syntax import Mark, Syntax

REGEX_SECONDS = 20


class Source:
    """What a check may look at: one file of the environment. ``syntax`` is there for kinds that ask for it. Raises OSError."""

    def __init__(self, path: str, syntax: Optional[Syntax]) -> None:
        self.path = path
        self.syntax = syntax

    @cached_property
    def text(self) -> str:
        """Whatever its encoding and line ends, so that a wanted text of several lines matches in all."""
        with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()

    @cached_property
    def sha256(self) -> str:
        with open(self.path, "rb") as file:
            return hash_of(file).hex()


def _literal(source: Source, wanted: str) -> List[int]:
    places = []
    start = source.text.find(wanted)
    while start >= 0:
        places.append(start)
        start = source.text.find(wanted, start + len(wanted))
    return _line_numbers(source.text, places)


def _regex(source: Source, wanted: str) -> List[int]:
    text = source.text

    def end(_number: int, _frame: object) -> None:
        raise OSError(0, f"the regular expression {wanted[:60]!r} takes longer than {REGEX_SECONDS} s; make it simpler")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, REGEX_SECONDS)
    try:
        return _line_numbers(text, [match.start() for match in re.finditer(wanted, text, re.MULTILINE)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _defines(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.defines if source.syntax else [], wanted)


def _calls(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.calls if source.syntax else [], wanted)


def _assigns(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.assigns if source.syntax else [], wanted)


def _imports(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.imports if source.syntax else [], wanted)


def _sha256(source: Source, wanted: str) -> List[int]:
    return [0] if source.sha256 in wanted.lower().split() else []


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


def _malformed_import(wanted: str) -> str:
    rest = wanted.lstrip(".")
    problem = rest != "*" and _malformed_name(rest[: -len(".*")] if rest.endswith(".*") else rest)
    return f"{wanted!r} is no name such as a, a.b, .a.b or a.*" if problem else ""


def _malformed_sha256(wanted: str) -> str:
    odd = [digest for digest in wanted.split() or [wanted] if not re.fullmatch("[0-9a-fA-F]{64}", digest)]
    return f"{odd[0]!r} is no SHA-256, which has 64 hexadecimal digits" if odd else ""


class Kind(NamedTuple):
    """One kind of check.

    ``find`` gives the line of every occurrence of the wanted text in a file, ``malformed`` what is wrong with a wanted text.
    A kind with ``whole`` judges the file as a whole: that function says what the file is, and any one of several wanted texts will do.
    """

    find: Callable[[Source, str], List[int]]
    malformed: Callable[[str], str] = lambda wanted: ""
    needs_syntax: bool = False
    whole: Optional[Callable[[Source], str]] = None


KINDS: Dict[str, Kind] = {
    "literal": Kind(_literal),
    "regex": Kind(_regex, _malformed_regex),
    "defines": Kind(_defines, _malformed_name, needs_syntax=True),
    "calls": Kind(_calls, _malformed_name, needs_syntax=True),
    "assigns": Kind(_assigns, _malformed_name, needs_syntax=True),
    "imports": Kind(_imports, _malformed_import, needs_syntax=True),
    "sha256": Kind(_sha256, _malformed_sha256, whole=lambda source: source.sha256),
}
