# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that says which servers of one environment a host runs: one, or several on ports and GPUs of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\Z")
KEYS = {"port", "gpus", "arguments", "environment"}
# What nvidia-smi counts is what CUDA counts then.
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# A server that listens everywhere is reached here by the loopback address.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def instances(
    chosen: Mapping[str, Any], unit: str, arguments: Mapping[str, Any], gpus: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """The servers of a host, each with its unit, address, URL, GPUs, arguments (``own``: those that others lack) and variables.

    Without ``chosen`` there is one, of ``unit`` itself. Else there is one a name, of the unit ``STEM@NAME.service``.
    Raises AnsibleFilterError for names, ports and GPUs that cannot be meant.
    """
    if not isinstance(chosen, Mapping):
        raise AnsibleFilterError(f"instances must be a dictionary of names, not {type(chosen).__name__}")
    if isinstance(gpus, (str, int)):
        raise AnsibleFilterError(f"gpus must be a list of indices such as [0, 1], not {gpus!r}")
    if not chosen:
        return [_instance("", unit, arguments, {}, list(gpus), {})]
    if gpus:
        raise AnsibleFilterError("give each instance its own gpus, not one list for all of them")
    stem = unit.removesuffix(".service")
    found = []
    for name, settings in chosen.items():
        _check(str(name), settings)
        own = {**(settings.get("arguments") or {}), "port": settings["port"]}
        found.append(
            _instance(
                str(name),
                f"{stem}@{name}.service",
                {**arguments, **own},
                own,
                list(settings.get("gpus") or []),
                settings.get("environment") or {},
            )
        )
    _refuse_shared("port", [(item["name"], [item["port"]]) for item in found])
    _refuse_shared("GPU", [(item["name"], item["gpus"]) for item in found])
    everywhere = [item["name"] for item in found if not item["gpus"] and item["arguments"].get("device") != "cpu"]
    if everywhere and len(found) > 1:
        raise AnsibleFilterError(
            f"instance {everywhere[0]} needs gpus of its own, since without it uses those of the others"
        )
    return found


def _check(name: str, settings: Any) -> None:
    if not NAME.match(name):
        raise AnsibleFilterError(f"instance {name!r} must be named with letters, digits, _ and - only")
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"instance {name} must be a dictionary with a port, not {settings!r}")
    unknown = sorted(str(key) for key in settings if key not in KEYS)
    if unknown:
        raise AnsibleFilterError(
            f"instance {name} has unknown keys: {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}"
        )
    if not str(settings.get("port", "")).isdigit() or not 0 < int(settings["port"]) < 65536:
        raise AnsibleFilterError(f"instance {name} needs a port of its own, a number below 65536")
    for key, kind in (("gpus", list), ("arguments", Mapping), ("environment", Mapping)):
        if settings.get(key) and not isinstance(settings[key], kind):
            what = "a list of indices such as [0, 1]" if key == "gpus" else "a dictionary"
            raise AnsibleFilterError(f"instance {name}: {key} must be {what}, not {settings[key]!r}")


def _refuse_shared(what: str, of_each: list[tuple[str, list[Any]]]) -> None:
    owner: dict[Any, str] = {}
    for name, things in of_each:
        for thing in things:
            if thing in owner:
                raise AnsibleFilterError(f"instances {owner[thing]} and {name} share {what} {thing}")
            owner[thing] = name


def _instance(
    name: str,
    unit: str,
    arguments: Mapping[str, Any],
    own: Mapping[str, Any],
    gpus: list[Any],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    if not all(str(gpu).isdigit() for gpu in gpus):
        raise AnsibleFilterError(f"gpus of {unit} must be indices such as [0, 1], not {gpus}")
    host, port = str(arguments.get("host") or ""), int(arguments.get("port") or 30000)
    reached = LOOPBACK.get(host, host)
    scheme = "https" if arguments.get("ssl-certfile") else "http"
    visible = {**ORDER, "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus)} if gpus else {}
    return {
        "name": name,
        "unit": unit,
        "port": port,
        "address": f"{_bracketed(host or '127.0.0.1')}:{port}",
        "url": f"{scheme}://{_bracketed(reached)}:{port}",
        "gpus": [int(gpu) for gpu in gpus],
        "arguments": dict(arguments),
        "own": dict(own),
        "environment": {**visible, **environment},
    }


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class FilterModule:
    """The filter by name."""

    def filters(self) -> dict[str, Any]:
        return {"instances": instances}
