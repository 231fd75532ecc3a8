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
    what it looks for, every hunk of the declared diffs is applied, and no other file of its packages differs from a baseline, such
    as what their wheels installed.
  - One run answers for everything that is declared. Nothing is imported from the environment and nothing is written.
  - Never reports a change. A malformed declaration is refused before anything is read.
author: the ddtree.fleet authors (@ddtree)
extends_documentation_fragment: [ddtree.fleet.environment]
attributes:
  check_mode:
    description: Whether the module does in check mode what it does in a real run.
    support: full
  diff_mode:
    description: Whether the module shows what it changed. It changes nothing.
    support: none
options:
  files:
    description:
      - The patched files, relative to site-packages. Each must be there.
      - With O(baseline), each must differ from it, and no other file may but those of O(diffs), which need not be repeated here.
      - A file that the baseline says nothing of, such as one of another distribution, cannot be held against it, and a warning says so.
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
        description: A text. Occurrences that do not overlap count. All line ends are read as C(\n). A file larger than 64 MiB is not read.
        type: str
      regex:
        description: A regular expression of Python, with C(^) and C($) matching at every line. It has 20 seconds for a file.
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
  native:
    description:
      - What the environment's native libraries must be. They are read without a CUDA toolkit and nothing of them is loaded.
      - What cannot be read is named in RV(native.not_verified) and in a warning, and passes no requirement.
    type: dict
    suboptions:
      files:
        description:
          - Patterns relative to site-packages, in which C(**/) stands for any directories, and C(*) and C(?) for what a name holds.
            Only names such as C(x.so) and C(x.so.1) count.
          - Each is a text, or a dictionary of a pattern (C(files)) and its own C(require_arch).
          - One that matches no library for this host's processor fails by name. For the whole environment, V(**/*).
        type: list
        elements: raw
        required: true
      require_arch:
        description:
          - GPU architectures that each pattern must have code for, such as V(sm_103), and V(host) for those of this host's GPUs.
          - At least one of a pattern's libraries must have it, since packages ship one library for one GPU and another for the next.
            Where the loader chooses by a rule of its own, name the library that it takes.
          - Code of C(sm_100) runs on GPUs of V(sm_103), as the same major number with an equal or greater minor one. Code of
            C(sm_100f) does too. Code of C(sm_100a) runs on V(sm_100) only. PTX runs on its own architecture and all newer ones,
            of C(a) and C(f) variants as above; if there is only that, it is compiled at first use, and a warning says so.
          - A variant such as V(sm_120a) asks for code of just that variant.
          - Without a GPU on this host, V(host) is not verified and does not fail.
        type: list
        elements: str
        default: []
      libraries:
        description:
          - Whether every needed library must be found, in the library's own path, on the system or in the environment.
          - Those that only the environment has are expected to be loaded by their packages, and are listed.
          - Libraries of the GPU driver are not verified on a host without GPU.
        type: bool
        default: true
      glibc:
        description: Whether the libraries that are found must offer the symbol versions needed, such as C(GLIBC_2.38) and C(GLIBCXX_3.4.32).
        type: bool
        default: true
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

- name: Its kernels run on this host's GPUs, and the host has what they need
  ddtree.fleet.patch_assert:
    root: /root/venv_sglang211
    native:
      files:
        - sgl_kernel/**/*.so
        - files: sgl_kernel/sm100/*.so
          require_arch: [host]

- name: Nothing in the environment differs from its wheels but the patch set, and the diffs are shown
  ddtree.fleet.patch_assert:
    root: /root/venv_sglang211
    files: "{{ patched_files }}"
    baseline:
      kind: wheel
      distribution: all
      path: /srv/wheels
    policy:
      backups: ignore

- name: A package that was copied over another version is what it is on the reference host
  ddtree.fleet.patch_assert:
    root: /root/venv_sglang211
    files: []
    baseline:
      kind: snapshot
      distribution: [sglang, sgl-kernel]
      path: /root/MANIFEST.sha256
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
  description: How the environment differs from its baseline. Each list holds at most 200 names, those of distributions included.
  returned: when O(baseline) is given and can be compared with
  type: dict
  contains:
    modified:
      description: Files whose content is not that of the baseline.
      type: list
      elements: str
    missing:
      description: Files of the baseline that are not there.
      type: list
      elements: str
    added:
      description: Files that the baseline does not have.
      type: list
      elements: str
    backups:
      description: Files that it does not have and that are named as backups.
      type: list
      elements: str
    unmodified:
      description: Declared files that equal the baseline.
      type: list
      elements: str
    unverified:
      description: Files that the baseline lists without saying what must be in them, or in a way that nobody knows.
      type: list
      elements: str
    undeclared:
      description: The C(modified), C(added) and C(missing) files that neither O(files) nor O(diffs) names.
      type: dict
      contains:
        modified:
          description: Those whose content differs.
          type: list
          elements: str
        added:
          description: Those that the baseline does not have.
          type: list
          elements: str
        missing:
          description: Those that are not there.
          type: list
          elements: str
    counts:
      description: How many there are of each, however many names are listed, and how many files are as in the baseline (C(equal)).
      type: dict
    distributions:
      description: Each distribution, those that differ most first.
      type: list
      elements: dict
      contains:
        name:
          description: Its name.
          type: str
        version:
          description: Its version by its dist-info directory.
          type: str
        baseline:
          description: What it was compared with, such as the file name of a wheel.
          type: str
        counts:
          description: How many of its files are C(modified), C(missing), C(added), C(equal) and C(unverified).
          type: dict
drift:
  description:
    - How modified files differ, undeclared ones first. At most 20 files of 100 lines of 200 characters, without control
      characters and what looks like a secret.
  returned: when O(baseline) has contents to compare with, as wheels, directories and backups have
  type: list
  elements: dict
  contains:
    file:
      description: The file, relative to site-packages.
      type: str
    baseline:
      description: What it was compared with.
      type: str
    diff:
      description: A unified diff, or why there is none.
      type: str
native:
  description: What the native libraries are.
  returned: when O(native) is given
  type: dict
  contains:
    files:
      description: The libraries with GPU code or with a problem. At most 200.
      type: list
      elements: dict
      contains:
        file:
          description: The library, relative to site-packages.
          type: str
        sass:
          description: The architectures that it has finished code for.
          type: list
          elements: str
        ptx:
          description: The architectures that it has code for which is yet to be compiled.
          type: list
          elements: str
        fatbins:
          description: How many collections of GPU code it has, as a rule one for each compiled source file.
          type: int
        entries:
          description: How many pieces of GPU code these have.
          type: int
        reader:
          description: What the architectures were read with, the file's own V(headers) or V(cuobjdump).
          type: str
        glibc:
          description: The newest version of glibc that it needs.
          type: str
        unresolved:
          description: Needed libraries that were not found. At most 10.
          type: list
          elements: str
        from_environment:
          description: Needed libraries that only the environment has, so that their packages must load them first.
          type: list
          elements: str
        problem:
          description: Why it, or its GPU code, could not be read.
          type: str
    counts:
      description: How many libraries were read (C(files)), and how many have GPU code (C(with_gpu_code)).
      type: dict
    host:
      description: The host's version of glibc (C(glibc)) and the architectures of its GPUs (C(architectures)).
      type: dict
    not_verified:
      description: What could not be verified, and why. At most 200.
      type: list
      elements: str
  sample:
    files:
      - file: sgl_kernel/flashmla_ops.abi3.so
        sass: [sm_90a, sm_100a, sm_103a]
        fatbins: 25
        entries: 75
        reader: headers
        glibc: "2.14"
        from_environment: [libtorch.so, libc10.so]
    counts: {files: 1, with_gpu_code: 1}
    host: {glibc: "2.39", architectures: [sm_103]}
    not_verified: []
versions:
  description: The distribution's version by its dist-info directory (C(dist_info)) and by its own files (C(package)).
  returned: when O(baseline) names one distribution and it is installed
  type: dict
  sample: {"dist_info": "0.5.11", "package": "0.5.11"}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.request import (
    ARGUMENTS,
    REQUIRED_BY,
    parse_baseline,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._native.request import parse_request
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError, find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.proof import assert_patches


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "files": {"type": "list", "elements": "str", "default": []},
            "compile": {"type": "bool", "default": True},
            # The keys of a check or diff are judged by parse_rules and parse_diffs, which name a malformed one by its index.
            "checks": {"type": "list", "elements": "dict", "default": []},
            "diffs": {"type": "list", "elements": "dict", "default": []},
            "native": {
                "type": "dict",
                "options": {
                    # Judged by parse_request, like the checks above.
                    "files": {"type": "list", "elements": "raw", "required": True},
                    "require_arch": {"type": "list", "elements": "str", "default": []},
                    "libraries": {"type": "bool", "default": True},
                    "glibc": {"type": "bool", "default": True},
                },
            },
        },
        required_by=REQUIRED_BY,
        supports_check_mode=True,
    )
    given = module.params
    try:
        files, rules = parse_files(given["files"]), parse_rules(given["checks"])
        diffs = parse_diffs(given["diffs"])
        baseline = parse_baseline(given)
        native = parse_request(given["native"]) if given["native"] else None
        environment = find_environment(given["root"], given["site_packages"], given["interpreter"])
        verdict = assert_patches(environment, files, rules, given["compile"], baseline, diffs, native)
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
