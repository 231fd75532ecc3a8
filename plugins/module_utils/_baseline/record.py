# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RECORD: the list of an installed distribution's files with their hashes.

RECORD is a CSV file in the distribution's dist-info directory, one row a file: path, ``algorithm=hash`` (urlsafe base64
without padding), size. See https://packaging.python.org/specifications/recording-installed-packages/.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import posixpath
from typing import TYPE_CHECKING, Dict, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline, Expected, Reference
from ansible_collections.ddtree.fleet.plugins.module_utils._files import show_name, some

if TYPE_CHECKING:
    from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import Distribution, Installed

ALGORITHMS = frozenset(name for name in hashlib.algorithms_guaranteed if not name.startswith("shake"))


def parse_record(text: str) -> Dict[str, Expected]:
    """RECORD's files by normal path; directories are left out. Raises ValueError naming the row's line."""
    files: Dict[str, Expected] = {}
    lines: Dict[str, int] = {}
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True)
    line = 1
    try:
        for row in rows:
            if row:
                if len(row) > 3 or not row[0] or "\0" in row[0]:
                    raise ValueError(f"line {line} is not path,hash,size")
                path = posixpath.normpath(row[0])
                expected = _expected(row[1] if len(row) > 1 else "", line)
                if path in files and _contradict(files[path], expected):
                    raise ValueError(f"line {line} gives another hash for {row[0]} than line {lines[path]}")
                if not row[0].endswith("/") and not (path in files and files[path].algorithm):
                    files[path], lines[path] = expected, line
            line = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line} is no CSV: {error}") from error
    if not files:
        raise ValueError("lists no file")
    return files


def _expected(recorded: str, line: int) -> Expected:
    algorithm, separator, encoded = recorded.strip().partition("=")
    algorithm = algorithm.lower()
    if not recorded.strip():
        return Expected()
    if not separator or not algorithm or not encoded:
        raise ValueError(f"line {line}: {recorded!r} is not algorithm=hash")
    if algorithm not in ALGORITHMS:
        return Expected(unknown=algorithm)
    try:
        plain = encoded.rstrip("=").replace("+", "-").replace("/", "_").encode("ascii")
        digest = base64.b64decode(plain + b"=" * (-len(plain) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        digest = b""
    if len(digest) != hashlib.new(algorithm, usedforsecurity=False).digest_size:
        raise ValueError(f"line {line}: {encoded!r} is no {algorithm} hash in base64")
    return Expected(algorithm, digest)


def _contradict(one: Expected, other: Expected) -> bool:
    return one.algorithm == other.algorithm != "" and one.digest != other.digest


class RecordBaseline:
    """Each distribution against its own RECORD."""

    def __init__(self, installed: Installed, baseline: Baseline) -> None:
        pass

    def reference(self, distribution: Optional[Distribution], versions: Sequence[str]) -> Reference:
        if distribution is None:
            raise AssertionError("it is of one distribution")
        if distribution.problem:
            raise distribution.problem
        warnings = [
            f"{show_name(path)} was not verified: RECORD of {distribution.dist_info} has it hashed by {expected.unknown}, "
            "which is not known"
            for path, expected in distribution.files.items()
            if expected.unknown
        ]
        if distribution.outside:
            warnings.append(
                f"RECORD of {distribution.dist_info} lists what is not in the environment and was not looked at: "
                f"{some(distribution.outside)}"
            )
        return Reference(
            f"RECORD of {distribution.dist_info}",
            distribution.files,
            warnings=warnings,
        )
