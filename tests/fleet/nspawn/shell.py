# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running host programs, with errors that say which program failed and why."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class FleetError(Exception):
    """Something a user of the test hosts can act on; its text is the whole message."""


def run(*argv: str, timeout: float = 60.0, stdin: str | None = None) -> str:
    """Run a program to its end and return its output; a non-zero exit becomes a FleetError."""
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=timeout, input=stdin)
    except FileNotFoundError as exc:
        raise FleetError(f"{argv[0]} is missing; see tests/fleet/README.md for the packages it needs") from exc
    except subprocess.TimeoutExpired as exc:
        raise FleetError(f"{' '.join(argv)}: not done after {timeout:g} s") from exc
    if done.returncode != 0:
        raise FleetError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip() or f'exit {done.returncode}'}")
    return done.stdout


def succeeds(*argv: str) -> bool:
    """Whether a program ends with 0, its output thrown away."""
    return subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def wait_until(ready: Callable[[], bool], timeout: float, interval: float = 0.05) -> bool:
    """Poll ``ready`` until it holds; False when ``timeout`` seconds have passed without."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel drops it when the holder dies, so no lock is ever stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
