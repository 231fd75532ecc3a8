# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two test hosts of the transfer benchmark, and what is done to them between the timed runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH.parent / "fleet"))

from nspawn.control import Fleet
from nspawn.hosts import find_host
from nspawn.machine import Machine
from nspawn.shell import FleetError, run
from payload import Payload

SOURCE, TARGET = "ct200", "b300-1"
PEER_COPY = "/srv/peer"  # where the peers put the environment, and only they
FLOOR_COPY = f"{PEER_COPY}/floor"
KEPT = "/srv/kept"  # the source's edited files as they were
HASHES = "/var/cache/ddtree-fleet"
PATIENCE = 900.0  # seconds for any step between timed runs
EDITED = 5
DISK_BYTES = 48 << 30  # sparse


@dataclass(frozen=True)
class Disk:
    """A disk of its own for the hosts of a fleet: an XFS image beside its state directory, mounted there.

    ext4 looks at every inode that was deleted in the last minutes before it makes a file, so a tool would pay for emptying the
    target after the tool before it. XFS does not, and has reflinks. Direct I/O keeps the image's own pages out of the page cache,
    which has to hold the copies of the payload.
    """

    state: Path

    @property
    def _image(self) -> Path:
        return self.state.with_suffix(".xfs")

    def mount(self) -> None:
        """Mount a fresh one."""
        self.state.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        run("mkfs.xfs", "-q", "-f", str(self._image))
        device = run("losetup", "--find", "--show", "--direct-io=on", str(self._image)).strip()
        run("mount", device, str(self.state))
        run("losetup", "--detach", device)  # which happens when it is unmounted

    def remove(self) -> None:
        """Unmount it and delete what it held."""
        if os.path.ismount(self.state):
            run("umount", str(self.state))
        self._image.unlink(missing_ok=True)


def inside(machine: Machine, script: str) -> str:
    """Run a script as root inside a host, without ssh."""
    done = machine.run("bash", "-euo", "pipefail", "-c", script, timeout=PATIENCE)
    if done.returncode != 0:
        raise FleetError(f"{machine.host.name}: {script}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Lab:
    """A source with the payload, and a target. A context manager: the hosts go down with it unless ``keep``."""

    fleet: Fleet
    payload: Payload
    keep: bool = False

    @property
    def venv(self) -> str:
        """The environment that is moved, on the source and, by venv_stream, on the target."""
        return f"/{self.payload.env.venv}"

    @property
    def seed(self) -> str:
        """The other environment, on a seeded target."""
        return f"/srv/{self.payload.seed.name}"

    @property
    def source(self) -> Machine:
        return self.fleet.machine(SOURCE)

    @property
    def target(self) -> Machine:
        return self.fleet.machine(TARGET)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both hosts with empty disks, whatever an earlier run left; they go down in the end, unless they are kept."""
        self.stop()
        self._disk.mount()
        try:
            hosts = [find_host(name) for name in (SOURCE, TARGET)]
            extra = {SOURCE: [self.payload.env.name]}
            self.fleet.up(hosts, bare=True, extra_layers=extra, layer_dir=self.payload.directory)
            self._let_source_reach_target()
            yield
        finally:
            if not self.keep:
                self.stop()

    def stop(self) -> None:
        """Take the hosts down and their disk away."""
        self.fleet.down()
        self._disk.remove()

    @property
    def _disk(self) -> Disk:
        return Disk(self.fleet.state)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """The target, for a while, as a host that has the other environment, on the disk of its own."""
        self.fleet.restart(TARGET, layers=[self.payload.seed.name])
        self._let_source_reach_target()
        inside(self.target, f"cp -a /{self.payload.seed.venv} {self.seed}")
        try:
            yield
        finally:
            self.fleet.restart(TARGET, layers=[])
            self._let_source_reach_target()

    @contextmanager
    def link(self, rate: str) -> Iterator[None]:
        """Both hosts, for a while, on a link of that rate."""
        self._limit(rate)
        try:
            yield
        finally:
            self._limit(None)

    def empty_target(self) -> None:
        """Nothing of the payload on the target, and no remembered hashes on either host."""
        inside(self.target, f"rm -rf {self.venv} {self.venv}.* {PEER_COPY} {HASHES}")
        inside(self.source, f"rm -rf {HASHES}")

    def remove_floor(self) -> None:
        """Take away what the target copied from itself."""
        inside(self.target, f"rm -rf {FLOOR_COPY}")

    def warm_target(self) -> None:
        """Read once what the peers and venv_stream have put on the target."""
        inside(self.target, f"tar -C / -cf - .{PEER_COPY} .{self.venv}.releases | cat > /dev/null")

    def settle(self, seeded: bool = False) -> None:
        """The payload in the page cache, and no dirty pages that the next run would wait for."""
        inside(self.source, f"tar -C / -cf - .{self.venv} | cat > /dev/null")
        if seeded:
            inside(self.target, f"tar -C / -cf - .{self.seed} | cat > /dev/null")
        os.sync()

    def edit(self, mark: str) -> None:
        """Change five small files of the source; the first call keeps their content."""
        keep = f"[ -e {KEPT} ] || {{ mkdir {KEPT}; cp -a --parents {self._edited()} {KEPT}; }}"
        inside(self.source, f"cd /; {keep}; for file in {self._edited()}; do echo '# {mark}' >> $file; done")

    def restore(self) -> None:
        """Put the edited files back."""
        inside(self.source, f"[ ! -e {KEPT} ] || {{ cp -a {KEPT}/root/. /root; rm -rf {KEPT}; }}")

    def received(self) -> int:
        """Bytes that the target's network has received."""
        return self.target.network.received_bytes(self.target.host)

    def _edited(self) -> str:
        folder = self.payload.directory / self.payload.env.name
        modules = sorted(folder.glob(f"{self.payload.env.venv}/lib/python3.*/site-packages/transformers/*.py"))
        return " ".join(shlex.quote(str(path.relative_to(folder))) for path in modules[:EDITED])

    def _limit(self, rate: str | None) -> None:
        for machine in (self.source, self.target):
            machine.network.limit(machine.host, machine.leader() or 0, rate)

    def _let_source_reach_target(self) -> None:
        """A key of the source's own that the target accepts, and a name in its ssh configuration."""
        host, network = self.target.host, self.target.network
        known = (self.fleet.state / "known_hosts").read_text()
        config = f"Host {TARGET}\n HostName {network.address(host)}\n Port {host.port}\n User {host.user}\n"
        make = "[ -e /root/.ssh/id_ed25519 ] || ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519"
        write = f"echo {shlex.quote(config)} > /root/.ssh/config; echo {shlex.quote(known)} > /root/.ssh/known_hosts"
        public = inside(self.source, f"{make}; {write}; cat /root/.ssh/id_ed25519.pub")
        inside(self.target, f"echo {shlex.quote(public)} >> /root/.ssh/authorized_keys")
