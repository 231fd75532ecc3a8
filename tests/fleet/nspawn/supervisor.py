# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps one test host running; started detached, in new mount and network namespaces of its own.

The disk is mounted here and the network namespace lives here: when the supervisor and the host are gone, however they
ended, the kernel has unmounted the disk and deleted the devices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# systemd-nspawn without a unit of its own cannot restart a machine; it ends with this code to ask for it.
WANTS_REBOOT = 133


def main() -> int:
    """Read one JSON line with the order, say ``ready``, wait for ``go``, then run the host until it is off."""
    order = json.loads(sys.stdin.readline())
    for group in order["groups"]:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    mount("overlay", order["root"], order["mount_options"])
    # nspawn keeps a directory per machine there and expects it on a tmpfs; a private one also keeps fleets apart.
    Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
    mount("tmpfs", "/run/systemd/nspawn", "mode=0755")
    print("ready", flush=True)
    if sys.stdin.readline() != "go\n":
        return 1
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    silent = os.open("/dev/null", os.O_RDWR)
    for stream, source in ((0, silent), (1, log), (2, log)):
        os.dup2(source, stream)
    while (code := subprocess.call(order["command"])) == WANTS_REBOOT:
        pass
    print(f"systemd-nspawn ended with code {code}", flush=True)
    return code


def mount(fstype: str, where: str, options: str) -> None:
    """Mount a file system in this mount namespace."""
    subprocess.run(["mount", "-t", fstype, "-o", options, fstype, where], check=True)


if __name__ == "__main__":
    sys.exit(main())
