# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driving process: one deployment of a release that is on the host already, by the modules that the role uses, in its order.

usage: controller.py ORDER

ORDER is a JSON file: ``ssh``, the command line that reaches the host; ``pause``, seconds to wait once armed; ``steps``, the module and its
arguments by step. Says in JSON lines what begins and what has ended how. Each step is a module of its own on the host, as
with Ansible: one that has begun goes on when this process is killed. Like a play, it does nothing more for a host that it has lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODULES = "ansible_collections.ddtree.fleet.plugins.modules"
FOLDER = "/opt/ddtree-service-faults"
LOST = 255  # ssh's own exit status


class Unreachable(Exception):
    """The connection was lost."""


def say(**words: Any) -> None:
    print(json.dumps({"at": round(time.time(), 2), **words}), flush=True)


def step(order: dict[str, Any], name: str, **more: Any) -> bool:
    """Run one step; gives whether it succeeded."""
    module, arguments = order["steps"][name]
    say(begin=name)
    program = f"PYTHONPATH={FOLDER} exec python3 -B -m {MODULES}.{module}"
    done = subprocess.run(
        [*order["ssh"], program],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, **more}}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == LOST:
        raise Unreachable(done.stderr.strip())
    result = result_of(done)
    order["reason"] = f"{name}: {result.get('msg', '')}"
    say(end=name, failed=bool(result.get("failed")), msg=result.get("msg", ""), steps=result.get("steps", []))
    return not result.get("failed")


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a module returned, or a failure where it was killed."""
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        return {"failed": True, "msg": f"status {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}"}


def deploy(order: dict[str, Any]) -> bool:
    """The role's order: whatever fails once something may be armed takes the way back."""
    if step(order, "armed"):
        time.sleep(order["pause"])
        if step(order, "switched"):
            if not step(order, "gate"):
                step(order, "restored", reason=order["reason"], verdict="failed")
                return False
            if step(order, "confirmed"):
                return True
    step(order, "restored", reason=order["reason"])
    return False


def main() -> int:
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        return 0 if deploy(order) else 1
    except Unreachable as error:
        say(unreachable=str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
