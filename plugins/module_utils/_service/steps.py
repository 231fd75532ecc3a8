# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small steps that switching to a release and going back from it are made of. Each looks first and does only what is not so."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    ReleaseError,
    remove_link,
    sync_directory,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family, units
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import Files
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Served, State
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit

STOP, WAIT, START = "stop", "wait until free", "start"


@dataclass
class Steps:
    """What was done and how long it took, and what went wrong without being a reason to stop."""

    taken: List[Dict[str, Any]] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    start_seconds: Optional[float] = None  # from the call to the new invocation, without what takes as long as it does

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.taken.append({"name": name, "seconds": round(time.monotonic() - began, 3)})
            if name == START:
                self.start_seconds = round(time.monotonic() - self.began - self.seconds(STOP, WAIT), 3)

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """What may fail without stopping the rest; it becomes a remark."""
        try:
            yield
        except OSError as error:
            self.remarks.append(f"{what}: {error.filename or ''}: {error.strerror or error}")
        except (ReleaseError, ServiceError) as error:
            self.remarks.append(f"{what}: {error}")

    def seconds(self, *names: str) -> float:
        return round(sum(item["seconds"] for item in self.taken if item["name"] in names), 3)


def link_text(dest: str) -> Optional[str]:
    """Where the link at dest leads; None when there is no link."""
    try:
        return os.readlink(dest)
    except OSError:
        return None


def lead(dest: str, target: Optional[str]) -> bool:
    """Let dest lead to ``target``, in one rename, or nowhere. Gives whether that changed anything."""
    if link_text(dest) == target:
        return False
    if target is None:
        remove_link(dest)
    else:
        temporary = f"{dest}.{os.getpid()}.new"
        remove_link(temporary)
        os.symlink(target, temporary)
        os.replace(temporary, dest)
    sync_directory(os.path.dirname(dest))
    return True


def read_keys(paths: Paths) -> Files:
    """The key files of a family; empty when it has none."""
    try:
        names = sorted(os.listdir(paths.keys))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found = {name: family.read_file(os.path.join(paths.keys, name)) for name in names}
    return {name: file for name, file in found.items() if file is not None}


def present_state(paths: Paths, dest: str, found: Dict[str, Unit]) -> State:
    """What a host serves now."""
    files = family.read(paths.units, paths.stem)
    enabled = family.enabled(paths.stem, files)
    served = {
        name: Served(unit.up, unit.invocation if unit.up else "", unit.group)
        for name, unit in found.items()
        if unit.up or name in enabled
    }
    return State(link_text(dest), files, read_keys(paths), served)


def unchanged(unit: str, one: State, other: State) -> bool:
    """Whether a unit runs the same in two states."""
    return one.link == other.link and family.of_unit(unit, one.files) == family.of_unit(unit, other.files)


def groups_of(state: State) -> Dict[str, str]:
    return {name: unit.group for name, unit in state.units.items() if unit.group}


def not_started(names: List[str], found: Dict[str, Unit], old: Dict[str, Unit]) -> List[str]:
    """Of units that were told to start, those that did not, in words."""
    problems = []
    for name in names:
        unit = found.get(name)
        if unit is None or unit.load == "not-found":
            problems.append(f"{name}: systemd knows no such unit")
        elif not unit.up:
            problems.append(f"{name} did not start: {unit.ending()}")
        elif name in old and old[name].up and unit.invocation == old[name].invocation:
            problems.append(f"{name} was not started anew")
    return problems


def reload() -> None:
    units.systemctl("daemon-reload")
