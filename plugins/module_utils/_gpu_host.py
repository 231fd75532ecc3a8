# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU host has before anything is sent to it: GPUs, their driver, foreign processes on them, a port's holder, paths."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Tuple

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
    "gpu_uuid",
    "process_name",
)  # the name last: it may hold commas, which nvidia-smi does not quote
REDACTOR = Redactor()


class HostError(Exception):
    """The host's GPUs cannot be read, or are not what was asked for; the message says why."""


def query(kind: str, fields: tuple[str, ...]) -> List[Dict[str, str]]:
    """One row a GPU or process from nvidia-smi; empty where the host has no nvidia-smi."""
    command = ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_SECONDS,
            check=False,
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
            "index": _whole(row, "index"),
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


def chosen(found: List[Dict[str, Any]], indices: Sequence[int]) -> List[Dict[str, Any]]:
    """Those of the GPUs ``found`` that ``indices`` names, in their order; all for none. Raises HostError for others."""
    by_index = {gpu["index"]: gpu for gpu in found}
    unknown = [str(index) for index in indices if index not in by_index]
    if unknown:
        there = f"has {', '.join(map(str, by_index))}" if by_index else "has no GPU"
        raise HostError(f"gpus names GPU {', '.join(unknown)}, this host {there}")
    if len(set(indices)) < len(indices):
        raise HostError(f"gpus names a GPU twice: {', '.join(map(str, indices))}")
    return [by_index[index] for index in indices] if indices else found


def foreign_gpu_processes(*own_groups: str, among: Sequence[Dict[str, Any]] = ()) -> List[Dict[str, Any]]:
    """Processes that hold memory of GPUs and are in none of the control groups ``own_groups``.

    Those on the GPUs ``among``, as gpus() gives them; none means all. A GPU that is unknown by its UUID, as an instance of
    MIG is, counts as one of them.
    """
    indices = {gpu["uuid"]: gpu["index"] for gpu in gpus()}
    wanted = {gpu["uuid"] for gpu in among}
    found: Dict[int, Dict[str, Any]] = {}
    for row in query("compute-apps", APP_FIELDS):
        pid, uuid = _whole(row, "pid"), row["gpu_uuid"]
        if (wanted and uuid in indices and uuid not in wanted) or any(_in_group(pid, group) for group in own_groups):
            continue
        command = _command(pid) or REDACTOR.bounded(row["process_name"], COMMAND_LIMIT)
        process = found.setdefault(pid, {"pid": pid, "command": command, "memory_mib": 0, "gpus": []})
        process["memory_mib"] += _number(row["used_gpu_memory"])
        process["gpus"] += [indices[uuid]] if uuid in indices else []
    return list(found.values())


def split_address(text: str) -> Tuple[str, int]:
    """Host and port of ``HOST:PORT``, where an IPv6 address stands in brackets. Raises HostError."""
    host, _colon, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise HostError(f"addresses: {text!r} is no HOST:PORT, such as 127.0.0.1:30001 or [::]:30001")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host, int(port)


def port_holder(host: str, port: int, *own_groups: str) -> Optional[Dict[str, Any]]:
    """Who is in the way of a server at ``host:port``, unless it is a process of one of the control groups ``own_groups``."""
    for listener in obstacles(host, port):
        for holder in listener.holders:
            if not any(group and holder.inside(group) for group in own_groups):
                return {"pid": holder.pid, "command": holder.named(REDACTOR), "address": f"{listener.address}:{port}"}
        if not listener.holders:
            return {
                "pid": 0,
                "command": "a process that this user may not see",
                "address": f"{listener.address}:{port}",
            }
    return None


def facts(
    addresses: Sequence[str], units: Sequence[str], indices: Sequence[int], paths: Sequence[str]
) -> Dict[str, Any]:
    """Everything above for one machine, its units' addresses and GPUs (none: all), and the paths it must have.

    Raises HostError or SystemdError.
    """
    places = [split_address(text) for text in addresses]
    states = {unit: _systemd.show(unit) for unit in _systemd.expanded(units)}
    groups = [state.control_group for state in states.values() if state.main_pid]
    mine = chosen(gpus(), indices)
    return {
        "gpus": mine,
        "foreign_gpu_processes": foreign_gpu_processes(*groups, among=mine if indices else ()),
        "port_holders": [holder for holder in (port_holder(host, port, *groups) for host, port in places) if holder],
        "missing_paths": [path for path in paths if not os.path.exists(path)],
        "units": [
            {
                "name": unit,
                "loaded": state.load == "loaded",
                "active": state.active == "active",
                "invocation": state.invocation,
            }
            for unit, state in states.items()
        ],
    }


def _whole(row: Dict[str, str], field: str) -> int:
    """A number that must be one; nvidia-smi writes [N/A] or [Unknown Error] where the driver is in trouble."""
    if not row[field].isdigit():
        raise HostError(f"nvidia-smi says {field} {row[field][:60]!r}; look at the driver and the kernel log")
    return int(row[field])


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
