# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the benchmarks have in common: where they write, what they ran on, and how they end."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "build" / "bench"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def terminate(*_signal: object) -> None:
    """Let what is running be taken down; ``timeout`` and others say it twice, and the second time must not stop that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def write(out: Path, result: dict[str, Any]) -> None:
    """Write the JSON; ends with the ratios and its path on standard output."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print()
    for name, ratio in result["ratios"].items():
        print(f"{name:32}{ratio:8.2f}")
    print(f"\n{out}")
