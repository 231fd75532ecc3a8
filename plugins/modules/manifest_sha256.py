#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: manifest_sha256
short_description: Write down a tree in a SHA-256 manifest, or verify a tree with one
version_added: 0.1.0
description:
  - The manifest holds lines that C(sha256sum -c --strict) of coreutils 9 checks, paths relative to O(path), and in comment
    lines what such lines cannot say, namely directories, links, modes and the tree digest.
  - Owners, times and C(__pycache__) do not count. The manifest's own file does not count either where it lies inside the tree.
  - The same tree gives the same manifest, so an unchanged tree leaves the file untouched.
author: the ddtree.fleet authors (@ddtree)
attributes:
  check_mode:
    description: Whether the module tells in check mode what it would do, without doing it.
    support: full
  diff_mode:
    description: Whether the module shows how the manifest changes, in at most 200 lines.
    support: full
options:
  path:
    description: The directory at the top of the tree.
    type: path
    required: true
  manifest:
    description:
      - The file that holds the manifest. Needed for O(state=present), and for O(state=verified) without O(digest).
      - A plain manifest as C(sha256sum) writes it verifies too. It lists files only, so only files are held against it.
    type: path
  state:
    description:
      - V(present) writes the manifest of the tree as it stands.
      - V(verified) fails when the tree is not the one that O(manifest) or O(digest) describes. It never changes anything.
    type: str
    choices: [present, verified]
    default: verified
  exclude:
    description:
      - Shell patterns of what does not count. One without C(/) matches a name at any depth, one with C(/) from the top of the tree.
      - They are written into the manifest, and verification applies those as well.
    type: list
    elements: str
    default: []
  digest:
    description: The tree digest that is expected, in hex. Only for O(state=verified).
    type: str
  label:
    description: A text to tell manifests apart, such as the configuration's name. Only for O(state=present).
    type: str
"""

EXAMPLES = r"""
- name: The tree is written down beside it
  ddtree.fleet.manifest_sha256:
    path: /root/reproduction
    manifest: /root/reproduction/MANIFEST.sha256
    state: present
    label: tp8-budget8
    exclude: ["*.log"]

- name: The tree is still the one that was written down
  ddtree.fleet.manifest_sha256:
    path: /root/reproduction
    manifest: /root/reproduction/MANIFEST.sha256

- name: The release is the one that was verified on the source
  ddtree.fleet.manifest_sha256:
    path: /root/venv_sglang211
    digest: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
"""

RETURN = r"""
digest:
  description: The tree digest as the tree stands.
  returned: when the tree could be read
  type: str
  sample: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
files:
  description: How many files the tree holds.
  returned: when the tree could be read
  type: int
  sample: 41233
bytes:
  description: How many bytes the files hold.
  returned: when the tree could be read
  type: int
  sample: 7801462123
label:
  description: The manifest's label.
  returned: when the manifest has one
  type: str
  sample: tp8-budget8
differences:
  description: How the tree differs from the manifest. Each list holds at most 200 items of path, what was expected and what was found.
  returned: when O(state=verified) with O(manifest)
  type: dict
  contains:
    missing:
      description: What is listed but not there.
      type: list
      elements: dict
    changed:
      description: Files of other content, and what is of another kind than listed.
      type: list
      elements: dict
    extra:
      description: What is there but not listed.
      type: list
      elements: dict
    mode:
      description: Files and directories of another mode.
      type: list
      elements: dict
    link:
      description: Links with another target.
      type: list
      elements: dict
    counts:
      description: How many there are of each.
      type: dict
      sample: {"missing": 0, "changed": 1, "extra": 0, "mode": 0, "link": 0}
"""

import os
import tempfile
from typing import Any, Dict, List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._manifest import (
    ManifestError,
    compare,
    differing_lines,
    parse,
    place_in_tree,
    read_tree,
    render,
    wrong_digest,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, TreeError, tree_digest


def read_manifest(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}") from error


def facts(entries: List[Entry], hashes: Dict[bytes, str], label: str) -> Dict[str, Any]:
    files = [entry for entry in entries if entry.kind == FILE]
    result = {"digest": tree_digest(entries, hashes), "files": len(files), "bytes": sum(entry.size for entry in files)}
    return {**result, "label": label} if label else result


def ensure_present(module: AnsibleModule, path: str, manifest: str, exclude: List[str], label: str) -> Dict[str, Any]:
    parent = os.path.dirname(os.path.abspath(manifest))
    if not os.path.isdir(parent):
        raise ManifestError("cannot be written: its directory is not there")
    before = read_manifest(manifest) if os.path.lexists(manifest) else b""
    root = os.fsencode(path)
    entries, hashes = read_tree(root, exclude, place_in_tree(root, os.fsencode(manifest)))
    after = render(entries, hashes, label, exclude)
    if after != before and not module.check_mode:
        fd, temporary = tempfile.mkstemp(dir=module.tmpdir)
        with open(fd, "wb") as file:
            file.write(after)
        module.atomic_move(temporary, manifest)
    shown = {"diff": {"prepared": differing_lines(before, after)}} if module._diff and after != before else {}
    return {"changed": after != before, **facts(entries, hashes, label), **shown}


def verify(path: str, manifest: Optional[str], exclude: List[str], digest: Optional[str]) -> Dict[str, Any]:
    """The module's result; ``msg`` is in it when the tree is not the expected one."""
    root = os.fsencode(path)
    expected = parse(read_manifest(manifest)) if manifest else None
    place = place_in_tree(root, os.fsencode(manifest)) if manifest else None
    exclude = exclude + [pattern for pattern in (expected.exclude if expected else []) if pattern not in exclude]
    entries, hashes = read_tree(root, exclude, place)
    result = facts(entries, hashes, expected.label if expected else "")
    messages = []
    if expected:
        differences = compare(expected, entries, hashes, exclude, place)
        result["differences"] = differences.result()
        messages.append(differences.message(path, str(manifest)))
    if digest and digest.lower() != result["digest"]:
        messages.append(
            f"manifest gate failed for {path}: expected the tree digest {digest.lower()}, found {result['digest']}"
        )
    message = "\n".join(filter(None, messages))
    return {"changed": False, **result, **({"msg": message} if message else {})}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "verified"], "default": "verified"},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "digest": {"type": "str"},
            "label": {"type": "str"},
        },
        required_if=[("state", "present", ["manifest"]), ("state", "verified", ["manifest", "digest"], True)],
        supports_check_mode=True,
    )
    given = module.params
    problem = wrong_digest(given["digest"]) if given["digest"] is not None else None
    if given["digest"] is not None and given["state"] == "present":
        problem = "digest is for state=verified; state=present writes down the tree as it stands"
    if given["label"] is not None and given["state"] == "verified":
        problem = "label is for state=present; state=verified reports the label it finds"
    if problem:
        module.fail_json(msg=problem)
    try:
        if given["state"] == "present":
            result = ensure_present(module, given["path"], given["manifest"], given["exclude"], given["label"] or "")
        else:
            result = verify(given["path"], given["manifest"], given["exclude"], given["digest"])
    except ManifestError as error:
        module.fail_json(msg=f"manifest {given['manifest']} {error}")
    except TreeError as error:
        module.fail_json(msg=str(error))
    if "msg" in result:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
