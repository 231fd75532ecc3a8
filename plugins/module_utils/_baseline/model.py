# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a baseline is: what somebody asked for, what it says of each file, and why it is none."""

from __future__ import annotations

import posixpath
from typing import Callable, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Sequence

ALL = "all"
FAIL, WARN, IGNORE = LEVELS = ("fail", "warn", "ignore")
# What a policy speaks of: kinds of undeclared difference, declared files that equal the baseline, a version that is not the
# meant one, and files that the patterns of backups match.
POLICIES = ("modified", "added", "missing", "unmodified", "version", "backups")
PATTERNS = ("*.orig", "*.bak", "*.bak[0-9._-]*", "*~")
SHOWN = 200


class BaselineError(Exception):
    """Something that is no baseline; ``found`` and ``hint`` are the two halves of a failed check."""

    def __init__(self, found: str, hint: str) -> None:
        super().__init__(f"{found} ({hint})")
        self.found = found
        self.hint = hint


class Baseline(NamedTuple):
    """What the environment is compared with.

    ``version`` is the package version it should be, where that is declared. ``path`` is where wheels or the snapshot are.
    ``patterns`` tell backup files. ``policy`` gives one of LEVELS by what POLICIES lists; what it leaves out fails.
    """

    kind: str
    distributions: Sequence[str]
    version: Optional[str] = None
    path: Optional[str] = None
    patterns: Sequence[str] = PATTERNS
    policy: Mapping[str, str] = {}

    def level(self, what: str) -> str:
        return self.policy.get(what, FAIL)


class Expected(NamedTuple):
    """What a baseline says of one file: a hash of an algorithm of hashlib, or the target of a link (``LINK`` of _tree).

    Without an algorithm it says nothing of the content; ``unknown`` is then the name of the one that nobody knows, if any.
    """

    algorithm: str = ""
    digest: bytes = b""
    unknown: str = ""


class Territory(NamedTuple):
    """Where a file that nobody lists is one that was added to a distribution: in its ``own`` directories and what is below.

    ``foreign`` are directories that others have files in, ``files`` what others list. '' is site-packages itself.
    """

    own: FrozenSet[str]
    foreign: FrozenSet[str] = frozenset()
    files: FrozenSet[str] = frozenset()

    def roots(self) -> List[str]:
        """The topmost directories."""
        return sorted(one for one in self.own if not one or not any(above in self.own for above in _above(one)))

    def has(self, path: str) -> bool:
        nearest = next((one for one in _above(path) if one in self.own or one in self.foreign), None)
        return nearest in self.own and path not in self.files


def _above(path: str) -> Iterator[str]:
    """The directories that a path is in, the nearest first and '' last."""
    while path:
        path = posixpath.dirname(path)
        yield path


WHOLE = Territory(frozenset([""]))


class Reference(NamedTuple):
    """What one baseline says of a distribution. Paths are relative to site-packages, also those outside it.

    ``content`` gives the beginning of a file as the baseline has it, where it has contents. Unless it is ``complete``, it says
    nothing of files that it does not have, and without ``links`` nothing of links.
    """

    name: str
    files: Dict[str, Expected]
    content: Optional[Callable[[str, int], bytes]] = None
    complete: bool = True
    links: bool = True
    warnings: Sequence[str] = ()
