#!/usr/bin/env python3
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for systemctl on the host below $FAKE_HOST: unit files are real files there, what runs is in run/fake/UNIT.json.

A unit whose file says ``# stubborn`` goes on until it is killed, ``# broken`` ends as soon as it starts, ``# leaves PID`` leaves a process
in its control group. What systemd has read is what it runs: a start before daemon-reload starts the old files.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List


class Refused(Exception):
    """What systemctl prints when it fails."""


class Systemd:
    """The units of one host; everything it knows is on disk, so that each call may be a process of its own."""

    def __init__(self, root: Path) -> None:
        self.units = root / "etc/systemd/system"
        self.state = root / "run/fake"
        self.groups = root / "sys/fs/cgroup/system.slice"

    def call(self, words: List[str]) -> str:
        self.state.mkdir(parents=True, exist_ok=True)
        with open(self.state / "calls", "a", encoding="utf-8") as file:
            file.write(" ".join(words) + "\n")
        names = [word for word in words[1:] if not word.startswith("-")]
        if (self.state / "fails").exists() and words[0] in (self.state / "fails").read_text().split():
            raise Refused(f"{words[0]} fails here")
        output: str = getattr(self, words[0].replace("-", "_"))(names, words) or ""
        return output

    def source(self, name: str) -> str:
        """What the unit's file says now, the template's for an instance; empty when there is none."""
        stem, at, _instance = name.partition("@")
        for candidate in [name] + ([f"{stem}@.service"] if at else []):
            path = self.units / candidate
            if path.exists():
                drop_ins = sorted((self.units / f"{candidate}.d").glob("*.conf"))
                return path.read_text() + "".join(item.read_text() for item in drop_ins)
        return ""

    def loaded(self, name: str) -> str:
        """What systemd has read of the unit, which is not what is on disk before daemon-reload."""
        known = self.memory()
        return str(known.get(name, "")) if name in known else self.source(name)

    def memory(self) -> Dict[str, str]:
        path = self.state / "memory"
        data: Dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return data

    def unit(self, name: str) -> Dict[str, Any]:
        path = self.state / f"{name}.json"
        if path.exists():
            data: Dict[str, Any] = json.loads(path.read_text())
            return data
        return {
            "active": "inactive",
            "sub": "dead",
            "invocation": "",
            "group": "",
            "job": "",
            "started": 0.0,
            "result": "success",
        }

    def put(self, name: str, **changes: Any) -> None:
        (self.state / f"{name}.json").write_text(json.dumps({**self.unit(name), **changes}))

    def show(self, names: List[str], words: List[str]) -> str:
        if "--property=UserspaceTimestampMonotonic" in words:
            return f"{int((time.monotonic() - 1000) * 1e6)}\n"
        if "--value" in words:
            return str(self.unit(names[0])["active"]) + "\n"
        known = sorted(path.name[: -len(".json")] for path in self.state.glob("*.service.json"))
        found = [match for name in names for match in (fnmatch.filter(known, name) if "*" in name else [name])]
        return "\n".join(self._describe(name) for name in found)

    def _describe(self, name: str) -> str:
        unit, text = self.unit(name), self.loaded(name)
        commands = [line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("ExecStart=")]
        lines = [f"ExecStart={{ path={command.split()[0]} ; argv[]={command} ; }}" for command in commands if command]
        enabled = "enabled" if list(self.units.glob(f"*.wants/{name}")) else "disabled" if text else ""
        lines += [
            f"Id={name}",
            f"LoadState={'loaded' if text else 'not-found'}",
            f"ActiveState={unit['active']}",
            f"SubState={unit['sub']}",
            f"Result={unit['result']}",
            "ExecMainStatus=0",
            f"InvocationID={unit['invocation']}",
            f"ControlGroup={unit['group']}",
            f"Job={unit['job']}",
            f"DropInPaths={(self.state / 'drop_ins').read_text() if (self.state / 'drop_ins').exists() else ''}",
            f"UnitFileState={enabled}",
            f"InactiveExitTimestampMonotonic={int(unit['started'] * 1e6)}",
        ]
        return "\n".join(lines) + "\n"

    def start(self, names: List[str], words: List[str]) -> None:
        for name in names:
            text = self.loaded(name)
            if not text:
                raise Refused(f"Failed to start {name}: Unit {name} not found.")
            if self.unit(name)["active"] == "active":
                continue
            counter = self.state / "invocations"
            number = int(counter.read_text()) + 1 if counter.exists() else 1
            counter.write_text(str(number))
            group = f"/system.slice/{name}"
            (self.groups / name).mkdir(parents=True, exist_ok=True)
            leaves = re.search(r"# leaves (\d+)", text)
            (self.groups / name / "cgroup.procs").write_text(f"{leaves.group(1)}\n" if leaves else "")
            up = {"active": "active", "sub": "running", "result": "success"}
            down = {"active": "failed", "sub": "failed", "result": "exit-code"}
            started = {"invocation": f"{number:032x}", "group": group, "job": "", "started": time.monotonic()}
            self.put(name, **(down if "# broken" in text else up), **started, text=text)

    restart = start

    def stop(self, names: List[str], words: List[str]) -> None:
        for name in names:
            if self.unit(name)["active"] != "inactive" or self.unit(name)["job"]:
                stubborn = "# stubborn" in str(self.unit(name).get("text"))
                self.put(name, active="deactivating" if stubborn else "inactive", sub="dead", job="", group="")

    def kill(self, names: List[str], words: List[str]) -> None:
        for name in names:
            self.put(name, active="failed", sub="failed", result="signal", job="")

    def daemon_reload(self, names: List[str], words: List[str]) -> None:
        known = {path.name for path in self.units.glob("*.service")} | {
            path.name[: -len(".json")] for path in self.state.glob("*.service.json")
        }
        (self.state / "memory").write_text(json.dumps({name: self.source(name) for name in sorted(known)}))

    def enable(self, names: List[str], words: List[str]) -> None:
        wants = self.units / "multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        for name in names:
            link = wants / name
            if not link.is_symlink():
                stem, at, _instance = name.partition("@")
                link.symlink_to(f"/etc/systemd/system/{f'{stem}@.service' if at else name}")

    def reset_failed(self, names: List[str], words: List[str]) -> None:
        for name in names:
            if self.unit(name)["active"] == "failed":
                self.put(name, active="inactive", sub="dead", result="success")

    def boot(self) -> None:
        """What a reboot does to what runs: nothing does any more, and what is enabled is about to start."""
        for path in self.state.glob("*.service.json"):
            path.unlink()
        self.daemon_reload([], [])
        for link in self.units.glob("*.wants/*.service"):
            self.put(link.name, job="1")


if __name__ == "__main__":
    try:
        sys.stdout.write(Systemd(Path(os.environ["FAKE_HOST"])).call(sys.argv[1:]))
    except Refused as refusal:
        sys.exit(str(refusal))
