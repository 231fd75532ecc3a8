# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures what a fleet costs: one stream to many hosts over narrow links, a rollout that changes nothing, and Ansible itself.

usage: fleet.py [--parts A,B] [--repeat N] [--targets N] [--rate RATE] [--hosts N] [--keep] [--out FILE] [--cache DIR] [--state DIR] [--net N]

--parts    some of stream, noop, tasks, report; default all
--repeat   how often each run is done, default 3; the figure is the median
--targets  how many targets one stream feeds, default 8
--rate     the links of the source and of the relay, in the words of tc, default 500mbit; targets' own are not limited
--hosts    how many hosts the rollout that changes nothing has, default 16
--keep     leave the hosts running in the end, for a look; the next run, or fleet.py down, ends them
--out      the JSON, default build/bench/fleet.json
--cache    base root file system and layers, default $DDTREE_CACHE or .cache/fleet; `make input` builds them
--state    disks and keys of the benchmark's own hosts, default fleet-bench-state in the cache
--net      their network 10.N.0.0/24, default 92

Prints every run and the figures. See README.md for what they are. Needs root, and the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import Disk, inside
from nspawn import cgroup
from nspawn.control import Fleet
from nspawn.hosts import Host, find_host, targets
from nspawn.machine import Machine
from nspawn.shell import FleetError
from payload import CACHE
from report import RESULTS, machine, terminate, write

ROOT = Path(__file__).resolve().parents[2]
RESULT = RESULTS / "fleet.json"
STREAM_PLAY = ROOT / "tests" / "integration" / "stream.yml"
ROLLOUT = ROOT / "playbooks" / "deploy_ddtree.yml"
SOURCE, REPLAYED_SOURCE = "ct200", "ct210"
VENV = "/root/venv_sglang211"
LEFT_OUT = [
    "lib/python3*/site-packages/[!t]*"
]  # torch, triton and transformers stay: 1.4 GB, few enough files for nine hosts on one machine
RELAY = Host("relay", 2, 0, "root", "relay", "", ())  # an address below those of all test hosts
TASKS = 10  # of each kind, in the plays that measure what a task costs
LAST_LINES = 3000


class BenchError(Exception):
    """A run failed, or did something else than it is measured for; its text is the whole message."""


@dataclass(frozen=True)
class Playbook:
    """What one run of ansible-playbook took: seconds by the clock, and of processors here and on the hosts."""

    seconds: float
    control_cpu: float
    hosts_cpu: float
    output: str


@dataclass(frozen=True)
class Stream:
    """One stream as its task reports it, and what left the source and the relay by the counters of their devices."""

    seconds: float
    source_sent: int
    relay_sent: int
    tree: dict[str, Any]
    targets: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Bytes of files that each target lacked."""
        return max(int(target["bytes_sent"]) for target in self.targets.values())


@dataclass(frozen=True)
class Bench:
    """The fleet of the benchmark and how often each run is done."""

    fleet: Fleet
    repeat: int
    rate: str
    keep: bool

    @contextmanager
    def running(self, hosts: Sequence[Host], **options: Any) -> Iterator[list[Machine]]:
        """The hosts with empty disks, whatever an earlier run left; they go down in the end, unless they are kept."""
        disk = Disk(self.fleet.state)
        self._stop(disk)
        disk.mount()
        try:
            yield self.fleet.up(list(hosts), **options)
        finally:
            if not self.keep:
                self._stop(disk)

    def _stop(self, disk: Disk) -> None:
        self.fleet.down()
        disk.remove()

    def play(
        self, playbook: Path, *arguments: str, inventories: Sequence[Path] = (), prefix: Sequence[str] = ()
    ) -> Playbook:
        """Run a playbook to its end. Raises BenchError with the end of its output when it fails."""
        given = [f"-i{self.fleet.state / 'inventory'}", *(f"-i{path}" for path in inventories)]
        command = [*prefix, "ansible-playbook", *given, str(playbook), *arguments]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
        hosts, here, began = self._hosts_cpu(), _children_cpu(), time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        if done.returncode != 0:
            raise BenchError(
                f"{playbook.name}: exit {done.returncode}: {(done.stdout + done.stderr).strip()[-LAST_LINES:]}"
            )
        return Playbook(seconds, _children_cpu() - here, self._hosts_cpu() - hosts, done.stdout)

    def _hosts_cpu(self) -> float:
        """Seconds of processors that the hosts have used, by their common control group."""
        for path in cgroup.group_paths(self.fleet.network.bridge):
            for name, scale in (("cpuacct.usage", 1e9), ("cpu.stat", 1e6)):
                file = path / name
                found = re.search(r"^(?:usage_usec )?(\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
                if found:
                    return int(found[1]) / scale
        return 0.0


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class NarrowLinks:
    """The hosts of a stream: the source on a narrow link, and a network namespace on another, in which the relay runs."""

    bench: Bench
    machines: dict[str, Machine]
    relay: tuple[str, ...] = ()  # what a command starts with to run there
    runs: dict[str, list[Stream]] = field(default_factory=dict)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Both links narrow, for a while."""
        network, source = self.bench.fleet.network, self.machines[SOURCE]
        holder = subprocess.Popen(["unshare", "--net", "--", "sleep", "infinity"])
        try:
            while _namespace(holder.pid) == _namespace(os.getpid()):
                time.sleep(0.01)
            network.connect(RELAY, holder.pid, self.bench.rate)
            network.limit(source.host, source.leader() or 0, self.bench.rate)
            self.relay = ("nsenter", f"--target={holder.pid}", "--net", "--")
            yield
        finally:
            holder.kill()
            holder.wait()
            network.disconnect(RELAY)

    def empty(self) -> None:
        """Nothing of the payload on any target, nothing remembered, and the payload in the page cache."""
        for name, host in self.machines.items():
            inside(host, f"rm -rf /var/cache/ddtree-fleet{'' if name == SOURCE else f' {VENV} {VENV}.*'}")
        inside(self.machines[SOURCE], f"tar -C / -cf - .{VENV} | cat > /dev/null")
        os.sync()

    def stream(self, hosts: Sequence[str], **options: Any) -> Stream:
        """One stream to those hosts. Raises BenchError where a target did not get it."""
        # As it is: what compressing gains is up to the processors that idle, which one target leaves and eight do not.
        given: dict[str, Any] = {"source": SOURCE, "src": VENV, "dest": VENV, "exclude": LEFT_OUT, "compress": "none"}
        given |= {"bytecode": False, "timeout": 1800}
        before = self._sent()
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            result = Path(folder, "result.json")
            variables = {f"stream_{key}": value for key, value in {**given, **options}.items()}
            arguments = ["--limit", ",".join(hosts), "-e", json.dumps({**variables, "stream_result": str(result)})]
            self.bench.play(STREAM_PLAY, *arguments, inventories=[ROOT / "tests" / "inventory"], prefix=self.relay)
            found = json.loads(result.read_text(encoding="utf-8"))
        source, relay = (after - earlier for after, earlier in zip(self._sent(), before))
        return Stream(float(found["tree"]["seconds"]), source, relay, found["tree"], found["targets"])

    def _sent(self) -> tuple[int, int]:
        """Bytes that the source and the relay have sent, by the outer ends of their cables."""
        network = self.bench.fleet.network
        devices = [network.device(host) for host in (self.machines[SOURCE].host, RELAY)]
        source, relay = (int(Path(f"/sys/class/net/{name}/statistics/rx_bytes").read_text()) for name in devices)
        return source, relay

    def time(self, name: str, work: Callable[..., Stream], hosts: Sequence[str], **options: Any) -> None:
        """Do it ``repeat`` times with empty targets, and keep and say what was seen."""
        for _turn in range(self.bench.repeat):
            self.empty()
            run = work(hosts, **options)
            self.runs.setdefault(name, []).append(run)
            sent = f"source sent {run.source_sent / 1e6:8.1f} MB, relay {run.relay_sent / 1e6:8.1f} MB"
            print(f"{name:22}{run.seconds:8.2f} s  {sent}, chains {run.tree.get('chains', [])}", flush=True)

    def one_after_the_other(self, hosts: Sequence[str], **options: Any) -> Stream:
        """A stream of its own for each host; seconds are the sum."""
        found = [self.stream([host], **options) for host in hosts]
        return self._together(found, sum(run.seconds for run in found))

    def all_at_once(self, hosts: Sequence[str], **options: Any) -> Stream:
        """A stream of its own for each host, all at the same time; seconds are those of the slowest."""
        before = self._sent()
        with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
            found = list(pool.map(lambda host: self.stream([host], **options), hosts))
        source, relay = (after - earlier for after, earlier in zip(self._sent(), before))
        together = self._together(found, max(run.seconds for run in found))
        return Stream(together.seconds, source, relay, together.tree, together.targets)

    @staticmethod
    def _together(found: Sequence[Stream], seconds: float) -> Stream:
        targets = {name: verdict for run in found for name, verdict in run.targets.items()}
        sent = (sum(run.source_sent for run in found), sum(run.relay_sent for run in found))
        tree = {"source_bytes_read": sum(run.tree["source_bytes_read"] for run in found)}
        return Stream(seconds, *sent, tree, targets)


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def stream(bench: Bench, count: int) -> dict[str, Any]:
    """One target, eight by a chain, eight by a star, and a stream of its own for each, through the relay and directly."""
    hosts = targets(count)
    names = [host.name for host in hosts]
    layers = {SOURCE: ["env"]}
    with bench.running([find_host(SOURCE), *hosts], bare=True, extra_layers=layers) as machines:
        links = NarrowLinks(bench, {found.host.name: found for found in machines})
        with links.limited():
            for path in ("relay", "direct"):
                links.time(f"{path}_one", links.stream, names[:1], path=path)
                links.time(f"{path}_chain", links.stream, names, path=path, topology="chain")
            links.time("relay_star", links.stream, names, path="relay", topology="star")
            links.time("relay_each_in_turn", links.one_after_the_other, names, path="relay")
            links.time("relay_each_at_once", links.all_at_once, names, path="relay")
    cases = {name: _summary(runs) for name, runs in links.runs.items()}
    one, chain = cases["relay_one"], cases["relay_chain"]
    return {
        "targets": count,
        "rate": bench.rate,
        "cases": cases,
        "figures": {
            "eight_vs_one": round(chain["seconds"] / one["seconds"], 3),
            "eight_vs_one_direct": round(cases["direct_chain"]["seconds"] / cases["direct_one"]["seconds"], 3),
            "per_host_streams_vs_one": round(cases["relay_each_in_turn"]["seconds"] / one["seconds"], 3),
            "per_host_streams_at_once_vs_one": round(cases["relay_each_at_once"]["seconds"] / one["seconds"], 3),
            "star_vs_one": round(cases["relay_star"]["seconds"] / one["seconds"], 3),
            "source_reads": round(chain["source_bytes_read"] / chain["bytes"], 3),
        },
    }


def _summary(runs: Sequence[Stream]) -> dict[str, Any]:
    """The run with the median seconds, and the seconds of all."""
    run = sorted(runs, key=lambda found: found.seconds)[(len(runs) - 1) // 2]
    return {
        "seconds": round(run.seconds, 3),
        "all": [round(found.seconds, 3) for found in runs],
        "bytes": run.bytes,
        "source_bytes_read": run.tree["source_bytes_read"],
        "source_sent": run.source_sent,
        "relay_sent": run.relay_sent,
        "chains": run.tree.get("chains", []),
        "rounds": run.tree.get("rounds"),
        "set_aside": run.tree.get("set_aside", []),
    }


def noop(bench: Bench, count: int) -> dict[str, Any]:
    """A rollout over hosts that have and serve everything: all gates, and nothing changes."""
    with bench.running([find_host(REPLAYED_SOURCE), *targets(count)]):

        def roll_out() -> Playbook:
            # The hosts share this machine's processors, so one request of a gate may wait for those of fifteen other hosts.
            longer = ("-e", "ddtree_request_timeout=30", "-e", "ddtree_ready_timeout=120")
            return bench.play(ROLLOUT, *longer, inventories=[ROOT / "tests" / "inventory_replayed"])

        first = roll_out()
        print(f"{'first rollout':22}{first.seconds:8.2f} s", flush=True)
        found = []
        for _turn in range(bench.repeat):
            run = roll_out()
            _refuse_changes(run.output, count)
            found.append(run)
            print(f"{'nothing changes':22}{run.seconds:8.2f} s  {_processors(run)}", flush=True)
    median = sorted(found, key=lambda run: run.seconds)[(len(found) - 1) // 2]
    return {
        "hosts": count,
        "first_seconds": round(first.seconds, 2),
        "all": [round(run.seconds, 2) for run in found],
        "control_cpu": round(median.control_cpu, 2),
        "hosts_cpu": round(median.hosts_cpu, 2),
        "figures": {f"noop_{count}_hosts_s": round(median.seconds, 2)},
    }


def _processors(run: Playbook) -> str:
    return f"processors: {run.control_cpu:.1f} s here, {run.hosts_cpu:.1f} s on the hosts"


def _refuse_changes(output: str, count: int) -> None:
    """Raise BenchError unless the recap has all hosts, and none of them changed or skipped its gates."""
    recap = re.findall(r"^(\S+) +: ok=(\d+) +changed=(\d+) ", output, re.MULTILINE)
    served = re.findall(r"^\S+ +unchanged +\S+ .*manifest, patches, environment, server", output, re.MULTILINE)
    changed = [name for name, _ok, changes in recap if int(changes)]
    if changed:
        raise BenchError(f"a rollout with nothing to do changed {', '.join(changed)}")
    if len(served) != count:
        raise BenchError(f"only {len(served)} of {count} hosts went through all gates: {output[-LAST_LINES:]}")


LOCAL = {"ansible.builtin.assert": {"that": "inventory_hostname is defined", "quiet": True}}
REMOTE: dict[str, Any] = {"ansible.builtin.ping": {}}
OURS: dict[str, Any] = {"ddtree.fleet.venv_release": {"dest": VENV}}


def tasks(bench: Bench, count: int) -> dict[str, Any]:
    """What one task costs on one host, by plays that differ by ten of them."""
    kinds = {"local": LOCAL, "remote": REMOTE, "ours": OURS}
    found: dict[str, dict[str, float]] = {}
    with bench.running(targets(count), bare=True), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for kind, task in kinds.items():
            few, many = (_median_of(bench, Path(folder), task, times) for times in (1, 1 + TASKS))
            each = count * TASKS
            found[kind] = {
                "seconds": round((many.seconds - few.seconds) / each, 4),
                "control_cpu": round((many.control_cpu - few.control_cpu) / each, 4),
                "hosts_cpu": round((many.hosts_cpu - few.hosts_cpu) / each, 4),
            }
            print(f"{kind + ' task':22}{found[kind]}", flush=True)
    return {"hosts": count, "each": found, "figures": {}}


def _median_of(bench: Bench, folder: Path, task: dict[str, Any], times: int) -> Playbook:
    play = {"name": "Tasks", "hosts": "b300:rtx_pro_6000", "gather_facts": False, "become": True}
    path = folder / "tasks.json"
    path.write_text(json.dumps([{**play, "tasks": [{"name": f"Task {number}", **task} for number in range(times)]}]))
    runs = sorted((bench.play(path) for _turn in range(bench.repeat)), key=lambda run: run.seconds)
    return runs[(len(runs) - 1) // 2]


def report(_bench: Bench, _count: int) -> dict[str, Any]:
    """The size of the report of a recorded rollout, had it had a hundred hosts."""
    program = (
        "from ansible_collections.ddtree.fleet.tests.unit.rollouts import report_100_hosts_bytes as size; print(size())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".collections")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the size of a report is not known: {done.stderr.strip()[-LAST_LINES:]}")
    return {"figures": {"report_100_hosts_bytes": int(done.stdout)}}


PARTS: dict[str, Callable[[Bench, int], dict[str, Any]]] = {
    "stream": stream,
    "noop": noop,
    "tasks": tasks,
    "report": report,
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--rate", default="500mbit")
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--net", type=int, default=92)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts.split(",")) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if arguments.repeat < 1 or arguments.targets < 2 or arguments.hosts < 1:
        parser.error("--repeat and --hosts: 1 or more, --targets: 2 or more")
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the parts, and give what belongs in the JSON."""
    fleet = Fleet.open(arguments.cache, arguments.state or arguments.cache / "fleet-bench-state", arguments.net)
    bench = Bench(fleet, arguments.repeat, arguments.rate, arguments.keep)
    counts = {"stream": arguments.targets}
    found = {
        name: part(bench, counts.get(name, arguments.hosts))
        for name, part in PARTS.items()
        if name in arguments.parts.split(",")
    }
    ratios = {name: figure for part in found.values() for name, figure in part.pop("figures").items()}
    return {"machine": machine(), **found, "ratios": ratios, **ratios}


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, terminate)
    try:
        result = measure(arguments)
    except (BenchError, FleetError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    write(arguments.out, result)


if __name__ == "__main__":
    main()
