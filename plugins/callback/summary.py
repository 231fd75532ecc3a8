# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: aggregate
short_description: One line a host at the end of a deployment
version_added: 0.1.0
author: the ddtree.fleet authors (@ddtree)
description:
  - Prints a table of the hosts that an environment was streamed to - release, what was sent, gates, accept length, tokens per second.
  - Hosts that failed or were unreachable come first, with the reason. A failure that was rescued does not count.
  - Prints nothing for playbooks that stream nothing, unless a host failed in one that runs other tasks of this collection.
requirements:
  - C(ddtree.fleet.summary) in C(callbacks_enabled)
"""

import copy
import time
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ansible.executor.task_result import CallbackTaskResult
from ansible.plugins.callback import CallbackBase

COLLECTION = "ddtree.fleet."
HEADINGS = (
    "host",
    "result",
    "release",
    "files sent",
    "MiB sent",
    "gates passed",
    "accept length",
    "tokens/s",
    "seconds",
)


@dataclass
class HostSummary:
    """What became of one host. Figures are texts, empty where nothing was seen."""

    name: str
    started: float
    ended: float = 0.0
    release: str = ""
    files: str = ""
    mebibytes: str = ""
    gates: list[str] = field(default_factory=list)
    accept_length: str = ""
    tokens_per_second: str = ""
    changed: bool = False
    reason: str = ""
    failed: bool = False
    before: Optional[HostSummary] = None

    def fail(self, reason: str) -> None:
        """Remember the last reason, and what was there before the first one: what follows may be the way back."""
        self.before = self.before or copy.deepcopy(self)
        self.reason = reason

    def final(self, failed: bool) -> HostSummary:
        """What counts at the end of the run; failures that were rescued do not."""
        if not failed:
            return replace(self, reason="")
        reason = self.reason or "no reason was given"
        return replace(self.before or self, failed=True, reason=reason, ended=self.ended)

    def row(self) -> tuple[str, ...]:
        result = "FAILED" if self.failed else "changed" if self.changed else "unchanged"
        seconds = f"{self.ended - self.started:.0f}"
        figures = (self.files, self.mebibytes, ", ".join(self.gates), self.accept_length, self.tokens_per_second)
        return (self.name, result, self.release, *figures, seconds)


class CallbackModule(CallbackBase):
    """Collects what the tasks of this collection found, and prints it once at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "ddtree.fleet.summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._hosts: dict[str, HostSummary] = {}
        self._streamed = False
        self._ours = False

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        host, found = self._seen(result), result.result
        action = result.task.action.removeprefix(COLLECTION)
        if action == "venv_stream":
            self._stream(found)
            return
        host.changed = host.changed or bool(found.get("changed"))
        if action in ("patch_assert", "manifest_sha256"):
            self._gate(host, {"patch_assert": "patches", "manifest_sha256": "manifest"}[action])
        elif action == "sglang_smoke":
            self._gate(host, found.get("gate", ""))
            figures = found.get("figures") or {}
            host.accept_length = _figure(figures.get("accept_length"), 2) or host.accept_length
            host.tokens_per_second = _figure(figures.get("tokens_per_second"), 1) or host.tokens_per_second

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        host = self._seen(result)
        if not ignore_errors:
            host.fail(str(result.result.get("msg", "")))

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        self._seen(result).fail(f"unreachable: {result.result.get('msg', '')}")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        failed = {name for name, count in [*stats.failures.items(), *stats.dark.items()] if count}
        hosts = [host.final(host.name in failed) for host in self._hosts.values()]
        if not self._streamed and not (self._ours and any(host.failed for host in hosts)):
            return
        hosts.sort(key=lambda host: (not host.failed, host.name))
        rows = [HEADINGS, *(host.row() for host in hosts)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        self._display.banner("DDTREE FLEET")
        for row in rows:
            self._display.display("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        for host in hosts:
            if host.failed:
                self._display.display(f"\n{host.name}:\n  " + "\n  ".join(host.reason.strip().splitlines()))

    def _seen(self, result: CallbackTaskResult) -> HostSummary:
        name = result.host.get_name()
        self._ours = self._ours or result.task.action.startswith(COLLECTION)
        host = self._hosts.setdefault(name, HostSummary(name, time.monotonic()))
        host.ended = time.monotonic()
        return host

    def _stream(self, found: dict[str, Any]) -> None:
        self._streamed = True
        for name, verdict in found.get("targets", {}).items():
            host = self._hosts.setdefault(name, HostSummary(name, time.monotonic()))
            host.changed = host.changed or (bool(verdict.get("changed")) and not verdict.get("failed"))
            host.release = verdict.get("release", "")
            host.files = f"{verdict.get('files_sent', 0):,}"
            host.mebibytes = f"{verdict.get('bytes_sent', 0) / (1 << 20):,.1f}"

    @staticmethod
    def _gate(host: HostSummary, gate: str) -> None:
        if gate and gate not in host.gates:
            host.gates.append(gate)


def _figure(value: Any, digits: int) -> str:
    """A number or a mapping with a mean, as text."""
    if isinstance(value, dict):
        value = value.get("mean", value.get("min"))
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else ""
