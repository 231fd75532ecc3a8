# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A network of two hosts, for agents that talk to each other without the relay: two namespaces joined by one cable."""

from __future__ import annotations

import subprocess
import threading
import time

from engine import SOURCE, TARGET

ADDRESSES = {SOURCE: "10.217.0.1", TARGET: "10.217.0.2"}
DEVICE = "cable"
UP_TRIES = 300


class Link:
    """The cable of one case, with the same two addresses for every case. Needs root."""

    def __init__(self, number: int) -> None:
        self._names = {host: f"ddtree-{number}-{host}" for host in ADDRESSES}
        self._mending: list[threading.Thread] = []

    def make(self) -> None:
        for name in self._names.values():
            _ip("netns", "add", name)
        near, far = self._names[SOURCE], self._names[TARGET]
        _ip("-n", near, "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", far)
        for host, name in self._names.items():
            _ip("-n", name, "addr", "add", f"{ADDRESSES[host]}/30", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _ip("-n", name, "link", "set", device, "up")
        self._wait()

    def remove(self) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)

    def prefixes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What each host's agent is started with so that it lives on its end of the cable."""
        return tuple((host, ("ip", "netns", "exec", name)) for host, name in self._names.items())

    def fail(self, what: str, seconds: float) -> None:
        """``hang``: the cable is out until ``mend``; ``stall``: for so many seconds; ``cut`` and ``drop``: connections are reset."""
        if what in ("cut", "drop"):
            name = self._names[SOURCE if what == "cut" else TARGET]
            command = ["ip", "netns", "exec", name, "ss", "--kill", "--tcp", "state", "established"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return
        self._set("down")
        if what == "stall":
            self._mending.append(threading.Thread(target=self._mend_after, args=(seconds,)))
            self._mending[-1].start()

    def mend(self) -> None:
        for thread in self._mending:
            thread.join()
        self._set("up")
        self._wait()

    def _mend_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self._set("up")

    def _wait(self) -> None:
        """Until both ends see the cable, which takes the kernel a moment."""
        for name in self._names.values():
            command = ["ip", "-n", name, "-brief", "link", "show", DEVICE]
            for _unused in range(UP_TRIES):
                if b" UP " in subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout:
                    break
                time.sleep(0.01)

    def _set(self, state: str) -> None:
        _ip("-n", self._names[SOURCE], "link", "set", DEVICE, state)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
