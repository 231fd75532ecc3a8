# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves a real environment from one test host to another by venv_stream and by what people use today, side by side.

usage: transfer.py [--cases A,B] [--repeat N] [--small] [--keep] [--out FILE] [--cache DIR] [--state DIR] [--net N]

--cases   some of first, floor, noop, full_verify, five_files, gbit, seeded; default all, in this order
--repeat  how often each tool runs in each case, default 3; the figure is the median
--small   the small payload, for a quick try: its ratios say little
--keep    leave the hosts running in the end, for a look; the next run, or fleet.py down, ends them
--out     the JSON, default build/bench/transfer.json
--cache   base root file system and payload, default $DDTREE_CACHE or .cache/fleet
--state   disks and keys of the benchmark's own two hosts, default bench-state in the cache
--net     their network 10.N.0.0/24, default 91

Prints every run, a table and the ratios. See README.md for what the cases and the ratios are. Needs root, and the machine for itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import Lab
from nspawn.control import Fleet
from nspawn.shell import FleetError
from payload import CACHE, BuildError, build
from peers import FLOOR, PIPES, PLAIN, RSYNC, RSYNC_CHECKSUM, ZSTD, Peer, Stream, Tool, ToolError
from report import RESULTS, machine, terminate, write

RESULT = RESULTS / "transfer.json"
LINK = "1gbit"
OURS = Stream()
RELAY, DIRECT = Stream("ours_relay", {"path": "relay"}), Stream("ours_direct", {"path": "direct"})


@dataclass(frozen=True)
class Run:
    """One timed run: seconds by the tool's own account or else by the clock, wall seconds by the clock, sizes in bytes."""

    seconds: float
    wall: float
    sync: float
    wire_bytes: int
    bytes: int | None
    memory: dict[str, int]
    detail: dict[str, Any]


@dataclass
class Bench:
    """The runs so far, by case and tool."""

    lab: Lab
    repeat: int
    runs: dict[str, dict[str, list[Run]]] = field(default_factory=dict)

    def compare(self, case: str, tools: Sequence[Tool], prepare: Callable[[], object], seeded: bool = False) -> None:
        """Run every tool ``repeat`` times, back and forth through the list; ``prepare`` comes before each run, untimed."""
        for turn in range(self.repeat):
            for tool in tools if turn % 2 == 0 else tools[::-1]:
                prepare()
                self.lab.settle(seeded)
                run = self._time(tool)
                self.runs.setdefault(case, {}).setdefault(tool.name, []).append(run)
                print(f"{case:12} {tool.name:15} {run.seconds:8.2f} s  wire {megabytes(run.wire_bytes)}", flush=True)

    def _time(self, tool: Tool) -> Run:
        before, began = self.lab.received(), time.monotonic()
        figures = tool.run(self.lab)
        wall, received = time.monotonic() - began, self.lab.received() - before
        os.sync()
        sync = time.monotonic() - began - wall
        seconds = wall if figures.seconds is None else figures.seconds
        return Run(
            round(seconds, 3), round(wall, 3), round(sync, 3), received, figures.bytes, figures.memory, figures.detail
        )


def first(bench: Bench) -> None:
    """The target has nothing."""
    bench.compare("first", [*PIPES, RSYNC, RELAY, DIRECT], bench.lab.empty_target)


def floor(bench: Bench) -> None:
    """What the target's disk costs alone: a copy of what is there already."""
    RSYNC.run(bench.lab)
    bench.compare("floor", [FLOOR], bench.lab.remove_floor)
    bench.lab.remove_floor()


def noop(bench: Bench) -> None:
    """Nothing has changed since the last run."""
    _everything_there(bench.lab)
    bench.compare("noop", [RSYNC, OURS], lambda: None)


def full_verify(bench: Bench) -> None:
    """Nothing has changed, but every byte is read again."""
    _everything_there(bench.lab)
    bench.compare("full_verify", [RSYNC_CHECKSUM, Stream("ours", {"verify": "full"})], bench.lab.warm_target)


def five_files(bench: Bench) -> None:
    """Five small files have changed since the last run of the same tool."""
    _everything_there(bench.lab)
    try:
        bench.compare("five_files", [RSYNC, OURS], lambda: bench.lab.edit(f"changed at {time.time()}"))
    finally:
        bench.lab.restore()


def gbit(bench: Bench) -> None:
    """The target has nothing, and each host hangs on 1 Gbit/s."""
    with bench.lab.link(LINK):
        bench.compare("gbit", [PLAIN, *ZSTD, OURS], bench.lab.empty_target)


def seeded(bench: Bench) -> None:
    """The target has another environment, with the same large packages."""
    with bench.lab.seeded():
        bench.compare("seeded", [Stream("ours", {"seeds": [bench.lab.seed]})], bench.lab.empty_target, seeded=True)


CASES = {case.__name__: case for case in (first, floor, noop, full_verify, five_files, gbit, seeded)}


@dataclass(frozen=True)
class Ratio:
    """The fastest of some peers in a case by a run of ours in a case; bigger is better."""

    peer_case: str
    peers: Iterable[Peer]
    our_case: str
    ours: Stream = OURS
    figure: str = "seconds"

    def of(self, cases: dict[str, dict[str, Any]]) -> float | None:
        """None where one of the two cases was not run."""
        if self.peer_case not in cases or self.our_case not in cases:
            return None
        best = min(cases[self.peer_case][peer.name][self.figure] for peer in self.peers)
        return round(float(best) / max(cases[self.our_case][self.ours.name][self.figure], 1e-3), 2)


# tar sends everything each time, so its first copy is also what it takes to bring five files.
RATIOS = {
    "first_relay_vs_plain": Ratio("first", [PLAIN], "first", RELAY),
    "first_relay_vs_best_pipe": Ratio("first", PIPES, "first", RELAY),
    "first_direct_vs_plain": Ratio("first", [PLAIN], "first", DIRECT),
    "gbit_vs_plain": Ratio("gbit", [PLAIN], "gbit"),
    "gbit_vs_zstd": Ratio("gbit", ZSTD, "gbit"),
    "seeded_vs_plain": Ratio("first", [PLAIN], "seeded"),
    "seeded_wire": Ratio("first", [PLAIN], "seeded", figure="wire_bytes"),
    "five_files_vs_plain": Ratio("first", [PLAIN], "five_files"),
    "noop_vs_rsync": Ratio("noop", [RSYNC], "noop"),
    "full_verify_vs_rsync_checksum": Ratio("full_verify", [RSYNC_CHECKSUM], "full_verify"),
}


def _everything_there(lab: Lab) -> None:
    RSYNC.run(lab)
    OURS.run(lab)


def summary(runs: list[Run]) -> dict[str, Any]:
    """The median of a tool's runs; everything beside seconds and wall is of the run with the median seconds."""
    median = sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]
    return {
        "seconds": round(statistics.median(run.seconds for run in runs), 3),
        "all": [run.seconds for run in runs],
        "wall": round(statistics.median(run.wall for run in runs), 3),
        "sync_after": median.sync,
        "bytes": median.bytes,
        "wire_bytes": median.wire_bytes,
        "peak_memory": max(median.memory.values(), default=None),
        "peak_memory_of": median.memory,
        "detail": median.detail,
    }


def megabytes(size: int | None) -> str:
    return f"{'':>10}" if size is None else f"{size / 1e6:7.1f} MB"


def show(cases: dict[str, dict[str, Any]]) -> None:
    print(f"\n{'case':12} {'tool':15}{'seconds':>9}{'wall':>9}{'wire':>12}{'memory':>12}  each")
    for case, tools in cases.items():
        for name, found in tools.items():
            each = " ".join(f"{seconds:.1f}" for seconds in found["all"])
            sizes = f"{megabytes(found['wire_bytes']):>12}{megabytes(found['peak_memory']):>12}"
            print(f"{case:12} {name:15}{found['seconds']:9.2f}{found['wall']:9.2f}{sizes}  {each}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--net", type=int, default=91)
    arguments = parser.parse_args()
    unknown = set(arguments.cases.split(",")) - set(CASES)
    if unknown or arguments.repeat < 1:
        parser.error(
            f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}" if unknown else "--repeat: 1 or more"
        )
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Build what is missing, run the cases, and give what belongs in the JSON."""
    payload = build(arguments.cache, arguments.small)
    fleet = Fleet.open(arguments.cache, arguments.state or arguments.cache / "bench-state", arguments.net)
    bench = Bench(Lab(fleet, payload, arguments.keep), arguments.repeat)
    with bench.lab.running():
        for name, case in CASES.items():
            if name in arguments.cases.split(","):
                case(bench)
    cases = {case: {name: summary(runs) for name, runs in tools.items()} for case, tools in bench.runs.items()}
    ratios = {name: ratio.of(cases) for name, ratio in RATIOS.items()}
    return {
        "payload": {"files": payload.files, "bytes": payload.bytes},
        "machine": machine(),
        "cases": cases,
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
    }


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, terminate)
    try:
        result = measure(arguments)
    except (BuildError, FleetError, ToolError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    show(result["cases"])
    write(arguments.out, result)


if __name__ == "__main__":
    main()
