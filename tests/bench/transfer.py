# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves the real environment from one test host to another, by venv_stream and by what people use today, in one run.

Both go through this control node. Prints ratios and writes build/bench/transfer.json. `tar` neither compares nor proves anything, so it
takes as long the second time; `rsync` needs a copy on the control node, since it does not go from one remote host to another.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(os.environ["DDTREE_ROOT"])
CACHE = os.environ["DDTREE_CACHE"]
STATE = os.environ["DDTREE_STATE"]
RESULT = ROOT / "build" / "bench" / "transfer.json"
SRC = "/root/venv_sglang211"
TARGET = "b300-1"


def fleet(*words: str) -> None:
    command = ["python3", str(ROOT / "tests/fleet/fleet.py"), *words]
    subprocess.run([*command, "--cache", CACHE, "--state", STATE], check=True)


def ssh(host: str) -> str:
    """An ssh command line to a test host, for a shell."""
    found = json.loads(
        subprocess.run(
            ["ansible-inventory", "-i", f"{STATE}/inventory", "--host", host], capture_output=True, check=True
        ).stdout
    )
    options = (
        f"-i {found['ansible_ssh_private_key_file']} -p {found['ansible_port']} {found['ansible_ssh_common_args']}"
    )
    return f"ssh {options} {found['ansible_user']}@{found['ansible_host']}"


def shell(command: str) -> None:
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True, stdout=subprocess.DEVNULL)


def timed(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return round(time.monotonic() - started, 2)


def stream() -> None:
    inventories = ["-i", f"{STATE}/inventory", "-i", str(ROOT / "tests/inventory")]
    command = ["ansible-playbook", *inventories, str(ROOT / "tests/integration/stream.yml"), "--limit", TARGET]
    subprocess.run([*command, "-e", '{"stream_bytecode": false}'], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def tar() -> None:
    shell(
        f"{ssh('ct200')} tar -C /root -cf - venv_sglang211 | {ssh(TARGET)} 'mkdir -p /srv/tar && tar -C /srv/tar -xf -'"
    )


def rsync() -> None:
    copy = f"{STATE}/rsync-copy"
    for source, target in ((ssh("ct200"), ""), ("", ssh(TARGET))):
        remote, _, address = (source or target).rpartition(" ")
        ends = f"{address}:{SRC}/ {copy}/" if source else f"{copy}/ {address}:/srv/rsync/"
        shell(f"mkdir -p {copy} && rsync -a --delete -e '{remote}' {ends}")


def main() -> None:
    fleet("up", "ct200", TARGET)
    try:
        tools = {"venv_stream": stream, "tar | tar": tar, "rsync, rsync": rsync}
        seconds = {name: {"first": timed(work), "second": timed(work)} for name, work in tools.items()}
    finally:
        fleet("down")
        shell(f"rm -rf {STATE}/rsync-copy")
    ratios = {
        name: {which: round(found[which] / seconds["venv_stream"][which], 2) for which in found}
        for name, found in seconds.items()
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"seconds": seconds, "ratios": ratios}, indent=1) + "\n", encoding="utf-8")
    print(f"{'':14}{'first run':>12}{'ratio':>8}{'second run':>12}{'ratio':>8}")
    for name, found in seconds.items():
        cells = (f"{found['first']:.1f} s", ratios[name]["first"], f"{found['second']:.1f} s", ratios[name]["second"])
        print(f"{name:14}{cells[0]:>12}{cells[1]:>8}{cells[2]:>12}{cells[3]:>8}")


if __name__ == "__main__":
    main()
