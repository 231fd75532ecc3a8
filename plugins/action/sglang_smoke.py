# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module on the host and holds its server_info against the task's expectations, here where jmespath is."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import failure_message
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, failures
from ansible_collections.ddtree.fleet.plugins.plugin_utils._expectations import (
    Expectation,
    ExpectationError,
    compiled,
)


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        expected = arguments.pop("expect", None) or []
        try:
            expectations = compiled(expected)
        except ExpectationError as error:
            raise AnsibleActionFail(str(error)) from None
        recording = arguments.get("baseline") == "record" and arguments.get("gate") == "server"
        if not (recording and expectations):
            return self._judged(arguments, expectations, task_vars)
        # The host cannot evaluate expectations, and only figures of a server that meets them may be recorded: it is judged
        # first, and measured for the record afterwards.
        first = self._judged({**arguments, "baseline": "none"}, expectations, task_vars)
        return first if first.get("failed") else self._judged(arguments, expectations, task_vars)

    def _judged(
        self, arguments: dict[str, Any], expectations: list[Expectation], task_vars: dict[str, Any] | None
    ) -> dict[str, Any]:
        """The module's result, with the expectations on its server_info among its checks."""
        result: dict[str, Any] = self._execute_module(
            module_name="ddtree.fleet.sglang_smoke", module_args=arguments, task_vars=task_vars
        )
        info = result.pop("server_info", None)
        if not expectations or "checks" not in result:
            return result
        if info is None:
            result["not_verified"] = [
                *result["not_verified"],
                f"{len(expectations)} expectations: {_no_server_info(arguments)}",
            ]
            return result
        checks = [expectation.check(info) for expectation in expectations]
        result["checks"] = [*result["checks"], *(check.result() for check in checks)]
        if failures(checks):
            every = [Check(**check) for check in result["checks"]]
            text = failure_message(
                "server", str(result["subject"]), every, result.get("journal", ()), result["not_verified"]
            )
            # What the module failed with is part of the new message; left in, it would be shown instead of it.
            result.pop("exception", None)
            result.update(failed=True, verdict="failed", msg=text)
        return result


def _no_server_info(arguments: dict[str, Any]) -> str:
    return "there is no server_info" if arguments.get("gate") == "server" else "only the server gate has a server_info"
