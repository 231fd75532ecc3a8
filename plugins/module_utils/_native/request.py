# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of an environment's native libraries. Its form is judged here, before anything is read."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import (
    Architecture,
    parse_architecture,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import refuse_unknown
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError

HOST = "host"
ENTRY_KEYS = ("files", "require_arch")


class Group(NamedTuple):
    """Libraries by a pattern, and the architectures that at least one of them must have code for."""

    pattern: str
    architectures: Tuple[Architecture, ...]
    for_host: bool

    def matches(self, file: str) -> bool:
        return re.fullmatch(_expression(self.pattern), file, re.DOTALL) is not None


class Request(NamedTuple):
    groups: Tuple[Group, ...]
    libraries: bool
    glibc: bool


def parse_request(given: Mapping[str, Any]) -> Request:
    """The option ``native`` of the module. Raises PatchError naming a malformed entry by its index."""
    if not given["files"]:
        raise PatchError("native.files: at least one pattern is needed, such as sgl_kernel/**/*.so")
    groups = [
        _parse_entry(f"native.files[{index}]", entry, given["require_arch"])
        for index, entry in enumerate(given["files"])
    ]
    return Request(tuple(groups), given["libraries"], given["glibc"])


def _parse_entry(place: str, entry: Any, common: Any) -> Group:
    if isinstance(entry, Mapping):
        try:
            refuse_unknown(entry, ENTRY_KEYS)
        except ValueError as error:
            raise PatchError(f"{place}: {error}") from error
        pattern, wanted = entry.get("files"), entry.get("require_arch", common)
    else:
        pattern, wanted = entry, common
    if not isinstance(pattern, str) or not pattern:
        raise PatchError(f"{place}: a pattern such as sgl_kernel/**/*.so is needed")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise PatchError(f"{place} ({pattern}): it must be relative to site-packages and stay there")
    names = _names(place, wanted)
    try:
        architectures = tuple(parse_architecture(name) for name in names if name != HOST)
    except ValueError as error:
        raise PatchError(f"{place} ({pattern}): require_arch: {error}, nor the word {HOST}") from error
    return Group(pattern, architectures, HOST in names)


def _names(place: str, wanted: Any) -> List[str]:
    names: Optional[Sequence[Any]] = [wanted] if isinstance(wanted, str) else wanted or []
    if not isinstance(names, (list, tuple)):
        raise PatchError(f"{place}: require_arch must be a list")
    return [str(name) for name in dict.fromkeys(names)]


def _expression(pattern: str) -> str:
    """The regular expression of a pattern in which ``**/`` stands for any folders and ``*`` and ``?`` stay in one."""
    forms = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(forms.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern))
