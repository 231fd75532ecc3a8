# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
r"""Manifests: a tree written down in one file that ``sha256sum -c --strict`` accepts, and the tree held against it later.

Format 1. One line a file, as sha256sum of coreutils 9 writes it, sorted by path: ``<sha256>  ./<path>``; where the path holds
a backslash, newline or carriage return, the line begins with a backslash and they are written ``\\``, ``\n``, ``\r``.

What such lines cannot say stands before them in records, which are comments to sha256sum::

    #: format 1
    #: label <text>
    #: exclude <pattern>                  once for each
    #: tree <digest>                      the tree digest of all that is listed
    #: d <mode> ./<path>                  every directory
    #: l ./<path><TAB><target>            every link
    #: f <mode> ./<path>                  a file whose mode is not 0644

In records, a backslash, control characters and bytes that are no UTF-8 are written ``\xNN``, and nothing else is. Other
lines that begin with ``#`` are comments here too. A manifest without ``#: format`` lists files only, and only files are
held against it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    DIRECTORY,
    FILE,
    IGNORED_NAME,
    LINK,
    Entry,
    compile_exclude,
    scan,
    show,
    tree_digest,
)

FORMAT = b"1"
FILE_MODE = 0o644
SHOWN = 200
IN_MESSAGE = 20

KIND_NAMES = {FILE: "a file", DIRECTORY: "a directory", LINK: "a link"}
_FILE_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64})(?:  | \*)(.+)", re.DOTALL)
_RECORD_ESCAPE = re.compile("[\x00-\x1f\x7f\\\\\udc80-\udcff]")
_LINE_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


class ManifestError(Exception):
    """A manifest that cannot be relied on; the message names the line where there is one."""


@dataclass(frozen=True)
class Manifest:
    """What a manifest says. ``full`` ones list directories, links and modes too, not only files."""

    entries: List[Entry]
    hashes: Dict[bytes, str]
    full: bool = False
    label: str = ""
    exclude: List[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The tree digest of all that is listed, empty where directories, links and modes are not."""
        return tree_digest(self.entries, self.hashes) if self.full else ""


class Difference(NamedTuple):
    path: bytes
    expected: str
    found: str

    def sentence(self) -> str:
        return f"{show(self.path)}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Differences:
    """How a tree differs from its manifest. ``changed`` holds files of other content and things of another kind."""

    missing: List[Difference] = field(default_factory=list)
    changed: List[Difference] = field(default_factory=list)
    extra: List[Difference] = field(default_factory=list)
    mode: List[Difference] = field(default_factory=list)
    link: List[Difference] = field(default_factory=list)

    def lists(self) -> Dict[str, List[Difference]]:
        return {
            "missing": self.missing,
            "changed": self.changed,
            "extra": self.extra,
            "mode": self.mode,
            "link": self.link,
        }

    def count(self) -> int:
        return sum(len(found) for found in self.lists().values())

    def result(self) -> Dict[str, Any]:
        result: Dict[str, Any] = {
            kind: [{"path": show(one.path), "expected": one.expected, "found": one.found} for one in found[:SHOWN]]
            for kind, found in self.lists().items()
        }
        result["counts"] = {kind: len(found) for kind, found in self.lists().items()}
        return result

    def message(self, tree: str, manifest: str) -> str:
        """The text a failing verification ends with, naming the first differences of all kinds; empty when there are none."""
        total = self.count()
        if not total:
            return ""
        counts = ", ".join(f"{len(found)} {kind}" for kind, found in self.lists().items() if found)
        lines = [f"manifest gate failed for {tree}: {total} differences from {manifest} ({counts})"]
        named = [f"- {kind}: {one.sentence()}" for kind, found in self.lists().items() for one in found[:IN_MESSAGE]]
        lines += named[:IN_MESSAGE]
        if total > IN_MESSAGE:
            lines.append(f"- and {total - IN_MESSAGE} more")
        return "\n".join(lines)


def render(
    entries: Iterable[Entry], hashes: Mapping[bytes, str], label: str = "", exclude: Sequence[str] = ()
) -> bytes:
    """The manifest of a tree. The same tree, label and exclude give the same bytes, whenever and wherever it is called."""
    entries = sorted(entries)
    lines = [
        b"# A ddtree.fleet manifest. Its files are checked with: sha256sum -c --strict",
        _record(b"format", FORMAT),
    ]
    if label:
        lines.append(_record(b"label", _escape_record(label.encode("utf-8", "surrogateescape"))))
    lines += [_record(b"exclude", _escape_record(pattern.encode("utf-8", "surrogateescape"))) for pattern in exclude]
    lines.append(_record(b"tree", tree_digest(entries, dict(hashes)).encode()))
    for entry in entries:
        path = b"./" + _escape_record(entry.path)
        if entry.kind == LINK:
            lines.append(_record(b"l", path + b"\t" + _escape_record(entry.target)))
        elif entry.kind == DIRECTORY or entry.mode != FILE_MODE:
            lines.append(_record(entry.kind.encode(), b"%04o " % entry.mode + path))
    lines += [_file_line(entry.path, hashes[entry.path]) for entry in entries if entry.kind == FILE]
    return b"\n".join(lines) + b"\n"


def _record(name: bytes, value: bytes) -> bytes:
    return b"#: " + name + b" " + value


def _escape_record(name: bytes) -> bytes:
    text = name.decode("utf-8", "surrogateescape")
    return _RECORD_ESCAPE.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text).encode()


def _unescape_record(value: bytes) -> bytes:
    if re.search(rb"\\(?!x[0-9a-f]{2})", value):
        raise ValueError("holds a backslash that is not part of \\xNN")
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), value)


def _file_line(path: bytes, digest: str) -> bytes:
    escaped = path.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != path else b"") + digest.encode() + b"  ./" + escaped


def _unescape_line(name: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        if found[0] not in _LINE_ESCAPES:
            raise ValueError(f"holds the unknown escape {show(found[0])}")
        return _LINE_ESCAPES[found[0]]

    return re.sub(rb"\\.?", one, name, flags=re.DOTALL)


class _Reader:
    """Gathers what the lines of one manifest say."""

    def __init__(self) -> None:
        self.format = b""
        self.label = ""
        self.exclude: List[str] = []
        self.tree = ""
        self.hashes: Dict[bytes, str] = {}
        self.modes: Dict[bytes, int] = {}
        self.directories: Dict[bytes, int] = {}
        self.links: Dict[bytes, bytes] = {}
        self.lines: Dict[bytes, int] = {}
        self.mode_lines: Dict[bytes, int] = {}

    def read(self, number: int, line: bytes) -> None:
        """Take in one line; raises ValueError for a malformed one."""
        if number == 1 and line.startswith(b"\xef\xbb\xbf"):
            raise ValueError("begins with a byte order mark; save it as UTF-8 without one")
        if line.endswith(b"\r"):
            raise ValueError("ends with CR LF; convert the file to LF line ends")
        if line.startswith(b"#: "):
            self._read_record(number, line[3:])
        elif line and not line.startswith(b"#"):
            self._read_file(number, line)

    def _read_file(self, number: int, line: bytes) -> None:
        match = _FILE_LINE.fullmatch(line)
        if not match:
            raise ValueError("is not '<64 hex digits>  <path>'")
        name = _unescape_line(match[3]) if match[1] else match[3]
        path = self._new_path(number, name)
        self.hashes[path] = match[2].decode().lower()

    def _read_record(self, number: int, record: bytes) -> None:
        name, _blank, value = record.partition(b" ")
        if name == b"format":
            if value != FORMAT:
                raise ValueError(f"says format {show(value)}; only format {show(FORMAT)} is known")
            self.format = value
        elif not self.format:
            raise ValueError("is a record, but no '#: format 1' stands before it")
        elif name == b"label":
            self.label = _unescape_record(value).decode("utf-8", "surrogateescape")
        elif name == b"exclude":
            self.exclude.append(_unescape_record(value).decode("utf-8", "surrogateescape"))
        elif name == b"tree":
            self.tree = value.decode("ascii", "replace")
        elif name == b"l":
            path, tab, target = value.partition(b"\t")
            if not tab or not target:
                raise ValueError("is a link without a target")
            self.links[self._new_path(number, _unescape_record(path))] = _unescape_record(target)
        elif name in (b"d", b"f"):
            self._read_mode(number, name, value)
        else:
            raise ValueError(f"is an unknown record, {show(name)}")

    def _read_mode(self, number: int, name: bytes, value: bytes) -> None:
        match = re.fullmatch(rb"(0[0-7]{3}) (.+)", value, re.DOTALL)
        if not match:
            raise ValueError("is not '<mode> ./<path>' with a mode such as 0755")
        mode, path = int(match[1], 8), _unescape_record(match[2])
        if name == b"d":
            self.directories[self._new_path(number, path)] = mode
            return
        path = _relative(path)
        if path in self.modes:
            raise ValueError(f"gives a second mode for {show(path)}, after line {self.mode_lines[path]}")
        self.modes[path], self.mode_lines[path] = mode, number

    def _new_path(self, number: int, name: bytes) -> bytes:
        path = _relative(name)
        if path in self.lines:
            raise ValueError(f"lists {show(path)} again, after line {self.lines[path]}")
        self.lines[path] = number
        return path

    def manifest(self) -> Manifest:
        """Raises ManifestError when the lines do not make one manifest."""
        for path, number in self.mode_lines.items():
            if path not in self.hashes:
                raise ManifestError(f"line {number} gives a mode for {show(path)}, which no line lists as a file")
        if not (self.lines or self.format):
            raise ManifestError("lists nothing")
        entries = [_entry(path, FILE, self.modes.get(path, FILE_MODE)) for path in self.hashes]
        entries += [_entry(path, DIRECTORY, mode) for path, mode in self.directories.items()]
        entries += [_entry(path, LINK, 0, target) for path, target in self.links.items()]
        manifest = Manifest(sorted(entries), self.hashes, bool(self.format), self.label, self.exclude)
        if manifest.full and manifest.digest != self.tree:
            raise ManifestError(
                f"has the tree digest {self.tree or 'of no tree'}, but its lines make {manifest.digest}; "
                "it was cut off or edited, so write it again from a good tree"
            )
        return manifest


def _relative(name: bytes) -> bytes:
    """A listed path as entries have it; raises ValueError for one that is not plainly inside the tree."""
    path = name[2:] if name.startswith(b"./") else name
    if b"\0" in path:
        raise ValueError("holds a NUL character")
    if path.startswith(b"/"):
        raise ValueError(f"lists the absolute path {show(path)}; paths must be relative to the tree")
    parts = path.split(b"/")
    if b".." in parts:
        raise ValueError(f"lists {show(path)}, which climbs out of the tree")
    if b"" in parts or b"." in parts:
        raise ValueError(f"lists {show(name)}, which is not the plain path of something in the tree")
    return path


def _entry(path: bytes, kind: str, mode: int, target: bytes = b"") -> Entry:
    return Entry(path, kind, mode, 0, target, 0, 0, 0, 1)


def parse(data: bytes) -> Manifest:
    """Read a manifest, of ours or of sha256sum; raises ManifestError naming the first malformed line by its number."""
    reader = _Reader()
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            reader.read(number, line)
        except ValueError as error:
            raise ManifestError(f"line {number} {error}") from error
    return reader.manifest()


def compare(
    manifest: Manifest,
    entries: Iterable[Entry],
    hashes: Mapping[bytes, str],
    exclude: Sequence[str] = (),
    place: Optional[bytes] = None,
) -> Differences:
    """Hold a scanned tree against its manifest; ``exclude`` and ``place`` are what the tree was read with."""
    excluded = compile_exclude(exclude)
    expected = {
        entry.path: entry
        for entry in manifest.entries
        if entry.path != place
        and IGNORED_NAME not in entry.path.split(b"/")
        and not (excluded and _is_excluded(excluded, entry.path))
    }
    differences = Differences()
    seen: Set[bytes] = set()
    for entry in entries:
        if not manifest.full and entry.kind != FILE and entry.path not in expected:
            continue
        seen.add(entry.path)
        if entry.path in expected:
            _compare_entry(manifest, expected[entry.path], entry, hashes, differences)
        else:
            differences.extra.append(Difference(entry.path, "nothing", KIND_NAMES[entry.kind]))
    differences.missing.extend(
        Difference(path, KIND_NAMES[entry.kind], "nothing") for path, entry in expected.items() if path not in seen
    )
    return differences


def place_in_tree(root: bytes, manifest: bytes) -> Optional[bytes]:
    """The path of the manifest's file inside the tree it describes, where it never counts; ``None`` when it is outside."""
    top = os.path.realpath(root)
    full = os.path.join(os.path.realpath(os.path.dirname(manifest) or b"."), os.path.basename(manifest))
    return os.path.relpath(full, top) if full.startswith(top.rstrip(b"/") + b"/") else None


def read_tree(
    root: bytes, exclude: Sequence[str] = (), place: Optional[bytes] = None
) -> Tuple[List[Entry], Dict[bytes, str]]:
    """Entries and hashes of a tree without what is excluded and without the manifest's own file; raises TreeError."""
    entries = [entry for entry in scan(root, exclude) if entry.path != place]
    return entries, hash_tree(root, entries)


def _is_excluded(excluded: re.Pattern[bytes], path: bytes) -> bool:
    """Whether the path or a directory above it is excluded, as a scan leaves out all below an excluded directory."""
    parts = path.split(b"/")
    return any(excluded.match(b"/".join(parts[:count])) for count in range(1, len(parts) + 1))


def _compare_entry(
    manifest: Manifest, expected: Entry, found: Entry, hashes: Mapping[bytes, str], differences: Differences
) -> None:
    path = expected.path
    if expected.kind != found.kind:
        differences.changed.append(Difference(path, KIND_NAMES[expected.kind], KIND_NAMES[found.kind]))
        return
    if found.kind == LINK and expected.target != found.target:
        differences.link.append(Difference(path, show(expected.target), show(found.target)))
    if found.kind == FILE and manifest.hashes[path] != hashes[path]:
        differences.changed.append(Difference(path, manifest.hashes[path], hashes[path]))
    if manifest.full and expected.mode != found.mode:
        differences.mode.append(Difference(path, f"{expected.mode:04o}", f"{found.mode:04o}"))


def differing_lines(before: bytes, after: bytes, limit: int = SHOWN) -> str:
    """How two manifests differ, as lines with ``-`` or ``+`` before them, at most ``limit``; both are sorted, so this is quick."""
    sides: List[Tuple[str, List[bytes], Set[bytes]]] = [
        ("-", before.split(b"\n"), set(after.split(b"\n"))),
        ("+", after.split(b"\n"), set(before.split(b"\n"))),
    ]
    lines = [f"{sign}{show(line)}" for sign, own, other in sides for line in own if line and line not in other]
    if len(lines) > limit:
        lines = lines[: limit - 1] + [f"and {len(lines) - limit + 1} lines more"]
    return "".join(line + "\n" for line in lines)


def wrong_digest(expected: str) -> Optional[str]:
    """What is wrong with a tree digest that somebody declared, if anything."""
    return (
        None if re.fullmatch(r"[0-9a-fA-F]{64}", expected) else f"digest {expected!r} is not a SHA-256 of 64 hex digits"
    )
