# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of test hosts: what differs between them is data here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .shell import FleetError


@dataclass(frozen=True)
class Host:
    """One test host.

    ``layers`` are names under the layer directory, lowest first. ``number`` is the last octet of the address. No two
    hosts share an address, a port or a key, so code that takes one host's settings for another fails to connect.
    """

    name: str
    number: int
    port: int
    user: str
    group: str
    gpu: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Targets that may be numbered on: ``<prefix>-1``, ``<prefix>-2``, ..."""

    prefix: str
    first_number: int
    first_port: int
    port_step: int
    user: str
    group: str
    gpu: str
    layers: tuple[str, ...]
    most: int = 30

    def member(self, index: int) -> Host:
        """The host ``<prefix>-<index>``, counted from 1."""
        return Host(
            name=f"{self.prefix}-{index}",
            number=self.first_number + index - 1,
            port=self.first_port + (index - 1) * self.port_step,
            user=self.user,
            group=self.group,
            gpu=self.gpu,
            layers=self.layers,
        )


SOURCES = (
    Host("ct200", 10, 2190, "root", "ddtree_source", "rtx_pro_6000", ("env", "ddtree", "models")),
    Host("ct210", 12, 2192, "root", "ddtree_source", "rtx_pro_6000", ("replayed", "models")),
    Host("ct201", 11, 2191, "root", "ddtree_unpatched", "rtx_pro_6000", ("env", "models")),
)

FAMILIES = (
    Family("b300", 21, 2201, 2, "root", "b300", "b300", ("models",)),
    Family("rtx6000", 61, 2202, 2, "deploy", "rtx_pro_6000", "rtx_pro_6000", ("models",)),
    Family("lived", 101, 2301, 1, "root", "b300", "b300", ("env", "ddtree", "models")),
    Family("replay", 141, 2401, 1, "root", "b300", "b300", ("replayed", "models")),
)

DEFAULT_HOSTS = ("ct200", "b300-1", "rtx6000-1")


def find_host(name: str) -> Host:
    """The host of that name; families are numbered on as far as needed."""
    for host in SOURCES:
        if host.name == name:
            return host
    for family in FAMILIES:
        match = re.fullmatch(rf"{family.prefix}-([1-9][0-9]?)", name)
        if match and int(match[1]) <= family.most:
            return family.member(int(match[1]))
    known = [host.name for host in SOURCES] + [f"{family.prefix}-1..{family.most}" for family in FAMILIES]
    raise FleetError(f"no test host is called {name}; there are {', '.join(known)} (tests/fleet/nspawn/hosts.py)")


def targets(count: int) -> list[Host]:
    """The first ``count`` plain targets, B300 and RTX PRO 6000 in turn."""
    members = (FAMILIES[index % 2].member(index // 2 + 1) for index in range(count))
    return list(members)
