# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of the running test hosts."""

from __future__ import annotations

import json
from pathlib import Path

from . import keys
from .machine import Machine


def host_variables(machine: Machine) -> dict[str, object]:
    """Everything Ansible needs to reach one host as its own user with its own port and key."""
    variables: dict[str, object] = {
        "ansible_host": machine.network.address(machine.host),
        "ansible_port": machine.host.port,
        "ansible_user": machine.host.user,
        "ansible_ssh_private_key_file": str(keys.client_key(machine.state, machine.host)),
        "ansible_ssh_common_args": " ".join(machine.client_options()),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    if machine.host.user != "root":
        variables["ansible_become"] = True
    return variables


def render(machines: list[Machine]) -> str:
    """The inventory as YAML; groups without a running host are left out."""
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        groups.setdefault(machine.host.group, []).append(machine)
    lines = ["---", "all:", "  children:"]
    for group, members in sorted(groups.items()):
        lines += [f"    {group}:", "      hosts:"]
        for machine in members:
            lines.append(f"        {machine.host.name}:")
            lines += [f"          {name}: {json.dumps(value)}" for name, value in host_variables(machine).items()]
    if not groups:
        lines[2] = "  children: {}"
    return "\n".join(lines) + "\n"


def write(state: Path, machines: list[Machine]) -> Path:
    """Write ``inventory/hosts.yml``, complete or not at all."""
    path = state / "inventory" / "hosts.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(".hosts.yml.part")
    part.write_text(render(machines))
    part.rename(path)
    return path
