# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down a real environment by manifest_sha256 and by what people use today, side by side.

usage: manifest.py [--repeat N] [--small] [--out FILE] [--cache DIR]

--repeat  how often each tool runs, default 3; the figure is the median
--small   the small payload, for a quick try: its ratios say little
--out     the JSON, default build/bench/manifest.json
--cache   base root file system and payload, default $DDTREE_CACHE or .cache/fleet

Prints every run, a table and the ratios. See README.md for what the ratios are. Needs root for the payload, and the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from payload import CACHE, BuildError, Payload, build
from report import RESULTS, ROOT, machine, terminate, write

sys.path.insert(0, str(ROOT / ".collections"))

from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from nspawn.shell import FleetError

MODULE = "ansible_collections.ddtree.fleet.plugins.modules.manifest_sha256"
CORES = os.cpu_count() or 1
BLOCK = 16384  # bytes, the largest that `openssl speed` takes by itself
FIND = "find"
PEERS = {
    "rhash": "find . -type f | rhash --sha256 --file-list=-",
    "hashdeep": f"hashdeep -c sha256 -r -l -of -j{CORES} .",
    # openssl writes a line in several pieces, so each process has a file of its own.
    "openssl": "parts=$(mktemp -d); find . -type f -print0 | "
    f"xargs -0 -P{CORES} -n64 sh -c 'openssl dgst -sha256 -r \"$@\" > $0/$$' $parts; sort -k2 $parts/*; rm -r $parts",
    "xargs": f"find . -type f -print0 | xargs -0 -P{CORES} -n64 sha256sum | sort -k2",
    FIND: "find . -type f -exec sha256sum {} \\; | sort -k2",
}
CREATE, UNCHANGED, START = "ours_create", "ours_unchanged", "ours_start"
DIGEST = re.compile(rb"\b[0-9a-f]{64}\b")


class ToolError(Exception):
    """A tool that is not there, failed, or did not find what is there."""


@dataclass
class Bench:
    """The tree, a place for manifests, and the seconds of each tool so far."""

    tree: Path
    work: Path
    files: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)  # of openssl, in bytes per second

    def run(self, repeat: int) -> None:
        """Run every tool ``repeat`` times, back and forth through the list."""
        tools: list[tuple[str, Callable[[], float]]] = [
            *((name, lambda name=name: self._peer(name)) for name in PEERS),
            (CREATE, self._create),
            (UNCHANGED, self._unchanged),
            (START, self._start),
        ]
        into_memory = ["find", ".", "-type", "f", "-exec", "cat", "{}", "+"]
        subprocess.run(into_memory, cwd=self.tree, stdout=subprocess.DEVNULL, check=True)
        for turn in range(repeat):
            for name, count in (("one", 1), ("all", CORES)):
                self.rates.setdefault(name, []).append(openssl_rate(count))
                print(f"openssl speed, {name:16} {self.rates[name][-1] / 1e9:8.2f} GB/s", flush=True)
            for name, tool in tools if turn % 2 == 0 else tools[::-1]:
                seconds = tool()
                self.seconds.setdefault(name, []).append(round(seconds, 3))
                print(f"{name:31} {seconds:8.2f} s", flush=True)

    def _peer(self, name: str) -> float:
        out = self.work / name
        began = time.monotonic()
        with out.open("wb") as file:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", PEERS[name]], cwd=self.tree, stdout=file, check=False
            )
        seconds = time.monotonic() - began
        if done.returncode:
            raise ToolError(f"{PEERS[name]} ended with {done.returncode}")
        self._check(out)
        return seconds

    def _check(self, manifest: Path) -> None:
        """Raise ToolError unless a tool found as many files as there are."""
        lines = [line for line in manifest.read_bytes().splitlines() if line[:1] not in (b"#", b"%")]
        found = sum(1 for line in lines if DIGEST.search(line))
        if found != self.files:
            raise ToolError(f"{manifest.name} wrote down {found} files, but there are {self.files}")

    def _create(self) -> float:
        Path(os.fsdecode(index_path(os.fsencode(self.tree)))).unlink(missing_ok=True)
        self.manifest.unlink(missing_ok=True)
        seconds = self._module(self.tree, self.manifest, True)
        self._check(self.manifest)
        return seconds

    def _unchanged(self) -> float:
        if not self.manifest.exists():
            self._create()
        return self._module(self.tree, self.manifest, False)

    def _start(self) -> float:
        """What starting the module takes, over an empty tree."""
        empty = self.work / "empty"
        empty.mkdir(exist_ok=True)
        (self.work / "empty.sha256").unlink(missing_ok=True)
        return self._module(empty, self.work / "empty.sha256", True)

    @property
    def manifest(self) -> Path:
        return self.work / "ours.sha256"

    def _module(self, tree: Path, manifest: Path, changed: bool) -> float:
        """Run the module as a host does, a process that is given its arguments; start-up counts."""
        given = {
            "path": str(tree),
            "manifest": str(manifest),
            "state": "present",
            "_ansible_remote_tmp": str(self.work),
        }
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", MODULE],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
            env={**os.environ, "PYTHONPATH": str(ROOT / ".collections")},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode or json.loads(done.stdout)["changed"] is not changed:
            raise ToolError(f"manifest_sha256: {done.stdout}{done.stderr}")
        return seconds

    def same_as_find(self) -> bool:
        """Whether find and sha256sum wrote down the same files with the same hashes."""
        ours, theirs = (
            sorted(line for line in path.read_bytes().splitlines() if not line.startswith(b"#"))
            for path in (self.manifest, self.work / FIND)
        )
        return ours == theirs


def openssl_rate(processes: int) -> float:
    """Bytes per second that ``openssl speed`` hashes, in so many processes together."""
    multi = ["-multi", str(processes)] if processes > 1 else []
    command = ["openssl", "speed", "-seconds", "3", "-bytes", str(BLOCK), *multi, "-evp", "sha256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"^sha256\s+([0-9.]+)k", done.stdout, re.MULTILINE)
    if not match:
        raise ToolError(f"{' '.join(command)}: {done.stderr.strip()}")
    return float(match[1]) * 1000


def ratios(seconds: dict[str, float], rate: float, size: int) -> dict[str, float]:
    """Peer by ours, so that bigger is better; of the hash limit, the part that is reached."""
    others = [seconds[name] for name in PEERS if name != FIND]
    return {
        "create_vs_find": round(seconds[FIND] / seconds[CREATE], 2),
        "create_vs_best_peer": round(min(others) / seconds[CREATE], 2),
        "create_vs_hash_limit": round(size / seconds[CREATE] / (CORES * rate), 2),
        "unchanged_vs_find": round(seconds[FIND] / seconds[UNCHANGED], 2),
    }


def measure(payload: Payload, repeat: int) -> dict[str, Any]:
    """Run everything, and give what belongs in the JSON. Raises ToolError."""
    for tool in ("rhash", "hashdeep", "openssl"):
        if not shutil.which(tool):
            raise ToolError(f"{tool} is not installed; apt-get install rhash hashdeep openssl, or run tests/setup.sh")
    tree = (payload.directory / payload.env.name / payload.env.venv).resolve()
    with tempfile.TemporaryDirectory(prefix="ddtree-bench-") as work:
        bench = Bench(tree, Path(work), payload.files)
        try:
            bench.run(repeat)
        finally:
            Path(os.fsdecode(index_path(os.fsencode(tree)))).unlink(missing_ok=True)
        if not bench.same_as_find():
            raise ToolError("manifest_sha256 and find wrote down different files")
    seconds = {name: statistics.median(runs) for name, runs in bench.seconds.items()}
    rates = {name: statistics.median(runs) for name, runs in bench.rates.items()}
    return {
        "payload": {"files": payload.files, "bytes": payload.bytes},
        "machine": machine(),
        "openssl": rates,
        "tools": {name: {"seconds": seconds[name], "all": runs} for name, runs in bench.seconds.items()},
        "ratios": ratios(seconds, rates["one"], payload.bytes),
    }


def show(tools: dict[str, dict[str, Any]], size: int, rates: dict[str, float]) -> None:
    print(f"\n{'tool':15}{'seconds':>9}{'GB/s':>8}  each")
    for name, found in tools.items():
        each = " ".join(f"{seconds:.2f}" for seconds in found["all"])
        rate = "" if name in (UNCHANGED, START) else f"{size / found['seconds'] / 1e9:.2f}"
        print(f"{name:15}{found['seconds']:9.2f}{rate:>8}  {each}")
    print(f"openssl speed: {rates['one'] / 1e9:.2f} GB/s by one process, {rates['all'] / 1e9:.2f} by {CORES} together")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "manifest.json")
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args(arguments)
    if given.repeat < 1:
        parser.error("--repeat: 1 or more")
    return given


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, terminate)
    try:
        result = measure(build(arguments.cache, arguments.small), arguments.repeat)
    except (BuildError, FleetError, ToolError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    show(result["tools"], result["payload"]["bytes"], result["openssl"])
    write(arguments.out, result)


if __name__ == "__main__":
    main()
