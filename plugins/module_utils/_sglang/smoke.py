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
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.log import log_expectations
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import expected_texts
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.secrets import read_api_key
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.server_options import ServerOptions
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, failures


def run_module(module: AnsibleModule) -> None:
    """The one way out, for passed, failed and refused gates alike: everything goes through the redactor."""
    gate = module.params["gate"]
    secrets: List[str] = []
    values: Dict[str, Any] = {"changed": False, "gate": gate}
    text = ""
    try:
        if gate == "environment":
            result = _environment_gate(module.params)
        else:
            result = _server_gate(module.params, secrets, module.check_mode)
        # Redacted before the message is laid out: a table cuts what is too long, and half a key is still one.
        values.update(Redactor(secrets).clean(_values(gate, result)))
        checks = [Check(**check) for check in values["checks"]]
        if failures(checks):
            more = result.not_verified if gate == "server" else ()
            text = failure_message(gate, values["subject"], checks, values.get("journal", ()), more)
    except GateError as error:
        text = str(error)
    module.no_log_values.update(secrets)
    if text:
        module.fail_json(msg=Redactor(secrets).text(text), **values)
    module.exit_json(**values)


def _values(gate: str, result: GateResult) -> Dict[str, Any]:
    values: Dict[str, Any] = {
        "changed": result.changed,
        "subject": result.subject,
        "verdict": "failed" if failures(result.checks) else "passed",
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
    # Not used here: looked at so that a mistake in what the server gate gets is found before anything live changes.
    expected_texts(parameters["expected_texts"] or [])
    log_expectations(parameters["log_expect"] or [])
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


def _server_gate(parameters: Dict[str, Any], secrets: List[str], check_mode: bool) -> GateResult:
    _require(parameters, "unit", "url", "python")
    key = read_api_key(parameters["api_key_file"]) if parameters["api_key_file"] else ""
    if key:
        secrets.append(key)
    return server.run(
        ServerOptions(
            unit=parameters["unit"],
            url=parameters["url"],
            python=parameters["python"],
            ready_timeout=_positive(parameters, "ready_timeout"),
            request_timeout=_positive(parameters, "request_timeout"),
            gate_timeout=_positive(parameters, "gate_timeout"),
            api_key=key,
            ca_file=parameters["ca_file"] or "",
            validate_certs=bool(parameters["validate_certs"]),
            behind_proxy=bool(parameters["behind_proxy"]),
            prompts=parameters["prompts"] or [],
            expected_texts=expected_texts(parameters["expected_texts"] or []),
            generations=_positive(parameters, "generations"),
            concurrent=int(parameters["concurrent"] or 0),
            max_new_tokens=_positive(parameters, "max_new_tokens"),
            speculation=parameters["speculation"] or "required",
            min_accept_length=parameters["min_accept_length"],
            min_accept_rate=parameters["min_accept_rate"],
            cuda_graphs=parameters["cuda_graphs"] or "any",
            log_expect=log_expectations(parameters["log_expect"] or []),
            baseline=parameters["baseline"] or "none",
            baseline_file=parameters["baseline_file"] or "",
            baseline_tolerance=float(parameters["baseline_tolerance"] or 0.0),
            model_path=parameters["model_path"] or "",
            fresh=bool(parameters["fresh"]),
            check_mode=check_mode,
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
