# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Callable

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native import elf
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import (
    Dynamic,
    Elf,
    ElfError,
    ForeignError,
    Version,
)
from ansible_collections.ddtree.fleet.tests.unit.libraries import library

WHOLE = library(
    needed=["libtorch.so", "libc.so.6"],
    soname="libx.so.1",
    rpath="/old",
    runpath="$ORIGIN/../lib",
    versions=[
        ("libc.so.6", "GLIBC_2.17", False),
        ("libstdc++.so.6", "GLIBCXX_3.4.21", False),
        ("libc.so.6", "GLIBC_2.9", True),
    ],
    defined=["libx.so.1", "X_1", "X_2"],
    sections={".nv_fatbin": b"12345678", ".other": b"x" * 100},
)


def dynamic_of(path: Path) -> Dynamic:
    with Elf(str(path)) as opened:
        return opened.dynamic()


@pytest.fixture(name="file")
def file_fixture(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "x.so"
        path.write_bytes(data)
        return path

    return write


def test_what_a_library_says_to_the_loader_is_read(file: Callable[[bytes], Path]) -> None:
    found = dynamic_of(file(WHOLE))
    assert found.needed == ("libtorch.so", "libc.so.6")
    assert (found.soname, found.rpath, found.runpath) == ("libx.so.1", "/old", "$ORIGIN/../lib")
    assert sorted(found.versions) == [
        Version("libc.so.6", "GLIBC_2.17", False),
        Version("libc.so.6", "GLIBC_2.9", True),
        Version("libstdc++.so.6", "GLIBCXX_3.4.21", False),
    ]
    assert found.defined == {"libx.so.1", "X_1", "X_2"}


def test_the_c_library_of_this_host_is_read() -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    match = re.search(r"/\S*/libc\.so\.6$", maps, re.MULTILINE)
    assert match, "these tests run on hosts with glibc"
    found = dynamic_of(Path(match[0]))
    assert found.soname == "libc.so.6"
    assert {"GLIBC_2.17", "GLIBC_PRIVATE"} <= found.defined
    assert [name for name in found.needed if name.startswith("ld-linux")]


def test_sections_are_found_by_name(file: Callable[[bytes], Path]) -> None:
    with Elf(str(file(WHOLE))) as opened:
        (section,) = opened.sections(".nv_fatbin")
        assert opened.read(*section) == b"12345678"
        assert opened.sections("__nv_relfatbin") == []
        assert opened.machine == "x86_64"


def test_without_section_headers_the_loaders_part_is_read_and_sections_are_not(file: Callable[[bytes], Path]) -> None:
    stripped = bytearray(WHOLE)
    struct.pack_into("<Q", stripped, 40, 0)
    path = file(bytes(stripped))
    assert dynamic_of(path).needed == ("libtorch.so", "libc.so.6")
    with Elf(str(path)) as opened, pytest.raises(ElfError, match="^its section headers are stripped$"):
        opened.sections(".nv_fatbin")


def test_a_library_of_aarch64_says_so(file: Callable[[bytes], Path]) -> None:
    with Elf(str(file(library(machine=183)))) as opened:
        assert opened.machine == "aarch64"


@pytest.mark.parametrize(
    ("offset", "value", "problem"),
    [
        (0, b"\x7fELG", "no ELF file"),
        (4, b"\x01", "a 32-bit ELF file"),
        (5, b"\x02", "a big-endian ELF file"),
        (18, struct.pack("<H", 243), "an ELF file of machine 243, not of x86_64 or aarch64"),
    ],
)
def test_files_of_other_kinds_are_named(file: Callable[[bytes], Path], offset: int, value: bytes, problem: str) -> None:
    changed = WHOLE[:offset] + value + WHOLE[offset + len(value) :]
    with pytest.raises(ForeignError, match=f"^{problem}$"):
        dynamic_of(file(changed))


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.so")
    with pytest.raises(ForeignError, match="^no regular file$"):
        dynamic_of(tmp_path / "x.so")


def test_a_truncated_library_is_named(file: Callable[[bytes], Path]) -> None:
    path = file(WHOLE[:150])
    with pytest.raises(ElfError, match="^truncated: 112 bytes are expected at offset 64, the file has 150$"):
        dynamic_of(path)


def test_a_library_that_shrinks_meanwhile_is_named(file: Callable[[bytes], Path]) -> None:
    path = file(WHOLE)
    with Elf(str(path)) as opened:
        os.truncate(path, 100)
        with pytest.raises(ElfError, match="^it became shorter while it was read$"):
            opened.dynamic()


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_no_truncation_is_taken_for_a_library(file: Callable[[bytes], Path], length: int) -> None:
    path = file(WHOLE[:length])
    with pytest.raises(ElfError), Elf(str(path)) as opened:
        opened.dynamic()
        opened.sections(".nv_fatbin")


@pytest.mark.parametrize("value", [0, 1, 0x7FFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_no_number_in_a_library_makes_the_reader_fail_or_hang(file: Callable[[bytes], Path], value: int) -> None:
    path = file(WHOLE)
    for offset in range(0, len(WHOLE) - 8, 4):
        changed = bytearray(WHOLE)
        struct.pack_into("<Q", changed, offset, value)
        path.write_bytes(changed)
        try:
            with Elf(str(path)) as opened:
                opened.dynamic()
                opened.sections(".nv_fatbin")
        except ElfError:
            pass


@pytest.mark.parametrize(
    ("tag", "value", "problem"),
    [
        (elf.DT_STRTAB, 0xFFFFFFFFFFFFF000, "address 0xfffffffffffff000 is in no segment of the file"),
        (elf.DT_STRSZ, 2, "a name of 16384 bytes or without an end"),
        (elf.DT_VERNEEDNUM, 1 << 40, "1099511627776 entries of version names"),
    ],
)
def test_a_hostile_entry_is_named(file: Callable[[bytes], Path], tag: int, value: int, problem: str) -> None:
    changed = bytearray(WHOLE)
    struct.pack_into("<Q", changed, WHOLE.index(struct.pack("<Q", tag), 176) + 8, value)
    with pytest.raises(ElfError, match=f"^{problem}$"):
        dynamic_of(file(bytes(changed)))


def test_a_library_that_would_be_looked_for_without_end_is_refused(file: Callable[[bytes], Path]) -> None:
    most = elf.MAX_NEEDED
    assert len(dynamic_of(file(library(needed=["a.so"] * most, runpath=":".join(["x"] * most)))).needed) == most
    for many in (
        library(needed=["a.so"] * (most + 1)),
        library(versions=[(f"{number}.so", "V", False) for number in range(most + 1)]),
    ):
        with pytest.raises(ElfError, match="^more than 512 libraries needed$"):
            dynamic_of(file(many))
    for path in ({"runpath": ":" * most}, {"rpath": ":" * most}):
        with pytest.raises(ElfError, match="^more than 512 directories in its own path$"):
            dynamic_of(file(library(needed=["a.so"], **path)))


def test_versions_without_end_are_refused(file: Callable[[bytes], Path]) -> None:
    many = library(versions=[("libc.so.6", f"V_{number}", False) for number in range(elf.MAX_VERSIONS + 1)])
    with pytest.raises(ElfError, match="^more than 8192 versions needed$"):
        dynamic_of(file(many))
