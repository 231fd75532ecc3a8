# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hash index: what files were when they were last hashed, so that unchanged trees are not read again.

One record an inode (size, mtime, ctime, SHA-256), so that hard links share one by construction and a new link, which changes
the ctime of all of them, needs one new record. A record is only kept when the file had been quiet for two seconds when it was
made: a later write then cannot hide behind the same ctime.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
from typing import Dict, Optional, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry

QUIET_NS = 2_000_000_000
# For files that this process wrote itself: their times were set to the past, so an edit shows in mtime, and an edit that puts
# mtime back shows in ctime as soon as the clock that file systems read has moved on.
OWN_QUIET_NS = 20_000_000
MAGIC = b"ddtree-index 2\n"
KEY = struct.Struct(">Q")
STATE = struct.Struct(">Qqq")
HASH_BYTES = 32
RECORD_BYTES = KEY.size + STATE.size + HASH_BYTES


def index_path(directory: bytes) -> bytes:
    """Where the hashes of files below ``directory`` are remembered between runs: never inside it."""
    base = "/var/cache" if os.geteuid() == 0 else os.path.expanduser("~/.cache")
    name = hashlib.sha256(directory).hexdigest()[:16]
    return os.path.join(os.fsencode(base), b"ddtree-fleet", name.encode())


class HashIndex:
    """Hashes by inode, kept in one file. A missing, damaged or foreign file, one of another user's too, is an empty index,
    never an error."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._records: Dict[int, bytes] = {}
        self._used: Set[int] = set()
        self._changed = False
        try:
            with open(path, "rb") as file:
                st = os.fstat(file.fileno())
                if st.st_uid != os.geteuid() or st.st_mode & 0o022:
                    return
                data = file.read()
        except OSError:
            return
        body = len(data) - len(MAGIC)
        if data.startswith(MAGIC) and body % RECORD_BYTES == 0:
            for start in range(len(MAGIC), len(data), RECORD_BYTES):
                (inode,) = KEY.unpack_from(data, start)
                self._records[inode] = data[start + KEY.size : start + RECORD_BYTES]

    def lookup(self, entry: Entry) -> Optional[str]:
        """The SHA-256 of a file that is still what it was when it was hashed, else ``None``."""
        record = self._records.get(entry.inode)
        if record is None or not record.startswith(_state(entry)):
            return None
        self._used.add(entry.inode)
        return record[STATE.size :].hex()

    def add(self, entry: Entry, sha256: str, seen_ns: Optional[int] = None, quiet_ns: int = QUIET_NS) -> None:
        """Record the hash of a file as it was seen at ``seen_ns`` (now when absent), if it had been quiet for long enough."""
        seen = time.time_ns() if seen_ns is None else seen_ns
        if seen - entry.ctime_ns > quiet_ns:
            self._records[entry.inode] = _state(entry) + bytes.fromhex(sha256)
            self._used.add(entry.inode)
            self._changed = True

    def save(self, prune: bool = False) -> None:
        """Write the records if there are new ones. ``prune`` drops those that nobody looked up or added since loading.

        Where nothing can be written (no home, a full disk), the next run reads the files again; that is no error.
        """
        if prune and len(self._used) < len(self._records):
            self._records = {inode: self._records[inode] for inode in self._used}
            self._changed = True
        if self._changed:
            with contextlib.suppress(OSError):
                self._write()
                self._changed = False

    def _write(self) -> None:
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            # Caches of services, which may run as other users, lie in it too. The index files themselves are 0600.
            os.chmod(directory, 0o755)
        fd, temporary = tempfile.mkstemp(dir=directory, prefix=b".index-")
        try:
            with open(fd, "wb") as file:
                file.write(MAGIC)
                for inode, record in list(self._records.items()):
                    file.write(KEY.pack(inode) + record)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise


def _state(entry: Entry) -> bytes:
    """What changes when a file changes."""
    return STATE.pack(entry.size, entry.mtime_ns, entry.ctime_ns)
