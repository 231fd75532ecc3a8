# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin of venv_stream: everything happens on the control node and in the agents that it starts."""

from __future__ import annotations

import dataclasses
import getpass
import os
import platform
import re
import uuid
from typing import Any, Optional

from ansible.module_utils.common.text.formatters import human_to_bytes
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
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target, Verdict

ARGUMENTS: dict[str, dict[str, Any]] = {
    "source": {"type": "str"},
    "src": {"type": "path", "required": True},
    "dest": {"type": "path", "required": True},
    "targets": {"type": "list", "elements": "str"},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "seeds": {"type": "list", "elements": "path", "default": []},
    "verify": {"type": "str", "choices": ["index", "full"], "default": "index"},
    "link": {"type": "str", "choices": ["auto", "never"], "default": "auto"},
    "compress": {"type": "str", "choices": ["auto", "zstd", "none"], "default": "auto"},
    "path": {"type": "str", "choices": ["auto", "relay", "direct"], "default": "auto"},
    "topology": {"type": "str", "choices": ["auto", "chain", "star"], "default": "auto"},
    "direct_ports": {"type": "str", "default": "0-0"},
    "direct_addresses": {"type": "dict", "default": {}},
    "streams": {"type": "int", "default": 0},
    "rate_limit": {"type": "str", "default": "0"},
    "interpreter": {"type": "str", "choices": ["check", "ship"], "default": "check"},
    "special_modes": {"type": "str", "choices": ["drop", "keep"], "default": "drop"},
    "repair": {"type": "bool", "default": False},
    "bytecode": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 180},
    "run_id": {"type": "str"},
    "lock_take_over": {"type": "bool", "default": False},
}
PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")
LEAST_RATE = 64 << 10
MOST_STREAMS = 16

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
        notices = [notice for verdict in known.values() for notice in verdict.notices]
        if tree["special"] and not request.special:
            notices.append(
                f"{source}: {len(tree['special'])} files have set-user-ID, set-group-ID or sticky bits, which are dropped, first "
                f"{tree['special'][0]}; set special_modes: keep to carry them"
            )
        if notices:
            result["warnings"] = notices
        if self._task.diff:
            result["diff"] = [difference(verdict) for verdict in known.values() if verdict.changes]
        if not args["targets"]:
            result.update({key: value for key, value in verdicts[this_host].items() if key != "changed"})
        return result

    def _request(self, args: dict[str, Any], source: str) -> Request:
        src, dest = os.path.normpath(args["src"]), os.path.normpath(args["dest"])
        for name, path in (("src", src), ("dest", dest)):
            if not os.path.isabs(path) or path == "/":
                raise EndpointError(f"{name} must be an absolute path of a directory of its own, not {path}")
        for seed in args["seeds"]:
            if not os.path.isabs(seed):
                raise EndpointError(f"seeds must be absolute paths of directories on the targets, not {seed}")
        if not 0 <= args["streams"] <= MOST_STREAMS:
            raise EndpointError(
                f"streams must be 0 (as many as the processors can use) to {MOST_STREAMS}, not {args['streams']}"
            )
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
            seeds=args["seeds"],
            link=args["link"] == "auto",
            compress=args["compress"],
            path=args["path"],
            topology=args["topology"],
            ports=port_range(args["direct_ports"]),
            streams=args["streams"],
            addresses=args["direct_addresses"],
            rate=bytes_per_second(args["rate_limit"]),
            ship=args["interpreter"] == "ship",
            special=args["special_modes"] == "keep",
            changes=bool(self._task.diff),
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


def port_range(text: str) -> tuple[int, int]:
    """The two ends of a range such as 40000-40100; raises EndpointError for anything else."""
    found = PORTS.fullmatch(text.strip())
    low, high = (int(found[1]), int(found[2])) if found else (1, 0)
    if not low <= high <= 65535 or (low == 0) != (high == 0):
        raise EndpointError(f"direct_ports must be a range of ports such as 40000-40100, or 0-0 for any, not {text}")
    return low, high


def bytes_per_second(text: str) -> int:
    """A rate such as 50M in bytes per second, 0 for none; raises EndpointError for what is none or would take for ever."""
    try:
        rate = human_to_bytes(text)
    except ValueError:
        rate = -1
    if rate and rate < LEAST_RATE:
        raise EndpointError(
            f"rate_limit must be bytes per second such as 50M (MiB), at least 64K, or 0 for no limit, not {text}"
        )
    return rate


def difference(verdict: Verdict) -> dict[str, str]:
    """What a target's new release adds, changes and removes, as a diff that Ansible prints."""
    changes = verdict.changes
    lines = []
    for kind, sign in (("added", "+"), ("changed", "~"), ("removed", "-")):
        for path in changes[kind]:
            size = changes["sizes"].get(path)
            lines.append(f"{sign} {path}" + (f" ({size:,} bytes)" if size is not None and kind != "removed" else ""))
        more = changes["counts"][kind] - len(changes[kind])
        if more:
            lines.append(f"{sign} and {more:,} more {kind}")
    before = changes["against"] or "nothing"
    header = f"{verdict.host}: release {verdict.release} against {before}; {verdict.files_sent:,} files, {verdict.bytes_sent:,} bytes sent"
    return {"prepared": "\n".join([header, *lines]) + "\n"}
