# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts with real systemd and sshd on this machine; see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from nspawn import inventory
from nspawn.base import ensure_base
from nspawn.control import Fleet
from nspawn.hosts import DEFAULT_HOSTS, find_host, targets
from nspawn.machine import Machine
from nspawn.shell import FleetError

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "fleet"


def up(fleet: Fleet, args: argparse.Namespace) -> int:
    """Start hosts and say where they are."""
    hosts = [find_host(name) for name in args.hosts] + targets(args.targets)
    if not hosts:
        hosts = [find_host(name) for name in DEFAULT_HOSTS]
    extra: dict[str, list[str]] = {}
    for name, layer in args.layer:
        extra.setdefault(find_host(name).name, []).append(layer)
    began = time.monotonic()
    unique = list(dict.fromkeys(hosts))
    fleet.up(unique, bare=args.bare, extra_layers=extra, rate=args.rate, layer_dir=args.layers)
    names = ", ".join(host.name for host in unique)
    took = time.monotonic() - began
    print(f"fleet: {names} up after {took:.1f} s; inventory {fleet.state / 'inventory' / 'hosts.yml'}")
    return 0


def down(fleet: Fleet, _args: argparse.Namespace) -> int:
    """End all hosts and remove what they left."""
    fleet.down()
    return 0


def status(fleet: Fleet, args: argparse.Namespace) -> int:
    """Say which hosts run and where."""
    rows = [describe(machine) for machine in fleet.running()]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print("{name:12} {state:8} {user}@{address}:{port} leader {leader} rx {rx} layers {layers}".format(**row))
    return 0


def describe(machine: Machine) -> dict[str, object]:
    """What ``status`` shows of one running host; ``root`` is its file system as seen from outside."""
    leader, start = machine.leader(), machine.last_start()
    return {
        "name": machine.host.name,
        "state": "cut" if machine.network.is_cut(machine.host) else "running",
        "user": machine.host.user,
        "address": machine.network.address(machine.host),
        "port": machine.host.port,
        "leader": leader,
        "root": f"/proc/{leader}/root",
        "rx": machine.network.received_bytes(machine.host),
        "layers": list(start.layers) if start else [],
    }


def execute(fleet: Fleet, args: argparse.Namespace) -> int:
    """Run a command as root inside a host; its exit code is this program's."""
    return subprocess.call(fleet.machine(args.host).enter(*(args.command or ["/bin/bash"])))


def ssh(fleet: Fleet, args: argparse.Namespace) -> int:
    """Run a command, or a shell, on a host through ssh as its own user."""
    return subprocess.call(fleet.machine(args.host).ssh(*args.command))


def reboot(fleet: Fleet, args: argparse.Namespace) -> int:
    """Reboot a host from inside and wait until it is back."""
    fleet.machine(args.host).reboot()
    return 0


def restart(fleet: Fleet, args: argparse.Namespace) -> int:
    """Power a host off and on, with other layers on top where asked."""
    fleet.restart(args.host, layers=args.layer, hard=args.hard)
    return 0


def cut(fleet: Fleet, args: argparse.Namespace) -> int:
    """Pull a host's network cable."""
    running_machine(fleet, args.host).network.set_link(find_host(args.host), up=False)
    return 0


def heal(fleet: Fleet, args: argparse.Namespace) -> int:
    """Plug a host's network cable in again."""
    running_machine(fleet, args.host).network.set_link(find_host(args.host), up=True)
    return 0


def limit(fleet: Fleet, args: argparse.Namespace) -> int:
    """Limit a host's network, or take the limit away."""
    machine = running_machine(fleet, args.host)
    machine.network.limit(machine.host, machine.leader() or 0, None if args.rate == "none" else args.rate)
    return 0


def received(fleet: Fleet, args: argparse.Namespace) -> int:
    """Print the bytes a host has received."""
    machine = running_machine(fleet, args.host)
    print(machine.network.received_bytes(machine.host))
    return 0


def show_inventory(fleet: Fleet, _args: argparse.Namespace) -> int:
    """Write the inventory anew and print it."""
    print(inventory.write(fleet.state, fleet.running()).read_text(), end="")
    return 0


def build_base(fleet: Fleet, _args: argparse.Namespace) -> int:
    """Build the root file system below all hosts where it is missing, and print its path."""
    print(ensure_base(fleet.cache))
    return 0


def running_machine(fleet: Fleet, name: str) -> Machine:
    """The machine of that name, an error when it is off."""
    machine = fleet.machine(name)
    if not machine.is_running():
        raise FleetError(f"{name} is not running")
    return machine


def layer_of_host(text: str) -> tuple[str, str]:
    """Split HOST=LAYER."""
    host, separator, layer = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text}: expected HOST=LAYER")
    return host, layer


def octet_of_environment() -> int | None:
    """The network that DDTREE_NET names, none where it is not set."""
    text = os.environ.get("DDTREE_NET", "")
    if text and not text.isdecimal():
        raise FleetError(f"DDTREE_NET must be the second octet of a network, not {text}")
    return int(text) if text else None


def parser() -> argparse.ArgumentParser:
    """The command line; --cache, --state and --net may stand before or after the command."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--cache", type=Path, default=argparse.SUPPRESS, help=f"default {CACHE}")
    common.add_argument("--state", type=Path, default=argparse.SUPPRESS, help="default state/ in the cache")
    common.add_argument(
        "--net", type=int, default=argparse.SUPPRESS, help="second octet of the network 10.N.0.0/24; also as DDTREE_NET"
    )
    top = argparse.ArgumentParser(prog="fleet.py", description=__doc__, parents=[common])
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: object) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=getattr(function, "__doc__", None), parents=[common])
        added.set_defaults(function=function)
        return added

    starting = command("up", up)
    starting.add_argument("hosts", nargs="*", metavar="HOST", help=f"default {' '.join(DEFAULT_HOSTS)}")
    starting.add_argument("--targets", type=int, default=0, metavar="N", help="also the first N targets")
    starting.add_argument("--bare", action="store_true", help="no layers but the base and those of --layer")
    starting.add_argument("--layer", type=layer_of_host, action="append", default=[], metavar="HOST=LAYER")
    starting.add_argument("--layers", type=Path, metavar="DIR", help="default layers/ in the cache")
    starting.add_argument("--rate", help="limit of each host's network, such as 1gbit")
    command("down", down)
    command("status", status).add_argument("--json", action="store_true")
    command("inventory", show_inventory)
    command("base", build_base)
    for name, function in (("exec", execute), ("ssh", ssh)):
        running = command(name, function)
        running.add_argument("host", metavar="HOST")
        running.usage = f"fleet.py {name} [options] HOST [-- COMMAND ...]"
    again = command("restart", restart)
    again.add_argument("host", metavar="HOST")
    again.add_argument("--layer", action="append", metavar="LAYER", help="on top of the host's own; empties its disk")
    again.add_argument("--hard", action="store_true", help="as a power failure")
    limiting = command("rate", limit)
    limiting.add_argument("host", metavar="HOST")
    limiting.add_argument("rate", help="such as 50mbit, or none")
    for name, function in (("reboot", reboot), ("cut", cut), ("heal", heal), ("rx", received)):
        command(name, function).add_argument("host", metavar="HOST")
    return top


def main() -> int:
    """Run one command; what stands after ``--`` is for a host, untouched."""
    own, command = sys.argv[1:], []
    if "--" in own:
        place = own.index("--")
        own, command = own[:place], own[place + 1 :]
    args = parser().parse_args(own)
    args.command = command
    os.umask(0o022)
    cache = getattr(args, "cache", CACHE)
    try:
        if os.geteuid() != 0:
            raise FleetError("test hosts need root")
        fleet = Fleet.open(cache, getattr(args, "state", cache / "state"), getattr(args, "net", octet_of_environment()))
        code: int = args.function(fleet, args)
    except FleetError as exc:
        print(f"fleet: {exc}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
