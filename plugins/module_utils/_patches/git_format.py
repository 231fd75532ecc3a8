# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what became of one file as a diff in git's format, which ``unified.py``, ``git apply`` and ``patch -p1`` read.

The ids are git's own, in full, so that old and new content are told apart also where lines repeat. Empty lines of context
have no space in them, as with git's diff.suppressBlankEmpty, so that YAML can show a diff as it is.
"""

from __future__ import annotations

import difflib
import hashlib
from typing import List, NamedTuple, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._patches.hunks import split_lines

CONTEXT = 3
NO_BLOB = "0" * 40
_QUOTED = {7: b"a", 8: b"b", 9: b"t", 10: b"n", 11: b"v", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}


class Side(NamedTuple):
    """A file before or after a change: git's mode of it, and its content; of a link its target."""

    mode: int
    data: bytes


def git_diff(path: str, before: Optional[Side], after: Optional[Side], is_text: bool = True) -> bytes:
    """The diff of a file that is another after the change, new (no ``before``) or deleted (no ``after``).

    Content that is no text is only named by its id, as git does with binary files.
    """
    old, new = _name("a/" + path), _name("b/" + path)
    lines = [b"diff --git %s %s\n" % (old, new)]
    if before is None and after:
        lines.append(b"new file mode %o\n" % after.mode)
    if after is None and before:
        lines.append(b"deleted file mode %o\n" % before.mode)
    ids = "..".join(blob_id(side.data) if side else NO_BLOB for side in (before, after))
    mode = b" %o" % after.mode if before and after else b""
    lines.append(b"index %s%s\n" % (ids.encode(), mode))
    contents = [side.data if side else b"" for side in (before, after)]
    names = [old if before else b"/dev/null", new if after else b"/dev/null"]
    if not is_text:
        lines.append(b"Binary files %s and %s differ\n" % (names[0], names[1]))
    elif contents[0] != contents[1]:
        end = b"\t" if " " in path else b""
        marks = zip((b"---", b"+++"), names)
        lines += [b"%s %s%s\n" % (mark, name, b"" if name == b"/dev/null" else end) for mark, name in marks]
        lines += _hunks(*(split_lines(data) for data in contents))
    return b"".join(lines)


def blob_id(data: bytes) -> str:
    return hashlib.new("sha1", b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _hunks(before: Sequence[bytes], after: Sequence[bytes]) -> List[bytes]:
    lines = []
    for group in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT):
        old, new = (group[0][1], group[-1][2]), (group[0][3], group[-1][4])
        lines.append(f"@@ -{_range(*old)} +{_range(*new)} @@\n".encode())
        for what, old_start, old_end, new_start, new_end in group:
            if what == "equal":
                lines += [_line(b" ", line) for line in before[old_start:old_end]]
            else:
                lines += [_line(b"-", line) for line in before[old_start:old_end]]
                lines += [_line(b"+", line) for line in after[new_start:new_end]]
    return lines


def _range(start: int, end: int) -> str:
    """Where a side has no lines, its number is that of the line before."""
    count = end - start
    number = start + 1 if count else start
    return str(number) if count == 1 else f"{number},{count}"


def _line(mark: bytes, line: bytes) -> bytes:
    if line == b"\n" and mark == b" ":
        return line
    return mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"


def _name(path: str) -> bytes:
    """A name as git writes it, in quotes where a letter of it needs them."""
    raw = path.encode("utf-8", "surrogateescape")
    if not any(byte < 32 or byte in (34, 92, 127) for byte in raw):
        return raw
    return b'"' + b"".join(_letter(byte) for byte in raw) + b'"'


def _letter(byte: int) -> bytes:
    if byte in _QUOTED:
        return b"\\" + _QUOTED[byte]
    return bytes([byte]) if 32 <= byte < 127 else b"\\%03o" % byte
