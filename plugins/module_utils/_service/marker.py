# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The marker of a release that nobody has confirmed yet: everything that going back needs, on disk before anything live changes.

Also what belongs to it: the lock that keeps those apart who act on it, and the space that is kept for going back on a full disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    remove_link,
    sync_directory,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import Files
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import (
    Paths,
    ServiceError,
    make_private,
    missing_ok,
)

# How far a deployment is; going back is due in every phase.
ARMED, SWITCHING, SWITCHED, RESTORING = "armed", "switching", "switched", "restoring"
MORE_SECONDS = 120  # what going back does besides stopping and waiting
RESERVE_BYTES = 4 << 20
LOCK_SECONDS = 30
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Served:
    """One unit as it was, or as it shall be: whether it runs, in which invocation it did, and in which control group."""

    active: bool
    invocation: str = ""
    group: str = ""


@dataclass(frozen=True)
class State:
    """What decides what a host serves: where dest leads (None: nowhere), the family's files, its keys, and its units."""

    link: Optional[str]
    files: Files
    keys: Files
    units: Dict[str, Served]

    def to_json(self) -> Dict[str, Any]:
        return {
            "link": self.link,
            "files": family.to_json(self.files),
            "keys": family.to_json(self.keys),
            "units": {name: dataclasses.asdict(unit) for name, unit in sorted(self.units.items())},
        }

    @staticmethod
    def from_json(data: Dict[str, Any]) -> State:
        return State(
            link=data["link"],
            files=family.from_json(data["files"]),
            keys=family.from_json(data["keys"]),
            units={name: Served(**unit) for name, unit in data["units"].items()},
        )


NOTHING = State(None, {}, {}, {})


@dataclass(frozen=True)
class Marker:
    """``pending.json``. ``before`` is what going back brings back, ``after`` what was switched to; times in seconds."""

    unit: str
    dest: str
    release: str
    way_back: str
    run: str
    actor: str
    armed: float
    monotonic: float
    boot: str
    timeout: int
    stop_timeout: int
    free_timeout: int
    ready_timeout: int
    before: State
    addresses: List[str] = field(default_factory=list)
    gpus: List[int] = field(default_factory=list)
    reserves: List[str] = field(default_factory=list)
    phase: str = ARMED
    after: State = NOTHING
    reason: str = ""
    taken: str = ""  # when going back began, in UTC

    def units(self) -> List[str]:
        return sorted({self.unit, *self.before.units, *self.after.units})

    def restore_seconds(self) -> int:
        """What going back may take: stopping, waiting until ports and GPUs are free, and the rest."""
        return self.stop_timeout + self.free_timeout + MORE_SECONDS

    def due(self, boot: str) -> str:
        """When the timer takes the way back, in words."""
        left = self.seconds_left(boot)
        return f"in {max(0, round(left))} s" if left is not None else f"within {self.timeout} s after the boot"

    def seconds_left(self, boot: str) -> Optional[float]:
        """Until the timer takes the way back; None after a reboot, when the timer has begun anew."""
        return self.monotonic + self.timeout - time.monotonic() if self.boot == boot else None


def load(paths: Paths) -> Optional[Marker]:
    """The marker; None when nothing is pending. Raises ServiceError for one that cannot be read."""
    content = missing_ok(paths.marker)
    if not content:
        return None
    try:
        data: Dict[str, Any] = json.loads(content)
        return Marker(**{**data, **{name: State.from_json(data[name]) for name in ("before", "after")}})
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError(
            f"{paths.marker} is damaged ({type(error).__name__}: {error}), so that it is not known what served before; look at "
            f"what {paths.stem} serves, then remove that file"
        ) from None


def store(paths: Paths, marker: Marker) -> Marker:
    """Write the marker, on disk before this returns."""
    data = {item.name: getattr(marker, item.name) for item in dataclasses.fields(marker)}
    data.update(before=marker.before.to_json(), after=marker.after.to_json())
    make_private(paths.state)
    write_atomically(paths.marker, json.dumps(data, indent=1) + "\n", 0o600)
    return marker


def forget(paths: Paths) -> None:
    """Remove the marker: from here on nobody goes back. On disk before this returns."""
    remove_link(paths.marker)
    sync_directory(paths.state)


# the lock


@contextlib.contextmanager
def locked(paths: Paths, what: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Keep others from acting on this family meanwhile; raises ServiceError that says who does when they take too long.

    The kernel gives the lock back when its holder dies, however that happens.
    """
    os.makedirs(os.path.dirname(paths.lock), mode=0o755, exist_ok=True)
    fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                raise ServiceError(
                    f"{paths.stem}: {_holder(fd)} still holds {paths.lock} after {seconds:.0f} s; wait until that ends, then try again"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{what}, process {os.getpid()}, since {_show(time.time())}".encode(), 0)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _holder(fd: int) -> str:
    return os.pread(fd, 1024, 0).decode("utf-8", "replace") or "another process"


# the reserve


def reserve(folders: Sequence[str], name: str) -> List[str]:
    """Keep space in a file of that name on each file system of some folders; gives the files. Raises ServiceError without room."""
    kept: Dict[int, str] = {}
    for folder in folders:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        kept.setdefault(os.stat(folder).st_dev, os.path.join(folder, name))
    for path in kept.values():
        try:
            # Real content: some file systems keep no space for what could be compressed away.
            write_atomically(path, os.urandom(RESERVE_BYTES), 0o600)
        except OSError as error:
            release(kept.values())
            raise ServiceError(
                f"{path}: the {RESERVE_BYTES >> 20} MiB that going back needs on a full disk cannot be kept ({error.strerror}); "
                "make room there"
            ) from error
    return list(kept.values())


def release(reserves: Iterable[str]) -> None:
    """Give the reserved space back."""
    for path in reserves:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _show(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when))


def who(marker: Marker) -> str:
    """Who armed the marker and when, for a message."""
    return f"{marker.actor or 'somebody'} (run {marker.run}) since {_show(marker.armed)}"
