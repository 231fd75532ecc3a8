# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees: what counts of a directory, listed in one order and named by one digest.

A tree is a directory with all that counts in it: path, type, permission bits, size, and content or link target. Owners and
times do not count, nor do set-user-ID bits (nothing here carries them) nor ``__pycache__`` (what was imported when must not
change what an environment is). Everything is in bytes, since file names are.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import stat
import threading
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

IGNORED_NAME = b"__pycache__"
HASH_SIZE = 256 << 10  # one read; small enough to stay in a processor's cache

FILE, DIRECTORY, LINK = "f", "d", "l"
SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX

_buffers = threading.local()


class TreeError(Exception):
    """A tree that cannot be read or moved as it stands; the message names the path and the way out."""


class Entry(NamedTuple):
    """One thing in a tree, seen at one moment.

    ``path`` is relative to the root with ``/`` between names. ``mode`` holds the nine permission bits (0 for links). ``size``
    is in bytes (0 for directories and links). ``inode``, ``mtime_ns`` and ``ctime_ns`` do not count for identity; they tell
    whether a file is still the one that was hashed.
    """

    path: bytes
    kind: str
    mode: int
    size: int
    target: bytes
    mtime_ns: int
    ctime_ns: int
    inode: int
    nlink: int


def show(path: bytes) -> str:
    """A path for people and JSON: UTF-8 where it is, escaped where it is not."""
    return path.decode("utf-8", "backslashreplace")


def compile_exclude(patterns: Sequence[str]) -> Optional[re.Pattern[bytes]]:
    """Shell patterns as one expression over relative paths; ``None`` when there are none.

    A pattern without ``/`` matches a name at any depth, one with ``/`` matches from the root of the tree.
    """
    parts = []
    for pattern in patterns:
        anchored = "/" in pattern.rstrip("/")
        translated = fnmatch.translate(pattern.strip("/"))
        parts.append(translated if anchored else f"(?:.*/)?{translated}")
    if not parts:
        return None
    return re.compile("|".join(f"(?:{part})" for part in parts).encode("utf-8", "surrogateescape"), re.DOTALL)


def scan(
    root: bytes, exclude: Sequence[str] = (), special: Optional[Dict[bytes, int]] = None, strict: bool = True
) -> List[Entry]:
    """All entries below ``root``, sorted by path, so that a directory comes before what is in it.

    ``special`` is filled with the modes of files that have set-user-ID, set-group-ID or sticky bits. Unless ``strict``, what
    cannot be read or carried is passed over.
    Raises TreeError for what no environment can be made of: device nodes, sockets, FIFOs, unreadable directories.
    """
    excluded = compile_exclude(exclude)
    entries: List[Entry] = []
    pending = [b""]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(os.path.join(root, directory) if directory else root) as found:
                for item in found:
                    if item.name == IGNORED_NAME:
                        continue
                    path = os.path.join(directory, item.name)
                    if excluded and excluded.match(path):
                        continue
                    try:
                        st = item.stat(follow_symlinks=False)
                        entry = _entry(path, item.path, st)
                    except (FileNotFoundError, TreeError):
                        if strict:
                            raise
                        continue
                    entries.append(entry)
                    if st.st_mode & SPECIAL_BITS and entry.kind == FILE and special is not None:
                        special[path] = stat.S_IMODE(st.st_mode)
                    if entry.kind == DIRECTORY:
                        pending.append(path)
        except OSError as error:
            if not strict:
                continue
            place = os.fsencode(error.filename) if error.filename else os.path.join(root, directory)
            raise TreeError(f"{show(place)}: {error.strerror}") from error
    entries.sort()
    return entries


def _entry(path: bytes, full: bytes, st: os.stat_result) -> Entry:
    kind, size, mode, target = DIRECTORY, 0, st.st_mode & 0o777, b""
    if stat.S_ISREG(st.st_mode):
        kind, size = FILE, st.st_size
    elif stat.S_ISLNK(st.st_mode):
        kind, mode, target = LINK, 0, os.readlink(full)
    elif not stat.S_ISDIR(st.st_mode):
        what = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(st.st_mode), "a device node")
        raise TreeError(f"{show(full)} is {what}, which no environment needs; remove it or exclude it")
    return Entry(path, kind, mode, size, target, st.st_mtime_ns, st.st_ctime_ns, st.st_ino, st.st_nlink)


# Not waiting, since what was a file when it was scanned may be a FIFO by now.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _open(full: bytes) -> int:
    try:
        return os.open(full, _OPEN_FLAGS)
    except OSError as error:
        raise TreeError(f"{show(full)}: {error.strerror}") from error


@contextlib.contextmanager
def open_scanned(root: bytes, entry: Entry) -> Iterator[int]:
    """A descriptor of a scanned file; raises TreeError when it is no longer the file that was scanned, before or after."""
    full = os.path.join(root, entry.path)
    fd = _open(full)
    try:
        _check_unchanged(full, entry, os.fstat(fd))
        yield fd
        _check_unchanged(full, entry, os.fstat(fd))
    finally:
        os.close(fd)


def _check_unchanged(full: bytes, entry: Entry, st: os.stat_result) -> None:
    if (st.st_ino, st.st_size, st.st_mtime_ns) != (entry.inode, entry.size, entry.mtime_ns):
        raise changed_while_read(full)


def changed_while_read(full: bytes) -> TreeError:
    return TreeError(f"{show(full)} changed while it was read; stop what writes to the environment and run again")


def hash_file(root: bytes, entry: Entry) -> str:
    """SHA-256 of a scanned file, in hex. For many small files, so without what a context manager costs."""
    digest = hashlib.sha256()
    full = root + b"/" + entry.path
    fd = _open(full)
    try:
        _check_unchanged(full, entry, os.fstat(fd))
        hash_into(digest, fd, entry.size, full)
        _check_unchanged(full, entry, os.fstat(fd))
    finally:
        os.close(fd)
    return digest.hexdigest()


def hash_into(digest: Any, fd: int, size: int, full: bytes) -> None:
    """Feed the next ``size`` bytes of an open file to a hash; raises TreeError when it is shorter."""
    buffer = getattr(_buffers, "view", None)
    if buffer is None:
        buffer = _buffers.view = memoryview(bytearray(HASH_SIZE))
    left = size
    while left:
        count = os.readv(fd, [buffer[: min(left, HASH_SIZE)]])
        if not count:
            raise changed_while_read(full)
        digest.update(buffer[:count])
        left -= count


def tree_digest(entries: Iterable[Entry], hashes: Dict[bytes, str]) -> str:
    """The name of a tree: SHA-256 over its sorted entries, in hex. Equal digests mean equal trees."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        if entry.kind == FILE:
            content = hashes[entry.path]
        elif entry.kind == LINK:
            content = hashlib.sha256(entry.target).hexdigest()
        else:
            content = "-"
        digest.update(f"{entry.kind} {entry.mode:04o} {content} ".encode() + entry.path + b"\0")
    return digest.hexdigest()
