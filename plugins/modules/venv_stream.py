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
    node's memory or, where the hosts see each other, directly. Nothing is stored on the way, and O(dest) itself is not touched.
  - Content that a target has already, in any release, in an interrupted staging, in a directory at O(dest) or in one of O(seeds), is
    not sent again. Files of an earlier release are reflinked or hard-linked, all others reflinked or copied.
  - Every file is hashed as it is read and as it is written. A release appears under its name in one rename, after the digest of its
    whole tree was found equal to the source's.
  - The release is named by the tree's digest, so a second run over an unchanged environment has nothing to do. C(__pycache__) does not
    count, so importing from the environment does not change it.
  - Several targets form chains, in which each passes content on to the next over the direct path, so that the source and this control
    node send it once however many there are. When a target dies or a connection breaks on the way, the stream goes on around it with
    what is still lacking, and every target commits by its own proof.
  - An interrupted stream leaves what arrived in C(<dest>.releases/staging), and the next one goes on with it, inside large files too.
  - Where O(dest) is not the path that the environment was built at, what names that path (scripts, activation, C(pyvenv.cfg), C(.pth)
    files, absolute links) is rewritten on the target, and the digest of what then stands there is recorded beside the source's.
  - Runs on the control node as an action plugin, and opens one ssh connection of its own to each host, as the inventory says. For the
    direct path it makes a certificate for each target and one for the source, which are only ever in memory and end with the task.
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
      - A virtual environment names its own path in its scripts. Where this is another path, they are rewritten.
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
  seeds:
    description: >-
      Directories on the targets whose content may be copied from instead of sent, such as another environment with the same CUDA
      wheels. They are only read. One that a target lacks is reported.
    type: list
    elements: path
    default: []
  link:
    description: >-
      V(auto) shares unchanged files between releases by reflink or hard link, V(never) makes every release a copy of its own, for those
      who debug in place.
    type: str
    choices: [auto, never]
    default: auto
  compress:
    description: V(auto) compresses as hard as makes the stream faster, by what the link and the processors turn out to do.
    type: str
    choices: [auto, zstd, none]
    default: auto
  path:
    description: >-
      V(relay) sends content through the control node, V(direct) from the source to the targets over TLS, V(auto) directly where they
      see each other. This is about what leaves the source; see O(topology) for what targets pass on to each other.
    type: str
    choices: [auto, relay, direct]
    default: auto
  topology:
    description:
      - How content reaches several targets. V(star) feeds each of them from the source or the control node, V(chain) has each pass it on
        to the next in the order of O(targets), where that one can be connected to.
      - V(auto) makes chains where two targets or more lack 64 MiB or more.
      - A target that its predecessor cannot connect to is fed as O(path) says, and is the head of a chain of its own.
    type: str
    choices: [auto, chain, star]
    default: auto
  direct_ports:
    description: The ports that targets listen on for the direct path, such as V(40000-40100), for firewalls. V(0-0) is any free port.
    type: str
    default: "0-0"
  direct_addresses:
    description: Where the source and other targets find a target for the direct path, by inventory host. Not given, at any of its own
      addresses.
    type: dict
    default: {}
  streams:
    description: The number of connections of the direct path to each target. V(0) is as many as the sender's processors can use, at most 4.
    type: int
    default: 0
  rate_limit:
    description: Bytes per second that the source may send, such as V(50M). V(0) is no limit.
    type: str
    default: "0"
  interpreter:
    description: What to do where the environment's base interpreter is missing - V(check) refuses, V(ship) brings it along.
    type: str
    choices: [check, ship]
    default: check
  special_modes:
    description: Whether set-user-ID, set-group-ID and sticky bits of files are dropped or kept.
    type: str
    choices: [drop, keep]
    default: drop
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
    support: full
    description: Shows for each target which files the new release adds, changes and removes, 50 of each at most.
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
    targets: "{{ ansible_play_batch }}"
  run_once: true
  register: stream

- name: This host has the release
  ansible.builtin.assert:
    that: not stream.targets[inventory_hostname].failed
    fail_msg: "{{ stream.targets[inventory_hostname].msg }}"

- name: Send only what another environment with the same CUDA wheels does not have
  ddtree.fleet.venv_stream:
    source: ct200
    src: /root/venv_sglang211
    dest: /root/venv_sglang211
    seeds:
      - /root/venv_vllm

- name: Bring it to another path, with its interpreter, through a firewall that lets a few ports pass, at night
  ddtree.fleet.venv_stream:
    source: ct200
    src: /root/venv_sglang211
    dest: /srv/sglang/venv
    interpreter: ship
    path: direct
    direct_ports: 40000-40015
    rate_limit: 400M
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
    digest:
      description: The same as RV(digest).
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
    hashed_bytes:
      description: Their size.
      type: int
    special:
      description: Files of the source with set-user-ID, set-group-ID or sticky bits, at most 100.
      type: list
      elements: str
    rates:
      description:
        - What O(compress=auto) saw last. Content that the link took (C(link)) and that one processor packed (C(pack)), in bytes per
          second, the percentage that was left of it (C(packed_percent)), how much of one processor idled (C(free_percent)), and the
          level that was chosen, V(0) for none. Empty on short streams.
      type: dict
    source_seconds:
      description: Seconds of each phase on the source - V(scan), V(hash), V(send).
      type: dict
    source_peak_memory:
      description: The most memory that the source's agent had, in bytes.
      type: int
    source_bytes_read:
      description: Bytes of files that the source read to send them. Each is read once for all targets that lack it.
      type: int
    source_bytes_sent:
      description: Bytes that the source gave to its connections, this control node's included.
      type: int
    relay_bytes_sent:
      description: Bytes that this control node gave to its connections to targets, the agents themselves not counted.
      type: int
    rounds:
      description: How many rounds the stream took. More than one when something broke or was too slow on the way.
      type: int
    set_aside:
      description: Targets that held the others up, which went on without them. They were fed by themselves afterwards.
      type: list
      elements: str
    chains:
      description: The chains of the last round that brought content to more than targets set aside, as lists of hosts.
      type: list
      elements: list
    relay_peak_memory:
      description: The most memory that this task's process had, in bytes, Ansible itself included.
      type: int
    relay_own_memory:
      description: How much of that came during the stream.
      type: int
    seconds:
      description: Seconds that the whole stream took.
      type: float
targets:
  description: A verdict for each target, by host. Without O(targets), what it says of the host of the task stands beside it, too.
  type: dict
  returned: success
  contains:
    host:
      description: The target.
      type: str
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
    digest:
      description: The tree digest on the source.
      type: str
    installed_digest:
      description: The tree digest of what stands on the target. It differs where files were rewritten for another path.
      type: str
    path:
      description: How the content went, V(relay) or V(direct). Empty when none had to.
      type: str
    topology:
      description: V(chain) when the target was in a chain with others, V(star) when it was fed by itself. Empty when nothing had to be done.
      type: str
    fed_by:
      description: The host that the content came from in the last round, the source or another target, or V(relay). Empty when none had to.
      type: str
    rounds:
      description: In how many rounds of the stream it took part.
      type: int
    compress:
      description: Compression as asked for, V(none) where an end cannot.
      type: str
    notices:
      description: What did not go as asked but did no harm. The task shows them as warnings.
      type: list
      elements: str
    files_sent:
      description: Files whose content was sent, or would be in check mode.
      type: int
    bytes_sent:
      description: Their size.
      type: int
    bytes_resumed:
      description: How much of that had arrived in an earlier run and did not have to come again.
      type: int
    wire_bytes:
      description: Bytes given to the connections to this target, inside ssh or TLS. What it passed on to others is not counted.
      type: int
    mib_per_s:
      description: MiB of content received per second.
      type: float
    reused:
      description: Files and bytes by how they came to be - V(kept) from an interrupted staging, V(reflinked), V(linked), V(copied),
        V(repeated) from another file of the same content, V(sent).
      type: dict
    origins:
      description: Files and bytes by where those that were here already came from, such as V(release 0123456789abcdef).
      type: dict
    changes:
      description: In diff mode, what differs from the release that is likely to be replaced.
      type: dict
    links:
      description: Links that lead out of the tree, at most 20.
      type: list
    relocated:
      description: What was rewritten for another path - C(moves), C(files), C(links), and C(leftovers), other files that name the old path.
      type: dict
    interpreter:
      description: The id of the base interpreter that was shipped, empty when none was.
      type: str
    interpreter_stream:
      description: Figures of the shipped interpreter's own stream - C(files_sent), C(bytes_sent), C(bytes_resumed), C(wire_bytes),
        C(mib_per_s), C(reused), C(origins) and C(seconds) mean the same as beside it, where they count the environment only.
      type: dict
    bytecode:
      description: Modules compiled, reused from an earlier release, and refused by the compiler.
      type: dict
    peak_memory:
      description: The most memory that the target's agent had, in bytes.
      type: int
    seconds:
      description: Seconds of each phase on this target.
      type: dict
"""
