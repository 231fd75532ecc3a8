# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin of venv_stream: everything happens on the control node and in the agents that it starts."""

from __future__ import annotations

import dataclasses
import getpass
import os
import platform
import uuid
from typing import Any, Optional

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import (
    Endpoint,
    EndpointError,
    UnknownHostError,
    python_of,
    resolve,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import LegError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay, Request, Target, Verdict

ARGUMENTS: dict[str, dict[str, Any]] = {
    "source": {"type": "str"},
    "src": {"type": "path", "required": True},
    "dest": {"type": "path", "required": True},
    "targets": {"type": "list", "elements": "str"},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "verify": {"type": "str", "choices": ["index", "full"], "default": "index"},
    "repair": {"type": "bool", "default": False},
    "bytecode": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 180},
    "run_id": {"type": "str"},
    "lock_take_over": {"type": "bool", "default": False},
}

display = Display()


class ActionModule(ActionBase):
    """Streams one source tree to the releases of one or many targets."""

    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: Optional[str] = None, task_vars: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        variables: dict[str, Any] = task_vars or {}
        args = self.validate_argument_spec(argument_spec=ARGUMENTS)[1]
        this_host = variables["inventory_hostname"]
        source, names = args["source"] or this_host, list(dict.fromkeys(args["targets"] or [this_host]))
        try:
            request = self._request(args, source)
            endpoint = self._endpoint(source, variables)
            endpoints, refused = self._endpoints(names, variables)
            self._refuse_overlap(request, endpoint, endpoints)
            targets = [Target(there, python_of(name, variables)) for name, there in endpoints.items()]
            tree = Relay(request, display.display).run(endpoint, python_of(source, variables), targets)
        except (EndpointError, LegError) as error:
            return {"failed": True, "changed": False, "msg": str(error)}
        known = {**refused, **{target.verdict.host: target.verdict for target in targets}}
        verdicts = {name: dataclasses.asdict(known[name]) for name in names}
        result = {
            "changed": any(verdict["changed"] and not verdict["failed"] for verdict in verdicts.values()),
            "digest": tree["digest"],
            "tree": {**tree, "source": source},
            "targets": verdicts,
        }
        if not args["targets"]:
            result.update({key: value for key, value in verdicts[this_host].items() if key != "changed"})
        return result

    def _request(self, args: dict[str, Any], source: str) -> Request:
        src, dest = os.path.normpath(args["src"]), os.path.normpath(args["dest"])
        for name, path in (("src", src), ("dest", dest)):
            if not os.path.isabs(path) or path == "/":
                raise EndpointError(f"{name} must be an absolute path of a directory of its own, not {path}")
        return Request(
            src=src,
            dest=dest,
            exclude=args["exclude"],
            source=source,
            full=args["verify"] == "full",
            repair=args["repair"],
            bytecode=args["bytecode"],
            check=bool(self._task.check_mode),
            run=args["run_id"] or str(uuid.uuid4()),
            who=f"{getpass.getuser()}@{platform.node()}",
            take_over=args["lock_take_over"],
            idle=float(args["timeout"]),
        )

    def _endpoint(self, host: str, variables: dict[str, Any]) -> Endpoint:
        command = [*python_of(host, variables).split(), "-c", BOOTSTRAP]
        return resolve(host, command, self._task, self._play_context, variables)

    def _endpoints(self, names: list[str], variables: dict[str, Any]) -> tuple[dict[str, Endpoint], dict[str, Verdict]]:
        """Where to send, and the verdicts of those hosts that no data leg can be opened to."""
        endpoints, refused = {}, {}
        for name in names:
            try:
                endpoints[name] = self._endpoint(name, variables)
            except UnknownHostError:
                raise
            except EndpointError as error:
                refused[name] = Verdict(name, failed=True, msg=str(error))
        return endpoints, refused

    @staticmethod
    def _refuse_overlap(request: Request, source: Endpoint, targets: dict[str, Endpoint]) -> None:
        """On the source itself, a release may not land on or in what is read, nor the other way round."""
        for name, target in targets.items():
            same = name == request.source or target.connection == source.connection
            if same and (
                f"{request.dest}/".startswith(f"{request.src}/") or f"{request.src}/".startswith(f"{request.dest}/")
            ):
                raise EndpointError(
                    f"{name} is the source, and dest {request.dest} overlaps src {request.src}; "
                    "take the source out of the targets or name another dest"
                )
