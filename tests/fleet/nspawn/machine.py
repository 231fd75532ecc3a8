# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One test host from power on to power off."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import cgroup, keys
from .disk import Disk, lower_directories, seed
from .hosts import Host
from .network import Network
from .shell import FleetError, wait_until

SUPERVISOR = Path(__file__).with_name("supervisor.py")
BOOT_TIMEOUT = 60.0
SHUTDOWN_TIMEOUT = 30.0
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ENVIRONMENT = ("HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


@dataclass(frozen=True)
class PowerOn:
    """How a host is started. ``own_layers`` are the host's own ones, ``extra_layers`` lie on top; lowest first."""

    layer_dir: Path
    own_layers: tuple[str, ...]
    extra_layers: tuple[str, ...] = ()
    rate: str | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers above the base, lowest first."""
        return self.own_layers + self.extra_layers

    def to_json(self) -> str:
        """For the start record."""
        return json.dumps([str(self.layer_dir), self.own_layers, self.extra_layers, self.rate])

    @classmethod
    def from_json(cls, text: str) -> PowerOn:
        """From the start record."""
        layer_dir, own, extra, rate = json.loads(text)
        return cls(Path(layer_dir), tuple(own), tuple(extra), rate)


@dataclass(frozen=True)
class Machine:
    """A host of the table, on the network and in the state directory of one fleet."""

    host: Host
    network: Network
    state: Path

    @property
    def home(self) -> Path:
        """Directory with the host's disk, console log and start record."""
        return self.state / "hosts" / self.host.name

    @property
    def log(self) -> Path:
        """What the host wrote to its console."""
        return self.home / "console.log"

    @property
    def group(self) -> str:
        """Name of the control group that holds all processes of the host."""
        return self.network.group(self.host)

    def is_running(self) -> bool:
        """Whether the host is on and would come back from a reboot."""
        return self.supervisor() is not None and self.leader() is not None

    def supervisor(self) -> int | None:
        """Pid of the process that starts the host again after a reboot."""
        return self._find(SUPERVISOR.name)

    def leader(self) -> int | None:
        """Pid, as seen from outside, of the host's PID 1; None while the host is off."""
        nspawn = self._find("systemd-nspawn")
        if nspawn is None:
            return None
        try:
            children = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
            leaders = [int(pid) for pid in children if _is_first_of_namespace(int(pid))]
        except OSError:
            return None
        return leaders[0] if leaders else None

    def _find(self, program: str) -> int | None:
        """Pid of the host's process with that program among its first arguments."""
        for pid in sorted(cgroup.processes(self.group)):
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(os.path.basename(word) == program.encode() for word in argv[:3]):
                return pid
        return None

    def last_start(self) -> PowerOn | None:
        """How the host was last started; None for one that never was or has no disk any more."""
        try:
            return PowerOn.from_json((self.home / "start.json").read_text())
        except FileNotFoundError:
            return None

    def start(self, power_on: PowerOn, base: Path, keep_disk: bool) -> None:
        """Power the host on; returns before it is booted. Leftovers of an earlier run of it are removed first."""
        self.remove_leftovers()
        disk = Disk(self.home, lower_directories(power_on.layer_dir, base, power_on.layers))
        if not keep_disk:
            disk.create_empty()
            seed(disk, self.state, base, self.host)
        (self.home / "start.json").write_text(power_on.to_json())
        order: dict[str, object] = {
            "groups": [str(path) for path in cgroup.create(self.group)],
            "root": str(disk.root),
            "mount_options": disk.mount_options(),
            "log": str(self.log),
            "command": self._nspawn(disk),
        }
        self._supervise(order, power_on.rate)

    def _nspawn(self, disk: Disk) -> list[str]:
        return [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--private-users=no",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            "--network-namespace-path=/proc/self/ns/net",
            f"--machine={self.host.name}",
            f"--directory={disk.root}",
        ]

    def _supervise(self, order: dict[str, object], rate: str | None) -> None:
        isolate = ("unshare", "--mount", "--net", "--propagation=slave", "--")
        with open(self.home / "supervisor.log", "w+", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [*isolate, sys.executable, "-I", str(SUPERVISOR)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd="/",
                start_new_session=True,
            )
            assert process.stdin is not None and process.stdout is not None
            with process.stdin, process.stdout:
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                if process.stdout.readline() != "ready\n":
                    process.wait(timeout=10)
                    errors.seek(0)
                    raise FleetError(f"{self.host.name}: the supervisor did not start: {errors.read().strip()}")
                self.network.connect(self.host, process.pid, rate)
                process.stdin.write("go\n")
        process.returncode = 0  # it outlives this program, on purpose

    def wait_booted(self, timeout: float = BOOT_TIMEOUT) -> None:
        """Return when systemd has finished booting and sshd answers on the network."""
        if not wait_until(lambda: self._answers() or self.supervisor() is None, timeout, interval=0.1):
            raise FleetError(f"{self.host.name}: sshd does not answer after {timeout:g} s\n{self.console_tail()}")
        if self.supervisor() is None:
            raise FleetError(f"{self.host.name}: ended while booting\n{self.console_tail()}")
        try:
            state = self.run("systemctl", "is-system-running", "--wait", timeout=timeout).stdout.strip()
        except subprocess.TimeoutExpired:
            state = "still starting"
        if state not in ("running", "degraded"):
            raise FleetError(f"{self.host.name}: systemd is {state} after {timeout:g} s\n{self.console_tail()}")

    def _answers(self) -> bool:
        """Whether the host's sshd sends its banner."""
        try:
            with socket.create_connection((self.network.address(self.host), self.host.port), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def console_tail(self, lines: int = 15) -> str:
        """The last lines of the console log, for an error message."""
        try:
            text = self.log.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        plain = [line for line in CONTROL_SEQUENCE.sub("", text).splitlines() if line.strip()]
        return f"{self.log}:\n" + "\n".join(plain[-lines:])

    def enter(self, *command: str) -> list[str]:
        """The command line that runs ``command`` as root inside the host, without ssh."""
        leader = self.leader()
        if leader is None:
            raise FleetError(f"{self.host.name} is not running")
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return ["nsenter", f"--target={leader}", *spaces, "--", "env", "-i", "-C", "/root", *ENVIRONMENT, *command]

    def run(self, *command: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run ``command`` as root inside the host; the caller judges the exit code."""
        return subprocess.run(self.enter(*command), capture_output=True, text=True, timeout=timeout, check=False)

    def reboot(self) -> None:
        """Let the host reboot itself and wait until it is back; the disk is kept."""
        before = self.leader()
        self.run("systemctl", "reboot")

        def is_new() -> bool:
            return self.leader() not in (None, before) or self.supervisor() is None

        if not wait_until(is_new, SHUTDOWN_TIMEOUT + BOOT_TIMEOUT):
            raise FleetError(f"{self.host.name}: did not go down for the reboot\n{self.console_tail()}")
        self.wait_booted()

    def power_off(self) -> None:
        """Shut the host down in order; one that hangs loses its power after 30 s."""
        nspawn = self._find("systemd-nspawn")
        if nspawn is not None:
            os.kill(nspawn, signal.SIGTERM)
            wait_until(lambda: self.supervisor() is None and self.leader() is None, SHUTDOWN_TIMEOUT)
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Take the host's power away: end all its processes, remove its device and its control group."""
        cgroup.kill(self.group)
        self.network.disconnect(self.host)

    def client_options(self) -> tuple[str, ...]:
        """Options of ssh for this host, without address, port and user."""
        return (
            f"-oUserKnownHostsFile={self.state / 'known_hosts'}",
            "-oGlobalKnownHostsFile=/dev/null",
            "-oStrictHostKeyChecking=yes",
            "-oIdentitiesOnly=yes",
            "-oIdentityAgent=none",
        )

    def ssh(self, *command: str) -> list[str]:
        """The command line that runs ``command`` on the host through ssh, as its own user."""
        key = keys.client_key(self.state, self.host)
        where = f"{self.host.user}@{self.network.address(self.host)}"
        options = ("-F/dev/null", "-oBatchMode=yes", *self.client_options(), f"-i{key}", f"-p{self.host.port}")
        return ["ssh", *options, where, *command]


def _is_first_of_namespace(pid: int) -> bool:
    """Whether the process is PID 1 of a pid namespace below ours."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            seen = line.split()[1:]
            return len(seen) > 1 and seen[-1] == "1"
    return False
