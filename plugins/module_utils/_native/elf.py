# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a loader and a GPU runtime look at in a shared library: ELF64, little-endian, of x86_64 or aarch64.

A library may have gigabytes, so it is read in places and never whole. Nothing in it is believed: every offset, size and count is
held against the file and against a bound. The dynamic section is found by the program headers, as ld.so finds it, so that a
library without section headers is read too.
"""

from __future__ import annotations

import os
import stat
import struct
from types import TracebackType
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Type

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
PROGRAM = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
DYNAMIC = struct.Struct("<QQ")
NEED, NEED_NAME = struct.Struct("<HHIII"), struct.Struct("<IHHII")
DEFINITION, DEFINITION_NAME = struct.Struct("<HHHHIII"), struct.Struct("<II")

MACHINES = {62: "x86_64", 183: "aarch64"}
PT_LOAD, PT_DYNAMIC, SHT_NOBITS = 1, 2, 8
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 10, 14, 15, 29
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
VER_FLG_WEAK = 2

MAX_SECTIONS, MAX_DYNAMIC, MAX_VERSIONS, MAX_NAME = 1 << 16, 1 << 13, 1 << 13, 1 << 14
MAX_NEEDED = MAX_PLACES = 512  # libraries, and directories to look for each in


class ElfError(Exception):
    """A file that is no intact library; the message says what is wrong, without the file's name."""


class ForeignError(ElfError):
    """A file that may be intact, but is nothing that this reader knows, such as one of another processor."""


class TruncatedError(ElfError):
    """A file that ends before what its own tables say."""


class Section(NamedTuple):
    """The place of a section in the file."""

    offset: int
    size: int


class Version(NamedTuple):
    """A symbol version that a library must offer, such as GLIBC_2.34 of libc.so.6. A loader lets a missing weak one pass."""

    library: str
    name: str
    weak: bool


class Dynamic(NamedTuple):
    """What a library says to the loader."""

    needed: Tuple[str, ...] = ()
    soname: str = ""
    rpath: str = ""
    runpath: str = ""
    versions: Tuple[Version, ...] = ()
    defined: FrozenSet[str] = frozenset()


class Elf:
    """An open library. Raises ElfError wherever the file is not what its own tables say, OSError where it cannot be read."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not hold the run up
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise ForeignError("no regular file")
            self.size = status.st_size
            self._read_header()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Elf:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        os.close(self._file)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes."""
        if offset + size > self.size:
            raise TruncatedError(f"truncated: {size} bytes are expected at offset {offset}, the file has {self.size}")
        data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise TruncatedError("it became shorter while it was read")
        return data

    def sections(self, name: str) -> List[Section]:
        """The sections of that name. Raises ElfError where the section headers are stripped."""
        headers = self._section_headers()
        wanted = name.encode() + b"\0"
        _name, _kind, _flags, _address, start, length, *_rest = headers[self._names_index]
        found = []
        for place, kind, _flags, _address, offset, size, *_rest in headers:
            if place + len(wanted) > length or kind == SHT_NOBITS or self.read(start + place, len(wanted)) != wanted:
                continue
            if offset + size > self.size:
                raise TruncatedError(
                    f"truncated: section {name} ends at {offset + size}, the file has {self.size} bytes"
                )
            found.append(Section(offset, size))
        return found

    def dynamic(self) -> Dynamic:
        """What the dynamic section says; empty where there is none, as in a static program."""
        programs = self._program_headers()
        entries: Dict[int, List[int]] = {}
        for kind, _flags, offset, _address, _physical, size, *_rest in programs:
            if kind == PT_LOAD and offset + size > self.size:
                raise TruncatedError(f"truncated: a segment ends at {offset + size}, the file has {self.size} bytes")
            if kind == PT_DYNAMIC:
                entries = self._dynamic_entries(offset, size)
        if not entries:
            return Dynamic()
        strings = _Strings(self, _place(programs, _one(entries, DT_STRTAB)), _one(entries, DT_STRSZ))

        def name(tag: int) -> str:
            return strings.at(entries[tag][-1]) if tag in entries else ""

        found = Dynamic(
            needed=tuple(strings.at(value) for value in entries.get(DT_NEEDED, ())),
            soname=name(DT_SONAME),
            rpath=name(DT_RPATH),
            runpath=name(DT_RUNPATH),
            versions=tuple(self._versions(programs, entries, strings)) if DT_VERNEED in entries else (),
            defined=frozenset(self._definitions(programs, entries, strings)) if DT_VERDEF in entries else frozenset(),
        )
        if max(len(found.needed), len({version.library for version in found.versions})) > MAX_NEEDED:
            raise ElfError(f"more than {MAX_NEEDED} libraries needed")
        if max(found.rpath.count(":"), found.runpath.count(":")) >= MAX_PLACES:
            raise ElfError(f"more than {MAX_PLACES} directories in its own path")
        return found

    def _read_header(self) -> None:
        if self.size < HEADER.size or self.read(0, 4) != b"\x7fELF":
            raise ForeignError("no ELF file")
        fields = HEADER.unpack(self.read(0, HEADER.size))
        ident, _kind, machine, _version, _entry, self._phoff, self._shoff, _flags, _size = fields[:9]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._names_index = fields[9:]
        if ident[4] != 2:
            raise ForeignError("a 32-bit ELF file")
        if ident[5] != 1:
            raise ForeignError("a big-endian ELF file")
        if machine not in MACHINES:
            raise ForeignError(f"an ELF file of machine {machine}, not of {' or '.join(MACHINES.values())}")
        self.machine = MACHINES[machine]

    def _program_headers(self) -> List[Tuple[int, ...]]:
        if not self._phnum:
            return []
        if self._phentsize != PROGRAM.size:
            raise ElfError(f"program headers of {self._phentsize} bytes, not {PROGRAM.size}")
        return list(PROGRAM.iter_unpack(self.read(self._phoff, self._phnum * PROGRAM.size)))

    def _section_headers(self) -> List[Tuple[int, ...]]:
        if not self._shoff:
            raise ElfError("its section headers are stripped")
        if self._shentsize != SECTION.size:
            raise ElfError(f"section headers of {self._shentsize} bytes, not {SECTION.size}")
        # More sections than the header's field can hold are counted in the first section.
        count = self._shnum or SECTION.unpack(self.read(self._shoff, SECTION.size))[5]
        if not self._names_index < count <= MAX_SECTIONS:
            raise ElfError(f"{count} sections with their names in section {self._names_index}")
        return list(SECTION.iter_unpack(self.read(self._shoff, count * SECTION.size)))

    def _dynamic_entries(self, offset: int, size: int) -> Dict[int, List[int]]:
        if size > MAX_DYNAMIC * DYNAMIC.size:
            raise ElfError(f"a dynamic section of {size} bytes")
        entries: Dict[int, List[int]] = {}
        for tag, value in DYNAMIC.iter_unpack(self.read(offset, size - size % DYNAMIC.size)):
            if not tag:
                break
            entries.setdefault(tag, []).append(value)
        return entries

    def _versions(
        self, programs: List[Tuple[int, ...]], entries: Dict[int, List[int]], strings: _Strings
    ) -> List[Version]:
        place, found = _place(programs, _one(entries, DT_VERNEED)), []
        for _library in range(_count(entries, DT_VERNEEDNUM)):
            _version, count, file, names, following = NEED.unpack(self.read(place, NEED.size))
            library, name_place = strings.at(file), place + names
            for _name in range(count):
                _hash, flags, _other, name, next_name = NEED_NAME.unpack(self.read(name_place, NEED_NAME.size))
                found.append(Version(library, strings.at(name), bool(flags & VER_FLG_WEAK)))
                if len(found) > MAX_VERSIONS:
                    raise ElfError(f"more than {MAX_VERSIONS} versions needed")
                if not next_name:
                    break
                name_place += next_name
            if not following:
                break
            place += following
        return found

    def _definitions(
        self, programs: List[Tuple[int, ...]], entries: Dict[int, List[int]], strings: _Strings
    ) -> List[str]:
        place, found = _place(programs, _one(entries, DT_VERDEF)), []
        for _definition in range(_count(entries, DT_VERDEFNUM)):
            fields = DEFINITION.unpack(self.read(place, DEFINITION.size))
            name, _next = DEFINITION_NAME.unpack(self.read(place + fields[5], DEFINITION_NAME.size))
            found.append(strings.at(name))
            if not fields[6]:
                break
            place += fields[6]
        return found


class _Strings:
    """The table of names that a dynamic section points into."""

    def __init__(self, elf: Elf, offset: int, size: int) -> None:
        self._elf, self._offset, self._size = elf, offset, size

    def at(self, place: int) -> str:
        if place >= self._size:
            raise ElfError(f"a name at {place} in a table of {self._size} bytes")
        text, ended, _rest = self._elf.read(self._offset + place, min(self._size - place, MAX_NAME)).partition(b"\0")
        if not ended:
            raise ElfError(f"a name of {MAX_NAME} bytes or without an end")
        return text.decode("utf-8", "surrogateescape")


def _place(programs: List[Tuple[int, ...]], address: int) -> int:
    """Where in the file the byte is that is loaded to ``address``."""
    for kind, _flags, offset, start, _physical, size, *_rest in programs:
        if kind == PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise ElfError(f"address {address:#x} is in no segment of the file")


def _one(entries: Dict[int, List[int]], tag: int) -> int:
    if tag not in entries:
        raise ElfError(f"no entry {tag:#x} in the dynamic section")
    return entries[tag][-1]


def _count(entries: Dict[int, List[int]], tag: int) -> int:
    count = _one(entries, tag)
    if count > MAX_VERSIONS:
        raise ElfError(f"{count} entries of version names")
    return count
