# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks of other kinds than the one that tests run on, made and mounted by the tests themselves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

MKFS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"]}
DISK_BYTES = 320 << 20  # the least that XFS takes
FS_IOC_FIEMAP, FIEMAP_FLAG_SYNC, FIEMAP_EXTENT_SHARED = 0xC020660B, 1, 0x2000
FIEMAP, EXTENT = struct.Struct("=QQIIII"), struct.Struct("=QQQQQIIII")
EXTENTS = 16  # as many as fit in what ioctl takes at once


@contextlib.contextmanager
def mounted(at: Path, *command: object) -> Iterator[Path]:
    """A file system at ``at`` for a while; ``command`` is what follows ``mount``."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    at.mkdir()
    done = subprocess.run(["mount", *map(str, command), at], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this kernel does not mount it: {done.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


@contextlib.contextmanager
def reflinking(at: Path, kind: str) -> Iterator[Path]:
    """An empty file system that has reflinks, ``xfs`` or ``btrfs``, on a file beside ``at``."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    program = shutil.which(MKFS[kind][0], path=path)
    if program is None:
        pytest.skip(f"{MKFS[kind][0]} is not installed")
    image = at.with_suffix(".image")
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run([program, *MKFS[kind][1:], image], check=True)
    try:
        with mounted(at, "-o", "loop", image):
            yield at
    finally:
        image.unlink()


def extents(path: Path) -> List[Tuple[int, int, bool]]:
    """Where a file's content is on its disk: offset on the disk, length, and whether other files have it too."""
    request = FIEMAP.pack(0, 1 << 62, FIEMAP_FLAG_SYNC, 0, EXTENTS, 0) + bytes(EXTENT.size * EXTENTS)
    with open(path, "rb") as file:
        answer = fcntl.ioctl(file, FS_IOC_FIEMAP, request)
    count = FIEMAP.unpack_from(answer)[3]
    found = [EXTENT.unpack_from(answer, FIEMAP.size + number * EXTENT.size) for number in range(count)]
    return [(one[1], one[2], bool(one[5] & FIEMAP_EXTENT_SHARED)) for one in found]
