# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A callback that records its run. The two callbacks of this collection differ only in what they make of it."""

from __future__ import annotations

import abc
import atexit
import os
import time
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Optional

from ansible import context
from ansible.executor.task_result import CallbackTaskResult
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__ as ansible_version
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import (
    GO_BACK,
    PHASES,
    PREFLIGHT,
    PROVE,
    SERVE,
    STREAM,
    Run,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.recorder import COLLECTION, Event, Recorder

_SOURCES = "ddtree_source"
_ROLES = {"preflight": PREFLIGHT, "venv": STREAM, "verify": PROVE, "service": SERVE}
_FILES = {"reach": PREFLIGHT, "preflight": PREFLIGHT, "lock": PREFLIGHT, "verify": PROVE, "service": SERVE}
_TAKE_BACK = "take_back"  # the task file by which a whole fleet goes back
_WAY_BACK_FILES = ("roll_back", "previous_gates", "previous_gate")
_BUILTIN = ("ansible.builtin.", "ansible.legacy.")


class RecordingCallback(CallbackBase):
    """Records a run; ``told`` is called once with what became of it, at its end or when it is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._started: dict[tuple[str, str], float] = {}
        self._recorder = Recorder(Run(str(os.getpid()), "", time.time(), time.time()))
        self._playing: Optional[int] = None

    @abc.abstractmethod
    def told(self, run: Run) -> None:
        """Make something of the run. Only called where it deployed something, or failed on the way to it."""

    def v2_playbook_on_start(self, playbook: Any) -> None:
        run, asked = self._recorder.run, context.CLIARGS
        run.playbook = PurePath(playbook._file_name).name
        run.check = bool(asked.get("check"))
        run.limit = asked.get("subset") or ""
        run.tags = tuple(sorted(tag for tag in asked.get("tags") or () if tag != "all"))
        run.skip_tags = tuple(sorted(asked.get("skip_tags") or ()))
        run.versions = {"ansible-core": ansible_version}
        self._playing = os.getpid()
        # Ansible tells callbacks nothing when it is interrupted.
        atexit.register(self._interrupted)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        self._started[host.get_name(), task._uuid] = self._now()

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        self._recorder.ok(self._event(result))

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        self._recorder.failed(self._event(result), ignored=ignore_errors)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        self._recorder.unreachable(self._event(result))

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        self._started.pop((result.host.get_name(), result.task._uuid), None)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        failed, unreachable = (
            {name for name, count in counts.items() if count} for counts in (stats.failures, stats.dark)
        )
        self._end(failed, unreachable, finished=True)

    def _interrupted(self) -> None:
        if self._playing == os.getpid():
            self._end(set(), set(), finished=False)

    def _end(self, failed: set[str], unreachable: set[str], finished: bool) -> None:
        self._playing = None
        run = self._recorder.end(time.time(), failed, unreachable, finished)
        if self._recorder.worth_telling:
            self.told(run)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _event(self, result: CallbackTaskResult) -> Event:
        task, host, now = result.task, result.host, self._now()
        action = task.action
        for prefix in (COLLECTION, *_BUILTIN):
            action = action.removeprefix(prefix)
        return Event(
            host=host.get_name(),
            action=action,
            found=result.result,
            began=self._started.pop((host.get_name(), task._uuid), now),
            ended=now,
            ours=task.action.startswith(COLLECTION),
            of_our_role=_role(task).startswith(COLLECTION),
            task=task.get_name(),
            phase=phase_of(task),
            state=str(task.args.get("state", "")),
            source=any(group.name == _SOURCES for group in host.groups),
            check=bool(task.check_mode) and not self._recorder.run.check,
        )


def phase_of(task: Any) -> str:
    """The phase of a deployment that a task belongs to, empty where it belongs to none."""
    role = _role(task)
    if role.startswith(COLLECTION):
        name, file = role.removeprefix(COLLECTION), _file(task)
        if (name == "service" and file in _WAY_BACK_FILES) or _TAKE_BACK in map(_file, _above(task)):
            return GO_BACK
        if name in _ROLES:
            return _ROLES[name]
        # The role of the settings says by the names of its task files where they belong.
        return next((phase for start, phase in _FILES.items() if file.startswith(start)), "")
    # What a phase needs before it has its tag too, so the first one is its own.
    return next((phase for phase in PHASES if phase in task.tags), "")


def _role(task: Any) -> str:
    return str(task._role.get_name()) if task._role else ""


def _file(item: Any) -> str:
    """The name of the file that a task or a block stands in."""
    return PurePath((item.get_path() or "").rpartition(":")[0]).stem


def _above(task: Any) -> Iterator[Any]:
    """What a task stands in: blocks, and what included them."""
    while task := task._parent:
        yield task
