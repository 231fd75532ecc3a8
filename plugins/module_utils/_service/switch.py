# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Switches a service to the release that was armed, and confirms it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    RELEASE_ID,
    Store,
    now,
    remove_link,
    sync_directory,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._service import diagnosis, family, free, units, way_back
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service.arm import elsewhere, refuse_overriding
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import Files
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Marker, Served, State
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError, missing_ok
from ansible_collections.ddtree.fleet.plugins.module_utils._service.steps import (
    START,
    STOP,
    WAIT,
    Steps,
    groups_of,
    not_started,
    present_state,
    read_keys,
    reload,
    unchanged,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit


@dataclass(frozen=True)
class Plan:
    """What switching changes: the state to reach, what of it differs, and the units that have to stop and start for it.

    Units that are down are among those to stop: what they left of their processes is ended.
    """

    goal: State
    link: bool
    files: List[str]
    stop: List[Unit]
    start: List[str]
    enable: List[str]

    @property
    def changes(self) -> bool:
        running = any(not unit.down for unit in self.stop)
        return bool(self.link or self.files or self.start or self.enable or running)


def own(paths: Paths, unit: str, run: str) -> Marker:
    """The marker of this run; raises ServiceError that says what became of it when there is none."""
    marker = markers.load(paths)
    if marker is None:
        raise ServiceError(f"{unit}: nothing is armed for run {run}{_what_became(paths)}")
    if marker.run != run:
        raise ServiceError(
            f"{unit}: the release that is pending is {marker.release} of {markers.who(marker)}, not of run {run}; that run has to end first"
        )
    return marker


def _what_became(paths: Paths) -> str:
    """How the last marker of this family went away, for a message."""
    last = last_restored(paths)
    if not last:
        return ""
    kept = f"; what failed is kept in {last['kept']}" if last.get("kept") else ""
    return (
        f"; the way back from release {last['release']} was taken at {last['time']} ({last['reason']}), "
        f"and {'release ' + last['way_back'] if last['way_back'] else 'what was there before'} serves again{kept}"
    )


def last_restored(paths: Paths) -> Dict[str, Any]:
    """What the last way back that was taken had to say; empty when none was since the last confirmation."""
    try:
        data: Dict[str, Any] = json.loads(missing_ok(paths.restored) or b"{}")
        return data
    except ValueError:
        return {}


def plan(paths: Paths, store: Store, release: str, names: List[str], given: Optional[Files], before: State) -> Plan:
    """What is to be done to serve ``release`` with ``names`` as the units that run and ``given`` as their unit files."""
    found = units.look(paths.stem, [*names, *family.enabled(paths.stem, family.read(paths.units, paths.stem))])
    present = present_state(paths, store.dest, found)
    files = _files(paths, store, release, names, given, present)
    link = os.path.join(os.path.basename(store.root), store.need(release) and release)
    goal = State(link, files, present.keys, {name: Served(True) for name in names})
    same_keys = before.keys == present.keys
    record = confirmed(paths)
    since = set(drift(present.files, record)) if record.get("release") == release else set()
    right = {
        name
        for name, unit in found.items()
        if unit.up
        and name in names
        and unchanged(name, present, goal)
        and same_keys
        # What was changed by hand since the release was proved may not be what runs.
        and not since & set(family.of_unit(name, present.files))
    }
    stop = [
        unit
        for name, unit in sorted(found.items())
        if name not in right and not (unit.down and unit.load == "not-found")
    ]
    start = [name for name in names if name not in right]
    enable = sorted(set(names) - set(family.enabled(paths.stem, files)))
    return Plan(goal, present.link != link, family.differing(present.files, files), stop, start, enable)


def _files(paths: Paths, store: Store, release: str, names: List[str], given: Optional[Files], present: State) -> Files:
    """The family's files as they shall be; what enables a unit that shall not run goes."""
    if given is None:
        given = family.without_enabling(family.saved(store, release, paths.stem))
        if not given:
            raise ServiceError(f"no unit files were saved with release {release}; give them as files")
        files = {**given, **{name: file for name, file in present.files.items() if family.enables(name)}}
    else:
        files = family.replaced(paths.stem, present.files, given)
    missing = [name for name in names if not family.of_unit(name, files)]
    if missing:
        raise ServiceError(f"files have no unit file for {', '.join(missing)}")
    return {name: file for name, file in files.items() if not family.enables(name) or os.path.basename(name) in names}


def refuse_drop_ins(paths: Paths, wanted: Plan, given: Optional[Files]) -> None:
    """Raise ServiceError where a drop-in that stays would let systemd run something else than the unit says."""
    names = family.overriding(wanted.goal.files, given or wanted.goal.files)
    refuse_overriding([os.path.join(paths.units, name) for name in names])


def switch(paths: Paths, marker: Marker, given: Optional[Files], steps: Steps) -> bool:
    """Switch to the marker's release. Gives whether anything changed; raises ServiceError, and then the way back is due."""
    store = Store(marker.dest)
    names = sorted(marker.after.units)
    wanted = plan(paths, store, marker.release, names, given, marker.before)
    refuse_drop_ins(paths, wanted, given)
    if not wanted.changes:
        markers.store(
            paths,
            replace(marker, phase=markers.SWITCHED, after=_after(paths, wanted.goal, units.look(paths.stem, names))),
        )
        return False
    marker = markers.store(paths, replace(marker, phase=markers.SWITCHING, after=wanted.goal))
    with steps.step(STOP):
        units.stop(paths, wanted.stop, groups_of(marker.before), marker.stop_timeout)
    if wanted.start:
        with steps.step(WAIT):
            _wait_until_free(paths, marker, wanted)
    with steps.step("link"):
        store.activate(marker.release, marker.actor)
    with steps.step("unit files"):
        family.write(paths.units, paths.stem, wanted.goal.files)
    with steps.step("reload"):
        if wanted.enable:
            units.systemctl("enable", "--no-reload", "--quiet", "--", *names)
            _refuse_not_enabled(paths, names)
        reload()
    found = units.look(paths.stem, names)
    refuse_overriding(elsewhere(paths, found))
    for name in names:
        _refuse_other_program(name, found, wanted.goal.files)
    if wanted.start:
        with steps.step(START):
            _start(paths, wanted, found)
    markers.store(
        paths, replace(marker, phase=markers.SWITCHED, after=_after(paths, wanted.goal, units.look(paths.stem, names)))
    )
    return True


def _after(paths: Paths, goal: State, found: Dict[str, Unit]) -> State:
    served = {name: Served(True, found[name].invocation, found[name].group) for name in goal.units if name in found}
    return replace(
        goal, files=family.read(paths.units, paths.stem), keys=read_keys(paths), units={**goal.units, **served}
    )


def _wait_until_free(paths: Paths, marker: Marker, wanted: Plan) -> None:
    found = units.look(paths.stem)
    running = [unit.group for name, unit in found.items() if unit.up and unit.group and name not in wanted.start]
    held = free.wait(free.Needs(marker.addresses, marker.gpus, running), marker.free_timeout)
    if held:
        raise ServiceError(
            f"{marker.free_timeout} s after {marker.unit} stopped, what the new server needs is still held: {'; '.join(held)}. "
            "End those processes, or give the server other ports or GPUs"
        )


def _refuse_not_enabled(paths: Paths, names: List[str]) -> None:
    missing = set(names) - set(family.enabled(paths.stem, family.read(paths.units, paths.stem)))
    if missing:
        raise ServiceError(
            f"{', '.join(sorted(missing))} would not start at boot; its unit file needs an [Install] section with "
            "WantedBy=multi-user.target"
        )


def _refuse_other_program(name: str, found: Dict[str, Unit], files: Files) -> None:
    """Raise ServiceError when systemd would run another program than the unit's own files say."""
    unit, program = found.get(name), family.program_of(name, files)
    if unit is None or unit.load != "loaded":
        raise ServiceError(
            f"{name}: systemd does not load it ({unit.load if unit else 'no such unit'}); see systemctl status {name}"
        )
    if program and not any(f"path={program} " in command for command in unit.commands):
        raise ServiceError(
            f"{name}: its unit file says {program}, but systemd would run {'; '.join(unit.commands)[:200] or 'nothing'}; "
            f"see systemctl cat {name}"
        )


def _start(paths: Paths, wanted: Plan, before: Dict[str, Unit]) -> None:
    found = units.start(paths.stem, wanted.start)
    problems = not_started(wanted.start, found, before)
    if problems:
        redactor = Redactor(diagnosis.secrets(paths))
        lines = [
            line
            for name in wanted.start
            for line in _systemd.journal(name, found[name].invocation, redactor, 5)
            if name in found
        ]
        raise ServiceError("; ".join(problems) + ("\n" + "\n".join(lines) if lines else ""))


def refuse_unproved(paths: Paths, marker: Marker) -> None:
    """Raise ServiceError where what was switched to, and proved since, is not what runs."""
    names = sorted(marker.after.units)
    found = units.look(paths.stem, names)
    if marker.phase != markers.SWITCHED:
        raise ServiceError(
            f"{marker.unit}: release {marker.release} is {marker.phase}, not switched, so that there is nothing to confirm; "
            "take the way back with state=restored"
        )
    lost = [
        problem for name in names for problem in [_lost(name, found.get(name), marker.after.units[name])] if problem
    ]
    active = Store(marker.dest).active()
    if active != marker.release:
        lost.append(f"{marker.dest} leads to {active or 'no release'}")
    if lost:
        raise ServiceError(f"{marker.unit}: release {marker.release} does not serve any more: {'; '.join(lost)}")


def confirm(paths: Paths, marker: Marker, proof: Dict[str, Any], steps: Steps) -> None:
    """Confirm the marker's release: what was proved is recorded, and nobody goes back any more. Raises ServiceError."""
    refuse_unproved(paths, marker)
    store = Store(marker.dest)
    files = family.read(paths.units, paths.stem)
    markers.release(marker.reserves)  # nobody goes back any more unless writing this down fails, and then there is room
    with steps.step("record"):
        family.save(store, marker.release, paths.stem, files)
        store.judge(marker.release, "passed", marker.actor)
        record = {
            "release": marker.release,
            "time": now(),
            "run": marker.run,
            "actor": marker.actor,
            "units": sorted(marker.after.units),
            "files": digests(files),
            "proof": Redactor(diagnosis.secrets(paths)).clean(proof),
        }
        write_atomically(paths.confirming, json.dumps(record, indent=1, sort_keys=True) + "\n", 0o600)
    with steps.step("disarm"):
        markers.forget(paths)  # from here on it is confirmed
        settle(paths)
        way_back.remove(paths, marker)
    with steps.trying("the history"):
        store.record("confirmed", marker.release, actor=marker.actor, run=marker.run)
    with steps.trying("the keys of releases that are gone"):
        _drop_keys(paths, store.releases())


def _lost(name: str, unit: Optional[Unit], proved: Served) -> str:
    """Why a unit is not what was started and proved; empty when it is."""
    if unit is None or not unit.up:
        return f"{name} is {unit.ending() if unit else 'gone'}"
    if proved.invocation and unit.invocation != proved.invocation:
        return f"{name} was started anew (invocation {proved.invocation} became {unit.invocation})"
    return ""


def _drop_keys(paths: Paths, releases: List[str]) -> None:
    """Delete the key files, one a release, of releases that are not there any more."""
    for name in read_keys(paths):
        release = os.path.splitext(name)[0]
        if RELEASE_ID.match(release) and release not in releases:
            remove_link(os.path.join(paths.keys, name))


def settle(paths: Paths) -> None:
    """Finish what a confirmation that was cut off had decided: without a marker what it was about to say holds, with one it does not."""
    if not os.path.exists(paths.marker) and os.path.exists(paths.confirming):
        os.replace(paths.confirming, paths.confirmed)
        remove_link(paths.restored)
        sync_directory(paths.state)


def confirmed(paths: Paths) -> Dict[str, Any]:
    """What was last confirmed; empty when nothing was."""
    pending = os.path.exists(paths.marker)
    content = (b"" if pending else missing_ok(paths.confirming)) or missing_ok(paths.confirmed)
    try:
        data: Dict[str, Any] = json.loads(content or b"{}")
        return data
    except ValueError:
        return {"damaged": f"{paths.confirmed} cannot be read; deploy again"}


def digests(files: Files) -> Dict[str, str]:
    """What of a family's picture is compared later: the hash of each file and its permissions, by name."""
    return {name: f"{file.mode:o} {hashlib.sha256(file.content).hexdigest()}" for name, file in sorted(files.items())}


def drift(files: Files, record: Dict[str, Any]) -> List[str]:
    """The files that differ from what was confirmed, those that are missing or new among them."""
    known = record.get("files")
    if not isinstance(known, dict):
        return []
    current = digests(files)
    return sorted(name for name in {*known, *current} if known.get(name) != current.get(name))
