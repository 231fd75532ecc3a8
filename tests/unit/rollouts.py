# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of a fleet without machines: results as the modules of this collection give them, heard by a recorder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks, document
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Run
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.page import page
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.recorder import Event, Recorder

# Of a real rollout on test hosts, one JSON line a result: kind, event.
RECORDED = Path(__file__).parent / "recorded_rollout.jsonl"
OURS = (
    "venv_stream",
    "venv_release",
    "patch_assert",
    "manifest_sha256",
    "sglang_smoke",
    "service_release",
    "gpu_host_info",
)
PHASES = {
    "gpu_host_info": "preflight",
    "venv_release": "preflight",
    "venv_stream": "stream",
    "manifest_sha256": "prove",
    "patch_assert": "prove",
    "sglang_smoke": "prove",
    "service_release": "serve",
}
BEGAN = 1_790_000_000.0


class Rollout:
    """Results in the order in which a play would bring them, one second each."""

    def __init__(self, **asked: Any) -> None:
        self.recorder = Recorder(Run("ops-1/4711", "deploy_ddtree.yml", BEGAN, BEGAN, **asked))
        self.failures: List[str] = []
        self.dark: List[str] = []
        self._now = 0.0

    def event(self, host: str, action: str, found: Dict[str, Any], **more: Any) -> Event:
        self._now += 1.0
        return Event(
            **{
                "host": host,
                "action": action,
                "found": found,
                "began": self._now - 1.0,
                "ended": self._now,
                "ours": action in OURS,
                "task": f"Task of {action}",
                "phase": PHASES.get(action, ""),
                **more,
            }
        )

    def ok(self, host: str, action: str, state: str = "", phase: str = "", source: bool = False, **found: Any) -> None:
        more = {name: value for name, value in (("state", state), ("phase", phase), ("source", source)) if value}
        self.recorder.ok(self.event(host, action, found, **more))

    def failed(self, host: str, action: str, msg: str, rescued: bool = False, phase: str = "", **found: Any) -> None:
        """A task that failed; Ansible counts the host as failed unless it was rescued."""
        if not rescued:
            self.failures.append(host)
        more = {"phase": phase} if phase else {}
        self.recorder.failed(self.event(host, action, {"failed": True, "msg": msg, **found}, **more))

    def unreachable(self, host: str, msg: str, ignored: bool = False) -> None:
        if not ignored:
            self.dark.append(host)
        self.recorder.unreachable(self.event(host, "raw", {"unreachable": True, "msg": msg}))

    def fact(self, host: str, **facts: Any) -> None:
        self.recorder.ok(self.event(host, "set_fact", {"ansible_facts": facts}))

    def end(self, finished: bool = True) -> Run:
        return self.recorder.end(BEGAN + self._now, self.failures, self.dark, finished)


def outcomes(run: Run) -> Dict[str, str]:
    return {host.name: host.outcome for host in run.hosts}


def both(run: Run) -> Tuple[str, Dict[str, Any]]:
    """The page and the JSON, as they are written."""
    checks = Checks()
    found = json.loads(json.dumps(document(run, checks), ensure_ascii=False))
    return page(run, checks, "run.json"), found


def replay(copies: int = 1, change: Callable[[Dict[str, Any]], Dict[str, Any]] = dict) -> Run:
    """The recorded rollout, with ``copies`` of each target, and results that ``change`` makes of the recorded ones."""
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    run = Run("ops-1/4711", "deploy_ddtree.yml", BEGAN, BEGAN, versions={"ansible-core": "2.21.5"})
    recorder = Recorder(run)
    failed: Set[str] = set()
    unreachable: Set[str] = set()
    for kind, fields in lines:
        for event in _copied(Event(**{**fields, "found": change(fields["found"])}), copies):
            getattr(recorder, kind)(event)
            # In this recording nothing was rescued for good.
            if kind != "ok":
                (failed if kind == "failed" else unreachable).add(event.host)
    return recorder.end(BEGAN + max(fields["ended"] for _, fields in lines), failed, unreachable)


def recorded(hosts: int = 0) -> Run:
    """The recorded rollout; with ``hosts``, its three targets copied until there are so many."""
    return replay(max(1, -(-hosts // 3)))


def _copied(event: Event, copies: int) -> Iterator[Event]:
    """The same result on each copy of a target; one task streams to all of them."""
    if event.source or copies == 1:
        yield event
    elif event.action == "venv_stream":
        targets = event.found["targets"]
        verdicts = {f"{name}-{copy}": verdict for name, verdict in targets.items() for copy in range(copies)}
        yield dataclasses.replace(event, host=f"{event.host}-0", found={**event.found, "targets": verdicts})
    else:
        for copy in range(copies):
            yield dataclasses.replace(event, host=f"{event.host}-{copy}")


def report_100_hosts_bytes() -> int:
    """The size of the larger of page and JSON for the recorded rollout, had it had a hundred hosts."""
    html, found = both(recorded(100))
    return max(len(html.encode()), len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()))
