# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified diffs as ``diff -u`` and ``git diff`` write them: which files they change, and how, hunk by hunk.

See https://git-scm.com/docs/diff-format and https://www.gnu.org/software/diffutils/manual/html_node/Detailed-Unified.html.
A new extended header of git is one line in ``_HEADERS``.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

MAX_NAME = 4096
SHOWN = 400  # letters of a message
MIN_BLOB = 7  # digits of an abbreviated blob id that count
LINK_MODE = 0o120000
SUBMODULE_MODE = 0o160000
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_EPOCH = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.0+)? ([+-]\d{4})")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}


class DiffError(Exception):
    """A diff that is malformed; the message names the line."""

    def __init__(self, line: int, problem: str) -> None:
        shown = os.fsencode(problem).decode("utf-8", "backslashreplace")
        super().__init__(f"line {line}: {shown if len(shown) <= SHOWN else shown[:SHOWN] + '...'}")


class Hunk(NamedTuple):
    """One hunk. ``lines`` are a mark (space, ``-`` or ``+``) and a line with its end each; starts are indices from 0."""

    line: int
    old_start: int
    new_start: int
    lines: List[Tuple[str, bytes]]

    def side(self, mark: str) -> List[bytes]:
        """The lines that the file has before (``-``) or after (``+``) the change."""
        return [content for one, content in self.lines if one in (" ", mark)]


@dataclass
class FileChange:
    """What a diff does to one file. ``old`` or ``new`` is None where the file is not there before or after; ``line`` is the diff's."""

    line: int
    old: Optional[str] = None
    new: Optional[str] = None
    created: bool = False
    deleted: bool = False
    renamed: bool = False
    copied: bool = False
    binary: bool = False
    old_mode: Optional[int] = None
    new_mode: Optional[int] = None
    old_blob: str = ""
    new_blob: str = ""
    hunks: List[Hunk] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The file to look at."""
        return (self.old if self.deleted else self.new) or ""

    def changes_content(self) -> bool:
        return bool(self.hunks or self.binary or self.created or self.deleted or self.renamed or self.copied)


def parse_diff(data: bytes, strip: int) -> List[FileChange]:
    """The files of a diff, their names without the first ``strip`` parts. Raises DiffError."""
    return _Parser(data, strip).parse()


class _Parser:
    def __init__(self, data: bytes, strip: int) -> None:
        self.lines = data.split(b"\n")
        if not self.lines[-1]:
            self.lines.pop()
        header = next((line for line in self.lines if line.startswith((b"--- ", b"diff --git "))), b"")
        if header.endswith(b"\r"):
            # The diff itself was converted: names never end so.
            self.lines = [line[:-1] if line.endswith(b"\r") else line for line in self.lines]
        self.is_git = any(line.startswith(b"diff --git ") for line in self.lines)
        self.strip = strip
        self.at = 0
        self.files: Dict[str, FileChange] = {}
        self.current: Optional[FileChange] = None
        self.is_named = False  # whether the current file's --- and +++ lines were there

    def parse(self) -> List[FileChange]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith(b"diff --git "):
                self._git_file(line)
            elif line.startswith(b"--- ") and self._following().startswith(b"+++ "):
                self._names(line, self._following())
            elif _HUNK.match(line):
                self._hunk(line)
            elif line.startswith((b"@@@ ", b"diff --cc ", b"diff --combined ")):
                raise self._error("a combined diff of a merge; make the diff against one parent")
            elif line.startswith(b"@@ -"):
                raise self._error(f"{_shown(line)} is no hunk header such as @@ -1,7 +1,8 @@")
            elif not self.is_git and line.startswith(b"Binary files ") and line.endswith(b" differ"):
                raise self._error("binary files, of which diff says no more; make the diff with git diff --full-index")
            elif not self.is_git and re.match(rb"Only in [^:]+: ", line):
                raise self._error("a file that diff only names; make the diff with diff -N or git diff")
            elif self.current is not None:
                self._header(line, self.current)
            self.at += 1
        self._finish()
        if not self.files:
            raise DiffError(len(self.lines), "holds no unified diff; make it with git diff or diff -u")
        return list(self.files.values())

    def _error(self, problem: str) -> DiffError:
        return DiffError(self.at + 1, problem)

    def _following(self) -> bytes:
        return self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""

    def _git_file(self, line: bytes) -> None:
        self._finish()
        names = _git_names(_text(line[len(b"diff --git ") :]), self.strip)
        self.current, self.is_named = FileChange(self.at + 1), False
        if names:
            self.current.old, self.current.new = self._path(names[0]), self._path(names[1])

    def _names(self, old_line: bytes, new_line: bytes) -> None:
        is_git = self.current is not None and not self.is_named
        if self.current is None or not is_git:
            self._finish()
            self.current = FileChange(self.at + 1)
        change, self.is_named = self.current, True
        (old, old_stamp), (new, new_stamp) = _name(_text(old_line[4:])), _name(_text(new_line[4:]))
        after = _HUNK.match(self.lines[self.at + 2]) if self.at + 2 < len(self.lines) else None
        if after is None:
            raise self._error("file names without a hunk after them; the diff is cut short")
        gone_before = old == "/dev/null" or (not is_git and after.group(1, 2) == (b"0", b"0") and _is_epoch(old_stamp))
        gone_after = new == "/dev/null" or (not is_git and after.group(3, 4) == (b"0", b"0") and _is_epoch(new_stamp))
        if gone_before and gone_after:
            raise self._error("neither an old nor a new file")
        if is_git and (gone_before != change.created or gone_after != change.deleted):
            raise self._error("/dev/null without new file mode or deleted file mode")
        change.created, change.deleted = gone_before, gone_after
        if not change.renamed and not change.copied:
            change.old = None if gone_before else self._path(old)
            change.new = None if gone_after else self._path(new)
        self.at += 1

    def _header(self, line: bytes, change: FileChange) -> None:
        if change.hunks:
            return
        text = _text(line)
        for start, take in _HEADERS.items():
            if text.startswith(start):
                try:
                    take(change, text[len(start) :], self)
                except ValueError as error:
                    raise self._error(f"{_shown(line)}: {error}") from error
                return

    def _hunk(self, line: bytes) -> None:
        match = _HUNK.match(line)
        if match is None or self.current is None or not self.is_named:
            raise self._error("a hunk without --- and +++ lines before it")
        started = self.at
        old_start, old_count, new_start, new_count = (1 if part is None else int(part) for part in match.groups())
        rest = {"-": old_count, "+": new_count}
        lines: List[Tuple[str, bytes]] = []
        while rest["-"] > 0 or rest["+"] > 0:
            self.at += 1
            content = self.lines[self.at] if self.at < len(self.lines) else None
            if content is None:
                self.at = started
                raise self._error(_short(rest, old_count, new_count) + "; the diff is cut short")
            mark, content = (content[:1].decode("latin-1"), content[1:]) if content else (" ", b"")
            if mark == "\\" and lines:
                self._without_end(lines)
                continue
            if mark not in (" ", "-", "+"):
                raise self._error(f"no line of the hunk of line {started + 1}: {_short(rest, old_count, new_count)}")
            for side in ("-", "+") if mark == " " else (mark,):
                rest[side] -= 1
                if rest[side] < 0:
                    raise self._error(f"more lines than the hunk header of line {started + 1} counts")
            lines.append((mark, content + b"\n"))
        if self._following().startswith(b"\\"):
            self.at += 1
            self._without_end(lines)
        self._after_hunk(started)
        # Where a side has no lines, its number is that of the line before.
        starts = (old_start - 1 if old_count else old_start, new_start - 1 if new_count else new_start)
        if min(starts) < 0:
            raise DiffError(started + 1, "line numbers of a hunk start at 1")
        hunks = self.current.hunks
        if hunks and (starts[0] < _end(hunks[-1], "-") or starts[1] < _end(hunks[-1], "+")):
            raise DiffError(started + 1, f"stands before the end of the hunk of line {hunks[-1].line}")
        if all(mark == " " for mark, _content in lines):
            raise DiffError(started + 1, "a hunk that changes nothing")
        hunks.append(Hunk(started + 1, starts[0], starts[1], lines))

    def _without_end(self, lines: List[Tuple[str, bytes]]) -> None:
        mark, content = lines[-1]
        lines[-1] = (mark, content[:-1] if content.endswith(b"\n") else content)

    def _after_hunk(self, started: int) -> None:
        """Refuse what can only be a line of the hunk; a mail's signature (``-- ``) and the next file's names may follow."""
        self.at += 1
        line, following = (self.lines[self.at] if self.at < len(self.lines) else b""), self._following()
        is_header = line in (b"-- ", b"--") or (line.startswith(b"--- ") and following.startswith(b"+++ "))
        if line[:1] in (b" ", b"+", b"-") and not is_header:
            raise self._error(f"more lines than the hunk header of line {started + 1} counts")
        self.at -= 1

    def _finish(self) -> None:
        change, self.current = self.current, None
        if change is None:
            return
        if not change.path:
            raise DiffError(
                change.line, "the file's name cannot be told; make the diff with git diff, without --no-prefix"
            )
        if not (change.changes_content() or change.new_mode is not None) or _lacks_hunks(change):
            raise DiffError(change.line, f"no hunk of {change.path} follows; the diff is cut short")
        if SUBMODULE_MODE in (change.old_mode, change.new_mode):
            raise DiffError(change.line, f"{change.path} is a submodule, which an environment has none of")
        if change.binary and len(change.new_blob) < MIN_BLOB:
            raise DiffError(
                change.line,
                f"{change.path} is binary and has no blob ids in an index line; make the diff with git diff --full-index",
            )
        if change.created:
            change.old = None
        if change.deleted:
            change.new = None
        if (change.created or change.deleted) and (len(change.hunks) > 1 or _has_other_side(change)):
            raise DiffError(change.line, f"{change.path} is new or deleted, but its hunks also show what was there")
        if change.path in self.files:
            first = self.files[change.path].line
            raise DiffError(
                change.line, f"{change.path} again, first in line {first}; make one diff of the whole series"
            )
        self.files[change.path] = change

    def _path(self, name: str) -> str:
        parts = name.split("/")
        if name.startswith("/") and self.strip < 2:
            raise self._error(
                f"{name} is an absolute path; set strip to the number of its parts before the package, and one more"
            )
        if self.strip >= len(parts):
            raise self._error(f"nothing is left of {name} without its first {self.strip} parts; set strip")
        if ".." in parts:
            raise self._error(f"{name} climbs out with '..'")
        path = posixpath.normpath("/".join(parts[self.strip :]).lstrip("/"))
        if path == "." or "\0" in path or name.endswith("/") or len(path) > MAX_NAME:
            raise self._error(f"{name!r} is no file name")
        return path

    def take_old_name(self, name: str) -> str:
        """A name of a rename or copy header, which has no prefix for ``strip`` to take off but the part that a/ stands for."""
        return self._path("/".join(["a"] * min(self.strip, 1) + [_name(name)[0]]))


def _rename_from(change: FileChange, text: str, parser: _Parser) -> None:
    change.renamed, change.old = True, parser.take_old_name(text)


def _rename_to(change: FileChange, text: str, parser: _Parser) -> None:
    change.renamed, change.new = True, parser.take_old_name(text)


def _copy_from(change: FileChange, text: str, parser: _Parser) -> None:
    change.copied, change.old = True, parser.take_old_name(text)


def _copy_to(change: FileChange, text: str, parser: _Parser) -> None:
    change.copied, change.new = True, parser.take_old_name(text)


def _created(change: FileChange, text: str, parser: _Parser) -> None:
    change.created, change.new_mode = True, _mode(text)


def _deleted(change: FileChange, text: str, parser: _Parser) -> None:
    change.deleted, change.old_mode = True, _mode(text)


def _old_mode(change: FileChange, text: str, parser: _Parser) -> None:
    change.old_mode = _mode(text)


def _new_mode(change: FileChange, text: str, parser: _Parser) -> None:
    change.new_mode = _mode(text)


def _index(change: FileChange, text: str, parser: _Parser) -> None:
    match = re.fullmatch(r"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: ([0-7]{6}))?", text)
    if match is None:
        raise ValueError("no blob ids")
    change.old_blob, change.new_blob = match.group(1), match.group(2)
    if match.group(3) and _mode(match.group(3)) == LINK_MODE:
        change.old_mode = change.new_mode = LINK_MODE


def _binary(change: FileChange, text: str, parser: _Parser) -> None:
    change.binary = True


_HEADERS: Dict[str, Callable[[FileChange, str, _Parser], None]] = {
    "rename from ": _rename_from,
    "rename to ": _rename_to,
    "copy from ": _copy_from,
    "copy to ": _copy_to,
    "new file mode ": _created,
    "deleted file mode ": _deleted,
    "old mode ": _old_mode,
    "new mode ": _new_mode,
    "index ": _index,
    "GIT binary patch": _binary,
    "Binary files ": _binary,
}


def _mode(text: str) -> int:
    if not re.fullmatch("[0-7]{6}", text):
        raise ValueError("no file mode")
    return int(text, 8)


def _lacks_hunks(change: FileChange) -> bool:
    """Whether the blob ids say that the content changes, and nothing shows how."""
    if change.hunks or change.binary or change.old_blob == change.new_blob:
        return False
    return not all(EMPTY_BLOB.startswith(blob) or not blob.strip("0") for blob in (change.old_blob, change.new_blob))


def _has_other_side(change: FileChange) -> bool:
    return any(hunk.side("-" if change.created else "+") for hunk in change.hunks)


def _end(hunk: Hunk, mark: str) -> int:
    return (hunk.old_start if mark == "-" else hunk.new_start) + len(hunk.side(mark))


def _short(rest: Dict[str, int], old_count: int, new_count: int) -> str:
    return (
        f"the header counts {old_count} old and {new_count} new lines, "
        f"{old_count - rest['-']} and {new_count - rest['+']} are there"
    )


def _text(line: bytes) -> str:
    return os.fsdecode(line)


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "backslashreplace"))


def _is_epoch(stamp: str) -> bool:
    """Whether a time is that of a file that is not there, as ``diff -N`` writes it."""
    match = _EPOCH.fullmatch(stamp.strip())
    if match is None:
        return False
    try:
        return datetime.datetime.strptime(" ".join(match.groups()), "%Y-%m-%d %H:%M:%S %z").timestamp() == 0
    except ValueError:
        return False


def _name(text: str) -> Tuple[str, str]:
    """A file name, quoted or not, and what stands after it, such as a time."""
    if text.startswith('"'):
        return _unquoted(text)
    name, _tab, rest = text.partition("\t")
    return name, rest


def _unquoted(text: str) -> Tuple[str, str]:
    """A name in double quotes with C's escapes, and what stands after it. A quote that does not end is part of the name."""
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    if match is None:
        return text, ""
    parts = re.findall(r"\\([0-3][0-7]{2})|\\(.)|([^\\]+)", match.group(1))
    raw = b"".join(
        bytes([int(octal, 8)])
        if octal
        else bytes([_ESCAPES.get(escaped, ord(escaped) & 255)])
        if escaped
        else os.fsencode(plain)
        for octal, escaped, plain in parts
    )
    return os.fsdecode(raw), text[match.end() :]


def _git_names(text: str, strip: int) -> Optional[Tuple[str, str]]:
    """Both names of a ``diff --git`` line; unquoted ones can be told only where they are the same without their first parts."""
    if text.startswith('"'):
        old, rest = _unquoted(text)
        return (old, _name(rest[1:])[0]) if rest.startswith(" ") else None
    if text.endswith('"') and ' "' in text:
        old, _space, rest = text.partition(' "')
        return old, _unquoted('"' + rest)[0]
    for middle in re.finditer(" ", text if len(text) <= 2 * MAX_NAME else ""):
        old, new = text[: middle.start()], text[middle.end() :]
        if old.split("/")[strip:] and old.split("/")[strip:] == new.split("/")[strip:]:
            return old, new
    return None
