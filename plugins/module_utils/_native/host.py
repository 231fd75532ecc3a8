# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host and an environment offer to a library: GPUs, the C library, and the files that needed names are found in.

Names are looked up as ld.so does it for a service, so without LD_LIBRARY_PATH. What only the environment has counts as found
too, since packages load their neighbours' libraries themselves before they import what needs them, as torch does.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Dict, FrozenSet, NamedTuple, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError, gpus
from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import Architecture
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import Dynamic, Elf, ElfError

CACHE = "/etc/ld.so.cache"
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_HEADER, CACHE_ENTRY = struct.Struct("<20sII20x"), struct.Struct("<iIIIQ")
CACHE_FLAGS = {"x86_64": 0x0300, "aarch64": 0x0A00}  # which of the libraries there are for this processor
MAX_CACHE = 64 << 20
DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
DRIVER = re.compile(r"lib(cuda|nvcuvid|nvidia-[a-z-]+)\.so\.\d+")  # of the driver, so absent where there is no GPU
LIBRARY = re.compile(r".+\.so(\.\d+)*")

OWN, SYSTEM, ENVIRONMENT = "its own path", "the system", "the environment"


class Found(NamedTuple):
    path: str
    where: str


class Host(NamedTuple):
    """``glibc`` is empty where the C library is another."""

    machine: str
    glibc: str
    architectures: Sequence[Architecture]


def read_host(with_gpus: bool = True) -> Host:
    """Raises HostError where there is a GPU driver that does not answer as it should."""
    capabilities = sorted({gpu["compute_capability"] for gpu in gpus()}) if with_gpus else []
    return Host(os.uname().machine, _glibc(), sorted(map(_architecture, capabilities)))


def _architecture(capability: str) -> Architecture:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", capability)
    if not match:
        raise HostError(f"nvidia-smi names {capability[:40]!r} as the compute capability of a GPU; update the driver")
    return Architecture(int(match[1] + match[2]))


def _glibc() -> str:
    try:
        name, _space, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except ValueError:  # another C library does not know the question
        return ""
    return version if name == "glibc" else ""


class Libraries:
    """Where needed libraries are found. ``index`` gives the paths of the environment by file name."""

    def __init__(self, machine: str, index: Dict[str, str], cache: str = CACHE) -> None:
        self._index = index
        self._cache = _read_cache(cache, machine)
        self._directories = (
            *(f"{start}/{machine}-linux-gnu" for start in ("/lib", "/usr/lib")),  # Debian's own
            *DIRECTORIES,
        )
        self._defined: Dict[str, FrozenSet[str]] = {}

    def find(self, name: str, path: str, dynamic: Dynamic) -> Optional[Found]:
        """The file that the library at ``path`` gets for a needed name."""
        if "/" in name:
            return Found(name, OWN) if os.path.isfile(name) else None
        origin = os.path.dirname(os.path.realpath(path))
        for directory in (dynamic.runpath or dynamic.rpath).split(":"):
            directory = re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _match: origin, directory)
            if directory and os.path.isfile(os.path.join(directory, name)):
                return Found(os.path.join(directory, name), OWN)
        for candidate in (self._cache.get(name, ""), *(os.path.join(place, name) for place in self._directories)):
            if candidate and os.path.isfile(candidate):
                return Found(candidate, SYSTEM)
        return Found(self._index[name], ENVIRONMENT) if name in self._index else None

    def defined(self, path: str) -> FrozenSet[str]:
        """The symbol versions that a found library offers; none where it has none or cannot be read."""
        if path not in self._defined:
            try:
                with Elf(path) as elf:
                    self._defined[path] = elf.dynamic().defined
            except (ElfError, OSError):
                self._defined[path] = frozenset()
        return self._defined[path]


def index_libraries(directory: str) -> Dict[str, str]:
    """The shared libraries below a directory: path by path relative to it. Links to directories are not followed.

    Raises OSError for a directory that cannot be read, since what is in it would go unseen.
    """

    def end(error: OSError) -> None:
        raise error

    found = {}
    for place, _directories, names in os.walk(directory, onerror=end):
        for name in names:
            if LIBRARY.fullmatch(name):
                path = os.path.join(place, name)
                found[os.path.relpath(path, directory)] = path
    return found


def _read_cache(path: str, machine: str) -> Dict[str, str]:
    """Paths by name from the cache of ld.so; empty where there is none or it is of another form."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CACHE)
    except OSError:
        return {}
    data = data[max(data.find(CACHE_MAGIC), 0) :]  # an older form may stand before it
    found: Dict[str, str] = {}
    if len(data) < CACHE_HEADER.size or not data.startswith(CACHE_MAGIC):
        return found
    _magic, count, _size = CACHE_HEADER.unpack_from(data)
    count = min(count, (len(data) - CACHE_HEADER.size) // CACHE_ENTRY.size)
    for number in range(count):
        flags, name, value, _os, _hardware = CACHE_ENTRY.unpack_from(
            data, CACHE_HEADER.size + number * CACHE_ENTRY.size
        )
        if flags & 0xFF00 == CACHE_FLAGS.get(machine):
            found.setdefault(_text(data, name), _text(data, value))
    return found


def _text(data: bytes, place: int) -> str:
    end = data.find(b"\0", place)
    return os.fsdecode(data[place:end]) if end >= 0 else ""
