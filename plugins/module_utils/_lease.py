# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lease that keeps two controllers from deploying to the same dest.

It is a JSON file ``<dest>.lock``: whose run holds it, since when, and until when it counts if that run dies. A lease of an
earlier boot does not count. Every change of it is made under flock, so that of two that come at once one wins.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import Any, Dict, Iterator

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DEFAULT_MINUTES = 60
RECORD_BYTES = 1024


class LeaseError(Exception):
    """Somebody else deploys to this dest; the message says who, since when, and what to do."""


class Lease:
    """The lease of one dest (an absolute path)."""

    def __init__(self, dest: str) -> None:
        self.dest = dest
        self.path = dest + ".lock"

    def check(self, run: str, take_over: bool = False, instead_of: str = "") -> None:
        """Raise LeaseError when another run than ``instead_of`` holds the lease."""
        self._refuse(self.holder(), run, take_over, instead_of)

    def _refuse(self, held: Dict[str, Any], run: str, take_over: bool, instead_of: str) -> None:
        if held and held["run"] not in (run, instead_of) and not take_over:
            raise LeaseError(
                f"{self.dest} is being deployed to by {held['who']} since {_show(held['since'])}; wait until that run ends, "
                f"or, if it died, until {_show(held['until'])}, or take the lock over knowingly (lock_take_over)"
            )

    def acquire(
        self,
        run: str,
        who: str,
        minutes: int = DEFAULT_MINUTES,
        take_over: bool = False,
        instead_of: str = "",
        holder: str = "",
    ) -> bool:
        """Take or renew the lease for ``run``, from a dead run ``instead_of`` too. Gives whether it is now ``run``'s to give back.

        ``holder`` names one process that holds it for as long as it lives (``this_process``): a later one of the same run takes it
        on, and it does not touch a lease that the run holds beyond its processes.
        """
        with self._locked() as fd:
            held = self._read(fd)
            self._refuse(held, run, take_over, instead_of)
            ours = bool(held) and held["run"] == run
            now = time.time()
            lease = {
                "run": run,
                "who": who,
                "since": held["since"] if ours else now,
                "until": max(now + 60 * minutes, held["until"] if ours else 0),
                "boot": _boot_id(),
                "holder": holder if not ours or (holder and held.get("holder")) else held.get("holder", ""),
            }
            self._write(fd, lease, bool(held))
            return not ours or bool(holder and lease["holder"])

    def _write(self, fd: int, lease: Dict[str, Any], held: bool) -> None:
        """Write over what is there, and never to less than the file has, so that a full disk cannot lose a lease that is held."""
        data = json.dumps(lease).encode().ljust(RECORD_BYTES)
        try:
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        except OSError as error:
            if not held:
                os.unlink(self.path)
            raise LeaseError(f"{self.path} cannot be written: {error.strerror}; make room there") from error

    def release(self, run: str, holder: str = "") -> bool:
        """Give the lease back, unless another process of the run than ``holder`` has taken it on. Gives whether ``run`` held it."""
        if not os.path.exists(self.path):
            return False
        with self._locked() as fd:
            held = self._read(fd)
            if held and (held["run"] != run or held.get("holder", "") not in ("", holder)):
                return False
            os.unlink(self.path)
            return bool(held)

    def holder(self) -> Dict[str, Any]:
        """Who holds the lease now; empty when nobody does."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        try:
            return self._read(fd)
        finally:
            os.close(fd)

    def _read(self, fd: int) -> Dict[str, Any]:
        try:
            held: Dict[str, Any] = json.loads(os.pread(fd, 65536, 0))
            if held["until"] > time.time() and held["boot"] == _boot_id() and _lives(held.get("holder", "")):
                return held
        except (ValueError, KeyError, TypeError):
            pass
        return {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if self._is_current(fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _is_current(self, fd: int) -> bool:
        """False when the file was given back and deleted while this end waited for it."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False


def this_process() -> str:
    """A holder's name that tells whether the process still lives: its id and when it was started."""
    return f"{os.getpid()}.{_started(str(os.getpid()))}"


def _lives(holder: str) -> bool:
    """Whether a holder may still be there: only of a process of this host that has ended it is known that it is not."""
    pid, dot, started = holder.partition(".")
    return not dot or not pid.isdigit() or _started(pid) == started


def _started(pid: str) -> str:
    """When a process was started, in clock ticks since boot; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _boot_id() -> str:
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _show(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))
