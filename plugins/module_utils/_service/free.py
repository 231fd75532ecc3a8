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
    """Host and port of ``HOST:PORT``, where an IPv6 address stands in brackets; raises ServiceError."""
    try:
        return _gpu_host.split_address(text)
    except HostError as error:
        raise ServiceError(str(error)) from error


def _address_holder(text: str, groups: Sequence[str]) -> List[str]:
    held = _gpu_host.port_holder(*split_address(text), *groups)
    return [f"{text} is held by process {held['pid']} ({held['command']})"] if held else []


def _gpu_holders(needs: Needs) -> List[str]:
    among = _gpu_host.chosen(_gpu_host.gpus(), needs.gpus) if needs.gpus else []
    return [
        f"GPU {', '.join(map(str, process['gpus'])) or '?'} is held by process {process['pid']} ({process['command']})"
        for process in _gpu_host.foreign_gpu_processes(*needs.groups, among=among)
    ]
