# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states that service_release brings a service to, each in check mode too."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import ReleaseError, Store
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._service import arm as arming
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family, health, switch, units
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service import restore as restoring
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import Files
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Marker
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import (
    Paths,
    ServiceError,
    boot_id,
    stem_of,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service.steps import STOP, WAIT, Steps, present_state

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """The options of service_release; see its documentation. ``root`` is for tests."""

    dest: str
    unit: str
    state: str
    check: bool
    release: Optional[str] = None
    units: List[str] = field(default_factory=list)
    files: Optional[Dict[str, Any]] = None
    addresses: List[str] = field(default_factory=list)
    gpus: List[int] = field(default_factory=list)
    stop_timeout: int = 180
    free_timeout: int = 120
    timeout: Optional[int] = None
    ready_timeout: int = 1800
    reason: str = ""
    verdict: Optional[str] = None
    proof: Dict[str, Any] = field(default_factory=dict)
    actor: str = ""
    run_id: Optional[str] = None
    root: str = ""


class Failure(Exception):
    """A request that failed, with what is true of the host nevertheless."""

    def __init__(self, message: str, result: Dict[str, Any]) -> None:
        super().__init__(message)
        self.result = result


def reach(request: Request) -> Dict[str, Any]:
    """Bring the service to the wanted state; gives a module's result. Raises Failure."""
    try:
        paths, store = Paths(stem_of(request.unit), request.root), Store(request.dest)
        _check_numbers(request)
    except (ServiceError, ReleaseError) as error:
        raise Failure(str(error), {}) from error
    steps = Steps()
    release, files = store.active() or "", _readable(paths)
    done, problem = _attempt(paths, store, request, steps)
    result: Dict[str, Any] = {"changed": bool(steps.taken), **done, **_times(steps)}
    files_after = result.pop("files_after") if "files_after" in result else _readable(paths)
    result["diff"] = _diff(paths, (release, files), (result.get("active", store.active() or ""), files_after))
    try:
        result = {**_facts(paths, store), **result}
    except (ServiceError, ReleaseError, OSError) as error:
        problem = problem or _said(error, request)
    if problem:
        raise Failure(problem, result)
    return result


def _readable(paths: Paths) -> Files:
    """The family's files for a diff; none for a user that may not read them."""
    try:
        return family.read(paths.units, paths.stem)
    except PermissionError:
        return {}


def _attempt(paths: Paths, store: Store, request: Request, steps: Steps) -> Tuple[Dict[str, Any], str]:
    """What came of the state, and why it was not reached."""
    try:
        done = STATES[request.state](paths, store, request, steps)
        return done, str(done.pop("problem", ""))
    except (ServiceError, ReleaseError, OSError) as error:
        return {}, _said(error, request)


def _said(error: Exception, request: Request) -> str:
    if not isinstance(error, OSError):
        return str(error)
    root = "; this needs root, use become: true" if isinstance(error, PermissionError) else ""
    return f"{error.filename or request.dest}: {error.strerror or error}{root}"


def _check_numbers(request: Request) -> None:
    least = {"stop_timeout": 1, "free_timeout": 0, "ready_timeout": 1}
    for name, lowest in least.items():
        if getattr(request, name) < lowest:
            raise ServiceError(f"{name} must be {lowest} or more, not {getattr(request, name)}")


def _times(steps: Steps) -> Dict[str, Any]:
    started = (
        {} if steps.start_seconds is None else {"start_seconds": steps.start_seconds, "started_at": steps.started_at}
    )
    return {
        "steps": steps.taken,
        "teardown_seconds": steps.seconds(STOP),
        "wait_seconds": steps.seconds(WAIT),
        "remarks": steps.remarks,
        **started,
    }


class _Looks:
    """Looks at a host as far as this user may, and remembers what it may not see."""

    def __init__(self) -> None:
        self._refused: Dict[str, str] = {}

    def at(self, what: str, look: Callable[[], T], otherwise: T) -> T:
        try:
            return look()
        except PermissionError as error:
            self._refused[what] = str(error.filename)
            return otherwise

    def warnings(self) -> List[str]:
        """One message for all of it; none when everything was seen."""
        paths = ", ".join(dict.fromkeys(self._refused.values()))
        what = ", ".join(self._refused)
        return [f"this user may not read {paths}, so that {what} is not known; use become: true"] if paths else []


def _facts(paths: Paths, store: Store) -> Dict[str, Any]:
    """What is so on the host."""
    looks = _Looks()
    looks.at("what is active", lambda: _reach_dest(store.dest), None)
    marker = looks.at("what is pending", lambda: markers.load(paths), None)
    record: Dict[str, Any] = looks.at("what was confirmed", lambda: switch.confirmed(paths), {})
    found = units.look(paths.stem, record.get("units", []))
    files: Files = looks.at("the unit files", lambda: family.read(paths.units, paths.stem), {})
    listing: Dict[str, Any] = looks.at("which releases there are", store.listing, {})
    return {
        "active": store.active() or "",
        "way_back": looks.at("the way back", store.way_back, ""),
        "pending": shown(marker) if marker else {},
        "confirmed": record,
        "units": [
            {
                "name": unit.name,
                "active": unit.up,
                "enabled": unit.enabled == "enabled",
                "state": unit.active,
                "invocation": unit.invocation if unit.up else "",
                "since": unit.since if unit.up else "",
            }
            for _name, unit in sorted(found.items())
            if not (unit.down and unit.load == "not-found")
        ],
        "serves": [{"unit": name, "url": health.server(unit)} for name, unit in sorted(found.items()) if unit.up],
        "hand_written": family.hand_written(paths.stem, files),
        "drift": switch.drift(files, record),
        "store": listing,
        "warnings": looks.warnings(),
    }


def _reach_dest(dest: str) -> None:
    """Raise PermissionError where it cannot be seen what dest is."""
    try:
        os.lstat(dest)
    except FileNotFoundError:
        return


def shown(marker: Marker) -> Dict[str, Any]:
    """What a result says of a marker: no content of files, which may hold secrets."""
    left = marker.seconds_left(boot_id())
    return {
        "release": marker.release,
        "way_back": marker.way_back,
        "phase": marker.phase,
        "run": marker.run,
        "actor": marker.actor,
        "armed": marker.armed,
        "timeout": marker.timeout,
        "seconds_left": None if left is None else max(0, round(left)),
        "units": sorted(marker.after.units),
        "units_before": sorted(marker.before.units),
        "reason": marker.reason,
    }


def _diff(paths: Paths, before: Tuple[str, Files], after: Tuple[str, Files]) -> List[Dict[str, str]]:
    """The active release and the unit files before and after, without secrets."""
    found = []
    if before[0] != after[0]:
        found.append(("active release", before[0], after[0]))
    for name in family.differing(before[1], after[1]):
        old, new = (
            files[name].content.decode("utf-8", "replace") if name in files else "" for files in (before[1], after[1])
        )
        found.append((os.path.join(paths.units, name), old, new))
    redactor = Redactor()
    return [
        {"before_header": name, "after_header": name, "before": redactor.text(old), "after": redactor.text(new)}
        for name, old, new in found
    ]


def _present(paths: Paths, store: Store, request: Request, steps: Steps) -> Dict[str, Any]:
    return {"release": store.active() or ""}


def _armed(paths: Paths, store: Store, request: Request, steps: Steps) -> Dict[str, Any]:
    release = store.previous() if request.release == "previous" else request.release
    if not release:
        raise ServiceError(f"{request.dest} has no previous release that served well")
    order = arming.Order(
        unit=request.unit,
        dest=store.dest,
        release=release,
        units=request.units or _units_of(paths, store, release) or [request.unit],
        run=str(request.run_id),
        actor=request.actor,
        timeout=int(request.timeout or 0),
        stop_timeout=request.stop_timeout,
        free_timeout=request.free_timeout,
        ready_timeout=request.ready_timeout,
        addresses=request.addresses,
        gpus=request.gpus,
    )
    if request.check:
        marker = arming.prepare(paths, order)
        arming.choose_python(store.dest)
    else:
        with markers.locked(paths, "arming the way back"):
            switch.settle(paths)
            marker = arming.arm(paths, arming.prepare(paths, order), steps)
    return {"changed": True, "release": release, "way_back": marker.way_back}


def _units_of(paths: Paths, store: Store, release: str) -> List[str]:
    """The units that a release was saved with as those that run."""
    return family.enabled(paths.stem, family.saved(store, release, paths.stem))


def _switched(paths: Paths, store: Store, request: Request, steps: Steps) -> Dict[str, Any]:
    given = None if request.files is None else family.given_files(paths.stem, request.files)
    if request.check:
        return _would_switch(paths, store, request, given)
    with markers.locked(paths, "switching"):
        marker = _as_asked(switch.own(paths, request.unit, str(request.run_id)), request)
        changed = switch.switch(paths, marker, given, steps)
    return {"changed": changed, "release": marker.release, "way_back": marker.way_back}


def _as_asked(marker: Marker, request: Request) -> Marker:
    """The marker, once it is what the request is about: release and units are fixed, since going back was armed for them."""
    if request.release not in (None, marker.release):
        raise ServiceError(
            f"{request.unit}: release {marker.release} was armed, not {request.release}; take the way back with state=restored, then "
            "arm for that one"
        )
    if request.units and set(request.units) != set(marker.after.units):
        raise ServiceError(
            f"{request.unit}: units {', '.join(marker.after.units)} were armed, not {', '.join(request.units)}; take the way back "
            "with state=restored, then arm for these"
        )
    return marker


def _would_switch(paths: Paths, store: Store, request: Request, given: Optional[Files]) -> Dict[str, Any]:
    """What switching would do; without a marker, which a check does not write, for the release that is named."""
    marker = markers.load(paths)
    if marker and marker.run != request.run_id:  # what another run left is taken back before this one switches
        marker = None
    release = marker.release if marker else request.release or store.active() or ""
    names = (
        sorted(marker.after.units) if marker else request.units or _units_of(paths, store, release) or [request.unit]
    )
    arming.check_units(paths, names)
    before = marker.before if marker else present_state(paths, store.dest, units.look(paths.stem, names))
    wanted = switch.plan(paths, store, release, names, given, before)
    switch.refuse_drop_ins(paths, wanted, given)
    return {"changed": wanted.changes, "release": release, "active": release, "files_after": wanted.goal.files}


def _confirmed(paths: Paths, store: Store, request: Request, steps: Steps) -> Dict[str, Any]:
    if request.verdict == "failed":
        raise ServiceError("a release whose gate failed is not confirmed; take the way back with state=restored")
    if request.check:
        if markers.load(paths) is None:  # a check arms and switches nothing
            return {"changed": True, "release": request.release or ""}
        marker = _as_asked(switch.own(paths, request.unit, str(request.run_id)), request)
        switch.refuse_unproved(paths, marker)
        return {"changed": True, "release": marker.release}
    with markers.locked(paths, "confirming"):
        marker = _as_asked(switch.own(paths, request.unit, str(request.run_id)), request)
        switch.confirm(paths, marker, request.proof, steps)
    return {"changed": True, "release": marker.release, "way_back": marker.way_back}


def _restored(paths: Paths, store: Store, request: Request, steps: Steps) -> Dict[str, Any]:
    pending = markers.load(paths)
    if pending is None or _is_another(pending, request):
        return _restored_before(paths, request)
    if request.check:
        return _would_restore(pending)
    with markers.locked(paths, "taking the way back", pending.restore_seconds()):
        marker = markers.load(paths)
        if marker is None or _is_another(marker, request):
            return _restored_before(paths, request)
        done = restoring.restore(
            paths,
            marker,
            steps,
            request.reason or "it was asked for",
            "module",
            request.verdict or "",
        )
    problems = done.not_started
    what = f"release {done.way_back}" if done.way_back else "what was there before"
    problem = f"{request.unit}: {what} is back, but does not serve: {'; '.join(problems)}; look at the host now"
    return {
        "changed": True,
        "release": done.release,
        "way_back": done.way_back,
        "kept": done.kept,
        "problem": problem if problems else "",
    }


def _would_restore(pending: Marker) -> Dict[str, Any]:
    active = os.path.basename(pending.before.link or "")
    return {"changed": True, "release": pending.release, "active": active, "files_after": pending.before.files}


def _is_another(marker: Marker, request: Request) -> bool:
    """Whether the marker is of another run than the one that asks; nobody in particular asks for whatever is pending."""
    return bool(request.run_id) and marker.run != request.run_id


def _restored_before(paths: Paths, request: Request) -> Dict[str, Any]:
    """Nothing of this run is pending: what the last way back that was taken had to say, by the timer maybe, where it was of this run."""
    last = switch.last_restored(paths)
    if request.run_id and last.get("run") != request.run_id:
        return {}
    return {name: last[name] for name in ("release", "way_back", "kept") if last.get(name)}


STATES: Dict[str, Callable[[Paths, Store, Request, Steps], Dict[str, Any]]] = {
    "present": _present,
    "armed": _armed,
    "switched": _switched,
    "confirmed": _confirmed,
    "restored": _restored,
}
