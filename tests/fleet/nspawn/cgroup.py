# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One control group per test host: it keeps the hosts' systemd instances apart and lists what belongs to a host.

Two systemd instances started from the same control group would share one tree of units and end each other's
processes. And a process found in a host's group is certainly of that host, however its parents died.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .shell import FleetError, wait_until


def hierarchies() -> list[Path]:
    """Mount points of all control group hierarchies (several with version 1 or hybrid, one with version 2)."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, where, fstype, *_rest = line.split()
        if fstype in ("cgroup", "cgroup2"):
            found.append(Path(where))
    return found


def group_paths(name: str) -> list[Path]:
    """Directories of the group ``name`` in every hierarchy."""
    return [hierarchy / name for hierarchy in hierarchies()]


def create(name: str) -> list[Path]:
    """Create the group everywhere and return the directories a process must be written to in order to join it."""
    paths = group_paths(name)
    for path in paths:
        for level in (path.parent, path):
            try:
                level.mkdir(exist_ok=True)
                _inherit_cpuset(level)
            except OSError as exc:
                raise FleetError(f"cannot create the control group {level}: {exc.strerror}") from exc
    return paths


def _inherit_cpuset(path: Path) -> None:
    """A version 1 cpuset starts empty and takes no process before it has processors and memory nodes."""
    for item in ("cpuset.cpus", "cpuset.mems"):
        target, given = path / item, path.parent / item
        if target.exists() and given.exists() and not target.read_text().strip():
            target.write_text(given.read_text())


def processes(name: str) -> set[int]:
    """Pids of all processes in the group ``name`` and below, in any hierarchy."""
    pids: set[int] = set()
    for top in group_paths(name):
        for directory, _names, _files in os.walk(top):
            try:
                pids.update(int(pid) for pid in (Path(directory) / "cgroup.procs").read_text().split())
            except OSError:
                continue
    return pids - {0}


def kill(name: str) -> None:
    """End every process in the group and remove the group."""

    def emptied() -> bool:
        left = processes(name)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    if not wait_until(emptied, timeout=20):
        raise FleetError(f"control group {name}: processes {sorted(processes(name))} do not end on SIGKILL")
    for top in group_paths(name):
        _remove_tree(top)


def _remove_tree(top: Path) -> None:
    for directory, _names, _files in os.walk(top, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            continue
