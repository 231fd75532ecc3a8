#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: patch_assert
short_description: Prove that an environment is the patched one
version_added: 0.1.0
description:
  - Holds an environment against the declaration of its patch set. The declared files are there and compile, every check finds
    what it looks for, every hunk of the declared diffs is applied, and no other file of the distribution differs from what its
    wheel installed.
  - One run answers for everything that is declared. Nothing is imported from the environment and nothing is written.
  - Never reports a change. A malformed declaration is refused before anything is read.
author: the ddtree.fleet authors (@ddtree)
attributes:
  check_mode:
    description: Whether the module does in check mode what it does in a real run.
    support: full
  diff_mode:
    description: Whether the module shows what it changed. It changes nothing.
    support: none
options:
  root:
    description: The environment to look at, such as a virtual environment or the directory of a release.
    type: path
    required: true
  site_packages:
    description:
      - The directory of packages, absolute or relative to O(root).
      - Without it, the only C(lib/python3.*/site-packages) below O(root) is taken.
    type: path
  interpreter:
    description:
      - The interpreter that compiles and parses, absolute or relative to O(root). Without it, C(bin/python) below O(root).
      - It is started once for all files, with C(-I -B -S), and only if a file is to be compiled or parsed.
    type: path
  files:
    description:
      - The patched files, relative to site-packages. Each must be there.
      - With O(baseline), each must differ from it, and no other file may but those of O(diffs), which need not be repeated here.
    type: list
    elements: str
    default: []
  compile:
    description:
      - Whether every Python file of O(files) and O(diffs) must compile with the environment's interpreter.
      - Syntax warnings are reported and do not fail.
    type: bool
    default: true
  checks:
    description:
      - What must be found in which file, and how often. At least once, where no count is given.
      - Each needs exactly one of O(checks[].literal), O(checks[].regex), O(checks[].defines), O(checks[].calls),
        O(checks[].assigns), O(checks[].imports) and O(checks[].sha256).
    type: list
    elements: dict
    default: []
    suboptions:
      file:
        description: The file to look at, relative to site-packages. It need not be among O(files).
        type: str
        required: true
      literal:
        description: A text. Occurrences that do not overlap count. All line ends are read as C(\n).
        type: str
      regex:
        description: A regular expression of Python, with C(^) and C($) matching at every line.
        type: str
      defines:
        description:
          - A function or class that the syntax tree defines; comments and texts do not count.
          - A plain name counts wherever it is defined, a dotted one such as C(Class.method) must be the whole qualified name.
        type: str
      calls:
        description:
          - A name that the syntax tree calls; comments and texts do not count.
          - A plain name matches the last part, so V(f) counts V(f(\)) and V(self.f(\)). A dotted one must be the whole name as written.
        type: str
      assigns:
        description:
          - A name or attribute that the syntax tree assigns to, also as one target of several, augmented, annotated, by C(:=), or by
            a C(for) or C(with) statement. An annotation alone and an item such as C(x[0]) do not count.
          - A plain name matches the last part. A dotted one must be the whole name, with the classes and functions that a name stands in,
            such as C(Class.limit), or an attribute as written, such as C(self.limit).
        type: str
      imports:
        description:
          - A module, or a name out of one, that the syntax tree imports under whatever name. C(from a.b import c) imports C(a.b) and
            C(a.b.c), C(from .a import b) imports C(.a) and C(.a.b).
          - A plain name matches the last part, a dotted one must be the whole name.
        type: str
      sha256:
        description: The SHA-256 of the whole file, 64 hexadecimal digits, or a list of them, any of which passes. Takes no counts.
        type: raw
      count:
        description: The exact number. Excludes O(checks[].min) and O(checks[].max).
        type: int
      min:
        description: The least number. V(1) where neither this nor O(checks[].count) is given, V(0) where O(checks[].max) is V(0).
        type: int
      max:
        description: The greatest number.
        type: int
      name:
        description: What the result and the error message call the check.
        type: str
      hint:
        description: What to do when the check fails; it ends up in the error message.
        type: str
  diffs:
    description:
      - Unified diffs, as C(git diff), C(git format-patch), C(diff -u) or C(diff -ruN) write them, that must be applied. New and deleted
        files, renames, copies, modes and symbolic links are proved too, binary files by the blob ids of their C(index) lines.
      - Every hunk is one check. It is V(applied) where its new text stands, V(absent) where its old text stands, V(partial) where some of
        its changes stand as new and some as old, otherwise V(conflicting). Its lines may have moved, but each must be there exactly.
      - Where lines repeat so that old and new text cannot be told apart, a hunk is V(conflicting); more context (C(git diff -U10)) helps.
        One line without any context counts at its own place only.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What the result and the error message call the diff.
        type: str
      text:
        description: The diff itself. Read a file with V(lookup('ansible.builtin.file', path, rstrip=false\)), since a diff can end in a space.
        type: str
      src:
        description: The path of the diff on the host. Exactly one of this and O(diffs[].text) is needed.
        type: path
      strip:
        description: How many leading parts of the file names to take off, as C(patch -p) does.
        type: int
        default: 1
      directory:
        description: A directory relative to site-packages that the diff's files are in, for diffs that were made elsewhere.
        type: str
  baseline:
    description: What the environment's distribution is compared with.
    type: dict
    suboptions:
      kind:
        description:
          - V(record) compares with the RECORD that pip or uv wrote when they installed the wheel.
          - Compiled files do not count. Below the distribution's own packages, files that RECORD does not list count as added.
          - Launchers outside site-packages must be there, but their content is not compared if it differs, since their first line
            names the interpreter and changes with the environment's place.
        type: str
        choices: [record]
        default: record
      distribution:
        description: The name of the distribution.
        type: str
        default: sglang
  version:
    description:
      - The version of the package that is expected. A local part such as C(+cu130) counts only where both versions have one.
      - Also without it, a C(__version__) of the package that differs from that of its dist-info directory fails in one check,
        and nothing is compared with RECORD then.
    type: str
"""

EXAMPLES = r"""
- name: The environment is the patched one
  ddtree.fleet.patch_assert:
    root: /root/venv_sglang211
    files:
      - sglang/srt/speculative/spec_info.py
      - sglang/srt/speculative/ddtree_utils.py
    checks:
      - file: sglang/srt/speculative/dflash_info.py
        name: paths of the tree are sampled
        defines: _sample_tree_paths
      - file: sglang/srt/speculative/dflash_info.py
        calls: _sample_tree_paths
      - file: sglang/srt/layers/attention/triton_backend.py
        literal: speculative_ddtree_budget) + 1
        count: 1
        hint: without it graph capture fails on the first verify batch
      - file: sglang/srt/server_args.py
        assigns: ServerArgs.speculative_ddtree_budget
    diffs:
      - name: worker
        src: /root/patches/dflash_worker.diff   # taken in a checkout, with names such as a/python/sglang/srt/server_args.py
        strip: 2
    baseline:
      kind: record
      distribution: sglang
    version: 0.5.11
"""

RETURN = r"""
checks:
  description: Every check that was made, the failed ones and the passed ones.
  returned: when the declaration is well formed and the environment is there
  type: list
  elements: dict
  contains:
    name:
      description: What was checked.
      type: str
    passed:
      description: Whether it is as expected.
      type: bool
    expected:
      description: What was expected.
      type: str
    found:
      description: What was found.
      type: str
    hint:
      description: What to do, where the check failed and that is known.
      type: str
    file:
      description: Where it was looked for, where there is a place.
      type: str
    line:
      description: The first line where it was found, where the file does not compile, or where a hunk's first change stands or belongs.
      type: int
  sample: [{"name": "compiles", "passed": true, "expected": "no error", "found": "no error", "file": "sglang/srt/server_args.py"}]
failed_checks:
  description: How many checks failed.
  returned: when the declaration is well formed and the environment is there
  type: int
  sample: 0
inventory:
  description: How the distribution differs from its baseline. Each list holds at most 200 names.
  returned: when O(baseline) is given and can be compared with
  type: dict
  contains:
    modified:
      description: Files whose content is not the recorded one.
      type: list
      elements: str
    missing:
      description: Recorded files that are not there.
      type: list
      elements: str
    added:
      description: Files in the distribution's own packages that are not recorded.
      type: list
      elements: str
    counts:
      description: How many there are of each, and how many files are as recorded (C(equal)).
      type: dict
versions:
  description: The distribution's version by its dist-info directory (C(dist_info)) and by its own files (C(package)).
  returned: when O(baseline) is given and the distribution is installed
  type: dict
  sample: {"dist_info": "0.5.11", "package": "0.5.11"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.baselines import BASELINES, Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError, find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.proof import assert_patches


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site_packages": {"type": "path"},
            "interpreter": {"type": "path"},
            "files": {"type": "list", "elements": "str", "default": []},
            "compile": {"type": "bool", "default": True},
            # The keys of a check or diff are judged by parse_rules and parse_diffs, which name a malformed one by its index.
            "checks": {"type": "list", "elements": "dict", "default": []},
            "diffs": {"type": "list", "elements": "dict", "default": []},
            "baseline": {
                "type": "dict",
                "options": {
                    "kind": {"type": "str", "choices": sorted(BASELINES), "default": "record"},
                    "distribution": {"type": "str", "default": "sglang"},
                },
            },
            "version": {"type": "str"},
        },
        required_by={"version": ["baseline"]},
        supports_check_mode=True,
    )
    given = module.params
    try:
        files, rules = parse_files(given["files"]), parse_rules(given["checks"])
        diffs = parse_diffs(given["diffs"])
        baseline = Baseline(version=given["version"], **given["baseline"]) if given["baseline"] else None
        environment = find_environment(given["root"], given["site_packages"], given["interpreter"])
        verdict = assert_patches(environment, files, rules, given["compile"], baseline, diffs)
    except PatchError as error:
        module.fail_json(msg=str(error))
    for warning in verdict.shown_warnings():
        module.warn(warning)
    failed = verdict.message(given["root"])
    if failed:
        module.fail_json(msg=failed, **verdict.result())
    module.exit_json(changed=False, **verdict.result())


if __name__ == "__main__":
    main()
