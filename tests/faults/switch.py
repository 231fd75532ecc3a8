# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network of several hosts for one chain: a namespace for each, and a bridge that all of them are plugged into."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

DEVICE = "cable"
UP_TRIES = 300


class Switch:
    """The network of one case, with the same addresses for every case. Needs root."""

    def __init__(self, number: int, hosts: Sequence[str]) -> None:
        self._middle = f"ddtree-{number}-switch"
        self._names = {host: f"ddtree-{number}-{host}" for host in hosts}

    def make(self) -> None:
        _ip("netns", "add", self._middle)
        _ip("-n", self._middle, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._middle, "link", "set", "bridge", "up")
        for number, (host, name) in enumerate(self._names.items(), 1):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", DEVICE, "type", "veth", "peer", "name", host, "netns", self._middle)
            _ip("-n", name, "addr", "add", f"10.217.0.{number}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", self._middle, "link", "set", "dev", host, "master", "bridge", "up")
        for host in self._names:
            self._wait(host)

    def remove(self) -> None:
        for name in (*self._names.values(), self._middle):
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    def prefix(self, host: str) -> tuple[str, ...]:
        """What a host's agent is started with so that it lives there."""
        return ("ip", "netns", "exec", self._names[host])

    def fail(self, host: str, what: str) -> None:
        """``unplug``: until ``mend``; ``reset``: all connections of the host end."""
        if what == "unplug":
            _ip("-n", self._middle, "link", "set", "dev", host, "down")
            return
        command = ["ip", "netns", "exec", self._names[host], "ss", "--kill", "--tcp", "state", "established"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def mend(self, host: str) -> None:
        _ip("-n", self._middle, "link", "set", "dev", host, "up")
        self._wait(host)

    def _wait(self, host: str) -> None:
        """Until the host is seen to be plugged in, which takes the kernel a moment."""
        command = ["ip", "-n", self._names[host], "-brief", "link", "show", DEVICE]
        for _unused in range(UP_TRIES):
            if b" UP " in subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout:
                return
            time.sleep(0.01)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
