# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.listing import (
    check_rows,
    entry_row,
    folder_digest,
    folders,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PeerError, Row
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry
from ansible_collections.ddtree.fleet.tests.unit.trees import row


def test_a_listing_becomes_sorted_entries() -> None:
    entries, hashes = check_rows(
        [row("d/x", content=b"1"), row("l", "l", mode=0, target="d"), row("d", "d", mode=0o700), row("d-")]
    )
    assert [(entry.path, entry.kind, entry.mode, entry.size) for entry in entries] == [
        (b"d", "d", 0o700, 0),
        (b"d-", "f", 0o644, 0),
        (b"d/x", "f", 0o644, 1),
        (b"l", "l", 0, 0),
    ]
    assert hashes[b"d/x"] == hashlib.sha256(b"1").hexdigest()
    assert check_rows([]) == ([], {})


HOSTILE = {
    "parent": [row("../x")],
    "deep parent": [row("d", "d", mode=0o755), row("d/../../x")],
    "absolute": [row("/etc/x")],
    "dot": [row(".")],
    "no name": [row("")],
    "doubled slash": [row("d", "d", mode=0o755), row("d//x")],
    "missing parent": [row("d/x")],
    "deep parent is a link": [row("d", "l", mode=0, target="e"), row("e", "d", mode=0o755), row("d/x")],
    "bytecode file": [row("d", "d", mode=0o755), row("d/__pycache__")],
    "below a bytecode folder": [row("__pycache__", "d", mode=0o755), row("__pycache__/x")],
    "parent is a link": [row("d", "l", mode=0, target="/tmp"), row("d/x")],
    "parent is a file": [row("d"), row("d/x")],
    "twice": [row("x"), row("x", content=b"other")],
    "nul": [row("x\0y")],
    "device": [row("x", "b")],
    "setuid": [row("x", mode=0o4755)],
    "negative size": [row("x", size=-1)],
    "no digest": [row("x", digest="")],
    "not hexadecimal": [row("x", digest="/" * 64)],
    "empty link": [row("x", "l", mode=0)],
    "bytecode folder": [row("__pycache__", "l", mode=0, target="/tmp")],
    "impossible time": [row("x", mtime=1 << 80)],
    "short row": [["x"]],
    "no row": ["x"],
    "no path": [[7, "f", 0, 0, "", 0, ""]],
    "numeric link": [["x", "l", 0, 0, 7, 0, ""]],
    "lone surrogate": [row("\ud800")],
}


@pytest.mark.parametrize("rows", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_listing_that_leads_out_of_a_tree_or_is_none_is_refused(rows: List[Row]) -> None:
    with pytest.raises(PeerError, match="^the source listed"):
        check_rows(rows)


def entry(
    path: bytes, kind: str = "f", mode: int = 0o644, size: int = 1, target: bytes = b"", mtime_ns: int = 5
) -> Entry:
    return Entry(path, kind, mode, size, target, mtime_ns, 1, 1, 1)


def test_folders_hold_their_direct_children_only() -> None:
    entries = [entry(b"a"), entry(b"d", "d"), entry(b"d/e", "d"), entry(b"d/e/f"), entry(b"d/x")]
    assert {path: [one.path for one in inside] for path, inside in folders(entries).items()} == {
        b"": [b"a", b"d"],
        b"d": [b"d/e", b"d/x"],
        b"d/e": [b"d/e/f"],
    }


def test_a_folder_digest_tells_everything_that_a_row_carries() -> None:
    base = entry(b"d/x")
    hashes = {b"d/x": "0" * 64}
    digests = {
        folder_digest([base], hashes),
        folder_digest([base], {b"d/x": "1" * 64}),
        folder_digest([base._replace(mode=0o755)], hashes),
        folder_digest([base._replace(mtime_ns=6)], hashes),
        folder_digest([base._replace(kind="l", target=b"t")], {}),
        folder_digest([base._replace(path=b"d/y")], {b"d/y": "0" * 64}),
        folder_digest([base._replace(size=2)], hashes),
        folder_digest([], {}),
    }
    assert len(digests) == 8
    assert folder_digest([base._replace(inode=9, ctime_ns=9)], hashes) in digests


def test_a_row_carries_what_a_receiver_needs_of_an_entry() -> None:
    file, link = entry(b"\xff\n", size=3), entry(b"l", "l", mode=0, size=0, target=b"\xff")
    received, hashes = check_rows([entry_row(one, {file.path: "a" * 64}) for one in (link, file)])
    assert [(one.path, one.kind, one.mode, one.size, one.target, one.mtime_ns) for one in received] == [
        (b"l", "l", 0, 0, b"\xff", 5),
        (b"\xff\n", "f", 0o644, 3, b"", 5),
    ]
    assert hashes == {b"\xff\n": "a" * 64}


def test_what_is_known_here_is_checked_together_with_what_came() -> None:
    known = [entry(b"d", "d"), entry(b"d/x")]
    entries, hashes = check_rows([row("d/y")], known, {b"d/x": "a" * 64})
    assert [one.path for one in entries] == [b"d", b"d/x", b"d/y"]
    assert set(hashes) == {b"d/x", b"d/y"}
    with pytest.raises(PeerError, match="twice"):
        check_rows([row("d/x")], known, {})
    with pytest.raises(PeerError, match="not a path inside a tree"):
        check_rows([row("d", "l", mode=0, target="/tmp")], [entry(b"d/x")], {})
