# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the things of one family of units stand on a host, all in one place so that a test can have a host of its own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List

from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd

_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.-]*\Z")


class ServiceError(Exception):
    """What was asked of a service cannot be done; the message names the unit, file or process and the way out."""


@dataclass(frozen=True)
class Paths:
    """The paths of the family ``stem``: the units STEM.service, STEM@.service and their instances. ``root`` is for tests."""

    stem: str
    root: str = ""

    @property
    def units(self) -> str:
        return self.root + "/etc/systemd/system"

    @property
    def keys(self) -> str:
        return f"{self.root}/etc/ddtree-fleet/{self.stem}"

    @property
    def state(self) -> str:
        return f"{self.root}/var/lib/ddtree-fleet/{self.stem}"

    @property
    def marker(self) -> str:
        return self.state + "/pending.json"

    @property
    def confirmed(self) -> str:
        return self.state + "/confirmed.json"

    @property
    def confirming(self) -> str:
        """What a confirmation is about to say; it holds once the marker is gone."""
        return self.state + "/confirming.json"

    @property
    def restored(self) -> str:
        """What the last way back that was taken has to say."""
        return self.state + "/restored.json"

    @property
    def program(self) -> str:
        return self.state + "/way-back.pyz"

    @property
    def lock(self) -> str:
        return f"{self.root}/run/ddtree-fleet/{self.stem}.lock"

    @property
    def laid(self) -> str:
        """Says when a restore had everything back on disk; in /run, so that a reboot forgets it and a full disk does not matter."""
        return f"{self.root}/run/ddtree-fleet/{self.stem}.laid"

    @property
    def control_groups(self) -> List[str]:
        return [self.root + hierarchy for hierarchy in _systemd.CONTROL_GROUPS]

    @property
    def timer(self) -> str:
        return f"way-back-of-{self.stem}.timer"

    @property
    def timer_service(self) -> str:
        return f"way-back-of-{self.stem}.service"

    @property
    def boot_service(self) -> str:
        return f"way-back-at-boot-of-{self.stem}.service"


def stem_of(unit: str) -> str:
    """The family that a unit's name stands for; raises ServiceError for what is no service of its own."""
    stem, dot, kind = unit.rpartition(".")
    if dot + kind != ".service" or not _STEM.match(stem):
        raise ServiceError(
            f"unit must be the name of a service such as sglang-ddtree.service, without path or instance, not {unit!r}"
        )
    return stem


def is_unit(stem: str, name: str) -> bool:
    """Whether a name is a unit of the family: STEM.service, the template STEM@.service, or an instance STEM@NAME.service."""
    return bool(re.match(rf"{re.escape(stem)}(@[A-Za-z0-9:_.@\\-]*)?\.service\Z", name))


def is_runnable(stem: str, name: str) -> bool:
    """Whether a name is a unit of the family that can run, so no template."""
    return is_unit(stem, name) and not name.endswith("@.service")


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def missing_ok(path: str) -> bytes:
    """What a file holds; empty when there is none."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def make_private(path: str) -> None:
    """A folder that only root reads, with the folders above it."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        os.chmod(path, 0o700)
