# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds small shared libraries, with what a loader and a GPU runtime read in them.

Run as a program, it cuts a real library down to that: ``python tests/unit/libraries.py LIBRARY OUT`` with ``PYTHONPATH=.collections`` keeps what the dynamic section says and
every header of its fatbins byte for byte, but for the size of the image after it, which becomes eight zero bytes.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._native import elf, fatbin

PAYLOAD = b"\0" * 8
BASE = 0x1000  # addresses differ from offsets, as in real libraries


def entry(kind: int, number: int, flags: int = 0x11, extra: bytes = b"", version: int = 0x101) -> bytes:
    """One piece of GPU code: its header of 64 bytes and more, and an image."""
    header = struct.pack("<HHIQ12xI8xQ16x", kind, version, 64 + len(extra), len(PAYLOAD), number, flags)
    return header + extra + PAYLOAD


def sass(number: int, flags: int = 0) -> bytes:
    return entry(2, number, 0x8011 | flags)


def ptx(number: int, flags: int = 0) -> bytes:
    return entry(1, number, 0x8011 | flags, extra=b"\0" * 16)


def container(*entries: bytes, version: int = 1, magic: int = fatbin.MAGIC, size: Optional[int] = None) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", magic, version, 16, len(body) if size is None else size) + body


def library(
    needed: Sequence[str] = (),
    soname: str = "",
    rpath: str = "",
    runpath: str = "",
    versions: Sequence[Tuple[str, str, bool]] = (),
    defined: Sequence[str] = (),
    sections: Optional[Dict[str, bytes]] = None,
    machine: int = 62,
) -> bytes:
    """A shared library of one segment: header, program headers, dynamic section, tables of names and versions, sections."""
    strings = bytearray(b"\0")

    def name(text: str) -> int:
        strings.extend(text.encode("utf-8", "surrogateescape") + b"\0")
        return len(strings) - len(text.encode("utf-8", "surrogateescape")) - 1

    tags = [(elf.DT_NEEDED, name(one)) for one in needed]
    texts = ((elf.DT_SONAME, soname), (elf.DT_RPATH, rpath), (elf.DT_RUNPATH, runpath))
    tags += [(tag, name(text)) for tag, text in texts if text]
    wanted: Dict[str, List[Tuple[str, bool]]] = {}
    for file, version, weak in versions:
        wanted.setdefault(file, []).append((version, weak))
    needs = bytearray()
    for place, (file, names) in enumerate(wanted.items()):
        size = elf.NEED.size + len(names) * elf.NEED_NAME.size
        last = place == len(wanted) - 1
        needs += elf.NEED.pack(1, len(names), name(file), elf.NEED.size, 0 if last else size)
        for index, (version, weak) in enumerate(names):
            following = 0 if index == len(names) - 1 else elf.NEED_NAME.size
            needs += elf.NEED_NAME.pack(0, elf.VER_FLG_WEAK if weak else 0, 2, name(version), following)
    offers = bytearray()
    for index, version in enumerate(defined):
        size = elf.DEFINITION.size + elf.DEFINITION_NAME.size
        following = 0 if index == len(defined) - 1 else size
        offers += elf.DEFINITION.pack(1, 0, index + 1, 1, 0, elf.DEFINITION.size, following)
        offers += elf.DEFINITION_NAME.pack(name(version), 0)

    programs = elf.HEADER.size + 2 * elf.PROGRAM.size
    count = len(tags) + 3 + (2 if needs else 0) + (2 if offers else 0)
    start = programs + count * elf.DYNAMIC.size
    needs_at, offers_at = start + len(strings), start + len(strings) + len(needs)
    tags += [(elf.DT_STRTAB, BASE + start), (elf.DT_STRSZ, len(strings))]
    if needs:
        tags += [(elf.DT_VERNEED, BASE + needs_at), (elf.DT_VERNEEDNUM, len(wanted))]
    if offers:
        tags += [(elf.DT_VERDEF, BASE + offers_at), (elf.DT_VERDEFNUM, len(defined))]
    dynamic = b"".join(elf.DYNAMIC.pack(*tag) for tag in [*tags, (0, 0)])
    end = offers_at + len(offers)

    body, headers, names_table = bytearray(), [(0,) * 10], bytearray(b"\0")
    for title, data in {**(sections or {}), ".shstrtab": b""}.items():
        place = len(names_table)
        names_table += title.encode() + b"\0"
        data = data or bytes(names_table)
        headers.append((place, 1, 0, 0, end + len(body), len(data), 0, 0, 8, 0))
        body += data
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    size = end + len(body)
    header = (
        ident,
        3,
        machine,
        1,
        0,
        64,
        size,
        0,
        64,
        elf.PROGRAM.size,
        2,
        elf.SECTION.size,
        len(headers),
        len(headers) - 1,
    )
    return b"".join(
        [
            elf.HEADER.pack(*header),
            elf.PROGRAM.pack(elf.PT_LOAD, 4, 0, BASE, BASE, size, size, 0x1000),
            elf.PROGRAM.pack(
                elf.PT_DYNAMIC, 4, programs, BASE + programs, BASE + programs, len(dynamic), len(dynamic), 8
            ),
            dynamic,
            bytes(strings + needs + offers + body),
            *(elf.SECTION.pack(*one) for one in headers),
        ]
    )


def cut(path: str) -> bytes:
    """A real library without its code, host's and GPU's."""
    with elf.Elf(path) as opened:
        dynamic = opened.dynamic()
        titles = [title for title in fatbin.SECTIONS if opened.sections(title)]
        kept = {title: b"".join(_cut(opened, section) for section in opened.sections(title)) for title in titles}
    return library(
        dynamic.needed,
        dynamic.soname,
        dynamic.rpath,
        dynamic.runpath,
        dynamic.versions,
        sorted(dynamic.defined),
        kept,
    )


def _cut(opened: elf.Elf, section: elf.Section) -> bytes:
    kept, place = bytearray(), section.offset
    while place < section.offset + section.size:
        magic, version, header, size = fatbin.CONTAINER.unpack(opened.read(place, fatbin.CONTAINER.size))
        entries, inner = bytearray(), place + header
        while inner < place + header + size:
            length, image = struct.unpack("<IQ", opened.read(inner + 4, 12))
            head = bytearray(opened.read(inner, length))
            struct.pack_into("<Q", head, 8, len(PAYLOAD))
            entries += head + PAYLOAD
            inner += length + image
        kept += fatbin.CONTAINER.pack(magic, version, header, len(entries)) + entries
        place += header + size
    return bytes(kept)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(cut(sys.argv[1]))
