#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: service_release
short_description: Switch a service to a release, with a way back that needs no control node
version_added: 0.2.0
description:
  - A service runs from O(dest), which leads to the active release (M(ddtree.fleet.venv_release)), with unit files that go with that release.
  - Switching is armed, done, proved by the caller, and confirmed. Until it is confirmed, the host itself goes back when the time is over, when
    it is booted anew, or when it is told to, with a program that needs neither a control node nor a release.
  - Going back brings the link at O(dest), the unit files with their permissions, what enabled them, and the key files back to what they were, and
    starts what ran. What was not changed is not restarted. It may be killed anywhere and run again.
  - O(unit) stands for a family of units - C(STEM.service), the template C(STEM@.service), its instances, and the drop-ins of all of these.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  dest:
    description: The path that the service uses. Its releases are beside it.
    type: path
    required: true
  unit:
    description: The name of the service, such as V(sglang-ddtree.service). Its family are all units of the same stem.
    type: str
    required: true
  state:
    description:
      - V(present) only looks.
      - V(armed) writes down what serves now, and arms a timer and a unit at boot that bring it back.
      - V(switched) stops what runs, waits until O(addresses) and O(gpus) are free, and starts the release that was armed.
      - V(confirmed) disarms the way back. It fails when the way back has been taken.
      - V(restored) takes the way back now. Nothing happens when none is armed.
    type: str
    choices: [present, armed, switched, confirmed, restored]
    default: present
  release:
    description:
      - The id of the release to switch to, or V(previous) for the last one that served well.
      - Required for O(state=armed).
    type: str
  units:
    description:
      - The units that shall run afterwards, with O(state=armed); switching is for the same ones. Other units of the family are stopped and disabled.
      - Not given, those that ran when the release was last confirmed, else only O(unit).
    type: list
    elements: str
    default: []
  files:
    description:
      - The unit files and drop-ins of the family as they shall be, by their path below C(/etc/systemd/system), with O(state=switched).
      - Unit files of the family that are not named go. Drop-ins that are not named stay, unless they begin with C(# Written by ddtree.fleet).
      - Those that were saved with the release when it is not given.
    type: dict
  addresses:
    description: What must be free before the release starts, as C(HOST:PORT), with O(state=armed).
    type: list
    elements: str
    default: []
  gpus:
    description: The GPUs that must be free before the release starts, by index, with O(state=armed). All of the host when empty.
    type: list
    elements: int
    default: []
  stop_timeout:
    description: Seconds until a unit that is stopping gets SIGKILL, with O(state=armed).
    type: int
    default: 180
  free_timeout:
    description:
      - Seconds until addresses and GPUs must be free, with O(state=armed).
      - When they are not, switching fails. Going back starts nevertheless, since not to serve is worse.
    type: int
    default: 120
  timeout:
    description:
      - Seconds until the way back is taken when nobody confirms.
      - Must be more than O(stop_timeout), O(free_timeout) and O(ready_timeout) together.
      - Required for O(state=armed).
    type: int
  ready_timeout:
    description: Seconds that a server may take until it is ready, with O(state=armed). The timer watches the old one for that long.
    type: int
    default: 1800
  reason:
    description: Why, for the history and the diagnosis, with O(state=restored).
    type: str
    default: ""
  verdict:
    description: What the gate said of the release. A release that failed is only O(state=restored).
    type: str
    choices: [passed, failed]
  proof:
    description: Figures and checks to keep in C(confirmed.json), with O(state=confirmed).
    type: dict
    default: {}
  actor:
    description: Who does this, for the history.
    type: str
    default: ""
  run_id:
    description:
      - The run that arms. Only the same one switches and confirms. Required for these.
      - With O(state=restored), only what this run armed is taken back. Not given, whatever is pending.
    type: str
attributes:
  check_mode:
    support: full
    description: Says what a real run would change, and refuses what it would refuse.
  diff_mode:
    support: full
    description: Shows the active release and the unit files before and after, without secrets.
"""

EXAMPLES = r"""
- name: Look at what serves
  ddtree.fleet.service_release:
    dest: /root/venv_sglang211
    unit: sglang-ddtree.service

- name: Arm the way back
  ddtree.fleet.service_release:
    dest: /root/venv_sglang211
    unit: sglang-ddtree.service
    state: armed
    release: 0123456789abcdef
    addresses: ["127.0.0.1:30001"]
    timeout: 3600
    run_id: "{{ run_id }}"

- name: Switch to the release
  ddtree.fleet.service_release:
    dest: /root/venv_sglang211
    unit: sglang-ddtree.service
    state: switched
    files:
      sglang-ddtree.service: "{{ lookup('ansible.builtin.template', 'unit.service.j2') }}"
    run_id: "{{ run_id }}"

- name: Keep it
  ddtree.fleet.service_release:
    dest: /root/venv_sglang211
    unit: sglang-ddtree.service
    state: confirmed
    verdict: passed
    run_id: "{{ run_id }}"

- name: Or go back
  ddtree.fleet.service_release:
    dest: /root/venv_sglang211
    unit: sglang-ddtree.service
    state: restored
    reason: the server gate failed
    verdict: failed
"""

RETURN = r"""
release:
  description: The release this task was about.
  type: str
  returned: when there is one
active:
  description: The release that O(dest) leads to, empty when none.
  type: str
  returned: always
way_back:
  description:
    - With O(state=armed) and after it, the release to go back to; empty for what was there before any release.
    - Otherwise the one that a deployment now would go back to.
  type: str
  returned: always
pending:
  description: What is not confirmed yet, empty when nothing is.
  type: dict
  returned: always
  contains:
    release:
      description: The release.
      type: str
    way_back:
      description: What comes back.
      type: str
    phase:
      description: How far it is - V(armed), V(switching), V(switched) or V(restoring).
      type: str
    run:
      description: The run that armed it.
      type: str
    actor:
      description: Who did.
      type: str
    armed:
      description: When, in seconds since 1970.
      type: float
    timeout:
      description: Seconds until the way back is taken.
      type: int
    seconds_left:
      description: How many are left. None after a reboot.
      type: int
    units:
      description: The units that run afterwards.
      type: list
      elements: str
    units_before:
      description: The units that come back.
      type: list
      elements: str
    reason:
      description: Why the way back is being taken.
      type: str
confirmed:
  description: What was last confirmed - release, time, run, actor, units, proof, and the digests of the unit files. Empty when nothing was.
  type: dict
  returned: always
drift:
  description: Unit files that differ from what was confirmed, are missing, or are new.
  type: list
  elements: str
  returned: always
units:
  description: The units of the family.
  type: list
  elements: dict
  returned: always
  contains:
    name:
      description: Its name.
      type: str
    active:
      description: Whether it runs, or is about to.
      type: bool
    enabled:
      description: Whether it starts at boot.
      type: bool
    state:
      description: What systemd says of it, such as V(failed).
      type: str
    invocation:
      description: The invocation that runs, empty when none.
      type: str
    since:
      description: Since when it runs, as systemd writes it. Empty when it does not.
      type: str
serves:
  description: Where the units that run answer, by their command lines. C(url) is empty where they do not say it.
  type: list
  elements: dict
  returned: always
  contains:
    unit:
      description: The unit.
      type: str
    url:
      description: The address of its server as the host itself reaches it.
      type: str
hand_written:
  description: The unit files of the family that this collection did not write.
  type: list
  elements: str
  returned: always
store:
  description: The releases at O(dest), as M(ddtree.fleet.venv_release) returns them.
  type: dict
  returned: always
steps:
  description: What was done, in order, with the seconds it took.
  type: list
  elements: dict
  returned: always
teardown_seconds:
  description: How long stopping took.
  type: float
  returned: always
wait_seconds:
  description: How long addresses and GPUs were waited for.
  type: float
  returned: always
started_at:
  description: When the new invocation was there, in seconds since 1970.
  type: float
  returned: when something was started
start_seconds:
  description: From the call to the new invocation, without stopping and without waiting for addresses and GPUs.
  type: float
  returned: when something was started
remarks:
  description: What went wrong without stopping the rest, such as a history that could not be written.
  type: list
  elements: str
  returned: always
kept:
  description: The folder with the journal and the unit files of the release that failed, empty when it never ran.
  type: str
  returned: with O(state=restored)
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._service.states import Failure, Request, reach


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "unit": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["present", "armed", "switched", "confirmed", "restored"],
                "default": "present",
            },
            "release": {"type": "str"},
            "units": {"type": "list", "elements": "str", "default": []},
            "files": {"type": "dict"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "gpus": {"type": "list", "elements": "int", "default": []},
            "stop_timeout": {"type": "int", "default": 180},
            "free_timeout": {"type": "int", "default": 120},
            "timeout": {"type": "int"},
            "ready_timeout": {"type": "int", "default": 1800},
            "reason": {"type": "str", "default": ""},
            "verdict": {"type": "str", "choices": ["passed", "failed"]},
            "proof": {"type": "dict", "default": {}},
            "actor": {"type": "str", "default": ""},
            "run_id": {"type": "str"},
        },
        required_if=[
            ("state", "armed", ["release", "timeout", "run_id"]),
            ("state", "switched", ["run_id"]),
            ("state", "confirmed", ["run_id"]),
        ],
        supports_check_mode=True,
    )
    problem = ""
    try:
        result = reach(Request(check=module.check_mode, **module.params))
    except Failure as failure:
        problem, result = str(failure), failure.result
    for warning in result.pop("warnings", []):
        module.warn(warning)
    if problem:
        module.fail_json(msg=problem, **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
