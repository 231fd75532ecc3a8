# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Single files: how their names are shown, and reading them without waiting for what is none."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import IO, BinaryIO, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import show

READ_SIZE = 1 << 20


def show_name(path: str) -> str:
    """A file name for people and JSON, also where it is not UTF-8."""
    return show(os.fsencode(path))


def some(names: Sequence[str], limit: int = 10) -> str:
    """The first names for a message."""
    more = len(names) - limit
    return ", ".join(show_name(name) for name in names[:limit]) + (f" and {more} more" if more > 0 else "")


def open_regular(path: str) -> BinaryIO:
    """A regular file to read from; raises OSError, and never waits for what is no file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    raise OSError(0, "Is a directory" if stat.S_ISDIR(mode) else "no regular file", path)


def read_beginning(path: str, limit: int) -> bytes:
    """The first bytes of a regular file; raises OSError as ``open_regular`` does."""
    with open_regular(path) as file:
        return file.read(limit)


def hash_of(file: IO[bytes], algorithm: str = "sha256") -> bytes:
    """The hash of what an open file holds."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    data = file.read(READ_SIZE)
    while data:
        digest.update(data)
        data = file.read(READ_SIZE)
    return digest.digest()
