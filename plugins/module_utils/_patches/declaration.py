# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is declared of a patch set. Its form is judged here, before anything is read."""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.kinds import KINDS

COUNTS = ("count", "min", "max")
KEYS = ("file", *KINDS, *COUNTS, "name", "hint")


class Rule(NamedTuple):
    """One declared check: how often the wanted text must be found in a file (``most`` None: without bound)."""

    file: str
    kind: str
    wanted: str
    least: int
    most: Optional[int]
    name: str
    hint: str

    def expected(self) -> str:
        if KINDS[self.kind].whole:
            return " or ".join(self.wanted.split())
        if self.most is None:
            return f"at least {self.least}"
        if self.least == self.most:
            return f"exactly {self.most}"
        return f"{self.least} to {self.most}" if self.least else f"at most {self.most}"


def parse_files(files: Sequence[str]) -> List[str]:
    """The declared files, each once; raises PatchError naming a malformed one by its index."""
    parsed: Dict[str, None] = {}
    for index, path in enumerate(files):
        problem = malformed_path(path)
        if problem:
            raise PatchError(f"files[{index}] ({path}): {problem}")
        parsed[posixpath.normpath(path)] = None
    return list(parsed)


def parse_rules(checks: Sequence[Mapping[str, Any]]) -> List[Rule]:
    """The declared checks; raises PatchError naming a malformed one by its index and file."""
    rules = []
    for index, check in enumerate(checks):
        given = {key: value for key, value in check.items() if value is not None}
        try:
            rules.append(_parse_rule(given))
        except ValueError as error:
            raise PatchError(f"checks[{index}] ({given.get('file', 'no file')}): {error}") from error
    return rules


def _parse_rule(given: Mapping[str, Any]) -> Rule:
    refuse_unknown(given, KEYS)
    problem = malformed_path(str(given.get("file", "")))
    if problem:
        raise ValueError(f"file: {problem}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"exactly one of {', '.join(KINDS)} is needed, given: {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    whole = KINDS[kind].whole is not None
    texts = given[kind] if whole and isinstance(given[kind], list) else [given[kind]]
    for text in texts:
        if not isinstance(text, (str, int, float)):
            raise ValueError(f"{kind}: {text!r} is no text")
    wanted = " ".join(str(text) for text in texts)
    problem = KINDS[kind].malformed(wanted) if wanted else "the text to look for is empty"
    if problem:
        raise ValueError(f"{kind}: {problem}")
    counts = [key for key in COUNTS if key in given]
    if whole and counts:
        raise ValueError(f"{kind} is of the whole file, so {counts[0]} cannot stand beside it")
    least, most = _parse_counts(given)
    shown = wanted if len(wanted) <= 60 else wanted[:57] + "..."
    name = str(given.get("name") or (kind if whole else f"{kind} {shown!r}"))
    return Rule(posixpath.normpath(str(given["file"])), kind, wanted, least, most, name, str(given.get("hint", "")))


def _parse_counts(given: Mapping[str, Any]) -> Tuple[int, Optional[int]]:
    counts = {key: parse_number(key, given[key]) for key in COUNTS if key in given}
    if "count" in counts:
        if len(counts) > 1:
            raise ValueError("count is exact, so min and max cannot stand beside it")
        return counts["count"], counts["count"]
    most = counts.get("max")
    least = counts.get("min", 0 if most == 0 else 1)
    if most is not None and least > most:
        raise ValueError(f"min {least} is more than max {most}")
    return least, most


def parse_number(key: str, value: Any) -> int:
    """A number from 0 up; raises ValueError naming the key."""
    # A templated number arrives as text, and True is an int in Python.
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d+\s*", str(value)):
        raise ValueError(f"{key}: {value!r} is no number from 0 up")
    return int(value)


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError naming the keys that are not known and what they may have been meant to be."""
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"unknown key {', '.join(unknown)}{meant}; known are {', '.join(known)}")


def malformed_path(path: str) -> str:
    """What is wrong with a path relative to site-packages, empty for nothing."""
    if not path or posixpath.normpath(path) == ".":
        return "a path relative to site-packages is needed"
    if path.startswith("/"):
        return "an absolute path; it must be relative to site-packages"
    if ".." in path.split("/"):
        return "climbs out with '..'; it must be relative to site-packages"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "holds a character that no file name has"
    return "holds a NUL character" if "\0" in path else ""
