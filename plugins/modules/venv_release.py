#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: venv_release
short_description: Choose which release of an environment is live, and keep its history
version_added: 0.1.0
description:
  - A release is one tree in C(<dest>.releases), put there by M(ddtree.fleet.venv_stream). O(dest) is a symbolic link to the active one.
  - Switches atomically, adopts a directory that was never deployed, prunes, and keeps a history with the verdict of every server gate.
  - The way back is the last release before the active one that served well, never just the newest.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  dest:
    description: The path that the service uses. Its releases are beside it.
    type: path
    required: true
  state:
    description:
      - V(present) requires O(release) to be committed, and records O(verdict) when one is given. Without O(release) it only lists.
      - V(active) lets O(dest) lead to O(release).
      - V(inactive) removes the link at O(dest), so that no release is live. Releases stay.
      - V(adopted) makes a directory at O(dest) a release, in one atomic exchange. Anything else at O(dest) is left as it is.
      - V(absent) deletes O(release). The active one and the way back are refused.
      - V(pruned) deletes all but the active one, the way back and the newest O(keep), and shipped interpreters that none of those uses.
      - V(locked) takes the lease of O(dest) for O(run_id), V(unlocked) gives it back.
    type: str
    choices: [present, active, inactive, adopted, absent, pruned, locked, unlocked]
    default: present
  release:
    description:
      - The id of a release, or V(previous) for the way back.
      - Required for O(state=active) and O(state=absent).
    type: str
  verdict:
    description: What the server gate said of O(release).
    type: str
    choices: [passed, failed]
  unit:
    description:
      - The path of the unit file that serves from O(dest).
      - With O(state=active), O(state=inactive) and O(state=adopted), it is first saved with the release that is live, together with its
        template, instances, drop-ins and what enables them.
    type: path
  keep:
    description: How many of the newest releases O(state=pruned) keeps.
    type: int
    default: 3
  run_id:
    description: The run that holds the lease. Required for O(state=locked) and O(state=unlocked).
    type: str
  actor:
    description: Who does this, for the history and the lease.
    type: str
    default: ""
  lock_minutes:
    description: How long a lease counts when its run dies.
    type: int
    default: 60
  lock_take_over:
    description: Take the lease from whatever run has it.
    type: bool
    default: false
  lock_instead_of:
    description: A run that is known to be dead. Its lease is taken, that of any other run is not.
    type: str
attributes:
  check_mode:
    support: full
    description: Says what a real run would change.
  diff_mode:
    support: full
    description: Shows the active release before and after.
"""

EXAMPLES = r"""
- name: List what a host has
  ddtree.fleet.venv_release:
    dest: /root/venv_sglang211

- name: Make the environment that was copied there by hand a release
  ddtree.fleet.venv_release:
    dest: /root/venv_sglang211
    state: adopted
    unit: /etc/systemd/system/sglang-ddtree.service

- name: Choose the last release that served well, for a service that is stopped; ddtree.fleet.service_release switches one that runs
  ddtree.fleet.venv_release:
    dest: /root/venv_sglang211
    state: active
    release: previous

- name: Keep the three newest releases, the active one and the way back
  ddtree.fleet.venv_release:
    dest: /root/venv_sglang211
    state: pruned
    keep: 3
"""

RETURN = r"""
release:
  description: The release this task was about, with V(previous) resolved.
  type: str
  returned: when there is one
active:
  description: The release that O(dest) leads to afterwards, empty when none.
  type: str
  returned: always
way_back:
  description:
    - The release to return to if the next one fails - the active one unless its last server gate failed, else the previous good one.
    - Empty when there is none.
  type: str
  returned: always
removed:
  description: The releases that were deleted.
  type: list
  elements: str
  returned: always
lock:
  description: Who holds the lease of O(dest) afterwards, empty when nobody does.
  type: dict
  returned: always
  contains:
    run:
      description: The run that holds it.
      type: str
    who:
      description: The actor of that run.
      type: str
    since:
      description: When it was taken, in seconds since 1970.
      type: float
    until:
      description: Until when it counts if that run dies.
      type: float
    boot:
      description: The boot of the host that it was taken in.
      type: str
store:
  description: All that is known of the releases of O(dest).
  type: dict
  returned: always
  contains:
    dest_kind:
      description: What stands at O(dest) - V(absent), V(release), V(link), V(directory), V(empty) or V(other).
      type: str
    active:
      description: The id of the active release.
      type: str
    previous:
      description: The id of the way back from the active release.
      type: str
    releases:
      description: The releases with their digests, sizes, origin and verdict, the newest commit last.
      type: list
    history:
      description: The last 50 events, the oldest first.
      type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import DEFAULT_MINUTES, LeaseError
from ansible_collections.ddtree.fleet.plugins.module_utils._release_states import Request, reach
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import ReleaseError
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import ServiceError
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "state": {
                "type": "str",
                "choices": ["present", "active", "inactive", "adopted", "absent", "pruned", "locked", "unlocked"],
                "default": "present",
            },
            "release": {"type": "str"},
            "verdict": {"type": "str", "choices": ["passed", "failed"]},
            "unit": {"type": "path"},
            "keep": {"type": "int", "default": 3},
            "run_id": {"type": "str"},
            "actor": {"type": "str", "default": ""},
            "lock_minutes": {"type": "int", "default": DEFAULT_MINUTES},
            "lock_take_over": {"type": "bool", "default": False},
            "lock_instead_of": {"type": "str"},
        },
        required_if=[
            ("state", "active", ["release"]),
            ("state", "absent", ["release"]),
            ("state", "locked", ["run_id"]),
            ("state", "unlocked", ["run_id"]),
        ],
        required_by={"verdict": ["release"]},
        supports_check_mode=True,
    )
    try:
        result = reach(Request(check=module.check_mode, **module.params))
    except (ReleaseError, LeaseError, ServiceError, TreeError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['dest']}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
