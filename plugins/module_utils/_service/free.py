# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether addresses and GPUs are free for a server that is about to start, and who holds them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import ServiceError

POLL_SECONDS = 0.2
APP_FIELDS = ("pid", "gpu_uuid", "process_name")


@dataclass(frozen=True)
class Needs:
    """What must be free: ``HOST:PORT`` addresses, GPUs by index (none: all). Processes in ``groups`` are not in the way."""

    addresses: Sequence[str] = ()
    gpus: Sequence[int] = ()
    groups: Sequence[str] = ()


def wait(needs: Needs, seconds: float) -> List[str]:
    """Wait until everything is free; gives who holds what when it is not by then. Ends nobody."""
    deadline = time.monotonic() + seconds
    while True:
        found = holders(needs)
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


def holders(needs: Needs) -> List[str]:
    """Who holds what must be free, in words; what cannot be looked at counts as held."""
    found = [line for text in needs.addresses for line in _address_holder(text, needs.groups)]
    try:
        return found + _gpu_holders(needs)
    except HostError as error:
        return [*found, str(error)]


def split_address(text: str) -> Tuple[str, int]:
    """Host and port of ``HOST:PORT``, where an IPv6 address may stand in brackets; raises ServiceError."""
    host, _colon, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ServiceError(f"addresses: {text!r} is no HOST:PORT, such as 127.0.0.1:30001 or [::]:30001")
    return host.strip("[]"), int(port)


def _address_holder(text: str, groups: Sequence[str]) -> List[str]:
    host, port = split_address(text)
    held = [_gpu_host.port_holder(host, port, group) for group in groups or [""]]
    first = held[0]
    return [f"{text} is held by process {first['pid']} ({first['command']})"] if first and all(held) else []


def _gpu_holders(needs: Needs) -> List[str]:
    rows = _gpu_host.query("compute-apps", APP_FIELDS)
    if not rows:
        return []
    indices = {gpu["uuid"]: gpu["index"] for gpu in _gpu_host.gpus()}
    foreign = set.intersection(
        *({app["pid"] for app in _gpu_host.foreign_gpu_processes(group)} for group in needs.groups or [""])
    )
    commands = {app["pid"]: app["command"] for app in _gpu_host.foreign_gpu_processes("")}
    return sorted(
        f"GPU {indices.get(row['gpu_uuid'], row['gpu_uuid'])} is held by process {pid} ({commands.get(pid, row['process_name'])})"
        for row, pid in ((row, int(row["pid"])) for row in rows)
        if pid in foreign and (not needs.gpus or indices.get(row["gpu_uuid"]) in needs.gpus)
    )
