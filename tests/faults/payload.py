# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of about 30 MB made from a seed, a second version of each, and snapshots to compare what became of them."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Collection

SMALL_FILES = 300
ODD_NAMES = (
    b"with space",
    b"new\nline",
    b"quote'\"s",
    b"back\\slash",
    b"\xff\xfe not utf-8",
    b"-rf",
    b"$HOME",
    "sch\u00f6n \u2603".encode(),
    b"n" * 200,
)
MODES = (0o644, 0o644, 0o755, 0o600, 0o444)
LARGE, TEXT = b"lib/large.bin", b"lib/text.txt"

# Kind, permission bits, size, mtime_ns, and content digest or link target, by path. Directories have no size.
Seen = tuple[str, int, int, int, bytes]
Snapshot = dict[bytes, Seen]


def make(root: bytes, rng: random.Random) -> None:
    """The first version of a tree."""
    for folder in (b"bin", b"lib/a/b/c", b"lib/empty", b"share/odd names", b"private"):
        os.makedirs(os.path.join(root, folder))
    os.chmod(os.path.join(root, b"private"), 0o700)
    for number in range(SMALL_FILES):
        write(root, _small_name(number), rng.randbytes(int(rng.paretovariate(0.7) * 200) % 40_000), rng)
    for number in range(16):
        write(root, b"lib/middle-%d.so" % number, rng.randbytes(rng.randrange(100_000, 600_000)), rng)
    for name in ODD_NAMES:
        write(root, b"share/odd names/" + name, rng.randbytes(100), rng)
    write(root, b"lib/none", b"", rng)
    write(root, b"lib/same-1", b"same" * 5000, rng)
    write(root, b"lib/same-2", b"same" * 5000, rng)
    write(root, LARGE, rng.randbytes(rng.randrange(12 << 20, 16 << 20)), rng)
    write(root, TEXT, _text(rng, 8 << 20), rng)
    os.link(os.path.join(root, _small_name(0)), os.path.join(root, b"bin/hard link"))
    for name, target in ((b"bin/tool", b"../lib/middle-0.so"), (b"lib64", b"lib"), (b"bin/\xff link", b"tool")):
        os.symlink(target, os.path.join(root, name))


def advance(root: bytes, rng: random.Random) -> None:
    """The second version: a third of the small files, half of the middle ones and the large one are other than before."""
    for number in range(SMALL_FILES):
        choice = rng.random()
        if choice < 0.3:
            replace(root, _small_name(number), rng.randbytes(rng.randrange(1, 20_000)), rng)
        elif choice < 0.35:
            os.unlink(os.path.join(root, _small_name(number)))
        elif choice < 0.4:
            os.chmod(os.path.join(root, _small_name(number)), 0o640)
    for number in range(0, 16, 2):
        replace(root, b"lib/middle-%d.so" % number, rng.randbytes(rng.randrange(100_000, 600_000)), rng)
    replace(root, LARGE, rng.randbytes(rng.randrange(12 << 20, 16 << 20)), rng)
    if rng.random() < 0.5:
        replace(root, TEXT, _text(rng, 9 << 20), rng)
    shutil.rmtree(os.path.join(root, b"private"))
    write(root, b"private", b"a file where a directory was", rng)
    os.makedirs(os.path.join(root, b"new/deep/folder"))
    for number in range(40):
        write(root, b"new/deep/file-%d" % number, rng.randbytes(rng.randrange(1, 10_000)), rng)
    os.unlink(os.path.join(root, b"bin/tool"))
    os.symlink(b"../lib/middle-1.so", os.path.join(root, b"bin/tool"))


def write(root: bytes, path: bytes, content: bytes, rng: random.Random) -> None:
    full = os.path.join(root, path)
    with open(full, "wb") as file:
        file.write(content)
    os.chmod(full, rng.choice(MODES))
    when = rng.randrange(1_600_000_000, 1_750_000_000) * 1_000_000_000 + rng.randrange(1_000_000_000)
    os.utime(full, ns=(when, when))


def replace(root: bytes, path: bytes, content: bytes, rng: random.Random) -> None:
    if os.path.lexists(os.path.join(root, path)):
        os.unlink(os.path.join(root, path))
    write(root, path, content, rng)


def _small_name(number: int) -> bytes:
    return (b"lib/small-%d.py", b"lib/a/b/small-%d.py", b"lib/a/b/c/small-%d.py")[number % 3] % number


def _text(rng: random.Random, size: int) -> bytes:
    words = [rng.randbytes(6).hex().encode() for _unused in range(64)]
    block = b" ".join(rng.choice(words) for _unused in range(4096))
    return (block * (size // len(block) + 1))[:size]


def snapshot(root: bytes, ignored: Collection[bytes] = ()) -> Snapshot:
    """Everything below ``root`` but the names ``ignored`` directly in it. An absent root gives an empty snapshot."""
    found: Snapshot = {}
    pending = [b""]
    while pending:
        folder = pending.pop()
        try:
            names = os.listdir(os.path.join(root, folder) if folder else root)
        except FileNotFoundError:
            continue
        for name in names:
            if not folder and name in ignored:
                continue
            path = os.path.join(folder, name)
            found[path] = look(os.path.join(root, path))
            if found[path][0] == "d":
                pending.append(path)
    return found


def look(full: bytes) -> Seen:
    """What stands at one path."""
    st = os.lstat(full)
    mode = stat.S_IMODE(st.st_mode)
    if stat.S_ISDIR(st.st_mode):
        return "d", mode, 0, st.st_mtime_ns, b""
    if stat.S_ISLNK(st.st_mode):
        return "l", 0, st.st_size, st.st_mtime_ns, os.readlink(full)
    with open(full, "rb") as file:
        return "f", mode, st.st_size, st.st_mtime_ns, hashlib.file_digest(file, "sha256").digest()


def timeless(seen: Snapshot) -> Snapshot:
    """A snapshot without what a stream does not carry: the modification times of directories."""
    return {path: (*one[:3], one[3] if one[0] != "d" else 0, one[4]) for path, one in seen.items()}


def difference(one: Snapshot, other: Snapshot) -> str:
    """The first few paths that are not the same in both, empty when all are."""
    paths = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
    shown = [f"{path!r} {one.get(path)} -> {other.get(path)}" for path in paths[:3]]
    return "; ".join([*shown, *([f"and {len(paths) - 3} more"] if len(paths) > 3 else [])])
