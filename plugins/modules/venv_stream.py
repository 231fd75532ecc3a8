#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: venv_stream
short_description: Stream an environment from one host to the releases of others
version_added: 0.1.0
description:
  - Reads the tree at O(src) on one host and brings it to one or many targets as a release in C(<dest>.releases), through this control
    node's memory. Nothing is stored on the way, and O(dest) itself is not touched.
  - Content that a target has already, in any release, in an interrupted staging or in a directory at O(dest), is not sent again.
    Files of an earlier release are hard-linked, all others copied.
  - Every file is hashed as it is read and as it is written. A release appears under its name in one rename, after the digest of its
    whole tree was found equal to the source's.
  - The release is named by the tree's digest, so a second run over an unchanged environment has nothing to do. C(__pycache__) does not
    count, so importing from the environment does not change it.
  - Runs on the control node as an action plugin, and opens one ssh connection of its own to each host, as the inventory says.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  source:
    description: The inventory host that has the environment. Not given, the host of the task reads O(src) itself.
    type: str
  src:
    description: The directory of the environment on the source. It is read, never written.
    type: path
    required: true
  dest:
    description:
      - The path at which the targets use the environment. Releases go to C(<dest>.releases) beside it.
      - A virtual environment names its own path in its scripts, so this must be the path that it was built at.
    type: path
    required: true
  targets:
    description:
      - The inventory hosts to bring it to. Use it with C(run_once) to read the source once for all of them.
      - With this option the task does not fail for single targets, be it that they fail on the way or that their connection cannot carry
        a stream. Look at RV(targets) in the next task of each host. A name that the inventory lacks fails the task.
      - Not given, the host of the task, and then the task fails when that host does.
    type: list
    elements: str
  exclude:
    description:
      - Shell patterns of what is not part of the tree. One without a slash matches a name at any depth, one with a slash from the root.
    type: list
    elements: str
    default: []
  verify:
    description: V(index) trusts the hashes of files whose size, times and inode are unchanged, V(full) reads every file again.
    type: str
    choices: [index, full]
    default: index
  repair:
    description: When the release is there but was changed, put the source's content back instead of failing.
    type: bool
    default: false
  bytecode:
    description: Compile every module before the release is committed, by the release's own interpreter. A server starts faster with it.
    type: bool
    default: true
  timeout:
    description: Seconds that a silent host is waited for.
    type: int
    default: 180
  run_id:
    description: The run that holds the lock of O(dest), see M(ddtree.fleet.venv_release). Not given, the lock is held for this task.
    type: str
  lock_take_over:
    description: Take the lock of O(dest) from another run.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Compares the trees and says what would be sent, but writes nothing.
  diff_mode:
    support: none
    description: What would be sent is in the figures.
notes:
  - Needs Python 3.9 or newer on both ends. Nothing is installed there.
  - The hashes of unchanged files are remembered in C(/var/cache/ddtree-fleet) on each host.
seealso:
  - module: ddtree.fleet.venv_release
  - module: ddtree.fleet.manifest_sha256
"""

EXAMPLES = r"""
- name: Bring the environment to all hosts of the batch, reading it once
  ddtree.fleet.venv_stream:
    source: ct200
    src: /root/venv_sglang211
    dest: /root/venv_sglang211
    targets: "{{ ansible_play_hosts }}"
  run_once: true
  register: stream

- name: This host has the release
  ansible.builtin.assert:
    that: not stream.targets[inventory_hostname].failed
    fail_msg: "{{ stream.targets[inventory_hostname].msg }}"
"""

RETURN = r"""
digest:
  description: The tree digest of the source, SHA-256 in hex.
  type: str
  returned: success
tree:
  description: Figures of the source's tree.
  type: dict
  returned: success
  contains:
    source:
      description: The source host.
      type: str
    files:
      description: Number of files.
      type: int
    bytes:
      description: Their apparent size.
      type: int
    entries:
      description: Number of files, directories and links.
      type: int
    hashed:
      description: How many files had to be read to know their hash.
      type: int
    shared_inodes:
      description: How many files of the source have more than one name, such as those hard-linked with a package cache.
      type: int
    environment:
      description: What targets must have to run it - where it was built, its base interpreter and version, and a digest of its kernels.
      type: dict
    seconds:
      description: Seconds that the whole stream took.
      type: float
targets:
  description: A verdict for each target, by host.
  type: dict
  returned: success
  contains:
    failed:
      description: Whether the release is not on this target.
      type: bool
    msg:
      description: Why, starting with the host. Empty when it did not fail.
      type: str
    changed:
      description: Whether the target did not have the release before.
      type: bool
    release:
      description: The id of the release, the start of the digest.
      type: str
    files_sent:
      description: Files whose content was sent, or would be in check mode.
      type: int
    bytes_sent:
      description: Their size.
      type: int
    wire_bytes:
      description: Bytes given to the connection to this target, inside ssh.
      type: int
    reused:
      description: Files and bytes by where they came from - V(kept) from an interrupted staging, V(linked), V(copied), V(sent), V(repeated).
      type: dict
    links:
      description: Links that lead out of the tree, at most 20.
      type: list
    bytecode:
      description: Modules compiled, reused from an earlier release, and refused by the compiler.
      type: dict
    seconds:
      description: Seconds of each phase on this target.
      type: dict
"""
