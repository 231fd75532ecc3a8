# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seeded faults of deployments on hosts with real systemd, one line each, and one line of counts at the end; see README.md."""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".collections"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fleet"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "input"))

import plan as plans
import trial
from nspawn.base import ensure_base
from nspawn.control import Fleet
from nspawn.hosts import Host, find_host
from nspawn.machine import PowerOn
from nspawn.shell import FleetError
from prepared import Prepared, prepare

from build import BuildError

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("DDTREE_CACHE", ROOT / ".cache" / "fleet"))
KEPT = ROOT / "build" / "service_faults"
INSIDE = "DDTREE_SERVICE_FAULTS_WORK"  # set in the process that has its own mounts
SERVERS = {"replay": (plans.REPLAY, trial.REPLAY, 4), "real": (plans.REAL, trial.REAL, 2)}  # behaviour, limits, hosts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=45, help="how many runs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each has the next one")
    parser.add_argument("--server", choices=SERVERS, default="replay", help="what the releases are")
    parser.add_argument("--only", default="", help="pass over seeds of other faults or phases")
    parser.add_argument("--net", type=int, default=79, help="second octet of the hosts' network 10.N.0.0/24")
    args = parser.parse_args()
    if args.only and args.only not in (*plans.FAULTS, *plans.PHASES):
        parser.error(f"there is no {args.only}; there are {', '.join((*plans.FAULTS, *plans.PHASES))}")
    if INSIDE not in os.environ:
        return with_own_mounts()
    try:
        return run(args, Path(os.environ[INSIDE]))
    except (BuildError, FleetError) as error:
        print(error, file=sys.stderr)
        return 2


def with_own_mounts() -> int:
    """Run this program again where the mounts of the hosts' disks end with it."""
    if os.geteuid():
        print("the faults need root: they start hosts", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="ddtree-service-faults-") as work:
        command = ["unshare", "--mount", "--propagation=slave", sys.executable, *sys.argv]
        environment = {**os.environ, INSIDE: work, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, env=environment, check=False).returncode


def run(args: argparse.Namespace, work: Path) -> int:
    """Make the runs on a few hosts at once and tell of them in the order of their seeds."""
    behaviour, limits, number = SERVERS[args.server]
    began = time.monotonic()
    base, layers = ensure_base(CACHE), CACHE / "layers"
    prepared = prepare(args.server, base.resolve(), layers.resolve())
    drawn = (plans.draw(seed, behaviour) for seed in itertools.count(args.seed))
    chosen = list(itertools.islice((p for p in drawn if args.only in ("", p.fault, p.phase)), args.count))
    hosts = [find_host(f"b300-{index + 1}") for index in range(min(number, len(chosen)))]
    fleet = Fleet.open(CACHE, work / "state", args.net)
    shutil.rmtree(KEPT, ignore_errors=True)
    failed = []
    try:
        start(fleet, hosts, prepared)
        free: queue.SimpleQueue[Host] = queue.SimpleQueue()
        for host in hosts:
            free.put(host)

        def one(plan: plans.Plan) -> trial.Outcome:
            host = free.get()
            try:
                power_on = PowerOn(layers.resolve(), host.layers, prepared.layers)
                machine = fleet.machine(host.name)
                return trial.Trial(plan, machine, base, power_on, prepared, limits, KEPT / str(plan.seed)).run()
            finally:
                free.put(host)

        with ThreadPoolExecutor(len(hosts)) as pool:
            for outcome in pool.map(one, chosen):
                print(outcome, flush=True)
                if outcome.problems:
                    failed.append(outcome.plan.seed)
                else:
                    shutil.rmtree(KEPT / str(outcome.plan.seed))
    finally:
        stop(fleet, hosts)
    for seed in failed:
        again = f"python tests/service_faults/service_faults.py --server {args.server} --count 1 --seed {seed}"
        print(f"seed {seed} failed; what it left is in {KEPT / str(seed)}; once more: {again}")
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


def start(fleet: Fleet, hosts: list[Host], prepared: Prepared) -> None:
    """Start the hosts once, which makes their network and keys; each has a disk of its own that can be made full."""
    for host in hosts:
        disk = fleet.machine(host.name).home / "disk"
        disk.mkdir(parents=True)
        size = f"size={trial.DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "ddtree-service-faults", str(disk)], check=True)
    fleet.up(hosts, extra_layers={host.name: list(prepared.layers) for host in hosts})


def stop(fleet: Fleet, hosts: list[Host]) -> None:
    """End the hosts, then their disks, which could not be removed before."""
    for host in hosts:
        machine = fleet.machine(host.name)
        machine.remove_leftovers()
        subprocess.run(["umount", "--lazy", str(machine.home / "disk")], check=True)
    fleet.down()


if __name__ == "__main__":
    sys.exit(main())
