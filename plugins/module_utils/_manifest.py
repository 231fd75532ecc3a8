# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
r"""Manifests: a tree written down in one file that ``sha256sum -c --strict`` accepts, and the tree held against it later.

Format 1. One line a file, as sha256sum of coreutils 9 writes it, sorted by path: ``<sha256>  ./<path>``; where the path holds
a backslash, newline or carriage return, the line begins with a backslash and they are written ``\\``, ``\n``, ``\r``.

What such lines cannot say stands before them in records, which are comments to sha256sum::

    #: format 1
    #: label <text>
    #: time 2026-01-31T12:00:00Z          when this content was first written down, in UTC
    #: commit <text>
    #: command_line <text>
    #: package <name><TAB><version>       this and the next two once for each
    #: environment <name><TAB><value>
    #: note <name><TAB><text>
    #: exclude <pattern>                  once for each
    #: tree <digest>                      the tree digest of all that is listed
    #: d <mode> ./<path>                  every directory
    #: l ./<path><TAB><target>            every link
    #: f <mode> ./<path>                  a file whose mode is not 0644

In records, a backslash, control characters and bytes that are no UTF-8 are written ``\xNN``, and nothing else is. Other
lines that begin with ``#`` are comments here too. A manifest without ``#: format`` lists files only, and only files are
held against it. A new thing that a manifest says of itself is a field of Provenance.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex
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
MAX_BYTES = 256 << 20  # a million files
MAX_EXCLUDE = 1000  # each is held against every path
SHOWN = 200
IN_MESSAGE = 20
NAME_SHOWN = 300
LINES_NAMED = 5
BOM = b"\xef\xbb\xbf"

KIND_NAMES = {FILE: "a file", DIRECTORY: "a directory", LINK: "a link"}
EMPTY = hashlib.sha256().hexdigest()
OTHER_DIGESTS = {32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}
_OTHER_LINE = re.compile(rb"\\?([0-9a-fA-F]+)(?:  | \*).+", re.DOTALL)
_TAGGED_LINE = re.compile(rb"\\?([A-Z][A-Z0-9/-]+) \(.+\) = [0-9a-fA-F]+", re.DOTALL)
_FILE_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64})(?:  | \*)(.+)", re.DOTALL)
_RECORD_ESCAPE = re.compile("[\x00-\x1f\x7f\\\\\udc80-\udcff]")
_LINE_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


class ManifestError(Exception):
    """A manifest that cannot be relied on; the message names the line where there is one."""


@dataclass(frozen=True)
class Provenance:
    """What a manifest says of itself. ``time`` is when the content was first written down, such as 2026-01-31T12:00:00Z."""

    label: str = ""
    time: str = ""
    commit: str = ""
    command_line: str = ""
    package: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    note: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> List[bytes]:
        lines = []
        for name in TEXTS:
            if getattr(self, name):
                lines.append(_record(name.encode(), _escape_text(getattr(self, name))))
        for name in TABLES:
            for key, value in sorted(getattr(self, name).items()):
                lines.append(_record(name.encode(), _escape_text(key) + b"\t" + _escape_text(value)))
        return lines


TEXTS = ("label", "time", "commit", "command_line")
TABLES = ("package", "environment", "note")


@dataclass(frozen=True)
class Manifest:
    """What a manifest says. ``full`` ones list directories, links and modes too, not only files, and have a tree digest."""

    entries: List[Entry]
    hashes: Dict[bytes, str]
    full: bool = False
    provenance: Provenance = Provenance()
    exclude: List[str] = field(default_factory=list)
    digest: str = ""


class Difference(NamedTuple):
    path: bytes
    expected: str
    found: str
    moved: bool = False  # then ``found`` is the path that has the content

    def sentence(self) -> str:
        if self.moved:
            return f"{show(self.path)} -> {self.found}"
        return f"{show(self.path)}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True)
class Differences:
    """How a tree differs from its manifest. ``changed`` holds files of other content and things of another kind.

    ``moved`` are files that are missing at one path and extra at another, and in neither of those lists.
    """

    missing: List[Difference] = field(default_factory=list)
    moved: List[Difference] = field(default_factory=list)
    changed: List[Difference] = field(default_factory=list)
    extra: List[Difference] = field(default_factory=list)
    mode: List[Difference] = field(default_factory=list)
    link: List[Difference] = field(default_factory=list)

    def lists(self) -> Dict[str, List[Difference]]:
        return {
            "missing": self.missing,
            "moved": self.moved,
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
    entries: Iterable[Entry],
    hashes: Mapping[bytes, str],
    provenance: Provenance = Provenance(),
    exclude: Sequence[str] = (),
    digest: str = "",
) -> bytes:
    """The manifest of a tree. The same tree, provenance and exclude give the same bytes, whenever and wherever it is called.

    ``digest`` is the tree digest where the caller knows it already.
    """
    entries = sorted(entries)
    lines = [
        b"# A ddtree.fleet manifest. Its files are checked with: sha256sum -c --strict",
        _record(b"format", FORMAT),
        *provenance.records(),
    ]
    lines += [_record(b"exclude", _escape_text(pattern)) for pattern in exclude]
    lines.append(_record(b"tree", (digest or tree_digest(entries, dict(hashes))).encode()))
    for entry in entries:
        if entry.kind == LINK:
            lines.append(_record(b"l", b"./" + _escape_record(entry.path) + b"\t" + _escape_record(entry.target)))
        elif entry.kind == DIRECTORY or entry.mode != FILE_MODE:
            lines.append(_record(entry.kind.encode(), b"%04o ./" % entry.mode + _escape_record(entry.path)))
    lines += [_file_line(entry.path, hashes[entry.path]) for entry in entries if entry.kind == FILE]
    return b"\n".join(lines) + b"\n"


def _record(name: bytes, value: bytes) -> bytes:
    return b"#: " + name + b" " + value


def _escape_record(name: bytes) -> bytes:
    text = name.decode("utf-8", "surrogateescape")
    return _RECORD_ESCAPE.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text).encode()


def _escape_text(text: str) -> bytes:
    return _escape_record(text.encode("utf-8", "surrogateescape"))


def _unescape_text(value: bytes) -> str:
    return _unescape_record(value).decode("utf-8", "surrogateescape")


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


def _brief(name: bytes) -> str:
    """A name out of a manifest for a message, of bounded length."""
    shown = show(name)
    return shown if len(shown) <= NAME_SHOWN else shown[: NAME_SHOWN - 1] + "…"


class _Reader:
    """Gathers what the lines of one manifest say."""

    def __init__(self) -> None:
        self.format = b""
        self.texts: Dict[str, str] = {}
        self.tables: Dict[str, Dict[str, str]] = {name: {} for name in TABLES}
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
        if line.endswith(b"\r"):
            raise ValueError("ends with CR LF; convert the file to LF line ends")
        if line.startswith(b"#: "):
            self._read_record(number, line[3:])
        elif line and not line.startswith(b"#"):
            self._read_file(number, line)

    def _read_file(self, number: int, line: bytes) -> None:
        match = _FILE_LINE.fullmatch(line)
        if not match:
            raise ValueError(_what_else(line))
        name = _unescape_line(match[3]) if match[1] else match[3]
        path = self._new_path(number, name)
        self.hashes[path] = match[2].decode().lower()

    def _read_record(self, number: int, record: bytes) -> None:
        name, _blank, value = record.partition(b" ")
        if name == b"format":
            if value != FORMAT:
                raise ValueError(f"says format {_brief(value)}; only format {show(FORMAT)} is known")
            self.format = value
        elif not self.format:
            raise ValueError("is a record, but no '#: format 1' stands before it")
        elif name.decode("ascii", "replace") in TEXTS:
            if name.decode() in self.texts:
                raise ValueError(f"is a second {name.decode()}")
            self.texts[name.decode()] = _unescape_text(value)
        elif name.decode("ascii", "replace") in TABLES:
            self._read_row(name.decode(), value)
        elif name == b"exclude":
            if len(self.exclude) == MAX_EXCLUDE:
                raise ValueError(f"is one more than the {MAX_EXCLUDE} excludes that a manifest may have")
            self.exclude.append(_unescape_text(value))
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
            raise ValueError(f"is an unknown record, {_brief(name)}")

    def _read_row(self, table: str, value: bytes) -> None:
        key, tab, text = value.partition(b"\t")
        if not tab:
            raise ValueError(f"is not '{table} <name><TAB><value>'")
        if _unescape_text(key) in self.tables[table]:
            raise ValueError(f"is a second {table} {_brief(key)}")
        self.tables[table][_unescape_text(key)] = _unescape_text(text)

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
            raise ValueError(f"gives a second mode for {_brief(path)}, after line {self.mode_lines[path]}")
        self.modes[path], self.mode_lines[path] = mode, number

    def _new_path(self, number: int, name: bytes) -> bytes:
        path = _relative(name)
        if path in self.lines:
            raise ValueError(f"lists {_brief(path)} again, after line {self.lines[path]}")
        self.lines[path] = number
        return path

    def manifest(self) -> Manifest:
        """Raises ManifestError when the lines do not make one manifest."""
        if not (self.lines or self.format):
            raise ManifestError("lists nothing")
        entries = [_entry(path, FILE, self.modes.get(path, FILE_MODE)) for path in self.hashes]
        entries += [_entry(path, DIRECTORY, mode) for path, mode in self.directories.items()]
        entries += [_entry(path, LINK, 0, target) for path, target in self.links.items()]
        entries.sort()
        digest = tree_digest(entries, self.hashes) if self.format else ""
        if digest != self.tree:
            raise ManifestError(
                f"has the tree digest {self.tree or 'of no tree'}, but its lines make {digest}; "
                "it was cut off or edited, so write it again from a good tree"
            )
        said: Dict[str, Any] = {**self.texts, **self.tables}
        return Manifest(entries, self.hashes, bool(self.format), Provenance(**said), self.exclude, digest)


def _relative(name: bytes) -> bytes:
    """A listed path as entries have it; raises ValueError for one that is not plainly inside the tree."""
    path = name[2:] if name.startswith(b"./") else name
    if b"\0" in path:
        raise ValueError("holds a NUL character")
    if path.startswith(b"/"):
        raise ValueError(f"lists the absolute path {_brief(path)}; paths must be relative to the tree")
    parts = path.split(b"/")
    if b".." in parts:
        raise ValueError(f"lists {_brief(path)}, which climbs out of the tree")
    if b"" in parts or b"." in parts:
        raise ValueError(f"lists {_brief(name)}, which is not the plain path of something in the tree")
    return path


def _entry(path: bytes, kind: str, mode: int, target: bytes = b"") -> Entry:
    return Entry(path, kind, mode, 0, target, 0, 0, 0, 1)


def _what_else(line: bytes) -> str:
    """What is wrong with a line that is neither a comment nor a file's."""
    tagged, other = _TAGGED_LINE.fullmatch(line), _OTHER_LINE.fullmatch(line)
    if tagged:
        return f"is the BSD form, '{show(tagged[1])} (<path>) = <digest>'; write it with 'sha256sum' without --tag"
    if other:
        length = len(other[1])
        kind = f"an {OTHER_DIGESTS[length]} digest" if length in OTHER_DIGESTS else "a digest"
        return f"has {kind} of {length} hex digits; a SHA-256 has 64, so write it with sha256sum"
    return "is not '<64 hex digits>  <path>'"


class _Problems:
    """The malformed lines of one manifest: what is said of each, once, with the numbers of the lines it holds for."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: Dict[str, List[int]] = {}
        self._more: Dict[str, int] = {}

    def add(self, number: int, said: str) -> None:
        self.count += 1
        numbers = self._lines.get(said)
        if numbers is None:
            if len(self._lines) < IN_MESSAGE:
                self._lines[said] = [number]
        elif len(numbers) < LINES_NAMED:
            numbers.append(number)
        else:
            self._more[said] = self._more.get(said, 0) + 1

    def message(self) -> str:
        if self.count == 1:
            return self._sentences()[0]
        shown = sum(len(numbers) for numbers in self._lines.values()) + sum(self._more.values())
        rest = [f"and {self.count - shown} more"] if shown < self.count else []
        return f"has {self.count} malformed lines\n" + "\n".join(f"- {line}" for line in [*self._sentences(), *rest])

    def _sentences(self) -> List[str]:
        sentences = []
        for said, (first, *others) in self._lines.items():
            also = ", ".join(map(str, others)) + (f" and {self._more[said]} more" if said in self._more else "")
            sentences.append(f"line {first} {said}" + (f" (also line {also})" if also else ""))
        return sentences


def parse(data: bytes) -> Manifest:
    """Read a manifest, of ours or of sha256sum; raises ManifestError naming the malformed lines by their numbers."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"is larger than {MAX_BYTES >> 20} MiB, so it is no manifest of an environment")
    reader, problems = _Reader(), _Problems()
    if data.startswith(BOM):
        problems.add(1, "begins with a byte order mark; save it as UTF-8 without one")
        data = data[len(BOM) :]
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            reader.read(number, line)
        except ValueError as error:
            problems.add(number, str(error))
    if not problems.count:
        for path, number in reader.mode_lines.items():
            if path not in reader.hashes:
                problems.add(number, f"gives a mode for {_brief(path)}, which no line lists as a file")
    if problems.count:
        raise ManifestError(problems.message())
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
    return _with_moves(differences, manifest.hashes, hashes)


def _with_moves(differences: Differences, expected: Mapping[bytes, str], found: Mapping[bytes, str]) -> Differences:
    """Missing files whose content stands at an extra path, one of the same name before others; an empty one only at such."""
    named: Dict[Tuple[str, bytes], List[bytes]] = {}
    unnamed: Dict[str, List[bytes]] = {}
    for path in sorted((one.path for one in differences.extra if one.path in found), reverse=True):
        named.setdefault((found[path], os.path.basename(path)), []).append(path)
        if found[path] != EMPTY:
            unnamed.setdefault(found[path], []).append(path)
    moves: Dict[bytes, bytes] = {}
    taken: Set[bytes] = set()
    sources = [one.path for one in differences.missing if one.path in expected]
    for choose in (
        lambda path: named.get((expected[path], os.path.basename(path))),
        lambda path: unnamed.get(expected[path]),
    ):
        for path in sources:
            places = choose(path) if path not in moves else None
            while places:
                place = places.pop()
                if place not in taken:
                    taken.add(place)
                    moves[path] = place
                    break
    return replace(
        differences,
        missing=[one for one in differences.missing if one.path not in moves],
        moved=[Difference(path, "a file", show(moves[path]), moved=True) for path in sorted(moves)],
        extra=[one for one in differences.extra if one.path not in taken],
    )


def place_in_tree(root: bytes, manifest: bytes) -> Optional[bytes]:
    """The path of the manifest's file inside the tree it describes, where it never counts; ``None`` when it is outside."""
    top = os.path.realpath(root)
    full = os.path.join(os.path.realpath(os.path.dirname(manifest) or b"."), os.path.basename(manifest))
    return os.path.relpath(full, top) if full.startswith(top.rstrip(b"/") + b"/") else None


def read_tree(
    root: bytes, exclude: Sequence[str] = (), place: Optional[bytes] = None, index: Optional[HashIndex] = None
) -> Tuple[List[Entry], Dict[bytes, str]]:
    """Entries and hashes of a tree without what is excluded and without the manifest's own file; raises TreeError.

    ``index`` spares reading files that are as they were, and learns the others.
    """
    entries = [entry for entry in scan(root, exclude) if entry.path != place]
    if index is None:
        return entries, hash_tree(root, entries)
    return entries, hash_tree(root, entries, index.lookup, index.add)


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
