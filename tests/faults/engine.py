# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the stream engine in a process of its own, as the action plugin makes it, without ansible-playbook."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import multiprocessing.process
import os
import shlex
from pathlib import Path
from typing import Any

from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target

SOURCE, TARGET = "a", "b"  # the names of the two hosts
MARK = "DDTREE_FAULT"  # the environment variable by which a run's processes are known
PYTHON = "python3"
WIRE = [PYTHON, "-I", "-S", str(Path(__file__).resolve().parent / "wire.py")]
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload([__name__])


@dataclasses.dataclass(frozen=True)
class Run:
    """One stream from ``src`` to ``dest``; ``folder`` receives its reports. ``faults`` are the wires' faults by host."""

    folder: Path
    mark: str
    src: str
    dest: str
    run_id: str
    take_over: bool = False
    idle: float = 60
    path: str = "relay"
    faults: tuple[tuple[str, str], ...] = ()
    prefixes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    targets: tuple[str, ...] = (TARGET,)
    topology: str = "auto"

    def start(self) -> multiprocessing.process.BaseProcess:
        self.folder.mkdir()
        process = SPAWN.Process(target=stream, args=(self,), daemon=True)
        process.start()
        return process

    def report(self, host: str) -> dict[str, Any]:
        """What the wire to a host says of itself; empty before it has started."""
        try:
            text = (self.folder / host).read_text(encoding="ascii")
            return dict(json.loads(text))
        except (FileNotFoundError, ValueError):
            return {}

    def result(self) -> dict[str, Any]:
        """``verdict`` of the first target, ``verdicts`` of all by name, or ``error`` of the source.

        Empty when the run was killed before it had any.
        """
        try:
            return dict(json.loads((self.folder / "result").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def said(self) -> str:
        """All that was printed on standard error, by the relay and the agents."""
        found = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(self.folder.glob("*stderr"))]
        return "".join(found)


def stream(run: Run) -> None:
    """What the process does. Its environment's mark is inherited by all that it starts."""
    os.environ[MARK] = run.mark
    os.setsid()
    with open(run.folder / "relay.stderr", "wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    result: dict[str, Any] = {}
    targets = [Target(_endpoint(run, host), PYTHON) for host in run.targets]
    try:
        result["tree"] = Relay(_request(run), lambda line: None).run(_endpoint(run, SOURCE), PYTHON, targets)
        result["verdicts"] = {target.verdict.host: dataclasses.asdict(target.verdict) for target in targets}
        result["verdict"] = result["verdicts"][run.targets[0]]
    except LegError as error:
        result["error"] = str(error)
    temporary = run.folder / "result.new"
    temporary.write_text(json.dumps(result), encoding="utf-8")
    with contextlib.suppress(FileNotFoundError):
        temporary.rename(run.folder / "result")


def _request(run: Run) -> Request:
    return Request(
        src=run.src,
        dest=run.dest,
        exclude=[],
        source=SOURCE,
        full=False,
        repair=False,
        bytecode=True,
        check=False,
        run=run.run_id,
        who="tester@control",
        take_over=run.take_over,
        idle=run.idle,
        path=run.path,
        topology=run.topology,
    )


def _endpoint(run: Run, host: str) -> Endpoint:
    """As the inventory's connection ``local`` resolves, with a wire before it."""
    local = ["/bin/sh", "-c", f"{PYTHON} -c {shlex.quote(BOOTSTRAP)}"]
    wire = [*WIRE, str(run.folder / host), dict(run.faults).get(host, "none")]
    return Endpoint(host, [*wire, *dict(run.prefixes).get(host, ()), *local], 10)
