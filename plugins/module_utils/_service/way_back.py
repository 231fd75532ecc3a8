# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timer, its service and the boot unit that take the way back where no controller does, as files on disk."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
from typing import Dict, Iterator

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    remove_link,
    sync_directory,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service import units
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Marker
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError, is_unit

CUT_OFF = re.compile(r"\.\d+\.new\Z")
# The timer counts in monotonic time, so that a step of the clock does not trigger it. Since when systemd runs is what it counts from,
# since each daemon-reload lets OnActiveSec= begin anew; that is for after a reboot, where the other one is too late.
TIMER = """\
# Written by ddtree.fleet; gone once the release is confirmed.
[Unit]
Description=Way back of {stem}, taken unless release {release} is confirmed within {timeout} s

[Timer]
OnStartupSec={since_startup}
OnActiveSec={timeout}
AccuracySec=1s
Unit={service}
"""

# Tries again until it is done: a host that does not serve is worse.
TIMER_SERVICE = """\
# Written by ddtree.fleet; gone once the release is confirmed.
[Unit]
Description=Take the way back of {stem} from release {release}
RequiresMountsFor={mounts}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={command} restore {root}{stem}
Restart=on-failure
RestartSec=5
TimeoutStartSec={bound}
"""

# Goes back before anything of the family starts: a release that nobody confirmed must not serve after a reboot.
BOOT_SERVICE = """\
# Written by ddtree.fleet; gone once the release is confirmed.
[Unit]
Description=Take the way back of {stem} from release {release} at boot
Before={family}
RequiresMountsFor={mounts}
ConditionPathExists={marker}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={command} restore --boot {root}{stem}
Restart=on-failure
RestartSec=5
TimeoutStartSec={bound}
"""


def texts(paths: Paths, marker: Marker, python: str, startup: float) -> Dict[str, str]:
    """The three unit files by name. ``startup``: when systemd was started, in seconds of the monotonic clock."""
    store = marker.dest + ".releases"
    values = {
        "stem": paths.stem,
        "release": marker.release,
        "timeout": marker.timeout,
        "since_startup": math.ceil(marker.monotonic - startup) + marker.timeout,
        "service": paths.timer_service,
        "family": " ".join(sorted({*marker.units(), f"{paths.stem}.service"})),
        "marker": paths.marker,
        "mounts": " ".join(map(_word, (os.path.dirname(marker.dest), store, paths.state))),
        "command": f"{_word(python)} -I {_word(paths.program)}",
        "root": f"--root {_word(paths.root)} " if paths.root else "",
        "bound": marker.stop_timeout + 2 * units.KILL_SECONDS + marker.free_timeout + marker.ready_timeout + 600,
    }
    return {
        paths.timer: TIMER.format(**values),
        paths.timer_service: TIMER_SERVICE.format(**values),
        paths.boot_service: BOOT_SERVICE.format(**values),
    }


def _word(text: str) -> str:
    """A path as systemd reads it back."""
    return shlex.quote(text.replace("\\", "\\\\").replace("%", "%%"))


def _links(paths: Paths) -> Dict[str, str]:
    return {
        f"timers.target.wants/{paths.timer}": paths.timer,
        f"multi-user.target.wants/{paths.boot_service}": paths.boot_service,
    }


def install(paths: Paths, marker: Marker, python: str) -> None:
    """Put the units on disk, enabled, and start the timer. Raises ServiceError when it does not run."""
    startup = units.systemctl("show", "--property=UserspaceTimestampMonotonic", "--value").strip()
    for name, text in texts(paths, marker, python, int(startup or 0) / 1e6).items():
        write_atomically(os.path.join(paths.units, name), text)
    for link, name in _links(paths).items():
        path = os.path.join(paths.units, link)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        remove_link(path)
        os.symlink(os.path.join("..", name), path)
        sync_directory(os.path.dirname(path))
    units.systemctl("daemon-reload")
    units.systemctl("restart", "--", paths.timer)
    active = units.systemctl("show", "--property=ActiveState", "--value", "--", paths.timer).strip()
    if active != "active":
        raise ServiceError(f"{paths.timer} does not run ({active}); see systemctl status {paths.timer}")


def remove(paths: Paths, marker: Marker) -> None:
    """Disarm. Once the marker is gone, what is left of the rest when this is cut off does nothing by itself."""
    markers.release(marker.reserves)
    markers.forget(paths)
    clean(paths)


def clean(paths: Paths) -> None:
    """Remove the units, the program and the note of an earlier restore; also while one of the units is running this."""
    with contextlib.suppress(ServiceError):
        units.systemctl("stop", "--no-block", "--", paths.timer)
    for service in (paths.timer_service, paths.boot_service):
        _end_other(service)
    for name in (*_links(paths), paths.timer, paths.timer_service, paths.boot_service):
        remove_link(os.path.join(paths.units, name))
    sync_directory(paths.units)
    with contextlib.suppress(ServiceError):
        units.systemctl("daemon-reload")
    for path in (paths.laid, paths.program, *_cut_off(paths)):
        remove_link(path)


def _end_other(service: str) -> None:
    """End a run of the program that waits for its turn, or still reads itself: nothing is left for it to do. Not the one that runs this."""
    with contextlib.suppress(ServiceError):
        shown = units.systemctl("show", "--property=ActiveState,InvocationID", "--", service)
        values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        running = values.get("ActiveState") in ("activating", "active")
        if running and values.get("InvocationID") != os.environ.get("INVOCATION_ID"):
            units.systemctl("stop", "--", service)


def _cut_off(paths: Paths) -> Iterator[str]:
    """Files of this family that a killed process had not finished writing; they have names of their own, which nobody reads."""
    for folder in (paths.units, paths.state, paths.keys):
        for directory, folders, names in os.walk(folder):
            inside = os.path.relpath(directory, folder)
            for name in names:
                whole = os.path.normpath(os.path.join(inside, CUT_OFF.sub("", name)))
                if CUT_OFF.search(name) and (folder != paths.units or _is_ours(paths, whole)):
                    yield os.path.join(directory, name)
            folders[:] = folders if folder == directory else []


def _is_ours(paths: Paths, name: str) -> bool:
    """Whether a name below the folder of units is one that is written for this family."""
    directory, base = os.path.split(name)
    owner = directory[: -len(".d")] if directory.endswith(".d") else base
    return is_unit(paths.stem, owner) or base in (paths.timer, paths.timer_service, paths.boot_service)
