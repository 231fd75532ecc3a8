# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU code that a library carries, read from the headers of its fatbins; nothing is decompressed.

A section holds containers, one for each compiled source file as a rule: a header of 16 bytes, then entries, each a header and
an image. All numbers are little-endian; what is not listed here is not looked at.

container: magic u32, version u16 (1), size of the header u16, size of all entries u64
entry: kind u16 (1 PTX, 2 cubin), version u16 (0x101), size of the header u32, size of the image with padding u64; at 28 the
architecture u32; at 40 flags u64 (0x100000 for this architecture only, as in sm_90a; 0x200000 for its family, as in sm_100f)

The format is not documented by its maker. What is written here was held against cuobjdump on the libraries that
docs/native-libraries.md lists; any other version, kind or variant is named as unknown instead of being taken for something.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Counter as CounterType
from typing import FrozenSet, List, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import (
    EXACT,
    FAMILY,
    Architecture,
    Image,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import Elf, ElfError, Section

# Code in the second is loaded only after it was linked into the first, so it counts where there is no first only.
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQ12xI8xQ")
ENTRY_HEADER = 64
MAGIC, CONTAINER_VERSION, ENTRY_VERSION = 0xBA55ED50, 1, 0x101
KINDS = {1: True, 2: False}  # whether it is PTX
VARIANT_FLAGS, VARIANTS = 0xF00000, {0: "", 0x100000: EXACT, 0x200000: FAMILY}

MAX_ENTRIES = 1 << 18
MAX_PADDING = 1 << 12
MAX_UNKNOWN = 5


@dataclass
class Fatbins:
    """What was found: how many containers hold which set of images, and what could not be understood."""

    containers: CounterType[FrozenSet[Image]] = field(default_factory=Counter)
    count: int = 0
    entries: int = 0
    unknown: List[str] = field(default_factory=list)

    def images(self) -> Set[Image]:
        return {image for images in self.containers for image in images}


def read_fatbins(elf: Elf) -> Fatbins:
    """Raises ElfError where the sections are no intact fatbins."""
    found = Fatbins()
    for name in SECTIONS:
        sections = elf.sections(name)
        for section in sections:
            _read_section(elf, name, section, found)
        if sections:
            break
    return found


def _read_section(elf: Elf, name: str, section: Section, found: Fatbins) -> None:
    end = section.offset + section.size
    place = _after_padding(elf, section.offset, end)
    while place < end:
        magic, version, header, size = CONTAINER.unpack(elf.read(place, CONTAINER.size))
        if magic != MAGIC:
            raise ElfError(f"{name} at offset {place} has no fatbin but {magic:#010x}")
        if header < CONTAINER.size or size > end - place - header:
            raise ElfError(
                f"{name} at offset {place} has a fatbin of {header} and {size} bytes, {end - place} are left"
            )
        images: FrozenSet[Image] = frozenset()
        if version == CONTAINER_VERSION:
            images = _read_entries(elf, place + header, place + header + size, found)
        else:
            _unknown(found, f"fatbins of version {version}")
        found.containers[images] += 1
        found.count += 1
        if found.count > MAX_ENTRIES:
            raise ElfError(f"more than {MAX_ENTRIES} fatbins")
        place = _after_padding(elf, place + header + size, end)


def _after_padding(elf: Elf, place: int, end: int) -> int:
    """The place of the next fatbin: linkers pad with zeros where they align."""
    data = elf.read(place, min(MAX_PADDING, end - place))
    return place + len(data) - len(data.lstrip(b"\0"))


def _read_entries(elf: Elf, place: int, end: int, found: Fatbins) -> FrozenSet[Image]:
    images: Set[Image] = set()
    while place < end:
        if end - place < ENTRY_HEADER:
            raise ElfError(f"a fatbin has {end - place} bytes left at offset {place}, too few for an entry")
        kind, version, header, size, number, flags = ENTRY.unpack(elf.read(place, ENTRY.size))
        if header < ENTRY_HEADER or size > end - place - header:
            raise ElfError(
                f"a fatbin has an entry of {header} and {size} bytes at offset {place}, {end - place} are left"
            )
        found.entries += 1
        if found.entries > MAX_ENTRIES:
            raise ElfError(f"more than {MAX_ENTRIES} entries in fatbins")
        variant = VARIANTS.get(flags & VARIANT_FLAGS)
        if version != ENTRY_VERSION:
            _unknown(found, f"fatbin entries of version {version:#x}")
        elif kind not in KINDS:
            _unknown(found, f"fatbin entries of kind {kind:#x}")
        elif variant is None or not 10 <= number <= 999:
            _unknown(found, f"a fatbin entry of architecture {number} with flags {flags:#x}")
        else:
            images.add(Image(Architecture(number, variant), KINDS[kind]))
        place += header + size
    return frozenset(images)


def _unknown(found: Fatbins, what: str) -> None:
    if what not in found.unknown and len(found.unknown) < MAX_UNKNOWN:
        found.unknown.append(what)
