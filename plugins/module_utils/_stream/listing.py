# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listings: what a source says of its tree, as rows on the wire, checked before anything is built from them."""

from __future__ import annotations

import hashlib
from typing import AbstractSet, Dict, List, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PeerError, Row, decode_path, encode_path
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import DIRECTORY, FILE, IGNORED_NAME, LINK, Entry


def folders(entries: List[Entry]) -> Dict[bytes, List[Entry]]:
    """The entries by the directory they are in; the root's is the empty path. Directories in sorted order."""
    found: Dict[bytes, List[Entry]] = {b"": []}
    for entry in entries:
        found[entry.path.rpartition(b"/")[0]].append(entry)
        if entry.kind == DIRECTORY:
            found[entry.path] = []
    return dict(sorted(found.items()))


def folder_digest(children: List[Entry], hashes: Dict[bytes, str]) -> str:
    """SHA-256 over all that is sent about the children of one directory, in hex: equal ones need not be listed again."""
    digest = hashlib.sha256()
    for e in children:
        content = hashes[e.path].encode() if e.kind == FILE else e.target
        mtime_ns = e.mtime_ns if e.kind == FILE else 0
        fields = (e.path.rpartition(b"/")[2], e.kind.encode(), e.mode, e.size, mtime_ns, content)
        digest.update(b"%s\0%s %o %d %d %s\0" % fields)
    return digest.hexdigest()


def entry_row(entry: Entry, hashes: Dict[bytes, str]) -> Row:
    e = entry
    return [encode_path(e.path), e.kind, e.mode, e.size, encode_path(e.target), e.mtime_ns, hashes.get(e.path, "")]


def check_rows(
    rows: List[Row],
    known: Sequence[Entry] = (),
    hashes: Optional[Dict[bytes, str]] = None,
    here: AbstractSet[bytes] = frozenset(),
) -> Tuple[List[Entry], Dict[bytes, str]]:
    """The entries of a received listing, sorted and checked: nothing in it can lead a receiver out of the tree it builds.

    ``known`` and ``hashes`` are those that need not be sent since this host has their directories, ``here``, just so; of these
    directories rows come all the same when another target asked for them, and are passed over.
    """
    entries = list(known)
    found: Dict[bytes, str] = {} if hashes is None else hashes
    for row in rows:
        try:
            path = decode_path(row[0])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise PeerError("the source listed something that has no path") from error
        try:
            entry, sha256 = _checked(path, row[1:])
        except (AttributeError, TypeError, ValueError) as error:
            raise PeerError(f"the source listed {path!r} in a form that is not understood") from error
        if path.rpartition(b"/")[0] in here:
            continue
        entries.append(entry)
        if entry.kind == FILE:
            found[path] = sha256
    entries.sort()
    directories = {b""}
    before = b""
    for entry in entries:
        if entry.path.rpartition(b"/")[0] not in directories:
            raise PeerError(f"the source listed {entry.path!r}, which is not a path inside a tree")
        if entry.path == before:
            raise PeerError(f"the source listed {entry.path!r} twice")
        before = entry.path
        if entry.kind == DIRECTORY:
            directories.add(entry.path)
    return entries, found


def _checked(path: bytes, row: Row) -> Tuple[Entry, str]:
    kind, mode, size, target, mtime_ns, sha256 = row
    # A link named __pycache__ would not be seen in staging, and bytecode would be written through it.
    if path.rpartition(b"/")[2] in (b"", b".", b"..", IGNORED_NAME) or b"\0" in path:
        raise PeerError(f"the source listed {path!r}, which is not a path inside a tree")
    if kind not in (FILE, DIRECTORY, LINK) or not isinstance(mode, int) or not 0 <= mode <= 0o777:
        raise PeerError(f"the source listed {path!r} with an unknown type or mode")
    if not isinstance(size, int) or size < 0 or not isinstance(mtime_ns, int) or abs(mtime_ns) >= 1 << 63:
        raise PeerError(f"the source listed {path!r} with an impossible size or time")
    if kind == FILE and (not isinstance(sha256, str) or len(sha256) != 64 or set(sha256) - set("0123456789abcdef")):
        raise PeerError(f"the source listed {path!r} without a SHA-256")
    if kind == LINK and (not target or "\0" in target):
        raise PeerError(f"the source listed {path!r} as a link to nothing")
    return Entry(path, kind, mode, size, decode_path(target), mtime_ns, 0, 0, 1), sha256
