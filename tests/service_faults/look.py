# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a host: says what it serves and what is left of a deployment, as one line of JSON.

usage: look.py UNIT DEST PORT SECONDS

Waits up to SECONDS for a host at rest: it answers a generation, nothing is pending, and no unit of a way back is left.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import scan, tree_digest

UNITS = Path("/etc/systemd/system")
STATE = Path("/var/lib/ddtree-fleet")
POLL_S = 0.2


def answer(port: int) -> str:
    """What the server generates; empty when it does not."""
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 16, "temperature": 0}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return str(json.load(reply)["text"])
    except (OSError, ValueError, KeyError):
        return ""


def systemctl(*words: str) -> list[str]:
    return subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False).stdout.splitlines()


def mapped(pid: str, store: Store) -> list[str]:
    """The releases that the process has files from."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except OSError:
        return []
    return sorted(set(re.findall(rf"{re.escape(store.root)}/([0-9a-f]{{16}})/", maps)))


def leftovers() -> list[str]:
    """What a way back that is over leaves nowhere."""
    loaded = systemctl("list-units", "--all", "--plain", "--no-legend", "way-back*")
    units = [line.split()[0] for line in loaded if line.split()[2:3] != ["inactive"]]
    files = [str(path) for path in [*UNITS.rglob("way-back*"), *STATE.glob("*/pending.json"), *STATE.glob("*/*.pyz")]]
    return [*units, *files]


def unit_files() -> dict[str, str]:
    """Everything below /etc/systemd/system with the digest of its content, or where it leads."""
    found = {}
    for path in sorted(UNITS.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(UNITS))] = f"-> {os.readlink(path)}"
        elif path.is_file():
            mode = f"{path.stat().st_mode:o}"
            found[str(path.relative_to(UNITS))] = f"{mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def intact(store: Store, release: str) -> bool:
    """Whether a release is what was committed, every byte of it read."""
    root = os.fsencode(store.path(release))
    entries = scan(root)
    digest = tree_digest(entries, hash_tree(root, entries, lambda entry: None))
    return bool(digest == store.describe(release).get("installed_digest"))


def look(unit: str, dest: str, port: int) -> dict[str, Any]:
    """The quick part, which is asked again and again."""
    store = Store(dest)
    shown = systemctl("show", "--property=MainPID,ActiveState,UnitFileState", "--", unit)
    unit_is = dict(line.split("=", 1) for line in shown)
    return {
        "active": store.active() or "",
        "unit": unit_is.get("ActiveState", ""),
        "enabled": unit_is.get("UnitFileState", ""),
        "serving": mapped(unit_is.get("MainPID", ""), store),
        "text": answer(port),
        "leftovers": leftovers(),
    }


def main() -> None:
    unit, dest, port, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    deadline = time.monotonic() + seconds
    while True:
        found = look(unit, dest, port)
        rest = found["text"] and found["unit"] == "active" and not found["leftovers"]
        if rest or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    store = Store(dest)
    confirmed = STATE / unit.removesuffix(".service") / "confirmed.json"
    found["verdict"] = store.verdict(found["active"]) if found["active"] else ""
    found["intact"] = bool(found["active"]) and intact(store, found["active"])
    found["unit_files"] = unit_files()
    found["confirmed"] = json.loads(confirmed.read_text(encoding="utf-8"))["release"] if confirmed.exists() else ""
    print(json.dumps(found))


if __name__ == "__main__":
    main()
