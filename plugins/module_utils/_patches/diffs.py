# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared diffs, and the proof that the files of an environment are as they leave them.

``unified.py`` reads the format, ``hunks.py`` finds the hunks in a file. A new kind of change is one function beside those
that ``_check_change`` calls.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import posixpath
import stat
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._files import show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import (
    malformed_path,
    parse_number,
    refuse_unknown,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import (
    Environment,
    PatchError,
    why_unreadable,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.hunks import (
    ABSENT,
    APPLIED,
    MAX_LINES,
    PARTIAL,
    Finding,
    judge_hunks,
    split_lines,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.unified import (
    LINK_MODE,
    MIN_BLOB,
    DiffError,
    FileChange,
    parse_diff,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

DIFF_KEYS = ("name", "text", "src", "strip", "directory")
MAX_DIFF_BYTES = 8 << 20
MAX_HUNKS = 10_000
HINTS = {
    ABSENT: "the patch is not applied here",
    PARTIAL: "restore the file and apply the whole diff",
}
CONFLICT_HINT = "restore the file and apply the diff, or make the diff anew from what is meant"


class Diff(NamedTuple):
    """One declared diff. The paths of its files are relative to site-packages."""

    name: str
    files: List[FileChange]


def parse_diffs(diffs: Sequence[Mapping[str, Any]]) -> List[Diff]:
    """The declared diffs; raises PatchError naming a malformed one by its index and name."""
    parsed = []
    for index, one in enumerate(diffs):
        given = {key: value for key, value in one.items() if value is not None}
        try:
            parsed.append(_parse_diff(given))
        except (ValueError, DiffError) as error:
            raise PatchError(f"diffs[{index}] ({given.get('name') or given.get('src', 'no name')}): {error}") from error
    if sum(len(change.hunks) for diff in parsed for change in diff.files) > MAX_HUNKS:
        raise PatchError(f"diffs: more than {MAX_HUNKS} hunks; declare the files' sha256 in checks instead")
    return parsed


def _parse_diff(given: Mapping[str, Any]) -> Diff:
    refuse_unknown(given, DIFF_KEYS)
    if ("text" in given) == ("src" in given):
        raise ValueError("exactly one of text and src is needed")
    directory = str(given.get("directory", "."))
    problem = "" if directory == "." else malformed_path(directory)
    if problem:
        raise ValueError(f"directory: {problem}")
    if "text" in given and not isinstance(given["text"], str):
        raise ValueError(f"text: {str(given['text'])[:60]!r} is no text")
    data = (
        given["text"].encode("utf-8", "surrogateescape")
        if "text" in given
        else _read_diff(os.path.expanduser(str(given["src"])))
    )
    if len(data) > MAX_DIFF_BYTES:
        raise ValueError(f"larger than {MAX_DIFF_BYTES >> 20} MiB; declare the files' sha256 in checks instead")
    files = parse_diff(data, parse_number("strip", given.get("strip", 1)))
    return Diff(str(given.get("name", "")), [_below(directory, change) for change in files])


def _read_diff(path: str) -> bytes:
    problem = why_unreadable(path)
    if problem:
        raise ValueError(f"src {path}: {problem}")
    try:
        with open(path, "rb") as file:
            return file.read(MAX_DIFF_BYTES + 1)
    except OSError as error:
        raise ValueError(f"src {path}: {error.strerror}") from error


def _below(directory: str, change: FileChange) -> FileChange:
    old, new = (path and posixpath.normpath(posixpath.join(directory, path)) for path in (change.old, change.new))
    return dataclasses.replace(change, old=old, new=new)


def patched_files(diffs: Sequence[Diff]) -> List[str]:
    """The files whose content the diffs make or change."""
    changes = [change for diff in diffs for change in diff.files]
    return [change.path for change in changes if not change.deleted and change.changes_content()]


def gone_files(diffs: Sequence[Diff]) -> List[str]:
    """The files that are not there once the diffs are applied."""
    there = set(patched_files(diffs))
    gone = [change.old for diff in diffs for change in diff.files if change.old and (change.deleted or change.renamed)]
    return [path for path in gone if path not in there]


def check_diffs(environment: Environment, diffs: Sequence[Diff]) -> List[Check]:
    """One check per hunk, and per deletion, rename, mode or content without hunks. Raises PatchError for unreadable files."""
    gone = set(gone_files(diffs))
    checks = []
    for diff in diffs:
        for change in diff.files:
            try:
                found = list(_check_change(environment, change, gone))
            except OSError as error:
                raise PatchError(f"{show_name(change.path)}: {error.strerror}") from error
            prefix = f"{diff.name}: " if diff.name else ""
            checks += [dataclasses.replace(check, name=prefix + check.name) for check in found]
    return checks


def _check_change(environment: Environment, change: FileChange, gone: Set[str]) -> Iterator[Check]:
    path, file = os.path.join(environment.site, change.path), show_name(change.path)
    name = show_name(posixpath.basename(change.path))
    if change.deleted:
        there = os.path.lexists(path)
        hint = HINTS[ABSENT] if there else ""
        yield Check(f"deletion of {name}", not there, "no file", "a file" if there else "no file", hint, file)
        return
    is_link = change.new_mode == LINK_MODE
    if is_link:
        problem = "" if os.path.islink(path) else "no symbolic link"
    else:
        problem = why_unreadable(path, whole=change.changes_content())
    if problem:
        hint = (
            HINTS[ABSENT]
            if change.created
            else f"the diff's files are relative to {environment.site}; see strip and directory"
        )
        expected = "a symbolic link" if is_link else "a readable file"
        yield Check(f"file of a diff, {name}", False, expected, problem, hint, file)
        return
    if change.renamed or change.copied:
        yield _check_origin(environment, change, gone)
    if change.new_mode is not None and not is_link:
        yield _check_mode(path, change)
    if change.binary or change.created or change.hunks:
        data = os.fsencode(os.readlink(path)) if is_link else _read(path)
        yield from _check_content(data, change, name, file)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _check_origin(environment: Environment, change: FileChange, gone: Set[str]) -> Check:
    old, file = show_name(change.old or ""), show_name(change.path)
    if change.copied or change.old not in gone:
        return Check(f"{'copy' if change.copied else 'rename'} of {old}", True, "a file", "a file", "", file)
    there = os.path.lexists(os.path.join(environment.site, change.old or ""))
    found = "both are there" if there else "only the new one is there"
    hint = f"remove {old}" if there else ""
    return Check(f"rename of {old}", not there, "only the new one is there", found, hint, file)


def _check_mode(path: str, change: FileChange) -> Check:
    words = {True: "executable", False: "not executable"}
    wanted, found = bool((change.new_mode or 0) & stat.S_IXUSR), bool(os.stat(path).st_mode & stat.S_IXUSR)
    name, file = show_name(posixpath.basename(path)), show_name(change.path)
    hint = "" if wanted == found else f"chmod {'+x' if wanted else '-x'}"
    return Check(f"mode of {name}", wanted == found, words[wanted], words[found], hint, file)


def _check_content(data: bytes, change: FileChange, name: str, file: str) -> Iterator[Check]:
    blob = hashlib.new("sha1", b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if change.binary:
        passed = blob.startswith(change.new_blob)
        hint = "" if passed else HINTS[ABSENT] if blob.startswith(change.old_blob) else CONFLICT_HINT
        yield Check(f"content of {name}", passed, f"blob {change.new_blob}", f"blob {blob}", hint, file)
        return
    lines = split_lines(data)
    if change.created:
        yield _check_created(lines, change, name, file)
        return
    if len(lines) + sum(len(hunk.lines) for hunk in change.hunks) > MAX_LINES:
        found = f"more than {MAX_LINES} lines"
        yield Check(f"hunks of {name}", False, APPLIED, found, "declare its sha256 in checks instead", file)
        return
    known = next((state for state, one in _ids(change).items() if blob.startswith(one)), "")
    for number, finding in enumerate(judge_hunks(lines, change.hunks, known), 1):
        passed = finding.state == APPLIED
        hint = "" if passed else HINTS.get(finding.state, CONFLICT_HINT)
        yield Check(f"hunk {number} of {name}", passed, APPLIED, _words(finding), hint, file, finding.line)


def _ids(change: FileChange) -> Dict[str, str]:
    ids = {APPLIED: change.new_blob, ABSENT: change.old_blob}
    return {state: one for state, one in ids.items() if len(one) >= MIN_BLOB}


def _words(finding: Finding) -> str:
    if finding.state == ABSENT:
        return f"{ABSENT}: the old text stands at line {finding.line}"
    if finding.state != APPLIED:
        return f"{finding.state}: {finding.detail}"
    if not finding.offset:
        return APPLIED
    count = abs(finding.offset)
    place = "below" if finding.offset > 0 else "above"
    return f"{APPLIED}, {count} line{'s' if count > 1 else ''} {place} its place in the diff"


def _check_created(lines: Sequence[bytes], change: FileChange, name: str, file: str) -> Check:
    wanted = [line for hunk in change.hunks for line in hunk.side("+")]
    expected = "exactly the new file of the diff"
    if lines == wanted:
        return Check(f"new file {name}", True, expected, APPLIED, "", file)
    same = next((at for at, pair in enumerate(zip(lines, wanted)) if pair[0] != pair[1]), min(len(lines), len(wanted)))
    found = f"another file, from line {same + 1} on"
    return Check(f"new file {name}", False, expected, found, CONFLICT_HINT, file, same + 1)
