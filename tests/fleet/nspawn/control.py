# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A set of test hosts with one state directory: up, down, restart, and what is running."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import cgroup, inventory, keys
from .base import ensure_base
from .disk import lower_directories
from .hosts import Host, find_host
from .machine import Machine, PowerOn
from .network import DEFAULT_OCTET, Network
from .shell import FleetError, locked

INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_LEAST = 1024  # a booted host uses seven


@dataclass(frozen=True)
class Fleet:
    """The fleet of one state directory; ``cache`` holds what all fleets share."""

    cache: Path
    state: Path
    network: Network = field(default_factory=Network)

    @classmethod
    def open(cls, cache: Path, state: Path, octet: int | None = None) -> Fleet:
        """The fleet of ``state``, on the network it was last up with unless ``octet`` says otherwise."""
        if octet is None:
            octet = _recorded_octet(state)
        return cls(cache.resolve(), state.resolve(), Network(octet))

    def machine(self, name: str) -> Machine:
        """The machine of a host of the table, running or not."""
        return Machine(find_host(name), self.network, self.state)

    def running(self) -> list[Machine]:
        """Machines whose PID 1 lives, in the order of their addresses."""
        if self.network.owner() != self.state:
            return []
        try:
            names = [path.name for path in (self.state / "hosts").iterdir()]
        except FileNotFoundError:
            return []
        machines = [self.machine(name) for name in names]
        return sorted((m for m in machines if m.is_running()), key=lambda machine: machine.host.number)

    def up(
        self,
        hosts: list[Host],
        *,
        bare: bool = False,
        extra_layers: dict[str, list[str]] | None = None,
        rate: str | None = None,
        layer_dir: Path | None = None,
    ) -> list[Machine]:
        """Start the hosts that are not running, each with an empty disk, and wait until they are booted.

        ``extra_layers`` puts layers on top of a host's own. ``rate`` limits the hosts started by this call.
        """
        extra = extra_layers or {}
        with self._exclusive():
            machines = [self.machine(host.name) for host in hosts]
            present = {machine.host.name for machine in self.running()}
            self._refuse_ignored_layers({host.name for host in hosts} - present, extra)
            base = ensure_base(self.cache)
            layers = (layer_dir or self.cache / "layers").resolve()
            starts = {
                host.name: PowerOn(layers, () if bare else host.layers, tuple(extra.get(host.name, ())), rate)
                for host in hosts
                if host.name not in present
            }
            for start in starts.values():
                lower_directories(layers, base, start.layers)
            self._own_network()
            _allow_inotify()

            def boot(machine: Machine) -> None:
                if machine.host.name in starts:
                    self._start(machine, starts[machine.host.name], base, keep_disk=False)
                elif not machine.network.is_cut(machine.host):
                    machine.wait_booted()

            try:
                _in_parallel(boot, machines)
            finally:
                self._describe()
        return machines

    def restart(self, name: str, *, layers: list[str] | None = None, hard: bool = False) -> Machine:
        """Power a host off and on again. With ``layers`` on top it gets an empty disk, else it keeps what it wrote.

        ``hard`` takes its power away instead of shutting it down.
        """
        machine = self.machine(name)
        with self._exclusive():
            start = machine.last_start()
            if start is None or self.network.owner() != self.state:
                raise FleetError(f"{name} is not part of this fleet ({self.state}); start it with: fleet.py up {name}")
            base = ensure_base(self.cache)
            if layers is not None:
                start = replace(start, extra_layers=tuple(layers))
            lower_directories(start.layer_dir, base, start.layers)
            if not hard:
                machine.power_off()
            try:
                self._start(machine, start, base, keep_disk=layers is None)
            finally:
                self._describe()
        return machine

    @staticmethod
    def _start(machine: Machine, start: PowerOn, base: Path, keep_disk: bool) -> None:
        """Power on and wait; a host that does not get up is switched off again, its disk and log are kept."""
        try:
            machine.start(start, base, keep_disk)
            machine.wait_booted()
        except FleetError:
            machine.remove_leftovers()
            raise

    def down(self) -> None:
        """End all hosts and remove all they left, disks included; the keys stay, so addresses keep their identity."""
        with self._exclusive():
            if self.network.owner() in (self.state, None):
                self._tear_down()
            for leftover in ("hosts", "inventory"):
                if (self.state / leftover).exists():
                    shutil.rmtree(self.state / leftover)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One program at a time may change the hosts of a network."""
        with locked(Path(f"/run/lock/{self.network.bridge}.lock")):
            yield

    def _own_network(self) -> None:
        """Make the bridge ours: keep our own, take a dead fleet's, refuse a living one's."""
        owner = self.network.owner()
        if owner is not None and owner != self.state:
            if cgroup.processes(self.network.bridge):
                raise FleetError(
                    f"10.{self.network.octet}.0.0/24 belongs to the running hosts of {owner}; "
                    f"take them down (fleet.py --state {owner} down) or use another network (--net 78)"
                )
            self._tear_down()
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / "network.json").write_text(json.dumps({"octet": self.network.octet}))
        self.network.create_bridge(self.state)

    def _tear_down(self) -> None:
        """Remove processes, control groups and devices of this network, whichever fleet's they are."""
        for top in cgroup.group_paths(self.network.bridge):
            for path in top.iterdir() if top.is_dir() else ():
                if path.is_dir():
                    cgroup.kill(f"{self.network.bridge}/{path.name}")
        cgroup.kill(self.network.bridge)
        self.network.delete_bridge()

    @staticmethod
    def _refuse_ignored_layers(absent: set[str], extra: dict[str, list[str]]) -> None:
        """A layer for a host that stays as it is would be forgotten silently."""
        ignored = sorted(set(extra) - absent)
        if ignored:
            raise FleetError(
                f"--layer for {', '.join(ignored)}: not started by this call; for a running host use: "
                f"fleet.py restart {ignored[0]} --layer NAME"
            )

    def _describe(self) -> None:
        """Write inventory and known_hosts of the hosts that are running now."""
        machines = self.running()
        keys.write_known_hosts(self.state, self.network, [machine.host for machine in machines])
        inventory.write(self.state, machines)


def _allow_inotify() -> None:
    """Let systemd on many hosts watch files: its instances count for root of this machine, whose limit is often 128."""
    allowed = int(INOTIFY.read_text())
    if allowed < INOTIFY_LEAST:
        print(f"fleet: raising fs.inotify.max_user_instances from {allowed} to {INOTIFY_LEAST}", file=sys.stderr)
        try:
            INOTIFY.write_text(str(INOTIFY_LEAST))
        except OSError as error:
            raise FleetError(f"{INOTIFY} cannot be written ({error}); set it to {INOTIFY_LEAST}") from error


def _in_parallel(work: Callable[[Machine], None], machines: list[Machine]) -> None:
    """Do the work for all machines at once; the errors of all of them become one."""
    errors = []
    with ThreadPoolExecutor(max_workers=max(len(machines), 1)) as pool:
        for future in [pool.submit(work, machine) for machine in machines]:
            try:
                future.result()
            except FleetError as exc:
                errors.append(str(exc))
    if errors:
        raise FleetError("\n".join(errors))


def _recorded_octet(state: Path) -> int:
    try:
        return int(json.loads((state / "network.json").read_text())["octet"])
    except FileNotFoundError:
        return DEFAULT_OCTET
