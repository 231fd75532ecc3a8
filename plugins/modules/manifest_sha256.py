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
  - An unchanged tree leaves the file untouched. The manifest says when its content was first written down, and that time stays
    while the content does. Other provenance for the same content writes the file again, with that time.
  - Files whose size, times and inode are those of an earlier run are not read again, see O(verify). Their hashes are remembered
    in C(/var/cache/ddtree-fleet), readable only by the user who runs this, never inside the tree.
  - No secret is written down. A name in O(environment) or O(provenance) that looks like a secret's, with a word in it such as
    C(KEY), C(TOKEN), C(PASSWORD), C(SECRET), C(CREDENTIAL) or C(AUTH), is refused. Values that hold one, such as C(--api-key) in
    O(command_line), are redacted.
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
      - The file that holds the manifest. Needed for O(state=present), and for O(state=verified) without O(content) and O(digest).
      - A plain manifest as C(sha256sum) writes it verifies too, with comments and in any order. It lists files only, so only files
        are held against it.
    type: path
  content:
    description:
      - The text of a manifest from the control node, such as C(lookup('ansible.builtin.file', ..., rstrip=false)), in place of
        O(manifest). Only for O(state=verified).
      - Where a copy of that manifest lies in the tree, name it in O(exclude).
    type: str
  state:
    description:
      - V(present) writes the manifest of the tree as it stands.
      - V(verified) fails when the tree is not the one that O(manifest) or O(digest) describes. It never changes anything.
    type: str
    choices: [present, verified]
    default: verified
  verify:
    description: V(index) trusts the hashes of files whose size, times and inode are unchanged, V(full) reads every file again.
    type: str
    choices: [index, full]
    default: index
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
    description:
      - A text to tell manifests apart, such as the configuration's name.
      - With O(state=verified), a manifest with another label, or with none, fails.
    type: str
  provenance:
    description: Names and values to write down, such as what was measured with this tree. Only for O(state=present).
    type: dict
  packages:
    description: Distributions whose installed versions are written down, by name. Only for O(state=present).
    type: list
    elements: str
  packages_root:
    description: The environment that O(packages) are installed in, or its C(site-packages). Not given, O(path).
    type: path
  commit:
    description: The commit that the tree comes from, as a text. Only for O(state=present).
    type: str
  work_tree:
    description:
      - A git work tree on the host whose commit is written down, with C(-dirty) behind it where tracked files other than O(manifest)
        differ from that commit. Needs git on the host. Only for O(state=present).
    type: path
  command_line:
    description: The command that the tree is used with, as a list of its arguments. Only for O(state=present).
    type: list
    elements: str
  environment:
    description:
      - Names of environment variables whose values are written down, as the module finds them on the host. One that is not set is left
        out. Only for O(state=present).
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: The tree is written down beside it
  ddtree.fleet.manifest_sha256:
    path: /root/reproduction
    manifest: /root/reproduction/MANIFEST.sha256
    state: present
    label: tp8-budget8
    exclude: ["*.log"]
    provenance:
      accept_length: "3.9"
    packages: [sglang, torch]
    packages_root: /root/venv_sglang211
    work_tree: /root/reproduction
    command_line: [python, -m, sglang.launch_server, --tp-size, "8"]
    environment: [NCCL_NVLS_ENABLE]

- name: The tree is still the one that was written down
  ddtree.fleet.manifest_sha256:
    path: /root/reproduction
    manifest: /root/reproduction/MANIFEST.sha256

- name: The tree is the one that the control node has a manifest of, of this configuration, and every byte is read
  ddtree.fleet.manifest_sha256:
    path: /root/reproduction
    content: "{{ lookup('ansible.builtin.file', 'tp8-budget8.sha256', rstrip=false) }}"
    label: tp8-budget8
    verify: full

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
provenance:
  description: What the manifest says of itself. Empty fields are left out.
  returned: when the manifest says something
  type: dict
  contains:
    label:
      description: The same as RV(label).
      type: str
    time:
      description: When the content was first written down, in UTC.
      type: str
      sample: "2026-01-31T12:00:00Z"
    commit:
      description: The commit.
      type: str
      sample: 91a3f1c2d4e5f60718293a4b5c6d7e8f90a1b2c3-dirty
    command_line:
      description: The command, quoted for a shell.
      type: str
    package:
      description: Versions by distribution.
      type: dict
      sample: {"sglang": "0.5.11"}
    environment:
      description: Values by variable.
      type: dict
    note:
      description: The names and values that were given.
      type: dict
differences:
  description: How the tree differs from the manifest. Each list holds at most 200 items of path, what was expected and what was found.
  returned: when O(state=verified) with O(manifest) or O(content)
  type: dict
  contains:
    missing:
      description: What is listed but not there.
      type: list
      elements: dict
    moved:
      description: Missing files whose content is found at a path that is not listed, which C(found) is.
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
      sample: {"missing": 0, "moved": 0, "changed": 1, "extra": 0, "mode": 0, "link": 0}
"""

import gc
import os
import tempfile
from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._manifest import (
    MAX_BYTES,
    Manifest,
    ManifestError,
    Provenance,
    compare,
    differing_lines,
    parse,
    place_in_tree,
    read_tree,
    render,
    wrong_digest,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._provenance import (
    ProvenanceError,
    command_of,
    commit_of,
    notes,
    now,
    text_of,
    variables,
    versions,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, Entry, TreeError, tree_digest

FOR_PRESENT = ("provenance", "packages", "packages_root", "commit", "work_tree", "command_line", "environment")
FOR_VERIFIED = {
    "content": "state=present writes the manifest to a file, which manifest names",
    "digest": "state=present writes down the tree as it stands",
}


def read_manifest(path: str) -> bytes:
    try:
        return read_beginning(path, MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"cannot be read: {error.strerror}") from error


def write_manifest(module: AnsibleModule, path: str, data: bytes) -> None:
    try:
        fd, temporary = tempfile.mkstemp(dir=module.tmpdir)
        with open(fd, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ManifestError(f"cannot be written by way of {module.tmpdir}: {error.strerror}") from error
    try:
        module.atomic_move(temporary, path)
    except Exception as error:  # atomic_move raises nothing narrower
        raise ManifestError(f"cannot be written: {error}") from error


def read(module: AnsibleModule, exclude: List[str], place: Optional[bytes]) -> Tuple[List[Entry], Dict[bytes, str]]:
    """The tree, with the hashes that are known from before unless every byte is to be read."""
    root = os.fsencode(os.path.realpath(module.params["path"]))
    where = index_path(root)
    index = HashIndex(where) if module.params["verify"] == "index" and place_in_tree(root, where) is None else None
    entries, hashes = read_tree(os.fsencode(module.params["path"]), exclude, place, index)
    if index and not module.check_mode:
        index.save(prune=True)
    return entries, hashes


def facts(entries: List[Entry], digest: str, provenance: Provenance) -> Dict[str, Any]:
    files = [entry for entry in entries if entry.kind == FILE]
    result = {"digest": digest, "files": len(files), "bytes": sum(entry.size for entry in files)}
    said = {name: value for name, value in asdict(provenance).items() if value}
    return {
        **result,
        **({"label": provenance.label} if provenance.label else {}),
        **({"provenance": said} if said else {}),
    }


def gather(given: Dict[str, Any]) -> Provenance:
    """What the manifest is to say of itself, without the time; raises ProvenanceError."""
    commit = text_of("commit", given["commit"] or "")
    return Provenance(
        label=text_of("label", given["label"] or ""),
        commit=commit_of(given["work_tree"], given["manifest"]) if given["work_tree"] else commit,
        command_line=command_of(given["command_line"] or []),
        package=versions(given["packages"], given["packages_root"] or given["path"]) if given["packages"] else {},
        environment=variables(given["environment"] or [], os.environ),
        note=notes(given["provenance"] or {}),
    )


def written_before(data: bytes) -> Optional[Manifest]:
    """What the file held; nothing when that is no manifest, which writing it anew mends."""
    try:
        return parse(data)
    except ManifestError:
        return None


def ensure_present(module: AnsibleModule) -> Dict[str, Any]:
    path, manifest, exclude = module.params["path"], module.params["manifest"], module.params["exclude"]
    parent = os.path.dirname(os.path.abspath(manifest))
    if not os.path.isdir(parent):
        raise ManifestError("cannot be written: its directory is not there")
    if not os.access(parent, os.W_OK):
        raise ManifestError("cannot be written: its directory is not writable by this user")
    provenance = gather(module.params)
    data = read_manifest(manifest) if os.path.lexists(manifest) else b""
    before = written_before(data)
    entries, hashes = read(module, exclude, place_in_tree(os.fsencode(path), os.fsencode(manifest)))
    digest = tree_digest(entries, hashes)
    known_since = before.provenance.time if before and before.digest == digest else ""
    provenance = replace(provenance, time=known_since or now())
    after = render(entries, hashes, provenance, exclude, digest)
    if after != data and not module.check_mode:
        write_manifest(module, manifest, after)
    shown = {"diff": {"prepared": differing_lines(data, after)}} if module._diff and after != data else {}
    return {"changed": after != data, **facts(entries, digest, provenance), **shown}


def verify(module: AnsibleModule) -> Dict[str, Any]:
    """The module's result; ``msg`` is in it when the tree is not the expected one."""
    given = module.params
    path, manifest, root = given["path"], given["manifest"], os.fsencode(given["path"])
    expected, place = None, None
    if manifest:
        expected, place = parse(read_manifest(manifest)), place_in_tree(root, os.fsencode(manifest))
    elif given["content"] is not None:
        expected = parse(given["content"].encode("utf-8", "surrogateescape"))
    exclude = given["exclude"] + [
        pattern for pattern in (expected.exclude if expected else []) if pattern not in given["exclude"]
    ]
    entries, hashes = read(module, exclude, place)
    found = tree_digest(entries, hashes)
    result = facts(entries, found, expected.provenance if expected else Provenance())
    name, messages = manifest or "the content given", []
    if expected:
        if given["label"] is not None and given["label"] != expected.provenance.label:
            label = f"the label {expected.provenance.label}" if expected.provenance.label else "no label"
            messages.append(
                f"manifest gate failed for {path}: {name} has {label}, not {given['label']}; "
                "name the manifest of this configuration"
            )
        differences = compare(expected, entries, hashes, exclude, place)
        result["differences"] = differences.result()
        messages.append(differences.message(path, name))
    if given["digest"] and given["digest"].lower() != found:
        messages.append(
            f"manifest gate failed for {path}: expected the tree digest {given['digest'].lower()}, found {found}"
        )
    message = "\n".join(filter(None, messages))
    return {"changed": False, **result, **({"msg": message} if message else {})}


def problem_with(given: Dict[str, Any]) -> Optional[str]:
    """What is wrong with the options, each and together, if anything."""
    if not os.path.isdir(given["path"]):
        return f"path {given['path']} is no directory on this host; name the top of the tree"
    if given["state"] == "present":
        for name, why in FOR_VERIFIED.items():
            if given[name] is not None:
                return f"{name} is for state=verified; {why}"
        if given["packages_root"] and not given["packages"]:
            return "packages_root is of use only with packages"
        return None
    for name in FOR_PRESENT:
        if given[name] is not None:
            return f"{name} is for state=present; state=verified reports what the manifest says"
    if given["label"] is not None and not given["manifest"] and given["content"] is None:
        return "label is that of a manifest, so it needs manifest or content"
    return wrong_digest(given["digest"]) if given["digest"] is not None else None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": {"type": "path"},
            "content": {"type": "str", "no_log": True},
            "state": {"type": "str", "choices": ["present", "verified"], "default": "verified"},
            "verify": {"type": "str", "choices": ["index", "full"], "default": "index"},
            "exclude": {"type": "list", "elements": "str", "default": []},
            "digest": {"type": "str"},
            "label": {"type": "str"},
            "provenance": {"type": "dict"},
            "packages": {"type": "list", "elements": "str"},
            "packages_root": {"type": "path"},
            "commit": {"type": "str"},
            "work_tree": {"type": "path"},
            "command_line": {"type": "list", "elements": "str"},
            "environment": {"type": "list", "elements": "str"},
        },
        required_if=[
            ("state", "present", ["manifest"]),
            ("state", "verified", ["manifest", "content", "digest"], True),
        ],
        mutually_exclusive=[("manifest", "content"), ("commit", "work_tree")],
        supports_check_mode=True,
    )
    gc.disable()  # it would look through 50,000 entries again and again, in every process that hashes
    given = module.params
    problem = problem_with(given)
    if problem:
        module.fail_json(msg=problem)
    try:
        result = ensure_present(module) if given["state"] == "present" else verify(module)
    except ManifestError as error:
        module.fail_json(msg=f"manifest {given['manifest'] or 'in content'} {error}")
    except (ProvenanceError, TreeError) as error:
        module.fail_json(msg=str(error))
    if "msg" in result:
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
