# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says about a unit, and the journal of one of its invocations. Read only; every call is bounded."""

from __future__ import annotations

import glob
import os
import re
import select
import subprocess
import time
from dataclasses import dataclass
from typing import IO, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,ExecMainStatus,InvocationID,NRestarts,MainPID,ControlGroup,Environment,"
    "EnvironmentFiles"
)
ANSWER_SECONDS = 30
# Where the control groups of units stand: in the one hierarchy of today, or in one of two of an older host.
CONTROL_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
LINE_LIMIT = 400
# What is read of one line of a whole journal, and of one file of variables.
LONGEST_LINE = 1 << 16
LARGEST_ENVIRONMENT = 1 << 20


class SystemdError(Exception):
    """systemctl or journalctl is missing, fails or does not answer."""


@dataclass(frozen=True)
class Variable:
    """Where an environment variable of a unit is set: values by place; ``unread`` are places that nobody could look at."""

    settings: Dict[str, str]
    unread: Tuple[str, ...] = ()


@dataclass(frozen=True)
class UnitState:
    """One look at a unit. ``environment`` may hold secrets: never return it."""

    unit: str
    load: str
    active: str
    sub: str
    result: str
    exit_status: str
    invocation: str
    restarts: int
    main_pid: int
    control_group: str
    environment: str
    environment_files: Tuple[str, ...] = ()

    def down(self, first: Optional[UnitState] = None, fresh: bool = False) -> str:
        """Why this unit is not up, or not in the invocation of its ``first`` look any more; empty when it is.

        ``fresh``: it was just started, so that systemd may not have restarted it before the first look either.
        """
        if self.load == "not-found":
            return "systemd knows no such unit"
        ended = f"exit status {self.exit_status}" if self.exit_status not in ("", "0") else ""
        details = ", ".join(part for part in (self.sub, f"result {self.result}" if self.result else "", ended) if part)
        if self.active in ("failed", "inactive", "deactivating") or self.sub.startswith("auto-restart"):
            return f"{self.active} ({details})"
        if fresh and self.restarts > 0:
            return f"{self.active}, but systemd has restarted it {self.restarts} times since it was started"
        if first is not None and self.restarts > first.restarts:
            return (
                f"{self.active}, but systemd restarted it while the gate ran "
                f"(its {first.restarts} restarts became {self.restarts})"
            )
        if first is not None and first.invocation and self.invocation != first.invocation:
            return (
                f"{self.active}, but it was started anew while the gate ran "
                f"(invocation {first.invocation} became {self.invocation})"
            )
        return ""


def output(argv: List[str], seconds: Optional[float] = None) -> str:
    """What a command of systemd prints. Raises SystemdError where it fails, or has not ended after ``seconds``."""
    seconds = ANSWER_SECONDS if seconds is None else seconds
    try:
        # run_command of AnsibleModule knows no time-out.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            check=False,
        )
    except OSError as error:
        raise SystemdError(f"{argv[0]} cannot be run ({error}); this needs a host that systemd runs") from error
    except subprocess.TimeoutExpired as error:
        raise SystemdError(f"{argv[0]} did not answer within {seconds:g} s; look at systemd on this host") from error
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise SystemdError(f"{' '.join(argv[:2])} failed: {reason}")
    return done.stdout.decode("utf-8", "replace")


def show(unit: str) -> UnitState:
    """The unit's state now. A unit that does not exist is a state too (``load`` is ``not-found``)."""
    said = output(["systemctl", "show", "--no-pager", f"--property={PROPERTIES}", "--", unit])
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return UnitState(
        unit=unit,
        load=values.get("LoadState", ""),
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        exit_status=values.get("ExecMainStatus", ""),
        invocation=values.get("InvocationID", ""),
        restarts=int(values.get("NRestarts") or 0),
        main_pid=int(values.get("MainPID") or 0),
        control_group=values.get("ControlGroup", ""),
        environment=values.get("Environment", ""),
        # One line a file: "/etc/default/server (ignore_errors=yes)".
        environment_files=tuple(
            line.split("=", 1)[1].rsplit(" (", 1)[0]
            for line in said.splitlines()
            if line.startswith("EnvironmentFiles=/")
        ),
    )


def expanded(names: Sequence[str]) -> List[str]:
    """The names, with those that are patterns such as ``sglang@*.service`` replaced by the units that systemd has loaded."""
    patterns = [name for name in names if "*" in name]
    loaded: List[str] = []
    if patterns:
        said = output(["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "--", *patterns])
        loaded = [line.split()[0] for line in said.splitlines() if line.strip()]
    return list(dict.fromkeys([*(name for name in names if name not in patterns), *loaded]))


def journal(unit: str, invocation: str, redactor: Redactor, lines: int = 20) -> List[str]:
    """The last lines of one invocation, redacted and bounded. A journal that cannot be read is said in a line."""
    try:
        said = output(
            ["journalctl", _selection(unit, invocation), "--output=cat", f"--lines={lines}", "--no-pager", "--quiet"]
        )
    except SystemdError as error:
        return [f"(journal not readable: {error})"]
    return [redactor.bounded(line, LINE_LIMIT) for line in said.splitlines()[-lines:]]


def journal_lines(unit: str, invocation: str, seconds: float) -> Iterator[str]:
    """Every line of one invocation, read as it comes: however long the journal is, one line is held at a time.

    Raises SystemdError when journalctl fails, or has not come to the end after ``seconds``.
    """
    argv = ["journalctl", _selection(unit, invocation), "--output=cat", "--no-pager", "--quiet"]
    until = time.monotonic() + seconds
    try:
        # A pipe to read from as it fills, which run_command of AnsibleModule does not give.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except OSError as error:
        raise SystemdError(f"journalctl cannot be run ({error})") from error
    try:
        yield from _lines(cast(IO[bytes], process.stdout), until, seconds)
        if process.wait():
            raise SystemdError(f"journalctl failed: exit status {process.returncode}")
    finally:
        process.kill()
        process.wait()
        cast(IO[bytes], process.stdout).close()


def _lines(stream: IO[bytes], until: float, seconds: float) -> Iterator[str]:
    rest = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            raise SystemdError(f"the journal was not read to its end within {seconds:.0f} s")
        chunk = os.read(stream.fileno(), LONGEST_LINE)
        *complete, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            complete = [rest]
        for line in complete:
            yield line[:LONGEST_LINE].decode("utf-8", "replace")
        # Of a line without end only the beginning counts, and its next part is not taken for a line of its own.
        rest = rest[:LONGEST_LINE]
        if not chunk:
            return


def _selection(unit: str, invocation: str) -> str:
    return f"_SYSTEMD_INVOCATION_ID={invocation}" if invocation else f"--unit={unit}"


def variable(state: UnitState, name: str) -> Variable:
    """One environment variable in the unit, in its environment files and in each of its processes."""
    settings: Dict[str, str] = {}
    unread: List[str] = []
    found = re.search(rf"(?:^|[\s\"']){re.escape(name)}=([^\s\"']*)", state.environment)
    if found:
        settings[f"the unit {state.unit}"] = found.group(1) or "(empty)"
    for pattern in state.environment_files:
        for path in glob.glob(pattern) or [pattern]:
            _look(path, _file_setting, name, settings, unread)
    for pid in _processes(state):
        _look(f"/proc/{pid}/environ", _process_setting, name, settings, unread)
    return Variable(settings, tuple(unread))


def _look(
    path: str,
    setting: Callable[[bytes, str], Optional[str]],
    name: str,
    settings: Dict[str, str],
    unread: List[str],
) -> None:
    try:
        value = setting(read_beginning(path, LARGEST_ENVIRONMENT), name)
    except (FileNotFoundError, ProcessLookupError):
        # An optional file, or a process that has just ended.
        return
    except OSError as error:
        unread.append(f"{path} ({error.strerror})")
        return
    if value is not None:
        settings[path] = value or "(empty)"


def _file_setting(content: bytes, name: str) -> Optional[str]:
    """The last value in a file as systemd reads it: comments only on lines of their own."""
    found = re.findall(
        rf"^[ \t]*(?:export[ \t]+)?{re.escape(name)}[ \t]*=[ \t]*(.*?)[ \t]*$",
        content.decode("utf-8", "replace"),
        re.MULTILINE,
    )
    return str(found[-1]).strip("\"'") if found else None


def _process_setting(content: bytes, name: str) -> Optional[str]:
    for entry in content.split(b"\0"):
        key, separator, value = entry.partition(b"=")
        if separator and key == name.encode():
            return value.decode("utf-8", "replace")
    return None


def _processes(state: UnitState) -> List[int]:
    """The main process, and all others of the unit's control group: a wrapper may set what the unit does not."""
    return sorted({*processes_of(state.control_group), *([state.main_pid] if state.main_pid else [])})


def processes_of(group: str, hierarchies: Sequence[str] = CONTROL_GROUPS) -> List[int]:
    """The processes in a control group and those below it. The root group is nobody's own."""
    found: Set[int] = set()
    for hierarchy in hierarchies if group.strip("/") else ():
        for folder, _folders, names in os.walk(hierarchy + group):
            if "cgroup.procs" in names:
                try:
                    with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
                        found.update(int(line) for line in file.read().split())
                except OSError:  # the group is gone meanwhile
                    continue
    return sorted(found)
