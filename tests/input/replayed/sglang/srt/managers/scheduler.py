# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler: a process of its own that holds GPU memory, as the nvidia-smi stand-in of the test hosts shows it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sglang.bend import Bend

# What nvidia_smi.py reads: a file a process, named by its id, with the seconds that its memory stays held after it.
HOLDERS = Path("/dev/shm/nvidia-smi-standin")


def start(bend: Bend) -> None:
    """Start it; it ends with the signals that end the server, unless it is stubborn."""
    HOLDERS.mkdir(mode=0o1777, exist_ok=True)
    pid = os.fork()
    if pid:
        (HOLDERS / str(pid)).write_text(str(bend.gpu_seconds), encoding="ascii")
        return
    if bend.stubborn_scheduler:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()
