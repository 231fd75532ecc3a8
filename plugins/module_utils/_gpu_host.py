# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU host has before anything is sent to it: GPUs, their driver, foreign processes on them, a port's holder, paths."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._listeners import COMMAND_LIMIT, READ_LIMIT, obstacles
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

ANSWER_SECONDS = 60
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "compute_cap",
    "memory.total",
    "memory.used",
    "driver_version",
    "mig.mode.current",
)
APP_FIELDS = (
    "pid",
    "used_gpu_memory",
    "process_name",
)  # the name last: it may hold commas, which nvidia-smi does not quote
REDACTOR = Redactor()


class HostError(Exception):
    """The host's GPUs cannot be read; the message says what nvidia-smi said."""


def query(kind: str, fields: tuple[str, ...]) -> List[Dict[str, str]]:
    """One row a GPU or process from nvidia-smi; empty where the host has no nvidia-smi."""
    command = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False
        )
    except FileNotFoundError:
        return []
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"nvidia-smi did not answer within {ANSWER_SECONDS} s; look at the driver and the kernel log"
        ) from error
    if done.returncode:
        raise HostError(f"nvidia-smi failed: {(done.stdout + done.stderr).strip()[:300]}")
    rows = [line.split(", ", len(fields) - 1) for line in done.stdout.splitlines()]
    return [dict(zip(fields, row)) for row in rows if len(row) == len(fields)]


def gpus() -> List[Dict[str, Any]]:
    """The GPUs by index: name, compute capability such as ``10.3``, memory in MiB, driver, whether MIG is on."""
    return [
        {
            "index": int(row["index"]),
            "name": row["name"],
            "uuid": row["uuid"],
            "compute_capability": row["compute_cap"],
            "memory_total_mib": _number(row["memory.total"]),
            "memory_used_mib": _number(row["memory.used"]),
            "driver": row["driver_version"],
            "mig": row["mig.mode.current"] == "Enabled",
        }
        for row in query("gpu", GPU_FIELDS)
    ]


def foreign_gpu_processes(own_group: str) -> List[Dict[str, Any]]:
    """Processes that hold GPU memory and are not in the control group ``own_group``."""
    found = []
    for row in query("compute-apps", APP_FIELDS):
        pid = int(row["pid"])
        if not _in_group(pid, own_group):
            found.append(
                {
                    "pid": pid,
                    "command": _command(pid) or REDACTOR.bounded(row["process_name"], COMMAND_LIMIT),
                    "memory_mib": _number(row["used_gpu_memory"]),
                }
            )
    return found


def port_holder(host: str, port: int, own_group: str) -> Optional[Dict[str, Any]]:
    """Who is in the way of a server at ``host:port``, unless it is a process of the control group ``own_group``."""
    for listener in obstacles(host, port):
        for holder in listener.holders:
            if not (own_group and holder.inside(own_group)):
                return {"pid": holder.pid, "command": holder.named(REDACTOR), "address": listener.address}
        if not listener.holders:
            return {"pid": 0, "command": "a process that this user may not see", "address": listener.address}
    return None


def facts(host: str, port: int, unit: str, paths: List[str]) -> Dict[str, Any]:
    """Everything above for one machine, its unit's address and port, and the paths it must have. Raises HostError or SystemdError."""
    state = _systemd.show(unit)
    group = state.control_group if state.main_pid else ""
    return {
        "gpus": gpus(),
        "foreign_gpu_processes": foreign_gpu_processes(group),
        "port_holder": port_holder(host, port, group),
        "missing_paths": [path for path in paths if not os.path.exists(path)],
        "unit": {"loaded": state.load == "loaded", "active": state.active == "active", "invocation": state.invocation},
    }


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _in_group(pid: int, group: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            return bool(group) and any(f"{group}/" in f"{line.split(':', 2)[2].strip()}/" for line in file)
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(READ_LIMIT).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return REDACTOR.bounded(words, COMMAND_LIMIT)
