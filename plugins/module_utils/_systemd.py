# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says about a unit, and the journal of one of its invocations. Read only; every call is bounded."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,ExecMainStatus,InvocationID,NRestarts,MainPID,ControlGroup,Environment"
)
ANSWER_SECONDS = 30
LINE_LIMIT = 400


class SystemdError(Exception):
    """systemctl or journalctl is missing, fails or does not answer."""


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


def _output(argv: List[str]) -> str:
    try:
        # run_command of AnsibleModule knows no time-out.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=ANSWER_SECONDS,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            check=False,
        )
    except OSError as error:
        raise SystemdError(
            f"{argv[0]} cannot be run ({error}); the server gate needs a host that systemd runs"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SystemdError(
            f"{argv[0]} did not answer within {ANSWER_SECONDS} s; look at systemd on this host"
        ) from error
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip() or f"exit status {done.returncode}"
        raise SystemdError(f"{argv[0]} failed: {reason}")
    return done.stdout.decode("utf-8", "replace")


def show(unit: str) -> UnitState:
    """The unit's state now. A unit that does not exist is a state too (``load`` is ``not-found``)."""
    output = _output(["systemctl", "show", "--no-pager", f"--property={PROPERTIES}", "--", unit])
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
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
    )


def journal(unit: str, invocation: str, redactor: Redactor, lines: int = 20) -> List[str]:
    """The last lines of one invocation, redacted and bounded. A journal that cannot be read is said in a line."""
    selection = f"_SYSTEMD_INVOCATION_ID={invocation}" if invocation else f"--unit={unit}"
    try:
        output = _output(["journalctl", selection, "--output=cat", f"--lines={lines}", "--no-pager", "--quiet"])
    except SystemdError as error:
        return [f"(journal not readable: {error})"]
    return [redactor.bounded(line, LINE_LIMIT) for line in output.splitlines()[-lines:]]


def environment_value(state: UnitState, name: str) -> str:
    """The value of one variable in the unit's file or in its main process; empty when neither sets it."""
    found = re.search(rf"(?:^|[\s\"']){re.escape(name)}=([^\s\"']*)", state.environment)
    if found:
        return found.group(1) or "(empty)"
    try:
        with open(f"/proc/{state.main_pid}/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return ""
    for entry in entries:
        key, separator, value = entry.partition(b"=")
        if separator and key == name.encode():
            return value.decode("utf-8", "replace") or "(empty)"
    return ""
