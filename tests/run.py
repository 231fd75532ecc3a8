# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a tier of checks and ends with one line of counts.

usage: run.py lint|fast|full|long

Every step runs, also after one has failed. Scenarios that mostly wait run one after the other beside the other steps, on hosts of their
own. Its output goes to build/test/<step>.log; the end of it is shown when the step fails.
Tests of pytest and faults count one by one, everything else counts by step.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
SHOWN_LINES = 80
COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")
MAX_SERVER_STARTS = 12  # of a real SGLang, which takes 20 s of both processors
STARTS = Path(os.environ.get("DDTREE_CACHE", "")) / "server-starts"
TYPED_TESTS = ("tests/faults", "tests/fleet", "tests/input", "tests/replay", "tests/service_faults", "tests/run.py")
TYPED_PATHS = (".collections", "tests/faults", "tests/fleet", "tests/input", "tests/service_faults")
FAULTS = (sys.executable, "tests/faults/faults.py")
SERVICE_FAULTS = (sys.executable, "tests/service_faults/service_faults.py")
WAITING = ("controller_lost", "fleet")  # scenarios that wait for hosts and timers more than they do
MOLECULE = (
    "adopt",
    "controller_lost",
    "deploy",
    "faults",
    "fleet",
    "refuse",
    "rollback",
    "service",
    "stream",
    "verify",
)


@dataclass(frozen=True)
class Step:
    """One command; ``limit`` in seconds. ``counts``: its last line says how many checks it made, as pytest's does.

    ``beside``: it runs while the others do, on test hosts of its own.
    """

    name: str
    command: Sequence[str]
    limit: int = 900
    counts: bool = False
    beside: bool = False


LINT = (
    Step("ruff", ["ruff", "check", "."]),
    Step("ruff-format", ["ruff", "format", "--check", "."]),
    Step("mypy", ["env", "MYPYPATH=.collections", "mypy", "-p", "ansible_collections.ddtree.fleet.plugins"]),
    Step("mypy-tests", ["env", f"MYPYPATH={':'.join(TYPED_PATHS)}", "mypy", *TYPED_TESTS]),
    Step(
        "mypy-bench",
        [
            "env",
            "MYPYPATH=tests/bench:tests/fleet:tests/input",
            "mypy",
            "-m",
            "transfer",
            "-m",
            "manifest",
            "-m",
            "fleet",
        ],
    ),
    Step("yamllint", ["yamllint", "--strict", "."]),
    Step("ansible-lint", ["ansible-lint", "--offline", "--profile", "production", "--strict"]),
)
PYTEST = (sys.executable, "-m", "pytest", "-q")
FAST = (*LINT, Step("unit", [*PYTEST, "-n", "auto", "-m", "not slow", "tests/unit", "tests/input"], counts=True))
FULL = (
    *FAST,
    Step("unit-slow", [*PYTEST, "-n", "auto", "-m", "slow", "tests/unit"], counts=True),
    Step("sanity", [sys.executable, "tests/sanity/sanity.py"], 1200),
    Step("browser", [*PYTEST, "tests/browser"], counts=True),
    Step("integration", [*PYTEST, "-n", "auto", "-o", "faulthandler_timeout=600", "tests/integration"], counts=True),
    Step("faults", [*FAULTS, "--count", "100"], counts=True),
    Step("faults-direct", [*FAULTS, "--count", "24", "--path", "direct"], counts=True),
    Step("faults-chain", [*FAULTS, "--count", "16", "--topology", "chain"], counts=True),
    Step("service-faults", [*SERVICE_FAULTS, "--count", "45"], counts=True),
    *(Step(f"molecule-{name}", ["tests/molecule.sh", name], 1500, beside=name in WAITING) for name in MOLECULE),
)
LONG = (
    *FULL,
    Step("faults-long", [*FAULTS, "--count", "900", "--seed", "101"], 3600, counts=True),
    Step("service-faults-real", [*SERVICE_FAULTS, "--server", "real", "--count", "50"], 14400, counts=True),
    Step("bench", [sys.executable, "tests/bench/transfer.py"], 7200),
    Step("bench-manifest", [sys.executable, "tests/bench/manifest.py"], 1800),
    Step("bench-fleet", [sys.executable, "tests/bench/fleet.py"], 5400),
)
# Where the hosts of scenarios that run beside the others are, and what molecule remembers of them.
APART = {
    "DDTREE_STATE": f"{os.environ.get('DDTREE_STATE', '')}-beside",
    "DDTREE_NET": "78",
    "MOLECULE_EPHEMERAL_DIRECTORY": f"{os.environ.get('DDTREE_STATE', '')}-beside/molecule",
}
TIERS = {"lint": LINT, "fast": FAST, "full": FULL, "long": LONG}


def run(step: Step) -> tuple[int, int]:
    """Run one step; gives the numbers of passed and failed checks."""
    log = LOGS / f"{step.name}.log"
    started = time.monotonic()
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                step.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=step.limit,
                env={**os.environ, **(APART if step.beside else {})},
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {step.limit} s\n".encode())
            status = 124
    text = log.read_text(encoding="utf-8", errors="replace")
    passed, failed = counts(text) if step.counts else (int(status == 0), int(status != 0))
    if status and not failed:
        failed = 1
    said = [f"{'ok  ' if not failed else 'FAIL'} {step.name:24} {time.monotonic() - started:7.1f} s"]
    if failed:
        said += [f"     | {line}" for line in text.splitlines()[-SHOWN_LINES:]]
    print("\n".join(said), flush=True)  # at once, since another step may end now too
    return passed, failed


def counts(text: str) -> tuple[int, int]:
    """Passed and failed checks by a step's own last line."""
    found = {word: int(number) for number, word in COUNTS.findall(text.strip().rsplit("\n", 1)[-1])}
    return found.get("passed", 0), found.get("failed", 0) + found.get("error", 0)


def server_starts() -> tuple[int, int]:
    """Judge how often the scenarios started a real server, as their hosts' journals counted; no count is a failure."""
    lines = STARTS.read_text(encoding="utf-8").splitlines() if STARTS.exists() else []
    starts = sum(int(line.split()[-1]) for line in lines)
    within = 0 < starts <= MAX_SERVER_STARTS
    print(f"{'ok  ' if within else 'FAIL'} server-starts: {starts} of at most {MAX_SERVER_STARTS}")
    return int(within), int(not within)


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in TIERS:
        print(__doc__, file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    started = time.monotonic()
    STARTS.unlink(missing_ok=True)
    steps = TIERS[sys.argv[1]]
    with ThreadPoolExecutor(1) as beside:
        waiting = [beside.submit(run, step) for step in steps if step.beside]
        try:
            totals = [run(step) for step in steps if not step.beside]
        except BaseException:  # Ctrl-C
            beside.shutdown(wait=False, cancel_futures=True)
            raise
        totals += [future.result() for future in waiting]
    if sys.argv[1] in ("full", "long"):
        totals.append(server_starts())
    passed, failed = (sum(column) for column in zip(*totals))
    print(f"{sys.argv[1]}: {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
