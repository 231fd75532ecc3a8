# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a tier of checks and ends with one line of counts.

usage: run.py lint|fast|full|long

Every step runs, also after one has failed. Its output goes to build/test/<step>.log; the end of it is shown when the step fails.
Tests of pytest and faults count one by one, everything else counts by step.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
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
    """One command; ``limit`` in seconds. ``counts``: its last line says how many checks it made, as pytest's does."""

    name: str
    command: Sequence[str]
    limit: int = 900
    counts: bool = False


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
    Step("integration", [*PYTEST, "-o", "faulthandler_timeout=600", "tests/integration"], counts=True),
    Step("faults", [*FAULTS, "--count", "100"], counts=True),
    Step("faults-direct", [*FAULTS, "--count", "24", "--path", "direct"], counts=True),
    Step("service-faults", [*SERVICE_FAULTS, "--count", "45"], counts=True),
    *(Step(f"molecule-{name}", ["tests/molecule.sh", name], 1500) for name in MOLECULE),
)
LONG = (
    *FULL,
    Step("faults-long", [*FAULTS, "--count", "900", "--seed", "101"], 3600, counts=True),
    Step("service-faults-real", [*SERVICE_FAULTS, "--server", "real", "--count", "50"], 14400, counts=True),
    Step("bench", [sys.executable, "tests/bench/transfer.py"], 7200),
    Step("bench-manifest", [sys.executable, "tests/bench/manifest.py"], 1800),
    Step("bench-fleet", [sys.executable, "tests/bench/fleet.py"], 5400),
)
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
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            output.write(f"\nended after {step.limit} s\n".encode())
            status = 124
    text = log.read_text(encoding="utf-8", errors="replace")
    passed, failed = counts(text) if step.counts else (int(status == 0), int(status != 0))
    if status and not failed:
        failed = 1
    print(f"{'ok  ' if not failed else 'FAIL'} {step.name:20} {time.monotonic() - started:7.1f} s", flush=True)
    if failed:
        print("\n".join(f"     | {line}" for line in text.splitlines()[-SHOWN_LINES:]), flush=True)
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
    totals = [run(step) for step in TIERS[sys.argv[1]]]
    if sys.argv[1] in ("full", "long"):
        totals.append(server_starts())
    passed, failed = (sum(column) for column in zip(*totals))
    print(f"{sys.argv[1]}: {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
