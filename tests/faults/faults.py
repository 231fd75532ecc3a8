# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random faults against the stream engine, one line each, and one line of counts at the end; see README.md beside this file."""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "faults"
INSIDE = "DDTREE_FAULTS_WORK"  # set in the process that has its own mounts
WORKING, WAITING = 2, 6  # cases that use a processor at once, and cases at once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of the first fault; each has the next one")
    parser.add_argument("--only", default="", help="pass over seeds of other kinds of fault")
    parser.add_argument(
        "--path",
        choices=["relay", "direct"],
        help="how the content travels: relay by default, along a chain either way",
    )
    parser.add_argument("--topology", choices=["star", "chain"], default="star", help="to one target, or along a chain")
    args = parser.parse_args()
    if INSIDE not in os.environ:
        return with_own_mounts()
    return run(args)


def with_own_mounts() -> int:
    """Run this program again where its mounts and processes end with it, and where the agents' cache is its own."""
    if os.geteuid():
        print("the faults need root: they mount file systems", file=sys.stderr)
        return 2
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ddtree-faults-") as work:
        path = os.pathsep.join([str(ROOT / ".collections"), str(Path(__file__).parent)])
        more = {INSIDE: work, "DDTREE_FAULTS_KEPT": str(KEPT), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        mounts = f"for folder in {work} /var/cache /run/netns; do mkdir -p $folder; mount -t tmpfs ddtree-faults $folder; done"
        unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
        command = [*unshare, "sh", "-ec", f'{mounts}; exec "$@"', "sh", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, **more}, check=False).returncode


def run(args: argparse.Namespace) -> int:
    """Make the faults and tell of them in the order of their seeds."""
    from case import Case, Outcome, Slots
    from chain import CHAIN_KINDS, ChainCase
    from kinds import KINDS, kind_of

    chain = args.topology == "chain"
    path = args.path or ("" if chain else "relay")
    kinds = list(CHAIN_KINDS if chain else KINDS)
    case = ChainCase if chain else Case

    def kind(seed: int) -> str:
        return kinds[seed % len(kinds)] if chain else kind_of(seed, path)

    if args.only and args.only not in kinds:
        print(f"there is no kind {args.only}; there are {', '.join(kinds)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    seeds = (seed for seed in itertools.count(args.seed) if args.only in ("", kind(seed)))
    chosen = list(itertools.islice(seeds, args.count))
    slots = Slots(WORKING)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    failed: list[int] = []

    def one(seed: int) -> Outcome:
        return case(seed, kind(seed), path, Path(os.environ[INSIDE]), slots).run()

    with ThreadPoolExecutor(WAITING) as pool:
        for outcome in pool.map(one, chosen):
            print(outcome, flush=True)
            counts[outcome.kind, outcome.came] += 1
            if outcome.problems:
                failed.append(outcome.seed)
    for one_kind in sorted({name for name, _came in counts}):
        came = ", ".join(f"{number} {came}" for (name, came), number in sorted(counts.items()) if name == one_kind)
        print(f"{one_kind:16} {came}")
    for seed in failed:
        options = f"--topology {args.topology}" + (f" --path {args.path}" if args.path else "")
        again = f"python tests/faults/faults.py {options} --count 1 --seed {seed}"
        print(f"seed {seed} failed; its files are in {KEPT}; once more: {again}")
    print(f"{time.monotonic() - began:.0f} s")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
