# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run: a host that serves, a deployment to it, the fault, and what must be true of the host once it has come to rest."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plan as plans
from controller import FOLDER
from nspawn.machine import Machine, PowerOn
from plan import Plan
from prepared import OLD, PORT, UNIT, Prepared, unit_text

CONTROLLER = Path(__file__).with_name("controller.py")
DEST = "/root/venv_sglang211"
STATE = f"var/lib/ddtree-fleet/{UNIT.removesuffix('.service')}"
DISK_BYTES = 512 << 20
POLL_S = 0.01
PAUSE_S = 0.8  # between arming and switching, for faults in between


@dataclass(frozen=True)
class Limits:
    """Seconds. ``timeouts``: until the way back is taken, by phase: those that a gate must have passed in need more. ``rest``: until a
    host must have come to rest after that."""

    stop: int
    free: int
    ready: int
    gate_ready: int
    request: int
    timeouts: dict[str, int]
    rest: float


REPLAY = Limits(
    stop=2,
    free=3,
    ready=4,
    gate_ready=4,
    request=2,
    timeouts={plans.ARMED: 10, plans.SWITCHING: 10, plans.GATE: 20, plans.RESTORING: 30, plans.CONFIRMING: 30},
    rest=40,
)
REAL = Limits(
    stop=15, free=10, ready=120, gate_ready=150, request=60, timeouts=dict.fromkeys(plans.PHASES, 240), rest=300
)


@dataclass
class Outcome:
    """What came of a run; ``marker`` is the phase that the host's own marker named when the fault came."""

    plan: Plan
    marker: str = ""
    final: str = ""
    confirmed: bool = False
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = f"FAILED: {'; '.join(self.problems)}" if self.problems else "ok"
        word = " (confirmed)" if self.confirmed else ""
        where = f"release {self.plan.release}, marker {self.marker or 'gone'}"
        return f"seed {self.plan.seed} {self.plan} [{where}] -> {self.final or 'nothing'}{word} after {self.seconds:.1f} s; {end}"


class Controller:
    """The driving process, and what it has said so far."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        path = folder / "order.json"
        path.write_text(json.dumps(order), encoding="utf-8")
        self.log = folder / "controller.jsonl"
        with self.log.open("wb") as output:
            command = [sys.executable, str(CONTROLLER), str(path)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def said(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def has(self, **words: str) -> bool:
        return any(words.items() <= line.items() for line in self.said())

    def ended(self) -> bool:
        return self._process.poll() is not None

    def signal(self, number: int) -> None:
        """To it and its connections."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


class Trial:
    """A run on one machine, whose disk is a mount at ``machine.home / "disk"`` that can be made full."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        base: Path,
        power_on: PowerOn,
        prepared: Prepared,
        limits: Limits,
        folder: Path,
    ) -> None:
        self.outcome = Outcome(plan)
        self._plan = plan
        self._machine = machine
        self._base = base
        self._power_on = power_on
        self._ids = prepared.releases
        self._limits = limits
        self._folder = folder
        self._release = self._ids[plan.release]

    def run(self) -> Outcome:
        began = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        controller = None
        try:
            self._machine.start(self._power_on, self._base, keep_disk=False)
            self._machine.wait_booted()
            before = self._look(self._limits.rest)
            if not before.get("text"):
                raise RuntimeError(f"the host does not serve before anything was done: {before}")
            began = time.monotonic()
            controller = Controller(self._folder, self._order())
            self._strike(controller)
            self._settle(controller)
            self._judge(controller, before)
        except Exception as error:
            self._problem(f"the test itself failed: {type(error).__name__}: {error}")
        finally:
            self._resize(DISK_BYTES)
            if controller:
                controller.signal(signal.SIGKILL)
        self.outcome.seconds = time.monotonic() - began
        if self.outcome.problems:
            self._keep()
        return self.outcome

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    def _order(self) -> dict[str, Any]:
        limits, plan = self._limits, self._plan
        common = {"dest": DEST, "unit": UNIT, "run_id": f"run {plan.seed}", "actor": "tester@control"}
        text = unit_text(plan.release, startable=plan.detail != plans.BAD_UNIT)
        armed = {
            **common,
            "state": "armed",
            "release": self._release,
            "addresses": [f"127.0.0.1:{PORT}"],
            "timeout": limits.timeouts[plan.phase],
            "stop_timeout": limits.stop,
            "free_timeout": limits.free,
            "ready_timeout": limits.ready,
        }
        gate = {
            "gate": "server",
            "unit": UNIT,
            "url": f"http://127.0.0.1:{PORT}",
            "python": f"{DEST}/bin/python",
            "ready_timeout": limits.gate_ready,
            "request_timeout": limits.request,
            "fresh": True,
        }
        return {
            "ssh": self._machine.ssh(),
            "pause": PAUSE_S,
            "steps": {
                "armed": ("service_release", armed),
                "switched": ("service_release", {**common, "state": "switched", "files": {UNIT: text}}),
                "gate": ("sglang_smoke", gate),
                "confirmed": ("service_release", {**common, "state": "confirmed"}),
                "restored": ("service_release", {**common, "state": "restored"}),
            },
        }

    # the fault

    def _marker(self) -> str:
        """The phase that the host's marker names, seen from outside; empty when there is no marker."""
        path = Path(f"/proc/{self._machine.leader()}/root") / STATE / "pending.json"
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["phase"])
        except (OSError, ValueError):
            return ""

    def _strike(self, controller: Controller) -> None:
        """Wait for the moment and make the fault."""
        begun: dict[str, Callable[[], bool]] = {
            plans.ARMED: lambda: controller.has(end="armed"),
            plans.SWITCHING: lambda: self._marker() == "switching",
            plans.GATE: lambda: controller.has(begin="gate"),
            plans.RESTORING: lambda: self._marker() == "restoring",
            plans.CONFIRMING: lambda: controller.has(begin="confirmed"),
        }
        while not begun[self._plan.phase]():
            if controller.ended():
                self._problem(f"the phase {self._plan.phase} never came: {_last(controller)}")
                return
            time.sleep(POLL_S)
        time.sleep(self._plan.delay)
        self.outcome.marker = self._marker()
        self._faults()[self._plan.fault](controller)

    def _faults(self) -> dict[str, Callable[[Controller], None]]:
        return {
            plans.KILL: self._kill,
            plans.HANG: lambda controller: controller.signal(signal.SIGSTOP),
            plans.CUT: lambda _controller: self._machine.network.set_link(self._machine.host, up=False),
            plans.BAD: self._spoil,
            plans.DISK: lambda _controller: self._resize(0),
            plans.REBOOT: lambda _controller: self._machine.reboot(),
            plans.POWER: self._lose_power,
        }

    def _kill(self, controller: Controller) -> None:
        if "controller" in self._plan.detail:
            controller.signal(signal.SIGKILL)
        if "module" in self._plan.detail:
            self._machine.run("pkill", "-KILL", "-f", "plugins[.]modules[.]")

    def _spoil(self, _controller: Controller) -> None:
        """Make bad what no gate before the start shows; a release that is bad by itself needs nothing."""
        if self._plan.detail == plans.DAMAGED:
            package = f"{DEST}.releases/{self._release}/lib/python3.11/site-packages/sglang"
            self._machine.run("rm", "-r", f"{package}/launch_server.py", f"{package}/__pycache__")
        elif self._plan.detail == plans.CRASHES:
            self._machine.run("systemctl", "kill", "--signal=KILL", UNIT)

    def _lose_power(self, _controller: Controller) -> None:
        self._machine.remove_leftovers()
        self._machine.start(self._power_on, self._base, keep_disk=True)
        self._machine.wait_booted()

    def _resize(self, size: int) -> None:
        """Make the disk so large, or as small as what is on it."""
        disk = self._machine.home / "disk"
        for _attempt in range(200):  # the host goes on writing while its disk is made smaller
            found = os.statvfs(disk)
            wanted = size or (found.f_blocks - found.f_bfree) * found.f_frsize
            command = ["mount", "-o", f"remount,size={wanted}", str(disk)]
            if not subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
                return
        raise RuntimeError(f"{disk} could not be resized")

    # what comes of it

    def _settle(self, controller: Controller) -> None:
        """See the host come to rest with the fault still there where it lasts, then take it away, which must change nothing."""
        if self._plan.fault in (plans.HANG, plans.CUT):
            self._rest("with the fault")
            self._machine.network.set_link(self._machine.host, up=True)
            controller.signal(signal.SIGCONT)
        if not controller.wait(self._limits.rest):
            self._problem(f"the controller does not end: {_last(controller)}")
            controller.signal(signal.SIGKILL)
        if self._plan.fault == plans.DISK:
            self._rest("with a full disk")
            self._resize(DISK_BYTES)

    def _rest(self, when: str) -> dict[str, Any]:
        found = self._look(self._limits.timeouts[self._plan.phase] + self._limits.rest)
        for problem, holds in {
            "nothing answers": not found["text"],
            f"the unit is {found['unit']}": found["unit"] != "active",
            f"left: {', '.join(found['leftovers'])}": bool(found["leftovers"]),
        }.items():
            if holds:
                self._problem(f"{when}: {problem}")
        return found

    def _look(self, seconds: float) -> dict[str, Any]:
        words = ("python3", "-B", f"{FOLDER}/look.py", UNIT, DEST, str(PORT), str(seconds))
        done = self._machine.run(*words, timeout=seconds + 60)
        if done.returncode:
            raise RuntimeError(f"look.py: {done.stderr.strip()[-1000:]}")
        return dict(json.loads(done.stdout))

    def _judge(self, controller: Controller, before: dict[str, Any]) -> None:
        found = self._rest("at rest")
        names = {release: name for name, release in self._ids.items()}
        self.outcome.final = f"{names.get(found['active'], 'unknown')} release {found['active']}"
        self.outcome.confirmed = found["confirmed"] == self._release
        told = any(line.get("end") == "confirmed" and not line["failed"] for line in controller.said())
        wanted = self._release if self.outcome.confirmed else self._ids[OLD]
        unit = self._plan.release if self.outcome.confirmed else OLD
        changed = {
            name
            for name in {*before["unit_files"], *found["unit_files"]}
            if before["unit_files"].get(name) != found["unit_files"].get(name)
        }
        for problem, holds in {
            "confirmed to the controller, but not on the host": told and not self.outcome.confirmed,
            f"{found['active'] or 'nothing'} is active, not {wanted}": found["active"] != wanted,
            f"the process serves from {found['serving']}, not {wanted}": found["serving"] != [wanted],
            f"the verdict is {found['verdict']}": found["verdict"] not in ("passed", "adopted"),
            "its files are not what was committed": not found["intact"],
            f"the unit is {found['enabled']}": found["enabled"] != "enabled",
            f"the unit file is not that of release {unit}": self._unit_text() != unit_text(unit),
            f"unit files changed: {', '.join(sorted(changed))}": bool(
                changed - ({UNIT} if self.outcome.confirmed else set())
            ),
        }.items():
            if holds:
                self._problem(problem)

    def _unit_text(self) -> str:
        path = Path(f"/proc/{self._machine.leader()}/root/etc/systemd/system") / UNIT
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def _keep(self) -> None:
        """Leave what tells of a failure beside what the controller said."""
        for name, words in {
            "journal.txt": ("journalctl", "--no-pager", "--output=short-precise"),
            "state.txt": ("sh", "-c", f"ls -laR /{STATE} /etc/systemd/system; cat {DEST}.releases/history.jsonl"),
        }.items():
            with contextlib.suppress(Exception):
                (self._folder / name).write_text(self._machine.run(*words).stdout, encoding="utf-8")


def _last(controller: Controller) -> str:
    said = controller.said()
    return json.dumps(said[-1])[:600] if said else controller.log.read_text(encoding="utf-8")[-600:]
