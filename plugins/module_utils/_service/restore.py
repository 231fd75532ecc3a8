# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the way back: the one piece of code that does, for the module, for the timer and at boot.

It may be killed anywhere and run again. Each step looks first; the marker goes last; and since everything runs from the state that
is to come back once that is on disk, a unit that started after that moment is not started again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Callable, Dict, List, Optional, Set, TypeVar

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    NO_RELEASE,
    Store,
    now,
    remove_link,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._service import (
    diagnosis,
    family,
    free,
    health,
    units,
    way_back,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Marker, Served, State
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, missing_ok
from ansible_collections.ddtree.fleet.plugins.module_utils._service.steps import (
    START,
    STOP,
    WAIT,
    Steps,
    groups_of,
    lead,
    not_started,
    present_state,
    read_keys,
    reload,
    unchanged,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit

T = TypeVar("T")


@dataclass(frozen=True)
class Restored:
    """What a way back that was taken came to. ``started``: the units that were told to, of which some may
    not have (``not_started``, in words); ``kept``: the folder for diagnosis."""

    release: str
    way_back: str
    run: str
    time: str
    reason: str
    by: str
    kept: str = ""
    remarks: List[str] = field(default_factory=list)
    started: List[str] = field(default_factory=list)
    not_started: List[str] = field(default_factory=list)
    start_seconds: Optional[float] = None
    teardown_seconds: float = 0.0


def restore(
    paths: Paths, marker: Marker, steps: Steps, reason: str, by: str, verdict: str = "", boot: bool = False
) -> Restored:
    """Bring back what the marker says served before; the caller holds the lock. ``boot``: systemd starts the units afterwards.

    Raises ServiceError or OSError only where going on would make it worse; the marker stays then, and running it again goes on.
    """
    secrets = diagnosis.secrets(paths)
    goal, touched = marker.before, marker.phase != markers.ARMED
    found = units.look(paths.stem, marker.units())
    marker = _begin(paths, marker, found, Redactor(secrets).text(reason), steps)
    present = present_state(paths, marker.dest, found)
    right = _right(paths, marker, present, found, touched) if not boot else set()
    with steps.step(STOP), steps.trying("stopping"):
        # At boot also what is about to start: nothing of the family may before everything is back.
        stop = [unit for name, unit in sorted(found.items()) if name not in right]
        units.stop(paths, stop, {**groups_of(goal), **groups_of(marker.after)}, marker.stop_timeout)
    with steps.step("link"):
        changed = _making_room(marker, lambda: lead(marker.dest, goal.link))
    with steps.step("unit files"):
        changed = bool(_making_room(marker, lambda: family.write(paths.units, paths.stem, goal.files))) or changed
        changed = bool(_making_room(marker, lambda: _lay_keys(paths, goal))) or changed
    start = [name for name, unit in sorted(goal.units.items()) if unit.active and name not in right]
    if changed or touched or start:
        with steps.step("reload"):
            reload()
        _note_laid(paths, steps)
    started = _start(paths, marker, start, steps, boot)
    problems = [] if boot else not_started(start, started, found)
    summary = Restored(
        marker.release,
        marker.way_back,
        marker.run,
        marker.taken,
        marker.reason,
        by,
        started=start,
        not_started=problems,
        start_seconds=steps.start_seconds,
        teardown_seconds=steps.seconds(STOP),
    )
    if touched:
        with steps.step("keep for diagnosis"), steps.trying("keeping the failed release for diagnosis"):
            summary = replace(
                summary, kept=_keep(paths, marker, summary, Redactor({*secrets, *diagnosis.secrets(paths)}))
            )
    return _finish(paths, marker, replace(summary, remarks=list(steps.remarks)), started, verdict, steps)


def _making_room(marker: Marker, write: Callable[[], T]) -> T:
    """Write; on a full disk with the space that was kept for that, which is given back no sooner: who fills the disk would take it too."""
    try:
        return write()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    markers.release(marker.reserves)
    return write()


def _lay_keys(paths: Paths, goal: State) -> List[str]:
    """Put the keys of before back; newer ones stay until what they were for has ended."""
    present = read_keys(paths)
    return family.make(paths.keys, present, {**present, **goal.keys})


def _begin(paths: Paths, marker: Marker, found: Dict[str, Unit], reason: str, steps: Steps) -> Marker:
    """Say in the marker that the way back is being taken, why, and in which invocation the failed release was last seen."""
    if marker.phase == markers.RESTORING:
        return marker
    after = dict(marker.after.units)
    for name, unit in found.items():
        before = marker.before.units.get(name)
        if unit.invocation and not (before and before.invocation == unit.invocation):
            seen = after.get(name, Served(True))
            after[name] = replace(
                seen, invocation=f"{seen.invocation} {unit.invocation}".strip(), group=unit.group or seen.group
            )
    if marker.phase != markers.ARMED:
        marker = replace(marker, phase=markers.RESTORING)
    marker = replace(marker, reason=reason, taken=now(), after=replace(marker.after, units=after))
    with steps.trying("the marker"):
        markers.store(paths, marker)
    return marker


def _right(paths: Paths, marker: Marker, present: State, found: Dict[str, Unit], touched: bool) -> Set[str]:
    """The units that already run, or rest, as they shall."""
    goal, laid, right = marker.before, _laid(paths), set()
    for name, unit in found.items():
        wanted = goal.units.get(name)
        if wanted is None or not wanted.active:
            if unit.down:
                right.add(name)
        elif unit.up and unchanged(name, present, goal):
            same_process = bool(wanted.invocation) and unit.invocation == wanted.invocation
            if same_process or not touched or (laid is not None and unit.started > laid):
                right.add(name)
    return right


def _note_laid(paths: Paths, steps: Steps) -> None:
    """Remember, until a reboot, since when everything is back on disk."""
    if _laid(paths) is None:
        with steps.trying("the note of what is back"):
            write_atomically(paths.laid, repr(time.monotonic()), 0o600)


def _laid(paths: Paths) -> Optional[float]:
    try:
        return float(missing_ok(paths.laid))
    except (OSError, ValueError):
        return None


def _start(paths: Paths, marker: Marker, names: List[str], steps: Steps, boot: bool) -> Dict[str, Unit]:
    """Start what served before, as soon as it can; one that finds its GPUs held is better than one that is not started."""
    if not names:
        return {}
    if boot:
        return units.start(paths.stem, names, wait=False)
    with steps.step(WAIT), steps.trying("waiting for ports and GPUs"):
        found = units.look(paths.stem, names)
        running = [unit.group for name, unit in found.items() if unit.up and unit.group and name not in names]
        addresses = [place for place in (health.address(found[name]) for name in names if name in found) if place]
        held = free.wait(free.Needs(addresses, marker.gpus, running), marker.free_timeout)
        if held:
            steps.remarks.append(f"started although, after {marker.free_timeout} s, {'; '.join(held)}")
    with steps.step(START):
        return units.start(paths.stem, names)


def _keep(paths: Paths, marker: Marker, summary: Restored, redactor: Redactor) -> str:
    journals = {name: unit.invocation.split() for name, unit in marker.after.units.items() if unit.invocation}
    before = {unit.invocation for unit in marker.before.units.values()}
    reason = {
        **asdict(summary),
        "actor": marker.actor,
        "armed": marker.armed,
        "timeout": marker.timeout,
    }
    return diagnosis.keep(
        Store(marker.dest),
        marker.release,
        marker.taken,
        reason,
        marker.after.files,
        {name: sorted(set(found) - before) for name, found in journals.items()},
        redactor,
    )


def _finish(
    paths: Paths, marker: Marker, summary: Restored, started: Dict[str, Unit], verdict: str, steps: Steps
) -> Restored:
    """Write down what happened, and disarm: nothing of this can make the way back not taken any more."""
    store = Store(marker.dest)
    with steps.trying("the history"):
        # Where the release itself is the way back, it was what came with it that failed.
        if verdict and marker.way_back != marker.release:
            store.judge(marker.release, verdict, marker.actor)
        store.record(
            "restored",
            marker.way_back or NO_RELEASE,
            before=marker.release,
            actor=marker.actor,
            by=summary.by,
            reason=summary.reason,
            invocations={name: unit.invocation for name, unit in started.items()},
        )
    with steps.trying("the keys of the failed release"):
        family.make(paths.keys, read_keys(paths), marker.before.keys)
    summary = replace(summary, remarks=list(steps.remarks))
    with steps.trying("the note of the way back"):
        write_atomically(paths.restored, json.dumps(asdict(summary), indent=1) + "\n", 0o600)
    remove_link(paths.confirming)
    with steps.step("disarm"):
        if not marker.before.units:
            with contextlib.suppress(Exception):
                units.systemctl("reset-failed", "--", *marker.units())
        way_back.remove(paths, marker)
    return replace(summary, remarks=list(steps.remarks))


def prove(store: Store, summary: Restored, stem: str, seconds: float) -> List[str]:
    """Wait until what was started is healthy, and write down what was seen. Gives what is wrong when it is not by then."""
    if not summary.started:
        return []
    began = time.monotonic()
    problems = health.wait(stem, summary.started, seconds)
    with contextlib.suppress(OSError):
        store.record(
            "looked",
            summary.way_back or NO_RELEASE,
            by=summary.by,
            health="; ".join(problems) or "ok",
            seconds=round(time.monotonic() - began, 1),
        )
    return problems
