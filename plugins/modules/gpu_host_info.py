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
  - Reads the GPUs from C(nvidia-smi), who else uses them, who listens on the service's address and port, and which paths are missing.
  - Changes nothing and ends no process.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  host:
    description:
      - The address that the service will listen on. Who listens on that address or on all addresses holds the port.
      - With V(0.0.0.0) or V(::), whoever listens on the port holds it, at whatever address.
    type: str
    default: 127.0.0.1
  port:
    description: The TCP port of the service.
    type: int
    required: true
  unit:
    description: The systemd unit of the service. Its own processes are not foreign.
    type: str
    required: true
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
    port: 30001
    unit: sglang-ddtree.service
    paths: [/root/models/Kimi-K2.6]
  register: host
"""

RETURN = r"""
gpus:
  description: The GPUs by index, empty where there is no C(nvidia-smi).
  type: list
  elements: dict
  returned: always
  sample:
    - {index: 0, name: NVIDIA B300 SXM6 AC, uuid: GPU-0, compute_capability: "10.3", memory_total_mib: 275040, memory_used_mib: 0,
       driver: 580.95.05, mig: false}
foreign_gpu_processes:
  description: Processes with GPU memory that are not the unit's - pid, command without secrets, memory in MiB.
  type: list
  elements: dict
  returned: always
port_holder:
  description: The process that listens where the service will and is not the unit's - pid, command without secrets, address.
  type: dict
  returned: always, none when the port is free or the unit's
missing_paths:
  description: Those of O(paths) that do not exist.
  type: list
  elements: str
  returned: always
unit:
  description: Whether the unit is loaded and active, and its invocation.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError, facts
from ansible_collections.ddtree.fleet.plugins.module_utils._systemd import SystemdError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "unit": {"type": "str", "required": True},
            "paths": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        found = facts(*(module.params[name] for name in ("host", "port", "unit", "paths")))
    except (HostError, SystemdError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
