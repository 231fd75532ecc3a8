# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port of this host: proves that the unit's own server answers, not one that took the port."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from typing import Dict, List, Optional, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

COMMAND_LIMIT = 200
READ_LIMIT = 128 << 10
WILDCARDS = {"0.0.0.0", "::"}


@dataclass(frozen=True)
class Holder:
    """A process that holds a listening socket. ``command`` may hold secrets and be long: return what ``named`` gives."""

    pid: int
    command: str
    control_groups: Tuple[str, ...]

    def named(self, redactor: Redactor) -> str:
        return redactor.bounded(self.command, COMMAND_LIMIT)

    def inside(self, control_group: str) -> bool:
        # Seen from within a container the kernel's path may carry the container's own prefix.
        return any(f"{control_group.rstrip('/')}/" in f"{path}/" for path in self.control_groups)


@dataclass(frozen=True)
class Listener:
    """One listening socket and the processes that hold it (none where /proc may not be read)."""

    address: str
    holders: Tuple[Holder, ...]


def listeners(host: str, port: int) -> List[Listener]:
    """The listening TCP sockets of this network namespace that a connection to ``host:port`` could reach.

    A ``host`` that is no address of this machine gives an empty list, as does a port on which nobody listens.
    """
    return _listening(port, _addresses(host) | WILDCARDS)


def obstacles(host: str, port: int) -> List[Listener]:
    """The listening TCP sockets that are in the way of one at ``host:port``; for a wildcard, all on that port."""
    addresses = _addresses(host)
    return _listening(port, None if addresses & WILDCARDS else addresses | WILDCARDS)


def _listening(port: int, wanted: Optional[Set[str]]) -> List[Listener]:
    """The listening TCP sockets on ``port`` at the addresses ``wanted``, or at any."""
    sockets: Dict[str, str] = {}
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        for address, inode in _table(table, family, port):
            if wanted is None or address in wanted:
                sockets[inode] = address
    if not sockets:
        return []
    holding = _holding(set(sockets))
    return [
        Listener(address, tuple(_holder(pid) for pid in holding.get(inode, []))) for inode, address in sockets.items()
    ]


def _addresses(host: str) -> Set[str]:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
    return found | {f"::ffff:{address}" for address in found if ":" not in address}


def _table(path: str, family: int, port: int) -> List[Tuple[str, str]]:
    """(address, inode) of the listening sockets on ``port`` in /proc/net/tcp or tcp6."""
    try:
        with open(path, encoding="ascii") as stream:
            rows = [line.split() for line in stream.readlines()[1:]]
    except OSError:
        return []
    found = []
    for row in rows:
        digits, _colon, row_port = row[1].partition(":")
        if row[3] == "0A" and int(row_port, 16) == port:
            words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
            found.append((socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), row[9]))
    return found


def _holding(inodes: Set[str]) -> Dict[str, List[int]]:
    links = {f"socket:[{inode}]": inode for inode in inodes}
    found: Dict[str, List[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                inode = links.get(os.readlink(f"/proc/{name}/fd/{descriptor}"))
            except OSError:
                continue
            if inode is not None:
                found.setdefault(inode, []).append(int(name))
    return found


def _holder(pid: int) -> Holder:
    command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or _read(f"/proc/{pid}/comm").strip()
    groups = tuple(line.split(":", 2)[2] for line in _read(f"/proc/{pid}/cgroup").splitlines() if line.count(":") >= 2)
    return Holder(pid, command, groups)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(READ_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
