# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Placing: content that is on this host already becomes a file of a new tree, by reflink, hard link or copy."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from typing import Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    SPECIAL_BITS,
    Entry,
    TreeError,
    hash_into,
    open_scanned,
    show,
)

FICLONE = 0x40049409
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
COPIED_AT_ONCE = 64 << 20
NOT_HERE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)
REFLINKED, LINKED, COPIED = "reflinked", "linked", "copied"


def write_error(path: bytes, error: OSError) -> TreeError:
    return TreeError(f"{show(path)}: {error.strerror}; what arrived stays there, and the next run goes on with it")


class Placer:
    """Makes files below ``tree`` out of others. Tries a reflink until the file system has said that it has none."""

    def __init__(self, tree: bytes) -> None:
        self._tree = tree
        self._reflinks = True
        self._kernel_copies = True

    def place(self, root: bytes, old: Entry, new: Entry, sha256: str, link: bool, trusted: bool) -> str:
        """Make the file of ``new`` with the content of ``old`` below ``root``; gives how.

        ``link``: sharing the inode is allowed, and ``old`` has the mode and times of ``new``. Unless ``trusted``, what is copied
        is hashed. Raises TreeError when ``old`` is no longer what it was when it was hashed.
        """
        path = os.path.join(self._tree, new.path)
        with open_scanned(root, old) as source:
            st = os.fstat(source)
            link = link and not st.st_mode & SPECIAL_BITS  # which an inode has everywhere or nowhere
            if trusted and st.st_ctime_ns != old.ctime_ns and not link:
                trusted = False
            fd = self._reflink(source, path) if trusted else None
            how = REFLINKED
            if fd is None and link and self._link(os.path.join(root, old.path), path):
                return LINKED
            try:
                if fd is None:
                    how = COPIED
                    fd = os.open(path, NEW_FILE, 0o600)
                    self._copy(source, fd, old, os.path.join(root, old.path), "" if trusted else sha256)
                os.fchmod(fd, new.mode)
                os.utime(fd, ns=(new.mtime_ns, new.mtime_ns))
            except OSError as error:
                raise write_error(path, error) from error
            finally:
                if fd is not None:
                    os.close(fd)
        return how

    def _reflink(self, source: int, path: bytes) -> Optional[int]:
        if not self._reflinks:
            return None
        fd = os.open(path, NEW_FILE, 0o600)
        try:
            fcntl.ioctl(fd, FICLONE, source)
        except OSError as error:
            os.close(fd)
            os.unlink(path)
            if error.errno not in NOT_HERE:
                raise write_error(path, error) from error
            # For a seed on another file system this is so while a release could be cloned; a link or copy does as well then.
            self._reflinks = error.errno == errno.EXDEV
            return None
        return fd

    @staticmethod
    def _link(old: bytes, new: bytes) -> bool:
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EXDEV, errno.EPERM):
                return False
            raise
        return True

    def _copy(self, source: int, target: int, old: Entry, full: bytes, sha256: str) -> None:
        """Copy a whole file, holes left out. With ``sha256``, what was read must have it."""
        position = 0
        while position < old.size:
            try:
                position = os.lseek(source, position, os.SEEK_DATA)
                end = min(os.lseek(source, position, os.SEEK_HOLE), old.size)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    break
                position, end = 0, old.size
            self._copy_range(source, target, position, end)
            position = end
        os.ftruncate(target, old.size)
        if sha256:
            digest = hashlib.sha256()
            os.lseek(target, 0, os.SEEK_SET)
            hash_into(digest, target, old.size, full)
            if digest.hexdigest() != sha256:
                raise TreeError(f"{show(full)} is not what it was when it was hashed; run again with verify: full")

    def _copy_range(self, source: int, target: int, start: int, end: int) -> None:
        while start < end and self._kernel_copies:
            try:
                count = os.copy_file_range(source, target, min(end - start, COPIED_AT_ONCE), start, start)
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
                self._kernel_copies = False
                break
            if not count:
                break
            start += count
        while start < end:
            data = os.pread(source, min(end - start, 1 << 20), start)
            if not data:
                return
            start += os.pwrite(target, data, start)
