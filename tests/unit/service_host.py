# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host below a folder: releases, unit files, and systemd's stand-in, so that switching and going back touch nothing else."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store
from ansible_collections.ddtree.fleet.plugins.module_utils._service import arm, health, units
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError
from ansible_collections.ddtree.fleet.plugins.module_utils._service.states import Request, reach
from ansible_collections.ddtree.fleet.tests.unit.plugins.module_utils._service import fake_systemctl

A, B, C = "a" * 16, "b" * 16, "c" * 16
UNIT = "sglang.service"
RUN = "run-1"


def unit_text(release: str, more: str = "") -> str:
    return f"# Written by ddtree.fleet\n[Service]\nExecStart=/venv/bin/python --release {release} --port 39999\n{more}"


class ServiceHost:
    """One host with three releases, none active. What is done goes through the module's own states."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = Paths("sglang", str(root))
        self.dest = root / "root" / "venv"
        self.store = Store(str(self.dest))
        self.systemd = fake_systemctl.Systemd(root)
        self.systemd.state.mkdir(parents=True)
        Path(self.paths.units).mkdir(parents=True)
        for name in (A, B, C):
            (Path(self.store.root) / name).mkdir(parents=True)

    def systemctl(self, *words: str, seconds: float = 0) -> str:
        try:
            return self.systemd.call(list(words))
        except fake_systemctl.Refused as refusal:
            raise ServiceError(f"systemctl {' '.join(words)} failed: {refusal}") from None

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = Path(self.paths.units) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def key(self, name: str, value: str) -> Path:
        path = Path(self.paths.keys) / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'api-key: "{value}"\n')
        path.chmod(0o600)
        return path

    def serve(self, release: str = A, names: List[str] | None = None, verdict: str = "passed") -> None:
        """Let a release serve, as an earlier deployment left it."""
        names = names or [UNIT]
        self.store.activate(release)
        if verdict:
            self.store.judge(release, verdict)
        if names == [UNIT] and not (Path(self.paths.units) / UNIT).exists():
            self.write(UNIT, unit_text(release))
        self.systemctl("daemon-reload")
        self.systemctl("enable", *names)
        self.systemctl("start", *names)

    def ask(self, state: str, **options: Any) -> Dict[str, Any]:
        check = options.pop("check", False)
        return reach(Request(str(self.dest), UNIT, state, check, root=str(self.root), **{"run_id": RUN, **options}))

    def arm(self, release: str = B, **options: Any) -> Dict[str, Any]:
        defaults = {"timeout": 100, "stop_timeout": 1, "free_timeout": 1, "ready_timeout": 1, "actor": "anna"}
        return self.ask("armed", release=release, **{**defaults, **options})

    def switch(self, text: str = "", **options: Any) -> Dict[str, Any]:
        return self.ask("switched", **{"files": {UNIT: text or unit_text(B)}, **options})

    def restore(self, **options: Any) -> Dict[str, Any]:
        return self.ask("restored", **{"reason": "the gate failed", "verdict": "failed", **options})

    def program(self, boot: bool = False) -> int:
        """What the timer, or the unit at boot, runs; in this process."""
        from ansible_collections.ddtree.fleet.plugins.module_utils._service.program import main

        return main(["restore", *(["--boot"] if boot else []), "--root", str(self.root), "sglang"])

    def invocation(self, name: str = UNIT) -> str:
        return str(self.systemd.unit(name)["invocation"])

    def running(self) -> List[str]:
        states = sorted(self.systemd.state.glob("*.service.json"))
        return [path.name[: -len(".json")] for path in states if json.loads(path.read_text())["active"] == "active"]

    def runs(self, name: str = UNIT) -> str:
        """The text of the unit file that the running unit was started with."""
        unit = self.systemd.unit(name)
        return str(unit["text"]) if unit["active"] == "active" else ""

    def files(self) -> Dict[str, str]:
        """All below the folder of units, and the keys: content or where a link leads, with the permissions."""
        found = {}
        for folder in (Path(self.paths.units), Path(self.paths.keys)):
            for path in sorted(folder.rglob("*")) if folder.exists() else []:
                mode = path.lstat().st_mode
                if stat.S_ISLNK(mode):
                    found[str(path.relative_to(self.root))] = f"-> {os.readlink(path)}"
                elif stat.S_ISREG(mode):
                    found[str(path.relative_to(self.root))] = f"{stat.S_IMODE(mode):o} {path.read_text()}"
        return found

    def picture(self) -> Dict[str, Any]:
        """All that decides what this host serves, without which invocation it is."""
        link = os.readlink(self.dest) if self.dest.is_symlink() else None
        return {"link": link, "files": self.files(), "runs": {name: self.runs(name) for name in self.running()}}

    def calls(self, word: str) -> List[str]:
        path = self.systemd.state / "calls"
        return [line for line in path.read_text().splitlines() if line.split()[0] == word] if path.exists() else []

    def nothing_is_left(self) -> bool:
        """Whether neither marker nor program, reserve, or note is there any more."""
        paths = self.paths
        reserves = list(self.root.rglob("*reserve"))
        return not reserves and not any(
            map(os.path.lexists, (paths.marker, paths.program, paths.laid, paths.confirming))
        )


def make_host(root: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceHost:
    """A host whose systemctl is the stand-in in this process; what it does not prove is left out for time."""
    host = ServiceHost(root)
    monkeypatch.setattr(units, "systemctl", host.systemctl)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(markers, "RESERVE_BYTES", 4096)
    monkeypatch.setattr(units, "KILL_SECONDS", 1)
    monkeypatch.setattr(arm, "choose_python", lambda dest: sys.executable)
    monkeypatch.setattr(health, "wait", lambda *_args: [])
    monkeypatch.setattr(arm, "check_program", lambda python, paths: None)
    programs = root / "bin"
    programs.mkdir()
    for name, line in {
        "systemctl": f'exec "{sys.executable}" -S "{fake_systemctl.__file__}" "$@"',
        "journalctl": f'echo "$@" >> "{host.systemd.state}/journal_calls"; cat "{host.systemd.state}/journal" 2>/dev/null',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOST", str(root))
    return host
