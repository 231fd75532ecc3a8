# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One bridge per fleet and a veth pair per host. Names and addresses follow from one octet: 10.<octet>.0.0/24."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .hosts import Host
from .shell import FleetError, run, succeeds

DEFAULT_OCTET = 77


@dataclass(frozen=True)
class Network:
    """The network of one fleet; two fleets on one machine need two octets."""

    octet: int = DEFAULT_OCTET

    @property
    def bridge(self) -> str:
        """Name of the bridge, also of the parent control group."""
        return f"ddfleet{self.octet}"

    def address(self, host: Host) -> str:
        """Address of the host on the bridge."""
        return f"10.{self.octet}.0.{host.number}"

    def device(self, host: Host) -> str:
        """Name of the outer end of the host's veth pair (at most 15 characters)."""
        return f"ddf{self.octet}-{host.number}"

    def hardware_address(self, host: Host) -> str:
        """MAC address of the host; with a random one, neighbours would miss it for a minute after a restart."""
        return f"02:dd:00:00:{self.octet:02x}:{host.number:02x}"

    def group(self, host: Host) -> str:
        """Name of the host's control group."""
        return f"{self.bridge}/{host.name}"

    def owner(self) -> Path | None:
        """State directory of the fleet that made the bridge; None without a bridge."""
        alias = Path(f"/sys/class/net/{self.bridge}/ifalias")
        try:
            return Path(alias.read_text().strip())
        except FileNotFoundError:
            return None

    def create_bridge(self, owner: Path) -> None:
        """Create the bridge with the first address of the network; the owner is kept in the bridge's alias."""
        if self.owner() is not None:
            return
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "link", "set", self.bridge, "alias", str(owner), "up")
        try:
            run("ip", "address", "add", f"10.{self.octet}.0.1/24", "dev", self.bridge)
        except FleetError:
            self.delete_bridge()
            raise

    def delete_bridge(self) -> None:
        """Delete the bridge and every device left in it."""
        for port in Path(f"/sys/class/net/{self.bridge}/brif").glob("*"):
            succeeds("ip", "link", "delete", port.name)
        succeeds("ip", "link", "delete", self.bridge)

    def connect(self, host: Host, pid: int, rate: str | None) -> None:
        """Give the network namespace of process ``pid`` the device eth0 with the host's address.

        ``rate`` limits both directions, in the words of tc (such as ``1gbit``).
        """
        outer = self.device(host)
        inner = ("peer", "name", "eth0", "address", self.hardware_address(host), "netns", str(pid))
        run("ip", "link", "add", outer, "type", "veth", *inner)
        run("ip", "link", "set", outer, "master", self.bridge, "up")
        inside = ("nsenter", "--target", str(pid), "--net", "--")
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        if rate:
            self.limit(host, pid, rate)

    def limit(self, host: Host, pid: int, rate: str | None) -> None:
        """Limit both directions of a host that process ``pid`` belongs to; None takes a limit away."""
        for where, device in (((), self.device(host)), (("nsenter", "--target", str(pid), "--net", "--"), "eth0")):
            if rate:
                shape = ("root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms")
                run(*where, "tc", "qdisc", "replace", "dev", device, *shape)
            else:
                succeeds(*where, "tc", "qdisc", "delete", "dev", device, "root")

    def disconnect(self, host: Host) -> None:
        """Delete the host's devices where they are left over."""
        succeeds("ip", "link", "delete", self.device(host))

    def set_link(self, host: Host, up: bool) -> None:
        """Plug the host's cable in or out; the host itself notices only a lost carrier."""
        run("ip", "link", "set", self.device(host), "up" if up else "down")

    def is_cut(self, host: Host) -> bool:
        """Whether the host's cable is out."""
        flags = Path(f"/sys/class/net/{self.device(host)}/flags")
        return not int(flags.read_text(), 16) & 1

    def received_bytes(self, host: Host) -> int:
        """Bytes sent to the host since it was started; a reboot of the host does not reset the counter."""
        return int(Path(f"/sys/class/net/{self.device(host)}/statistics/tx_bytes").read_text())
