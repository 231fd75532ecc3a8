# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arms the way back: what served before goes into the marker, and what restores it stands on the host before anything live changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Dict, List, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    NO_RELEASE,
    Store,
    remove_link,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family, program, units, way_back
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service.free import split_address
from ansible_collections.ddtree.fleet.plugins.module_utils._service.marker import Marker, Served, State
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import (
    Paths,
    ServiceError,
    boot_id,
    is_runnable,
    make_private,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service.steps import Steps, present_state
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit

MIN_PYTHON = (3, 9)
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Order:
    """What is asked: which release, which units shall run afterwards, and for how long everything may take (seconds)."""

    unit: str
    dest: str
    release: str
    units: Sequence[str]
    run: str
    actor: str
    timeout: int
    stop_timeout: int
    free_timeout: int
    ready_timeout: int
    addresses: Sequence[str] = ()
    gpus: Sequence[int] = ()


def prepare(paths: Paths, order: Order) -> Marker:
    """The marker for an order, with nothing written; raises ServiceError or ReleaseError for what is refused."""
    _refuse_pending(paths, order)
    check_units(paths, order.units)
    for text in order.addresses:
        split_address(text)
    least = order.stop_timeout + order.free_timeout + order.ready_timeout
    if order.timeout <= least:
        raise ServiceError(
            f"timeout of {order.timeout} s is too short: the new server alone may take {least} s to be ready (stop_timeout, free_timeout "
            "and ready_timeout together), and its gate takes more; raise timeout"
        )
    store = Store(order.dest)
    store.would_activate(order.release)
    found = units.look(paths.stem, [*order.units, *family.enabled(paths.stem, family.read(paths.units, paths.stem))])
    before = present_state(paths, order.dest, found)
    _refuse_drop_ins(paths, before, found)
    back = store.way_back()
    return Marker(
        unit=order.unit,
        dest=order.dest,
        release=order.release,
        way_back=back,
        run=order.run,
        actor=order.actor,
        armed=time.time(),
        monotonic=time.monotonic(),
        boot=boot_id(),
        timeout=order.timeout,
        stop_timeout=order.stop_timeout,
        free_timeout=order.free_timeout,
        ready_timeout=order.ready_timeout,
        before=_goal(store, paths.stem, before, back),
        addresses=list(order.addresses),
        gpus=list(order.gpus),
        after=State(None, {}, {}, {name: Served(True) for name in order.units}),
    )


def arm(paths: Paths, marker: Marker, steps: Steps) -> Marker:
    """Write everything that going back needs. The marker comes last: where it is, all the rest is."""
    store = Store(marker.dest)
    python = choose_python(marker.dest)
    make_private(paths.state)
    try:
        with steps.step("reserve space"):
            folders = [paths.state, store.root, os.path.dirname(paths.keys)]
            marker = replace(marker, reserves=markers.reserve(folders, f"{paths.stem}.reserve"))
        with steps.step("save unit files"):
            family.save(store, store.active() or NO_RELEASE, paths.stem, family.read(paths.units, paths.stem))
        with steps.step("arm"):
            remove_link(paths.laid)
            program.write(paths.program)
            check_program(python, paths)
            way_back.install(paths, marker, python)
            return markers.store(paths, marker)
    except (ServiceError, OSError):
        way_back.remove(paths, marker)  # an earlier marker of this run too: nothing was switched yet
        raise


def choose_python(dest: str) -> str:
    """A Python that runs whatever becomes of dest and its releases; raises ServiceError when there is none."""
    here = os.path.realpath(sys.executable) if sys.executable else ""
    candidates = [here, os.path.realpath(SYSTEM_PYTHON)]
    for candidate in candidates:
        if candidate and not _inside(candidate, dest) and _version(candidate) >= MIN_PYTHON:
            return candidate
    raise ServiceError(
        f"the program that goes back needs a Python outside {dest} and its releases: {here or 'no interpreter'} is inside or too old, and "
        f"{SYSTEM_PYTHON} is missing or older than {MIN_PYTHON[0]}.{MIN_PYTHON[1]}; install python3, or set ansible_python_interpreter to "
        "another one on this host"
    )


def check_program(python: str, paths: Paths) -> None:
    """Run the program once, before anybody depends on it."""
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            [python, "-I", paths.program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{paths.program} does not run with {python}: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ServiceError(f"{paths.program} does not run with {python}: {said[0]}")


def _inside(path: str, dest: str) -> bool:
    places = (dest, os.path.realpath(dest), dest + ".releases", os.path.realpath(dest + ".releases"))
    return any(path.startswith(place.rstrip("/") + "/") for place in places)


def _version(python: str) -> Tuple[int, ...]:
    if not os.path.isabs(python):
        return (0,)
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            [python, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return tuple(int(word) for word in done.stdout.split())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return (0,)


def check_units(paths: Paths, names: Sequence[str]) -> None:
    """Raise ServiceError for a unit that is none of the family, or none that runs."""
    for name in names:
        if not is_runnable(paths.stem, name):
            raise ServiceError(
                f"units: {name} is no unit of the family {paths.stem}; it has {paths.stem}.service and instances {paths.stem}@NAME.service"
            )
    if not names:
        raise ServiceError("units must name at least one unit that shall run")


def _refuse_pending(paths: Paths, order: Order) -> None:
    pending = markers.load(paths)
    if pending is None or (pending.run == order.run and pending.phase == markers.ARMED):
        return
    raise ServiceError(
        f"{order.unit}: release {pending.release} of {markers.who(pending)} is not confirmed yet; without that its way back is taken {pending.due(boot_id())}. "
        "Wait for it, or take it now with state=restored"
    )


def _refuse_drop_ins(paths: Paths, before: State, found: Dict[str, Unit]) -> None:
    names = [os.path.join(paths.units, name) for name in family.overriding(before.files, {})]
    refuse_overriding(sorted({*names, *elsewhere(paths, found)}))


def elsewhere(paths: Paths, found: Dict[str, Unit]) -> List[str]:
    """Paths of the drop-ins outside of the family's own files that set ExecStart= for a unit, such as in /run or /usr/lib."""
    paths_of = {path for unit in found.values() for path in unit.drop_ins if not path.startswith(paths.units + "/")}
    files = {path: family.read_file(path) for path in paths_of}
    drop_ins = {f"x.service.d/{number}.conf": path for number, path in enumerate(sorted(files))}
    readable = {name: file for name, file in ((name, files[path]) for name, path in drop_ins.items()) if file}
    return [drop_ins[name] for name in family.overriding(readable, {})]


def refuse_overriding(paths: Sequence[str]) -> None:
    if paths:
        raise ServiceError(
            f"{', '.join(paths)} sets ExecStart=, so that systemd would run something else than the release; move what it sets into "
            "the variables of the deployment, and remove it"
        )


def _goal(store: Store, stem: str, present: State, back: str) -> State:
    """What going back brings back. What is enabled is to run then, since a server that is down now is no reason to leave it so."""
    if back == (store.active() or ""):
        active = {
            name: Served(unit.active or bool(back), unit.invocation, unit.group) for name, unit in present.units.items()
        }
        return replace(present, units=active)
    kept = family.saved(store, back or NO_RELEASE, stem)
    if not any(map(family.enables, kept)):
        kept = {**kept, **{name: file for name, file in present.files.items() if family.enables(name) and kept}}
    if back and not kept:
        kept = present.files
    names = family.enabled(stem, kept) or [f"{stem}.service"] * (f"{stem}.service" in kept)
    link = os.path.join(os.path.basename(store.root), back) if back else None
    return State(link, kept, present.keys, {name: Served(True) for name in names})
