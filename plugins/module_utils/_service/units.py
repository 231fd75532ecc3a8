# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd does with the units of a family: look, stop, start. Every wait is bounded, and only our own processes are ended."""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError, is_runnable

ANSWER_SECONDS = 60
START_SECONDS = 30
KILL_SECONDS = 30
POLL_SECONDS = 0.05
PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,ExecMainStatus,InvocationID,ControlGroup,Job,ExecStart,DropInPaths,UnitFileState,"
    "InactiveExitTimestampMonotonic,ActiveEnterTimestamp"
)


@dataclass(frozen=True)
class Unit:
    """One look at a unit. ``started``: when it last left the inactive state, in seconds of the monotonic clock; ``since``: when it
    became active, as systemd writes it."""

    name: str
    load: str
    active: str
    sub: str
    result: str
    exit_status: str
    invocation: str
    group: str
    job: bool
    commands: List[str]
    drop_ins: List[str]
    enabled: str
    started: float
    since: str

    @property
    def up(self) -> bool:
        """It runs, or is on its way to."""
        return self.active in ("active", "reloading", "activating") and not self.sub.startswith("auto-restart")

    @property
    def down(self) -> bool:
        """It does not run, and nothing is going to change that."""
        return self.active in ("inactive", "failed", "") and not self.job

    def ending(self) -> str:
        """How it ended, for a message."""
        status = f", exit status {self.exit_status}" if self.exit_status not in ("", "0") else ""
        return f"{self.active or 'unknown'} ({self.sub}, result {self.result}{status})"


def systemctl(*words: str, seconds: float = ANSWER_SECONDS) -> str:
    """What systemctl prints; raises ServiceError when it fails or does not answer."""
    try:
        return _systemd.output(["systemctl", *words], seconds)
    except _systemd.SystemdError as error:
        raise ServiceError(str(error)) from error


def look(stem: str, names: Iterable[str] = ()) -> Dict[str, Unit]:
    """The units of these names and all that systemd has loaded of the family, in one call."""
    output = systemctl(
        "show",
        "--no-pager",
        f"--property={PROPERTIES}",
        "--",
        *sorted({f"{stem}.service", *names}),
        f"{stem}@*.service",
    )
    found = {}
    for block in output.split("\n\n"):
        lines = [line.partition("=") for line in block.splitlines()]
        values = {name: value for name, _equals, value in lines}
        name = values.get("Id", "")
        if is_runnable(stem, name):
            found[name] = Unit(
                name=name,
                load=values.get("LoadState", ""),
                active=values.get("ActiveState", ""),
                sub=values.get("SubState", ""),
                result=values.get("Result", ""),
                exit_status=values.get("ExecMainStatus", ""),
                invocation=values.get("InvocationID", ""),
                group=values.get("ControlGroup", ""),
                job=values.get("Job", "") not in ("", "0"),
                commands=[value for key, _equals, value in lines if key == "ExecStart"],
                drop_ins=values.get("DropInPaths", "").split(),
                enabled=values.get("UnitFileState", ""),
                started=int(values.get("InactiveExitTimestampMonotonic") or 0) / 1e6,
                since=values.get("ActiveEnterTimestamp", ""),
            )
    return found


def stop(paths: Paths, units: Sequence[Unit], groups: Dict[str, str], seconds: float) -> None:
    """Stop units, and end what is left in their control groups; after ``seconds`` they get SIGKILL.

    ``groups``: control groups by unit that are known from earlier looks; systemd forgets that of a unit whose main process ended.
    Raises ServiceError when processes are left that even SIGKILL does not end.
    """
    names = [unit.name for unit in units if not unit.down]
    if names:
        systemctl("stop", "--no-block", "--", *names)
        waiting = _await_down(paths.stem, names, seconds)
        if waiting:
            with contextlib.suppress(ServiceError):  # systemd may see its end meanwhile
                systemctl("kill", "--signal=KILL", "--", *waiting)
            for unit in units:
                _kill(paths, {unit.group, groups.get(unit.name, "")})
            waiting = _await_down(paths.stem, waiting, KILL_SECONDS)
        if waiting:
            raise ServiceError(
                f"{', '.join(waiting)} did not stop within {seconds:.0f} s, nor {KILL_SECONDS} s after SIGKILL; a process "
                "that waits for a device cannot be ended: look at the kernel log"
            )
    for unit in units:
        _end_left(paths, unit.name, {unit.group, groups.get(unit.name, ""), *_groups_named(paths, unit.name)})


def _groups_named(paths: Paths, name: str) -> Iterator[str]:
    """The control groups that carry a unit's name: what one that ended long ago left is there, whatever systemd still knows."""
    for hierarchy in paths.control_groups:
        for place in ("/system.slice/", "/system.slice/*/"):
            for found in glob.glob(glob.escape(hierarchy) + place + glob.escape(name)):
                yield found[len(hierarchy) :]


def _await_down(stem: str, names: Sequence[str], seconds: float) -> List[str]:
    """Wait until units are down; gives those that are not."""
    deadline = time.monotonic() + seconds
    while True:
        found = look(stem, names)
        waiting = [name for name in names if name in found and not found[name].down]
        if not waiting or time.monotonic() >= deadline:
            return waiting
        time.sleep(POLL_SECONDS)


def _end_left(paths: Paths, name: str, groups: Iterable[str]) -> None:
    """End what a unit left when it stopped, which one with KillMode=process does."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        left = _processes(paths, groups)
        if not left:
            return
        if time.monotonic() >= deadline:
            pids = ", ".join(map(str, sorted(left)))
            raise ServiceError(f"{name} left processes that SIGKILL does not end ({pids}); look at the kernel log")
        _kill(paths, groups)
        time.sleep(POLL_SECONDS)


def _kill(paths: Paths, groups: Iterable[str]) -> None:
    for pid in _processes(paths, groups):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes(paths: Paths, groups: Iterable[str]) -> List[int]:
    """The processes in control groups and those below them, but for this one."""
    found = {pid for group in groups for pid in _systemd.processes_of(group, paths.control_groups)}
    return sorted(found - {0, 1, os.getpid()})


def start(stem: str, names: Sequence[str], wait: bool = True) -> Dict[str, Unit]:
    """Start units and look at them once systemd has; gives the looks. Not ``wait``: systemd does it when it may.

    Type=exec and simple are there at once; one that says itself when it is ready may take longer than this waits, which is no error.
    """
    with contextlib.suppress(ServiceError):  # an earlier failure or too many starts, or nothing to forget
        systemctl("reset-failed", "--", *names)
    systemctl("start", "--no-block", "--", *names)
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = look(stem, names)
        if not wait or time.monotonic() >= deadline or not any(found[name].job for name in names if name in found):
            return {name: found[name] for name in names if name in found}
        time.sleep(POLL_SECONDS)
