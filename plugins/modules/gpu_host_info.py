#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_host_info
short_description: What a GPU host has before an environment is sent to it
version_added: 0.1.0
description:
  - Reads the GPUs from C(nvidia-smi), who else uses them, who listens on the service's addresses, and which paths are missing.
  - Changes nothing and ends no process.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  addresses:
    description:
      - The addresses that the service will listen on, each C(HOST:PORT), such as V(127.0.0.1:30001) or V([::]:30001).
      - Who listens on that address or on all addresses holds the port. With V(0.0.0.0) or V(::), whoever listens on the port
        holds it, at whatever address.
    type: list
    elements: str
    required: true
  units:
    description:
      - The systemd units of the service, such as its instances. Their own processes are not foreign.
      - A name such as V(sglang-ddtree@*.service) stands for all units like it that systemd has loaded.
    type: list
    elements: str
    required: true
    aliases: [unit]
  gpus:
    description:
      - The indices of the GPUs that the service uses, as C(nvidia-smi) counts them. Empty means all.
      - Only processes on these GPUs are looked at.
    type: list
    elements: int
    default: []
  paths:
    description: Paths that must exist, such as the model.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    support: full
    description: It only reads, in check mode too.
  diff_mode:
    support: none
    description: Nothing changes, so there is nothing to show.
"""

EXAMPLES = r"""
- name: Look at the host
  ddtree.fleet.gpu_host_info:
    addresses: ["127.0.0.1:30001"]
    units: [sglang-ddtree.service]
    paths: [/root/models/Kimi-K2.6]
  register: host

- name: Look at the half of a host that two instances share
  ddtree.fleet.gpu_host_info:
    addresses: ["127.0.0.1:30001", "127.0.0.1:30002"]
    units: ["sglang-ddtree@a.service", "sglang-ddtree@b.service"]
    gpus: [0, 1, 2, 3]
"""

RETURN = r"""
gpus:
  description: The GPUs that O(gpus) names, or all, empty where there is no C(nvidia-smi).
  type: list
  elements: dict
  returned: always
  sample:
    - {index: 0, name: NVIDIA B300 SXM6 AC, uuid: GPU-0, compute_capability: "10.3", memory_total_mib: 275040, memory_used_mib: 0,
       driver: 580.95.05, mig: false}
foreign_gpu_processes:
  description: Processes with memory of these GPUs that are not the units' - pid, command without secrets, memory in MiB, and on which GPUs.
  type: list
  elements: dict
  returned: always
  sample:
    - {pid: 4711, command: python3 train.py, memory_mib: 20480, gpus: [0, 1]}
port_holders:
  description: The processes that listen where the service will and are not the units' - pid, command without secrets, address.
  type: list
  elements: dict
  returned: always
  sample:
    - {pid: 4712, command: python3 -m http.server 30001, address: "0.0.0.0:30001"}
missing_paths:
  description: Those of O(paths) that do not exist.
  type: list
  elements: str
  returned: always
units:
  description: For each of O(units) its name, whether it is loaded and active, and its invocation.
  type: list
  elements: dict
  returned: always
  sample:
    - {name: sglang-ddtree.service, loaded: true, active: true, invocation: 5f1d3c0e9c2b4e0f8a53f6f3f1f0a7be}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError, facts
from ansible_collections.ddtree.fleet.plugins.module_utils._systemd import SystemdError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "addresses": {"type": "list", "elements": "str", "required": True},
            "units": {"type": "list", "elements": "str", "required": True, "aliases": ["unit"]},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "paths": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        found = facts(*(module.params[name] for name in ("addresses", "units", "gpus", "paths")))
    except (HostError, SystemdError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
