# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Relocation: an environment made to work at another path than the one it was built at.

What is known to name the path is rewritten: launchers, activation scripts, pyvenv.cfg, path files, editable finders, direct_url.json
and absolute links. What else names it in text is listed, not touched. No file is written in place, since staged files may share
their inodes with other releases: each is written anew beside the old one and renamed over it, with its mode and time.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shlex
import urllib.parse
from dataclasses import dataclass, field
from typing import BinaryIO, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, HASH_SIZE, LINK, Entry, TreeError, show

HEAD_SIZE = 4096
TEXT_LIMIT = 1 << 20
LEFTOVERS_SHOWN = 20
KERNEL_LINE = 127  # bytes of a first line, with "#!" and its end, that every kernel reads; pip and uv keep to it, too
HASHES = ("sha256", "sha384", "sha512")  # that RECORD may hold
TEMPORARY = b".ddtree-relocated"

# A prefix beside one of these is part of a longer name; between quotes a blank or an escaped quote goes on with it, too.
NAME = rb"\w.+@~%\x80-\xff-"
BEFORE = rb"(?:(?<![/$})" + NAME + rb"])|(?<=file://)|(?<=-[ILR]))"
AFTER = rb"(?![=" + NAME + rb"])"
AFTER_QUOTED = rb"(?![\s\\=" + NAME + rb"]|'\"'\"'|'\\'')"

SHELL_SCRIPTS = (b"activate", b"activate.csh", b"activate.fish", b"deactivate.csh")
OTHER_SCRIPTS = (b"activate.nu", b"activate.bat", b"activate.ps1", b"Activate.ps1")
PYTHON_SCRIPTS = (b"activate_this.py", b"activate.xsh")
EDITABLE = re.compile(rb"(?:__editable_|_editable_impl_).*[.]py\Z|_.*_editable(?:_loader)?[.]py\Z")
TEXT_NAME = re.compile(
    rb"[^.]+\Z|.*[.](?:py|pyi|pth|txt|json|cfg|ini|toml|yaml|yml|sh|csh|fish|nu|bat|ps1|xsh|pc|cmake|mk|conf|la|egg-link)\Z",
    re.DOTALL,
)
EXEC_LINE = b"'''exec' "
PYTHON_NAME = re.compile(rb"(?:python|pypy)[\w.]*\Z")

Rewriter = Callable[[bytes, Sequence["Move"]], bytes]


@dataclass(frozen=True)
class Move:
    """An absolute path prefix and the one that takes its place, such as ``/root/venv_a`` and ``/srv/venv_b``."""

    old: bytes
    new: bytes


@dataclass(frozen=True)
class Relocated:
    """What was rewritten: the SHA-256 (hex) by path of files, the targets by path of ``links``; ``leftovers`` are other texts.

    A leftover still names an old prefix, mostly in a comment or in metadata; at most 20 are listed, ``leftover_count`` are there.
    """

    rewritten: Dict[bytes, str] = field(default_factory=dict)
    links: Dict[bytes, bytes] = field(default_factory=dict)
    leftovers: List[str] = field(default_factory=list)
    leftover_count: int = 0


@dataclass(frozen=True)
class Change:
    """What RECORD says of one file before and after: hashes by algorithm (urlsafe base64 without padding) and the new size."""

    old: Dict[str, str]
    new: Dict[str, str]
    size: int
    sha256: str


def relocate(root: bytes, entries: List[Entry], moves: Sequence[Move]) -> Relocated:
    """Rewrite the staged tree at ``root``, whose listing is ``entries``, so that it works where ``moves`` lead.

    A tree that was relocated before comes out as it is. Sizes, hashes and inodes of what was rewritten are no longer those of
    ``entries``. Raises TreeError naming the file that cannot be read, written or made to work at the new place.
    """
    if not moves:
        return Relocated()
    _check_moves(moves)
    links = moved_links(entries, moves)
    for path, target in links.items():
        _replace_link(root, path, target)
    changes: Dict[bytes, Change] = {}
    leftovers: List[str] = []
    for entry in entries:
        if entry.kind == FILE and _worth_reading(entry):
            change, named = _relocate_file(root, entry, moves)
            if change:
                changes[entry.path] = change
            if named:
                leftovers.append(show(entry.path))
    changes.update(_update_records(root, entries, changes))
    refuse_unknown(root, entries, moves)
    rewritten = {path: change.sha256 for path, change in changes.items()}
    return Relocated(rewritten, links, leftovers[:LEFTOVERS_SHOWN], len(leftovers))


def moved_links(entries: Iterable[Entry], moves: Sequence[Move]) -> Dict[bytes, bytes]:
    """The new targets by path of the absolute links that lead below an old prefix."""
    targets = {
        entry.path: move_path(entry.target, moves)
        for entry in entries
        if entry.kind == LINK and entry.target[:1] == b"/"
    }
    return {
        entry.path: targets[entry.path] for entry in entries if targets.get(entry.path, entry.target) != entry.target
    }


def move_path(path: bytes, moves: Sequence[Move]) -> bytes:
    """An absolute path as it is after the moves. One that only passes through an old prefix (``/old/../x``) no longer does."""
    meant = os.path.normpath(path)
    for move in sorted(moves, key=lambda move: len(move.old), reverse=True):
        if below(meant, move.old):
            rest = path if below(path, move.old) and b"/.." not in path else meant
            return move.new + rest[len(move.old) :]
    return meant if any(below(path, move.old) for move in moves) else path


def below(path: bytes, prefix: bytes) -> bool:
    return path == prefix or path.startswith(prefix + b"/")


def _check_moves(moves: Sequence[Move]) -> None:
    for move in moves:
        for path in (move.old, move.new):
            if path[:1] != b"/" or path == b"/" or os.path.normpath(path) != path:
                raise TreeError(f"{show(path)} is no plain absolute path, so nothing can be relocated from or to it")
        try:
            printable = move.new.decode("utf-8").isprintable()
        except UnicodeDecodeError:
            printable = False
        if not printable:
            raise TreeError(
                f"scripts cannot name {show(move.new)}; set dest to a path without control characters, in UTF-8"
            )
        around = next((other.old for other in moves if below(move.new, other.old)), None)
        if around is not None:
            raise TreeError(
                f"{show(move.new)} lies inside {show(around)}, which the environment names as its old place; set another dest"
            )


def _worth_reading(entry: Entry) -> bool:
    directory, name = os.path.split(entry.path)
    if entry.mode & 0o111 or directory == b"bin":
        return True
    return entry.size <= TEXT_LIMIT and bool(TEXT_NAME.match(name))


def _relocate_file(root: bytes, entry: Entry, moves: Sequence[Move]) -> Tuple[Optional[Change], bool]:
    """Rewrite one file if it has to be; gives the change and whether it names an old prefix where nothing is rewritten."""
    full = os.path.join(root, entry.path)
    try:
        with _open(full) as file:
            old = file.read() if entry.size <= TEXT_LIMIT else file.read(HEAD_SIZE)
            new = _rewritten(entry, old, moves)
            change = _replace_file(full, entry, old, new, file) if new != old else None
    except OSError as error:
        raise TreeError(f"{show(full)}: {error.strerror}; it could not be relocated") from error
    if entry.size > TEXT_LIMIT or not any(move.old in new for move in moves) or b"\0" in new:
        return change, False
    return change, bool(_expression(move.old for move in moves).search(new))


def _open(full: bytes) -> BinaryIO:
    return open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0)


def _rewritten(entry: Entry, data: bytes, moves: Sequence[Move]) -> bytes:
    rewriter = _rewriter(entry.path)
    if rewriter and entry.size <= TEXT_LIMIT:
        return rewriter(data, moves)
    if data[:2] == b"#!" and (entry.mode & 0o111 or os.path.dirname(entry.path) == b"bin"):
        return _launcher(entry.path, data, moves)
    return data


def _rewriter(path: bytes) -> Optional[Rewriter]:
    """How a file that is known to name the environment's place is rewritten; None for all others."""
    directory, name = os.path.split(path)
    if path == b"pyvenv.cfg":
        return _settings
    if name == b"direct_url.json":
        return _urls
    if name.endswith(b".pth"):
        return _path_file
    if name.endswith(b".egg-link"):
        return _path_lines
    if directory == b"bin" and name in SHELL_SCRIPTS:
        return _shell
    if directory == b"bin" and name in OTHER_SCRIPTS:
        return _literals
    if EDITABLE.match(name) or (directory == b"bin" and name in PYTHON_SCRIPTS):
        return _python
    return None


def _expression(spellings: Iterable[bytes], after: bytes = AFTER) -> re.Pattern[bytes]:
    longest_first = sorted(set(spellings), key=len, reverse=True)
    return re.compile(BEFORE + b"(" + b"|".join(map(re.escape, longest_first)) + b")" + after)


def _substitute(data: bytes, spellings: Dict[bytes, bytes], after: bytes = AFTER) -> bytes:
    if not any(old in data for old in spellings):
        return data
    return _expression(spellings, after).sub(lambda found: spellings[found[1]], data)


def _settings(data: bytes, moves: Sequence[Move]) -> bytes:
    """pyvenv.cfg: values that are a path, and paths in ``command``; the prompt is a name for people."""
    lines = []
    for line in data.splitlines(keepends=True):
        key, equals, value = line.partition(b"=")
        path = value.strip()
        if key.strip() == b"command":
            line = _substitute(line, {move.old: move.new for move in moves})
        elif path[:1] == b"/" and key.strip() != b"prompt":
            line = key + equals + value.replace(path, move_path(path, moves), 1)
        lines.append(line)
    return b"".join(lines)


def _path_lines(data: bytes, moves: Sequence[Move]) -> bytes:
    lines = []
    for line in data.splitlines(keepends=True):
        path = line.rstrip()
        lines.append(move_path(path, moves) + line[len(path) :] if line[:1] == b"/" else line)
    return b"".join(lines)


def _path_file(data: bytes, moves: Sequence[Move]) -> bytes:
    """A .pth file: a path a line, but what begins with ``import`` is a program."""
    lines = data.splitlines(keepends=True)
    return b"".join(
        _python(line, moves) if line.startswith((b"import ", b"import\t")) else _path_lines(line, moves)
        for line in lines
    )


def _python(data: bytes, moves: Sequence[Move]) -> bytes:
    spellings = {}
    for move in moves:
        new = re.sub(rb"([\\'\"])", rb"\\\1", move.new)
        for old in (move.old, move.old.replace(b"\\", b"\\\\"), re.sub(rb"([\\'])", rb"\\\1", move.old)):
            spellings[old] = new
    return _substitute(data, spellings, AFTER_QUOTED)


def _literals(data: bytes, moves: Sequence[Move]) -> bytes:
    return _substitute(data, {move.old: move.new for move in moves}, AFTER_QUOTED)


def _urls(data: bytes, moves: Sequence[Move]) -> bytes:
    spellings = {}
    for move in moves:
        new = urllib.parse.quote(move.new).encode()
        for safe in ("/", "/~!$&'()*+,;=:@"):  # pip and uv differ in what they escape
            spellings[urllib.parse.quote(move.old, safe=safe).encode()] = new
    return _substitute(data, spellings, AFTER_QUOTED)


def _shell(data: bytes, moves: Sequence[Move]) -> bytes:
    """Text for sh, csh or fish: a path is found as it is spelled between the quotes around it, and quoted where it has to be."""
    table = {quote: _shell_spellings(moves, quote) for quote in (b"", b"'", b'"')}
    known = {old for spellings in table.values() for old in spellings}
    return b"".join(
        _shell_line(line, table) if any(old in line for old in known) else line
        for line in data.splitlines(keepends=True)
    )


def _shell_spellings(moves: Sequence[Move], quote: bytes) -> Dict[bytes, bytes]:
    spellings: Dict[bytes, bytes] = {}
    for move in sorted(moves, key=lambda move: len(move.old), reverse=True):
        if quote == b"'":
            for escaped in (b"'\"'\"'", b"'\\''", b"\\'"):
                spellings[move.old.replace(b"'", escaped)] = move.new.replace(b"'", b"'\"'\"'")
        elif quote == b'"':
            new = re.sub(rb'([\\"$`])', rb"\\\1", move.new)
            for old in (re.sub(rb'([\\"$`])', rb"\\\1", move.old), move.old):
                spellings[old] = new
        elif os.fsencode(shlex.quote(os.fsdecode(move.old))) == move.old:
            spellings[move.old] = os.fsencode(shlex.quote(os.fsdecode(move.new)))
    return spellings


def _shell_line(line: bytes, table: Dict[bytes, Dict[bytes, bytes]]) -> bytes:
    expressions = {
        quote: re.compile(BEFORE + b"(" + b"|".join(map(re.escape, old)) + b")" + (AFTER_QUOTED if quote else AFTER))
        for quote, old in table.items()
        if old
    }
    parts, position, quote = [], 0, b""
    while position < len(line):
        found = expressions[quote].match(line, position) if quote in expressions else None
        step = 2 if line[position : position + 1] == b"\\" and quote != b"'" else 1
        text = line[position : position + step]
        if found:
            parts.append(table[quote][found[1]])
            position = found.end()
            continue
        if quote and text == quote:
            quote = b""
        elif not quote and text in (b"'", b'"'):
            quote = text
        parts.append(text)
        position += step
    return b"".join(parts)


def _launcher(path: bytes, data: bytes, moves: Sequence[Move]) -> bytes:
    """A script, whatever follows its first line: the interpreter it names, also in the ``'''exec'`` form for long paths."""
    first, newline, rest = data.partition(b"\n")
    if not newline or b"\0" in first:
        return data
    if rest.startswith(EXEC_LINE):
        second, newline, rest = rest.partition(b"\n")
        return first + b"\n" + _shell(second, moves) + newline + rest
    blanks = first[2 : len(first) - len(first[2:].lstrip(b" \t"))]
    command = first[2 + len(blanks) :]
    old = max((move.old for move in moves if command.startswith(move.old + b"/")), key=len, default=b"")
    if not old:
        return _arguments(path, first, moves) + b"\n" + rest
    name = re.split(rb"[ \t]", command[len(old) :], maxsplit=1)[0]
    interpreter = {move.old: move.new for move in moves}[old] + name
    arguments = _arguments(path, command[len(old) + len(name) :], moves)
    line = b"#!" + blanks + interpreter + arguments
    runs = len(line) < KERNEL_LINE and not re.search(rb"\s", interpreter)
    if runs or first.endswith(b"\r"):  # with a carriage return it can only be given to an interpreter by name
        return line + b"\n" + rest
    if not PYTHON_NAME.match(os.path.basename(interpreter)):
        raise TreeError(
            f"{show(path)} starts {show(interpreter)}, which is too long or has a blank, so no kernel would find it; "
            "set a shorter dest without blanks"
        )
    word = os.fsencode(shlex.quote(os.fsdecode(interpreter)))
    return b"#!/bin/sh\n" + EXEC_LINE + word + arguments + b' "$0" "$@"\n' + b"' '''\n" + rest


def _arguments(path: bytes, text: bytes, moves: Sequence[Move]) -> bytes:
    moved = _substitute(text, {move.old: move.new for move in moves})
    if moved != text and (len(moved) >= KERNEL_LINE or any(re.search(rb"\s", move.new) for move in moves)):
        raise TreeError(
            f"the first line of {show(path)} would be too long or have a blank in a path; set a shorter dest without blanks"
        )
    return moved


def _replace_file(full: bytes, entry: Entry, old: bytes, new: bytes, rest: Optional[BinaryIO] = None) -> Change:
    """Put ``new`` in the place of a file that begins with ``old`` and goes on with ``rest``."""
    before, after = ([hashlib.new(name) for name in HASHES] for _unused in range(2))
    temporary = os.path.join(os.path.dirname(full), TEMPORARY)
    if os.path.lexists(temporary):
        os.unlink(temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    size = 0
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            while old or new:
                for digest in before:
                    digest.update(old)
                for digest in after:
                    digest.update(new)
                size += file.write(new)
                old = new = (rest.read(HASH_SIZE) or b"") if rest else b""
            file.flush()
            os.fchmod(file.fileno(), entry.mode)
            os.utime(file.fileno(), ns=(entry.mtime_ns, entry.mtime_ns))
        os.replace(temporary, full)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
    hashes = [{digest.name: _recorded(digest.digest()) for digest in digests} for digests in (before, after)]
    return Change(hashes[0], hashes[1], size, after[0].hexdigest())


def _recorded(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _replace_link(root: bytes, path: bytes, target: bytes) -> None:
    full = os.path.join(root, path)
    temporary = os.path.join(os.path.dirname(full), TEMPORARY)
    try:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        mtime_ns = os.lstat(full).st_mtime_ns
        os.symlink(target, temporary)
        os.utime(temporary, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        os.replace(temporary, full)
    except OSError as error:
        raise TreeError(f"{show(full)}: {error.strerror}; the link could not be relocated") from error


def _update_records(root: bytes, entries: List[Entry], changes: Dict[bytes, Change]) -> Dict[bytes, Change]:
    """Give rewritten files their new hash and size in the RECORDs that knew the old ones; gives the changes of those files."""
    updated: Dict[bytes, Change] = {}
    for entry in entries if changes else []:
        directory, name = os.path.split(entry.path)
        if entry.kind != FILE or name != b"RECORD" or not directory.endswith(b".dist-info"):
            continue
        full = os.path.join(root, entry.path)
        try:
            with _open(full) as file:
                old = b"".join(iter(lambda: file.read(HASH_SIZE), b""))
            new = b"".join(
                _record_line(line, os.path.dirname(directory), changes) for line in old.splitlines(keepends=True)
            )
            if new != old:
                updated[entry.path] = _replace_file(full, entry, old, new)
        except OSError as error:
            raise TreeError(f"{show(full)}: {error.strerror}; it could not be relocated") from error
    return updated


def _record_line(line: bytes, site: bytes, changes: Dict[bytes, Change]) -> bytes:
    """One line of the RECORD of a distribution in ``site``."""
    path = line.partition(b",")[0]
    if line[:1] == b'"':
        path = os.fsencode(next(csv.reader([os.fsdecode(line)]), [""])[0])
    change = changes.get(os.path.normpath(os.path.join(site, path)))
    if change is None:
        return line
    body = line.rstrip(b"\r\n")
    ending = line[len(body) :]
    head, _comma, _size = body.rpartition(b",")
    name, _comma, recorded = head.rpartition(b",")
    algorithm, _equals, value = recorded.partition(b"=")
    kind = show(algorithm)
    if not value or change.old.get(kind) != show(value.rstrip(b"=")):
        return line
    return name + b"," + algorithm + b"=" + change.new[kind].encode() + b",%d" % change.size + ending


def refuse_unknown(root: bytes, entries: Iterable[Entry], moves: Sequence[Move]) -> None:
    """Raise TreeError naming what the environment starts with and what still leads to an old prefix after the rewriting.

    That is bin/python*, pyvenv.cfg, the first lines of scripts in bin, and path files.
    """
    expression = _expression(move.old for move in moves)
    for entry in entries:
        directory, name = os.path.split(entry.path)
        full = os.path.join(root, entry.path)
        if directory == b"bin" and os.path.islink(full):
            says = os.readlink(full) if name.startswith(b"python") else b""
            found = any(below(os.path.normpath(says), move.old) for move in moves)
        elif entry.kind == FILE and (directory == b"bin" or entry.path == b"pyvenv.cfg" or name.endswith(b".pth")):
            found = bool(expression.search(_what_leads(entry.path, _head(full))))
        else:
            continue
        if found:
            places = ", ".join(show(move.old) for move in moves)
            raise TreeError(
                f"{show(entry.path)} still leads to the old place ({places}) in a form that is not known here, so the environment "
                "would not work; rebuild it at dest, or correct that file on the source"
            )


def _what_leads(path: bytes, data: bytes) -> bytes:
    """The part of a file that an interpreter or the kernel follows."""
    lines = data.split(b"\n")
    if path == b"pyvenv.cfg":
        return b"\n".join(line for line in lines if line.partition(b"=")[0].strip() != b"prompt")
    if path.endswith(b".pth"):
        return b"\n".join(line for line in lines if line[:1] != b"#")
    if data[:2] != b"#!":
        return b""
    return b"\n".join(lines[:2] if lines[1:] and lines[1].startswith(EXEC_LINE) else lines[:1])


def _head(full: bytes) -> bytes:
    try:
        with _open(full) as file:
            return file.read(TEXT_LIMIT if full.endswith(b".pth") else HEAD_SIZE)
    except OSError as error:
        raise TreeError(f"{show(full)}: {error.strerror}") from error
