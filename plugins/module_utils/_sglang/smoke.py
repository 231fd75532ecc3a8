# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the parameters of ddtree.fleet.sglang_smoke to one of its gates and back to a result without secrets."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.text.formatters import human_to_bytes
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import environment, server
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError, GateResult, failure_message
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.secrets import read_api_key
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import failures


def run_module(module: AnsibleModule) -> None:
    """The one way out, for passed, failed and refused gates alike: everything goes through the redactor."""
    gate = module.params["gate"]
    secrets: List[str] = []
    values: Dict[str, Any] = {"changed": False, "gate": gate}
    try:
        result = _environment_gate(module.params) if gate == "environment" else _server_gate(module.params, secrets)
        values.update(_values(gate, result))
        failed = bool(failures(result.checks))
        text = failure_message(gate, result.subject, result.checks, result.journal) if failed else ""
    except GateError as error:
        failed, text = True, str(error)
    module.no_log_values.update(secrets)
    redactor = Redactor(secrets)
    values = redactor.clean(values)
    if failed:
        module.fail_json(msg=redactor.text(text), **values)
    module.exit_json(**values)


def _values(gate: str, result: GateResult) -> Dict[str, Any]:
    values: Dict[str, Any] = {
        "subject": result.subject,
        "checks": [check.result() for check in result.checks],
        "figures": result.figures,
        "not_verified": result.not_verified,
        "remarks": result.remarks,
    }
    if result.journal:
        values["journal"] = result.journal
    if gate == "environment":
        values["environment"] = result.details
    else:
        values.update(result.details)
    return values


def _environment_gate(parameters: Dict[str, Any]) -> GateResult:
    _require(parameters, "dest")
    arguments = parameters["command_line"] or []
    if any(argument.split("=", 1)[0] in ("--api-key", "--admin-api-key") for argument in arguments):
        raise GateError(
            "command_line holds an API key, which every process of the host could read; "
            "put it into a file that --config names"
        )
    for name in ("dest", "release"):
        if parameters[name] and not os.path.isabs(parameters[name]):
            raise GateError(f"{name} must be an absolute path, not {parameters[name]}")
    return environment.run(
        environment.EnvironmentOptions(
            dest=os.path.normpath(parameters["dest"]),
            release=os.path.normpath(parameters["release"]) if parameters["release"] else "",
            distribution=parameters["distribution"] or "",
            version=parameters["version"] or "",
            requirements=bool(parameters["requirements"]),
            requirements_ignore=parameters["requirements_ignore"] or [],
            imports=parameters["imports"] or [],
            symbols=parameters["symbols"] or [],
            probes=_probes(parameters["probes"] or []),
            command_line=arguments,
            kernels=parameters["kernels"] or "auto",
            environment={name: str(value) for name, value in (parameters["environment"] or {}).items()},
            timeout=_positive(parameters, "timeout"),
            memory_limit_mib=_mebibytes(parameters, "memory_limit"),
        )
    )


def _probes(probes: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The probes, with what an argument spec cannot refuse refused: empty ones, and expressions that are none."""
    for number, probe in enumerate(probes, start=1):
        if not (probe.get("expression") or probe.get("call")):
            raise GateError(f"probe {number} has neither an expression nor a call")
        try:
            re.compile(probe.get("matches") or "")
        except re.error as error:
            raise GateError(f"probe {number}: matches is no regular expression: {error}") from None
    return probes


def _mebibytes(parameters: Dict[str, Any], name: str) -> int:
    try:
        return max(int(human_to_bytes(str(parameters[name] or "0"))), 0) >> 20
    except ValueError:
        raise GateError(
            f"{name} must be an amount of memory such as 32G, or 0 for none, not {parameters[name]}"
        ) from None


def _server_gate(parameters: Dict[str, Any], secrets: List[str]) -> GateResult:
    _require(parameters, "unit", "url", "python")
    key = read_api_key(parameters["api_key_file"]) if parameters["api_key_file"] else ""
    if key:
        secrets.append(key)
    return server.run(
        server.ServerOptions(
            unit=parameters["unit"],
            url=parameters["url"],
            python=parameters["python"],
            ready_timeout=_positive(parameters, "ready_timeout"),
            request_timeout=_positive(parameters, "request_timeout"),
            api_key=key,
            prompts=parameters["prompts"] or [],
            max_new_tokens=_positive(parameters, "max_new_tokens"),
            speculation=parameters["speculation"] or "required",
            min_accept_length=parameters["min_accept_length"],
            min_accept_rate=parameters["min_accept_rate"],
            model_path=parameters["model_path"] or "",
            fresh=bool(parameters["fresh"]),
        )
    )


def _require(parameters: Dict[str, Any], *names: str) -> None:
    """An option that is given but null or empty is as good as missing."""
    missing = [name for name in names if not parameters[name]]
    if missing:
        raise GateError(f"{', '.join(missing)} must not be empty for gate={parameters['gate']}")


def _positive(parameters: Dict[str, Any], name: str) -> int:
    value = int(parameters[name] or 0)
    if value <= 0:
        raise GateError(f"{name} must be above 0, not {parameters[name]}")
    return value
