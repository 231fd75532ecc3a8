# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down how a working environment differs from its baseline, as a declaration that ``patch_assert`` takes.

The same differences give the same declaration. What derives a kind of check is one function beside ``_new_names``.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections import Counter
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.comparison import Difference, differences
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.drift import takes_long
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline, BaselineError
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning, show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment, PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.git_format import Side, git_diff
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.hunks import split_lines
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.kinds import Source
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import LINK_MODE
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import Verdict
from ansible_collections.ddtree.fleet.plugins.module_utils._syntax import InterpreterError, Syntax, read_syntax
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import LINK

FILE_MODE, PROGRAM_MODE = 0o100644, 0o100755
MAX_FILES = 1000
MAX_FILE_BYTES = 512 << 10  # of a file whose diff is written down
MAX_DIFF_BYTES = 4 << 20  # of all diffs together
NO_CONTENTS = "the baseline has no contents"
TOO_LARGE = f"larger than {MAX_FILE_BYTES >> 10} KiB"
MAX_NAMES = 20  # of one file that are written down for people


class Captured(NamedTuple):
    """``patch_set`` as ``patch_assert`` takes it. ``without_diff`` says of files why only their hash is in it."""

    patch_set: Dict[str, List[Any]]
    without_diff: List[Dict[str, str]]
    warnings: List[str]


class _Uncaptured(Exception):
    """A difference that cannot be declared; the message says why."""


class _File(NamedTuple):
    """A difference with both sides, as far as a diff needs them. ``problem`` says why there is no diff of its content."""

    path: str
    before: Optional[Side]
    after: Optional[Side]
    sha256: str
    problem: str

    def is_link(self) -> bool:
        return LINK_MODE in [side.mode for side in (self.before, self.after) if side]

    def diff(self) -> str:
        """Where there is none of its content, empty, or that it is deleted."""
        if self.problem and self.after:
            return ""
        return git_diff(self.path, self.before, self.after, not self.problem).decode()


def capture(environment: Environment, baseline: Baseline, temporary: str) -> Captured:
    """Raises PatchError where there is no baseline, and where nothing or too much differs from it."""
    verdict = Verdict()
    found = differences(environment, baseline, verdict)
    failed = verdict.message(environment.root)
    if failed:
        raise PatchError(failed)
    if not found:
        raise PatchError(
            f"{environment.root}: nothing differs from its {baseline.kind} baseline, so there is no patch set to capture; "
            "name the environment that is patched"
        )
    if len(found) > MAX_FILES:
        raise PatchError(
            f"{environment.root}: {len(found)} files differ from its {baseline.kind} baseline, more than {MAX_FILES}; that is "
            "another version rather than a patch set: compare with the wheel or a snapshot of the version that was patched"
        )
    files, warnings = [], verdict.warnings
    for one in found:
        try:
            files.append(_read(environment, one))
        except _Uncaptured as error:
            warnings.append(f"{show_name(one.path)} is {one.what} and was not captured: {error}")
        except BaselineError as error:
            raise PatchError(f"{show_name(one.path)} of the baseline: {error}") from error
        except OSError as error:
            raise PatchError(f"{show_name(one.path)}: {error.strerror}") from error
    return _declare(files, _new_names(environment, files, temporary), warnings)


def _read(environment: Environment, one: Difference) -> _File:
    """Raises _Uncaptured, and BaselineError or OSError for what cannot be read."""
    full, content = os.path.join(environment.site, one.path), one.reference.content
    if one.path.startswith("../"):
        raise _Uncaptured("it is outside site-packages")
    try:
        one.path.encode()
    except UnicodeEncodeError:
        raise _Uncaptured("its name is not UTF-8") from None
    after = None if one.what == "missing" else _side(full)
    before = None
    if one.what != "added":
        expected = one.reference.files[one.path]
        if expected.algorithm == LINK:
            before = Side(LINK_MODE, expected.digest)
        elif content:
            mode = after.mode if after and after.mode != LINK_MODE else FILE_MODE
            before = Side(mode, content(one.path, MAX_FILE_BYTES + 1))
        if before and after and before.mode != after.mode:
            raise _Uncaptured("it is a link on one side only")
    sides = [side for side in (before, after) if side]
    problem = NO_CONTENTS if one.what != "added" and not before else _no_text(sides)
    is_file = after is not None and after.mode != LINK_MODE
    if problem and not is_file and (problem in (NO_CONTENTS, TOO_LARGE) or after):
        raise _Uncaptured(f"{problem}, so no diff can show it")
    return _File(one.path, before, after, Source(full, None).sha256 if is_file else "", problem)


def _side(path: str) -> Side:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return Side(LINK_MODE, os.fsencode(os.readlink(path)))
    if not stat.S_ISREG(mode):
        raise _Uncaptured("it is no regular file")
    return Side(PROGRAM_MODE if mode & stat.S_IXUSR else FILE_MODE, read_beginning(path, MAX_FILE_BYTES + 1))


def _no_text(sides: Sequence[Side]) -> str:
    """Why there is no diff of what these hold, empty where there is one."""
    if any(len(side.data) > MAX_FILE_BYTES for side in sides):
        return TOO_LARGE
    for side in sides:
        try:
            if "\0" in side.data.decode():
                return "binary"
        except UnicodeDecodeError:
            return "not UTF-8"
    lines = [split_lines(side.data) for side in sides]
    return "too many lines to compare" if len(lines) == 2 and takes_long(*lines) else ""


def _declare(files: Sequence[_File], names: Mapping[str, List[Dict[str, Any]]], warnings: List[str]) -> Captured:
    patch_set: Dict[str, List[Any]] = {"files": [], "checks": [], "diffs": []}
    without_diff = []
    size = 0
    for file in files:
        text, problem = file.diff(), file.problem
        if file.sha256:
            patch_set["files"].append(file.path)
            patch_set["checks"] += [*names.get(file.path, []), {"file": file.path, "sha256": file.sha256}]
            if size + len(text) > MAX_DIFF_BYTES:
                text, problem = "", f"the diffs would be larger than {MAX_DIFF_BYTES >> 10} KiB"
        if text:
            size += len(text)
            patch_set["diffs"].append({"text": text})
        else:
            without_diff.append({"file": file.path, "why": problem})
    return Captured(patch_set, without_diff, warnings)


def _new_names(environment: Environment, files: Sequence[_File], temporary: str) -> Dict[str, List[Dict[str, Any]]]:
    """Checks of functions and classes that files define and the baseline does not, or not as often."""
    known = [
        file for file in files if file.path.endswith(".py") and file.after and not file.problem and not file.is_link()
    ]
    with tempfile.TemporaryDirectory(dir=temporary) as directory:
        paths = []
        for number, file in enumerate(known):
            paths.append(os.path.join(directory, f"{number}.py"))
            with open(paths[-1], "wb") as copy:
                copy.write(file.before.data if file.before else b"")
        here = [os.path.abspath(os.path.join(environment.site, file.path)) for file in known]
        try:
            syntax = read_syntax(environment.interpreter, paths + here) if known else []
        except InterpreterError:
            return {}  # patch_assert says so
    pairs = zip(known, syntax, syntax[len(known) :])
    return {file.path: _checks(file.path, before, after) for file, before, after in pairs}


def _checks(path: str, before: Syntax, after: Syntax) -> List[Dict[str, Any]]:
    old, new = _defined(before), _defined(after)
    more = [name for name, count in new.items() if count > old[name]]
    return [
        {"file": path, "defines": name, **({"min": new[name]} if new[name] > 1 else {})} for name in more[:MAX_NAMES]
    ]


def _defined(syntax: Syntax) -> Counter[str]:
    """How often ``defines`` finds each name, by their lines."""
    marks = sorted(syntax.defines, key=lambda mark: (mark.line, mark.text))
    last: Counter[str] = Counter(mark.text.rpartition(".")[2] for mark in marks)
    whole: Counter[str] = Counter(mark.text for mark in marks)
    found: Counter[str] = Counter()
    for name, count in whole.items():
        found[name] = count if "." in name else last[name]
    return found
