# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
import struct
import zipfile
from collections import Counter
from pathlib import Path
from typing import Counter as CounterType
from typing import List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native import fatbin
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import Elf, ElfError
from ansible_collections.ddtree.fleet.plugins.module_utils._native.fatbin import Fatbins, read_fatbins
from ansible_collections.ddtree.fleet.tests.unit.libraries import container, entry, library, ptx, sass

RECORDED = Path(__file__).parents[4] / "recorded" / "sglang-kernel-0.4.2"


def read(path: Path, data: bytes, name: str = ".nv_fatbin") -> Fatbins:
    path.write_bytes(library(sections={name: data}))
    with Elf(str(path)) as opened:
        return read_fatbins(opened)


def names(found: Fatbins) -> List[str]:
    return [str(image) for image in sorted(found.images())]


def listed() -> CounterType[Tuple[str, str, str]]:
    lines = (RECORDED / "cuobjdump.txt").read_text(encoding="utf-8").splitlines()
    return Counter({(file, kind, name): int(count) for file, kind, name, count in map(str.split, lines)})


def test_real_libraries_carry_what_cuobjdump_lists(tmp_path: Path) -> None:
    found: CounterType[Tuple[str, str, str]] = Counter()
    entries = 0
    with zipfile.ZipFile(RECORDED / "libraries.zip") as libraries:
        for file in libraries.namelist():
            with Elf(libraries.extract(file, tmp_path)) as opened:
                fatbins = read_fatbins(opened)
            assert fatbins.unknown == []
            entries += fatbins.entries
            for images, count in fatbins.containers.items():
                for image in images:
                    found[file, "PTX" if image.ptx else "ELF", str(image.architecture)] += count
    assert found == listed()
    assert entries == sum(listed().values()) == 1986


@pytest.mark.parametrize("name", fatbin.SECTIONS)
def test_architectures_and_their_variants_are_read(tmp_path: Path, name: str) -> None:
    first = container(sass(90), sass(90, 0x100000), entry(2, 100, 0x1208011, extra=b"x" * 48))
    found = read(
        tmp_path / "x.so", first + container(ptx(120), ptx(100, 0x200000)) + b"\0" * 56 + container(sass(90)), name
    )
    assert names(found) == ["sm_90", "sm_90a", "sm_100f", "compute_100f", "compute_120"]
    assert (found.count, found.entries, found.unknown) == (3, 6, [])


def test_relocatable_code_counts_where_there_is_no_other_only(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(library(sections={"__nv_relfatbin": container(sass(80)), ".nv_fatbin": container(sass(90))}))
    with Elf(str(path)) as opened:
        assert names(read_fatbins(opened)) == ["sm_90"]


def test_a_library_without_gpu_code_has_none(tmp_path: Path) -> None:
    assert read(tmp_path / "x.so", container(sass(90)), ".data") == Fatbins()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (container(sass(90), version=2), "fatbins of version 2"),
        (container(sass(90), entry(0x100, 0)), "fatbin entries of kind 0x100"),
        (container(entry(2, 90, version=0x102)), "fatbin entries of version 0x102"),
        (container(sass(90, 0x400000)), "a fatbin entry of architecture 90 with flags 0x408011"),
        (container(sass(90, 0x300000)), "a fatbin entry of architecture 90 with flags 0x308011"),
        (container(sass(0)), "a fatbin entry of architecture 0 with flags 0x8011"),
        (container(sass(0xFFFFFFFF)), "a fatbin entry of architecture 4294967295 with flags 0x8011"),
    ],
)
def test_what_is_unknown_is_named_and_never_taken_for_something(tmp_path: Path, data: bytes, problem: str) -> None:
    found = read(tmp_path / "x.so", container(sass(80)) + data)
    assert found.unknown == [problem]
    assert set(names(found)) <= {"sm_80", "sm_90"}


def test_unknown_things_are_named_up_to_a_bound(tmp_path: Path) -> None:
    found = read(tmp_path / "x.so", b"".join(container(entry(kind, 90)) for kind in range(100, 200)))
    assert len(found.unknown) == fatbin.MAX_UNKNOWN


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x01" * 64, "has no fatbin but 0x01010101"),
        (container(sass(90), magic=0x466243B1), "has no fatbin but 0x466243b1"),
        (container(sass(90), size=1 << 63), "has a fatbin of 16 and 9223372036854775808 bytes, 88 are left"),
        (container(sass(90), size=0xFFFFFFFFFFFFFFFF), "has a fatbin of 16 and 18446744073709551615 bytes"),
        (struct.pack("<IHHQ", fatbin.MAGIC, 1, 0, 0), "has a fatbin of 0 and 0 bytes"),
        (container(b"\x02\x00\x01\x01" + b"\0" * 60), "has an entry of 0 and 0 bytes"),
        (
            container(sass(90)[:4] + struct.pack("<IQ", 64, 1 << 63) + sass(90)[16:]),
            "has an entry of 64 and 9223372036854775808",
        ),
        (
            container(sass(90)[:4] + struct.pack("<I", 0xFFFFFFFF) + sass(90)[8:]),
            "has an entry of 4294967295 and 8 bytes",
        ),
        (container(sass(90), b"\0" * 8), "has 8 bytes left at offset"),
        (b"\0" * 5000 + container(sass(90)), "has no fatbin but 0x00000000"),
        (container(sass(90)) + b"\x50\xed\x55\xba", "4 are left"),
    ],
)
def test_damaged_fatbins_are_named(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(ElfError, match=re.escape(problem)):
        read(tmp_path / "x.so", data.ljust(16, b"\0"))


def test_counts_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "MAX_ENTRIES", 100)
    with pytest.raises(ElfError, match="^more than 100 entries in fatbins$"):
        read(tmp_path / "x.so", container(*[sass(90)] * 101))
    with pytest.raises(ElfError, match="^more than 100 fatbins$"):
        read(tmp_path / "x.so", container() * 101)
    assert read(tmp_path / "x.so", container(sass(90)) * 100).entries == 100


@pytest.mark.parametrize("value", [0, 0x7FFFFFFF, 0xFFFFFFFFFFFFFFFF])
def test_no_number_in_a_fatbin_makes_the_reader_fail_or_hang(tmp_path: Path, value: int) -> None:
    data = container(sass(90), ptx(100)) + container(sass(120, 0x100000))
    for offset in range(len(data) - 8):
        changed = bytearray(data)
        struct.pack_into("<Q", changed, offset, value)
        try:
            read(tmp_path / "x.so", bytes(changed))
        except ElfError:
            pass
