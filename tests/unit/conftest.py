# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import pytest

COLLECTIONS = Path(__file__).resolve().parents[2] / ".collections"
MODULES = "ansible_collections.ddtree.fleet.plugins.modules"

sys.path.insert(0, str(COLLECTIONS))

RunModule = Callable[..., Dict[str, Any]]


@pytest.fixture(name="run_module")
def run_module_fixture(tmp_path_factory: pytest.TempPathFactory) -> RunModule:
    """Run a module of this collection as its own process, as a host does, and give its result with ``rc`` in it."""
    temporary = tmp_path_factory.mktemp("ansible")

    def run_module(name: str, args: Dict[str, Any], check: bool = False, diff: bool = False) -> Dict[str, Any]:
        internal = {"_ansible_check_mode": check, "_ansible_diff": diff, "_ansible_remote_tmp": str(temporary)}
        path = os.pathsep.join(filter(None, [str(COLLECTIONS), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [sys.executable, "-m", f"{MODULES}.{name}"],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": {**args, **internal}}),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        result: Dict[str, Any] = json.loads(done.stdout)
        assert result.get("failed", False) == (done.returncode != 0), done.stdout
        return {**result, "rc": done.returncode}

    return run_module


@pytest.fixture(name="forget_hashes")
def forget_hashes_fixture(tmp_path: Path) -> Iterator[None]:
    """Leave no hash index behind for what a test streams from or to its own folder."""
    yield
    from ansible_collections.ddtree.fleet.tests.unit.agents import forget

    forget(tmp_path)


@pytest.fixture(name="server")
def server_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A replaying server, not started yet, as the unit that stand-ins for systemctl and journalctl tell of."""
    from ansible_collections.ddtree.fleet.tests.unit.replayed import TESTS, Server

    monkeypatch.setenv("PATH", f"{TESTS / 'replay' / 'fake_systemd'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    server = Server(tmp_path)
    yield server
    server.stop()


@pytest.fixture(name="smoke")
def smoke_fixture(run_module: RunModule, server: Any) -> RunModule:
    """The server gate on that server, with few requests; nothing that it returns may hold the key of the tests."""
    from ansible_collections.ddtree.fleet.tests.unit.replayed import KEY

    def smoke(check: bool = False, **changes: Any) -> Dict[str, Any]:
        arguments = {
            "gate": "server",
            "unit": "sglang.service",
            "url": f"http://127.0.0.1:{server.port}",
            "python": sys.executable,
            "ready_timeout": 20,
            "request_timeout": 10,
            "prompts": ["one", "two"],
            "generations": 3,
            "concurrent": 0,
        }
        result = run_module("sglang_smoke", {**arguments, **changes}, check=check)
        assert changes.get("baseline") == "record" or result.get("changed") is not True
        assert KEY not in json.dumps(result)
        return result

    return smoke
