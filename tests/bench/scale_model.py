# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Computes how long a rollout over many hosts takes, from what fleet.py measures.

usage: scale_model.py [--hosts N,N] [--gigabytes G] [--uplink MBIT] [--node MBIT] [--cores N] [--forks N] [--batch SHARE]

--hosts      fleets to compute, default 16,100,1000
--gigabytes  what a release has, default 12
--uplink     the link of the source and of the relay, default 1000; hosts have links of their own, see --node
--node       what one host receives and passes on at once, its link and its processors, default 10000
--cores      processors of the control node, default 8
--forks      as in ansible.cfg, default 25
--batch      hosts of a batch, as a share of the fleet, default 0.25

What a task costs comes from scale_points.json, which was measured on two processors; see docs/scale.md. All times in seconds, sizes in
bytes, rates in bytes a second.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List

POINTS = Path(__file__).with_name("scale_points.json")
MEGABIT = 1e6 / 8


@dataclass(frozen=True)
class Network:
    """What a stream goes over. ``machine`` is what all targets together can take where they share processors, as test hosts do."""

    uplink: float
    node: float
    fixed: float  # of a stream, whatever it brings: start, hash, compare, prove, sync, commit
    host: float  # for each target more: its agent, its connection in the chain
    machine: float = math.inf


@dataclass(frozen=True)
class Ansible:
    """What a control node can do and what tasks cost there. ``main`` is the part of a task that its one main process does."""

    cores: int
    forks: int
    main: float
    local: float
    remote: float
    answer: float  # until a remote task's host has answered, a gate's own work not counted


@dataclass(frozen=True)
class Work:
    """What one host of a rollout costs: tasks by kind, and the seconds of its own that gates and start of the server take."""

    local_tasks: int
    remote_tasks: int
    gates: float


def stream_seconds(network: Network, size: float, targets: int, topology: str) -> float:
    """One stream to so many targets. ``chain``: the uplink carries the content once; ``star``: once for each target."""
    through_uplink = size * (1 if topology == "chain" else targets) / network.uplink
    return (
        network.fixed
        + network.host * (targets - 1)
        + max(through_uplink, size / network.node, size * targets / network.machine)
    )


def tasks_seconds(ansible: Ansible, work: Work, hosts: int) -> float:
    """The tasks of one batch: bound by the main process, by the processors of its workers, or by the hosts' answers in rounds of forks."""
    tasks = work.local_tasks + work.remote_tasks
    main = ansible.main * tasks * hosts
    workers = (ansible.local * work.local_tasks + ansible.remote * work.remote_tasks) * hosts
    rounds = math.ceil(hosts / ansible.forks)
    return max(main, (main + workers) / ansible.cores) + rounds * (ansible.answer * work.remote_tasks + work.gates)


def processor_seconds(ansible: Ansible, work: Work, hosts: int) -> float:
    """Seconds of the control node's processors for the tasks of so many hosts; in a lab, the hosts' own among them."""
    local, remote = (ansible.main + each for each in (ansible.local, ansible.remote))
    return hosts * (local * work.local_tasks + remote * work.remote_tasks)


def batches(hosts: int, share: float, canary: int = 2) -> List[int]:
    """The sizes of canary and batches, as the settings of a rollout make them."""
    rest = hosts - min(canary, hosts)
    size = max(1, int(rest * share))
    found = [min(canary, hosts)]
    while rest > 0:
        found.append(min(size, rest))
        rest -= size
    return found


def rollout_seconds(
    network: Network, ansible: Ansible, work: Work, size: float, sizes: List[int], topology: str
) -> float:
    """Canary and batches one after the other, each a stream and its tasks; with ``size`` 0 nothing is there to send."""
    return sum(stream_seconds(network, size, hosts, topology) + tasks_seconds(ansible, work, hosts) for hosts in sizes)


def measured() -> Dict[str, Any]:
    """What was measured, see docs/scale.md."""
    found: Dict[str, Any] = json.loads(POINTS.read_text(encoding="utf-8"))
    return found


def lab_network(points: Dict[str, Any]) -> Network:
    """The test hosts, which share one machine: its rate comes from the longest chain."""
    stream = points["stream"]
    return Network(stream["uplink"], math.inf, stream["fixed"], stream["host"], stream["machine"])


def lab_ansible(points: Dict[str, Any]) -> Ansible:
    """Ansible on the measured machine, whose processors the hosts use too, so that their share of a task is a worker's."""
    tasks = points["tasks"]
    hosts = tasks["remote"]["hosts_cpu"]
    control = {kind: tasks[kind]["control_cpu"] - tasks["main"] for kind in ("local", "remote")}
    return Ansible(tasks["cores"], tasks["forks"], tasks["main"], control["local"], control["remote"] + hosts, 0.0)


def field_ansible(points: Dict[str, Any], cores: int, forks: int) -> Ansible:
    """Ansible on a control node of its own: the hosts' share of a task is time to wait, not a processor here."""
    lab = lab_ansible(points)
    answer = points["tasks"]["remote"]["hosts_cpu"]
    return replace(lab, cores=cores, forks=forks, remote=lab.remote - answer, answer=answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="16,100,1000")
    parser.add_argument("--gigabytes", type=float, default=12)
    parser.add_argument("--uplink", type=float, default=1000)
    parser.add_argument("--node", type=float, default=10000)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--forks", type=int, default=25)
    parser.add_argument("--batch", type=float, default=0.25)
    arguments = parser.parse_args()
    if not 0 < arguments.batch <= 1 or min(arguments.uplink, arguments.node, arguments.cores, arguments.forks) <= 0:
        parser.error("--batch is a share above 0 and up to 1; --uplink, --node, --cores and --forks are above 0")
    points = measured()
    stream = points["stream"]
    network = Network(arguments.uplink * MEGABIT, arguments.node * MEGABIT, stream["fixed"], stream["field_host"])
    ansible = field_ansible(points, arguments.cores, arguments.forks)
    size = arguments.gigabytes * 1e9
    print(f"{'hosts':>6}{'batches':>9}{'chain':>9}{'star':>9}{'nothing to do':>15}{'of that tasks':>15}   seconds")
    for hosts in map(int, arguments.hosts.split(",")):
        sizes = batches(hosts, arguments.batch)
        work = Work(points["noop"]["local_tasks"], points["noop"]["remote_tasks"], points["noop"]["gates"])
        chain, star = (rollout_seconds(network, ansible, work, size, sizes, kind) for kind in ("chain", "star"))
        nothing = rollout_seconds(network, ansible, work, 0, sizes, "chain")
        tasks = sum(tasks_seconds(ansible, work, count) for count in sizes)
        print(f"{hosts:6}{len(sizes):9}{chain:9.0f}{star:9.0f}{nothing:15.0f}{tasks:15.0f}")


if __name__ == "__main__":
    main()
