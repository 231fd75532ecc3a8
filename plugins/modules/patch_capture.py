#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: patch_capture
short_description: Write down the patch set of a working environment
version_added: 0.2.0
description:
  - Compares an environment with O(baseline), which must be given, and returns the declaration of all that differs, as
    M(ddtree.fleet.patch_assert) takes it, so that nobody has to write it by hand.
  - What it returns was proved on the environment itself before, with the same baseline and policy. It fails on an environment
    that is not patched, and on one where a single file was put back.
  - Nothing is written on the host. The same environment and baseline give the same declaration.
  - The diffs hold content of the patched files, and end up wherever the result does. Read them before you hand them on.
author: the ddtree.fleet authors (@ddtree)
extends_documentation_fragment: [ddtree.fleet.environment]
attributes:
  check_mode:
    description: Whether the module does in check mode what it does in a real run.
    support: full
  diff_mode:
    description: Whether the module shows what it changed. It changes nothing.
    support: none
seealso:
  - module: ddtree.fleet.patch_assert
"""

EXAMPLES = r"""
- name: The patch set is what differs from the wheel
  ddtree.fleet.patch_capture:
    root: /root/venv_sglang211
    baseline:
      kind: wheel
      path: /srv/wheels
    version: 0.5.11
  register: captured

- name: It goes into the inventory
  ansible.builtin.copy:
    content: "{{ {'ddtree_patch_set': captured.patch_set} | ddtree.fleet.inventory_yaml }}"
    dest: "{{ inventory_dir }}/group_vars/all/patch_set.yml"
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
patch_set:
  description: The declaration. Its files are sorted.
  returned: success
  type: dict
  contains:
    files:
      description: The files that are modified or added.
      type: list
      elements: str
    checks:
      description:
        - The SHA-256 of each of these files.
        - Before it, with a baseline that has contents, up to 20 functions and classes that the file defines and the baseline does not.
      type: list
      elements: dict
    diffs:
      description:
        - One diff for each file in git's format, with what was in the baseline. Deleted files and symbolic links have a diff only.
        - There is none with V(record), which has no contents.
      type: list
      elements: dict
  sample:
    files: [sglang/srt/speculative/spec_info.py]
    checks:
      - file: sglang/srt/speculative/spec_info.py
        defines: SpeculativeAlgorithm.is_ddtree
      - file: sglang/srt/speculative/spec_info.py
        sha256: 0c9b62b3e1f0e1b3d5c7d8b25d09ee4bff0c8e3b7f6d1f2b3a4c5d6e7f8091a2
    diffs:
      - text: "diff --git a/sglang/srt/speculative/spec_info.py b/sglang/srt/speculative/spec_info.py\n..."
without_diff:
  description: Files that only their SHA-256 proves.
  returned: success
  type: list
  elements: dict
  contains:
    file:
      description: The file, relative to site-packages.
      type: str
    why:
      description: Why there is no diff of it, such as V(binary).
      type: str
checks:
  description: What M(ddtree.fleet.patch_assert) says of the environment with this declaration.
  returned: when something differs from the baseline
  type: list
  elements: dict
failed_checks:
  description: How many of these failed.
  returned: when something differs from the baseline
  type: int
  sample: 0
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.request import (
    ARGUMENTS,
    REQUIRED_BY,
    parse_baseline,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.capture import capture
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError, find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.proof import assert_patches


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_by=REQUIRED_BY,
        supports_check_mode=True,
    )
    given = module.params
    try:
        baseline = parse_baseline(given)
        if baseline is None:
            raise PatchError(
                "baseline is missing; it says what the environment is compared with, such as kind wheel with a path"
            )
        environment = find_environment(given["root"], given["site_packages"], given["interpreter"])
        captured = capture(environment, baseline, module.tmpdir)
        declared = captured.patch_set
        verdict = assert_patches(
            environment,
            parse_files(declared["files"]),
            parse_rules(declared["checks"]),
            True,
            baseline,
            parse_diffs(declared["diffs"]),
        )
    except PatchError as error:
        module.fail_json(msg=str(error))
    for warning in dict.fromkeys([*captured.warnings, *verdict.shown_warnings()]):
        module.warn(warning)
    proof = {name: verdict.result()[name] for name in ("checks", "failed_checks")}
    failed = verdict.message(given["root"])
    if failed:
        module.fail_json(msg=f"what can be captured does not describe this environment: {failed}", **proof)
    module.exit_json(changed=False, patch_set=declared, without_diff=captured.without_diff, **proof)


if __name__ == "__main__":
    main()
