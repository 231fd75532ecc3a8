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
import json
import os
import tempfile
import time
from typing import Dict, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry

QUIET_NS = 2_000_000_000
FORMAT = 1

Record = Tuple[int, int, int, str]


def index_path(directory: bytes) -> bytes:
    """Where the hashes of files below ``directory`` are remembered between runs: never inside it."""
    base = "/var/cache" if os.geteuid() == 0 else os.path.expanduser("~/.cache")
    name = hashlib.sha256(directory).hexdigest()[:16] + ".json"
    return os.path.join(os.fsencode(base), b"ddtree-fleet", name.encode())


class HashIndex:
    """Hashes by inode, kept in one JSON file. A missing, damaged or foreign file is an empty index, never an error."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._stored: Dict[int, Record] = {}
        self._live: Dict[int, Record] = {}
        try:
            with open(path, encoding="ascii") as file:
                data = json.load(file)
            if data["format"] == FORMAT:
                for inode, (size, mtime_ns, ctime_ns, sha256) in data["files"].items():
                    self._stored[int(inode)] = (size, mtime_ns, ctime_ns, sha256)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._stored = {}

    def lookup(self, entry: Entry) -> Optional[str]:
        """The SHA-256 of a file that is still what it was when it was hashed, else ``None``."""
        record = self._stored.get(entry.inode)
        if record is None or record[:3] != (entry.size, entry.mtime_ns, entry.ctime_ns):
            return None
        self._live[entry.inode] = record
        return record[3]

    def add(self, entry: Entry, sha256: str, seen_ns: Optional[int] = None) -> None:
        """Record the hash of a file as it was seen at ``seen_ns`` (now when absent), if it had been quiet for long enough."""
        seen = time.time_ns() if seen_ns is None else seen_ns
        if seen - entry.ctime_ns > QUIET_NS:
            record = (entry.size, entry.mtime_ns, entry.ctime_ns, sha256)
            self._stored[entry.inode] = self._live[entry.inode] = record

    def save(self) -> None:
        """Write what was looked up or added since loading; records of files nobody asked for are dropped.

        Where nothing can be written (no home, a full disk), the next run reads the files again; that is no error.
        """
        with contextlib.suppress(OSError):
            self._write()

    def _write(self) -> None:
        directory = os.path.dirname(self.path)
        if not os.path.isdir(directory):
            os.makedirs(directory, exist_ok=True)
            # Caches of services, which may run as other users, lie in it too. The index files themselves are 0600.
            os.chmod(directory, 0o755)
        fd, temporary = tempfile.mkstemp(dir=directory, prefix=b".index-")
        try:
            with open(fd, "w", encoding="ascii") as file:
                json.dump({"format": FORMAT, "files": self._live}, file, separators=(",", ":"))
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
