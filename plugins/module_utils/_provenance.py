# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a tree comes from, found out on the host for its manifest.

Secrets have no place in a manifest: a name that looks like one is refused, and values are redacted where they hold one. A new
source of provenance is a function here, and a field of ``_manifest.Provenance``.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import subprocess
import time
from typing import Dict, Iterable, List, Mapping, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import normalized
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import REDACTED, Redactor

GIT_SECONDS = 60
MAX_TEXT = 64 << 10
# As a word or at the end of one, in the singular: what counts tokens is no secret.
_SECRET_NAME = re.compile(
    r"(?:key|token|pass|passwd|password|passphrase|secret|credential|credentials|auth|authorization|cookie)[0-9]*(?![a-z0-9])",
    re.IGNORECASE,
)
_VERSION = re.compile(r"^version:[ \t]*(\S+)", re.IGNORECASE | re.MULTILINE)


class ProvenanceError(Exception):
    """Provenance that cannot be written down; the message names the option and the way out."""


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def text_of(option: str, text: str) -> str:
    """A text as it may be written down: bounded, and without secrets."""
    if len(text) > MAX_TEXT:
        raise ProvenanceError(f"{option} is longer than {MAX_TEXT >> 10} KiB; a manifest takes a short text")
    return Redactor().text(text)


def command_of(words: Iterable[str]) -> str:
    """A command line as a shell would take it, without secrets. They are replaced before quoting, which would break them up."""
    shown = []
    secret = False  # the next word
    for word in words:
        name, equals, _value = word.partition("=")
        flag = word.startswith("-") and bool(_SECRET_NAME.search(name))
        if secret:
            word = REDACTED
        elif flag and equals:
            word = f"{name}={REDACTED}"
        secret = flag and not equals
        shown.append(word)
    return text_of("command_line", shlex.join(shown))


def notes(given: Mapping[str, object]) -> Dict[str, str]:
    """Free names and values. Raises ProvenanceError for what is a secret by its name, and for nested or no values."""
    found = {}
    for name, value in given.items():
        _refuse_secret_name("provenance", str(name))
        if value is None or isinstance(value, (dict, list)):
            raise ProvenanceError(f"provenance {name} is not a text or a number; give each value a name of its own")
        found[str(name)] = text_of(f"provenance {name}", str(value))
    return found


def variables(names: Iterable[str], environment: Mapping[str, str]) -> Dict[str, str]:
    """The named variables that are set. Raises ProvenanceError for what is a secret by its name, and for what is no name."""
    found = {}
    for name in names:
        _refuse_secret_name("environment", name)
        if not name or "=" in name:
            raise ProvenanceError(f"environment {name!r} is no name of a variable; its value is read on the host")
        if name in environment:
            found[name] = text_of(f"environment {name}", environment[name])
    return found


def _refuse_secret_name(option: str, name: str) -> None:
    if _SECRET_NAME.search(name):
        raise ProvenanceError(
            f"{option} {name} looks like the name of a secret, which a manifest would show; leave it out"
        )


def versions(names: Iterable[str], root: str) -> Dict[str, str]:
    """The versions of distributions installed in ``root``, an environment or its site-packages, by name as given.

    Where several dist-infos of one distribution stand side by side, all their versions, with commas between. Raises
    ProvenanceError for one that is not installed.
    """
    sites = _sites(root)
    installed: Dict[str, List[str]] = {}
    for dist_info in sorted(
        path for site in sites for path in glob.glob(os.path.join(glob.escape(site), "*.dist-info"))
    ):
        name, _dash, version = os.path.basename(dist_info)[: -len(".dist-info")].partition("-")
        installed.setdefault(normalized(name), []).append(_metadata_version(dist_info) or version)
    found = {}
    for name in names:
        if normalized(name) not in installed:
            raise ProvenanceError(f"packages: {name} is not installed in {', '.join(sites)}")
        found[name] = ", ".join(sorted(set(installed[normalized(name)])))
    return found


def _sites(root: str) -> List[str]:
    found = sorted(glob.glob(os.path.join(glob.escape(root), "lib", "python3*", "site-packages")))
    if not found and glob.glob(os.path.join(glob.escape(root), "*.dist-info")):
        found = [root]
    if not found:
        raise ProvenanceError(
            f"packages_root {root} is neither an environment nor a directory with dist-info directories"
        )
    return found


def _metadata_version(dist_info: str) -> Optional[str]:
    try:
        with open(os.path.join(dist_info, "METADATA"), encoding="utf-8", errors="replace") as file:
            match = _VERSION.search(file.read(MAX_TEXT).partition("\n\n")[0])
    except OSError:
        return None
    return match[1] if match else None


def commit_of(work_tree: str, own_file: str) -> str:
    """The commit that a git work tree stands at, with ``-dirty`` behind it when tracked files differ from it.

    ``own_file``, the manifest, does not make it dirty. Nothing is written, not even git's index. Raises ProvenanceError.
    """
    top = _git(work_tree, "rev-parse", "--show-toplevel").rstrip("\n")
    commit = _git(work_tree, "rev-parse", "--verify", "HEAD^{commit}").strip()
    own = os.path.relpath(os.path.join(os.path.realpath(os.path.dirname(own_file)), os.path.basename(own_file)), top)
    apart = [] if own.startswith("../") else [f":(top,exclude,literal){own}"]
    changed = _git(work_tree, "status", "--porcelain", "--untracked-files=no", "--", ":(top)", *apart)
    return commit + ("-dirty" if changed else "")


def _git(work_tree: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        # The module's run_command has no time limit.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            ["git", "-C", work_tree, *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProvenanceError("work_tree needs git on this host; install it, or give the commit as a text") from error
    except subprocess.TimeoutExpired as error:
        raise ProvenanceError(f"work_tree {work_tree}: git did not answer within {GIT_SECONDS} s") from error
    if done.returncode:
        said = next(iter(done.stderr.splitlines()), f"git ended with {done.returncode}")
        raise ProvenanceError(f"work_tree {work_tree}: {said}; name a git work tree, or give the commit as a text")
    return done.stdout
