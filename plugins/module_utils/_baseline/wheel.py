# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheel that a distribution was installed from, read without unpacking it.

What is hostile in a wheel is refused by name before a byte of it is read: members that climb out, are encrypted or there
twice, that overlap, or that would unpack to more than any wheel holds.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import unquote

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import (
    Distribution,
    Installed,
    is_installers,
    normalized,
    same_version,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import (
    Baseline,
    BaselineError,
    Expected,
    Reference,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._files import (
    hash_of,
    open_regular,
    read_beginning,
    show_name,
    some,
)

MEMBERS = 500_000
UNPACKED = 64 << 30
RATIO, SMALL = 100, 1 << 30  # a wheel that unpacks to more than SMALL and RATIO times its size is a bomb
THREADS = 8
FILE_NAME = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-(?P<build>[0-9][^-]*))?-[^-]+-[^-]+-[^-]+\.whl")


# What zipfile raises for damaged, encrypted and unknown content.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)


class Candidate(NamedTuple):
    path: str
    name: str
    version: str


class WheelBaseline:
    """Each distribution against the wheel of its name and version, out of one wheel or a folder of them."""

    def __init__(self, installed: Installed, baseline: Baseline) -> None:
        self.installed = installed
        self.place = baseline.path or ""
        self.candidates = _candidates(self.place)

    def reference(self, distribution: Optional[Distribution], versions: Sequence[str]) -> Reference:
        if distribution is None:
            raise AssertionError("it is of one distribution")
        there = [version for version in versions if self._fitting(distribution, version)]
        wheel = _Wheel(self._choose(distribution, (there or versions)[0]).path)
        files = wheel.expected(self.installed, distribution)
        return Reference(os.path.basename(wheel.path), files, wheel.content)

    def _choose(self, distribution: Distribution, version: str) -> Candidate:
        fitting = self._fitting(distribution, version)
        exact = [one for one in fitting if one.version.lower() == version.lower()]
        found = exact or fitting
        if len(found) > 1:
            found = [one for one in found if self._is_origin(one, distribution)] or found
        if len(found) == 1:
            return found[0]
        wanted = f"{distribution.name} {version}".strip()
        if found:
            raise BaselineError(
                f"{len(found)} wheels of {wanted}: {some([os.path.basename(one.path) for one in found])}",
                "which one was installed cannot be told by its WHEEL file; name it in path",
            )
        there = some([os.path.basename(one.path) for one in self._fitting(distribution) or self.candidates], 5)
        raise BaselineError(
            f"no wheel of {wanted} in {show_name(self.place)}, which has {there or 'no wheel at all'}",
            "put the wheel there that was installed, or name it in path",
        )

    def _fitting(self, distribution: Distribution, version: str = "") -> List[Candidate]:
        named = [one for one in self.candidates if normalized(one.name) == normalized(distribution.name)]
        return [one for one in named if not version or same_version(one.version, version)]

    def _is_origin(self, candidate: Candidate, distribution: Distribution) -> bool:
        """Whether build and tags are those of what was installed."""
        try:
            installed = read_beginning(os.path.join(self.installed.site, distribution.dist_info, "WHEEL"), 1 << 20)
        except OSError:
            return False
        wheel = _Wheel(candidate.path)
        return wheel.beginning(f"{wheel.dist_info}/WHEEL", 1 << 20) == installed


def _candidates(place: str) -> List[Candidate]:
    """Raises BaselineError where there is nothing to look at."""
    try:
        paths = [os.path.join(place, name) for name in sorted(os.listdir(place)) if name.endswith(".whl")]
    except NotADirectoryError:
        paths = [place]
    except OSError as error:
        raise BaselineError(
            f"{show_name(place)}: {error.strerror}", "name a wheel or a folder of wheels in path"
        ) from error
    found = []
    for path in paths:
        match = FILE_NAME.fullmatch(unquote(os.path.basename(path)))
        if match:
            found.append(Candidate(path, match["name"], match["version"]))
        elif path == place:
            raise BaselineError(
                f"{show_name(path)}, which is not named as a wheel",
                "the name must be <name>-<version>-<python>-<abi>-<platform>.whl, since it says what is in it",
            )
    return found


class _Wheel:
    """One wheel; ``members`` are its files by name."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            file = open_regular(path)
            self.size = os.fstat(file.fileno()).st_size
            self.archive = zipfile.ZipFile(file)
            infos = self.archive.infolist()
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise self._refused(said, "get the wheel again") from error
        self._refuse_hostile(infos)
        self.members = {info.filename: info for info in infos if not info.is_dir()}
        self.places: Dict[str, str] = {}  # members by where they are installed
        tops = {name.partition("/")[0] for name in self.members if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name)}
        if len(tops) != 1:
            raise self._refused(f"{len(tops)} dist-info directories with a file WHEEL instead of one")
        (self.dist_info,) = tops

    def _refused(
        self, what: str, hint: str = "it is no wheel to compare with; get it again from where it came"
    ) -> BaselineError:
        return BaselineError(f"{show_name(os.path.basename(self.path))}: {what}", hint)

    def _refuse_hostile(self, infos: List[zipfile.ZipInfo]) -> None:
        if len(infos) > MEMBERS:
            raise self._refused(f"{len(infos)} members, more than {MEMBERS}")
        unpacked, packed = sum(info.file_size for info in infos), sum(info.compress_size for info in infos)
        if packed > self.size:
            raise self._refused("its members overlap")
        if unpacked > UNPACKED or (unpacked > SMALL and unpacked > RATIO * self.size):
            raise self._refused(f"it unpacks to {unpacked >> 20} MiB out of {self.size >> 20} MiB")
        seen = set()
        for info in infos:
            name = show_name(info.orig_filename)
            parts = info.orig_filename.split("/")
            if (
                ".." in parts
                or info.orig_filename.startswith("/")
                or "\\" in info.orig_filename
                or "\0" in info.orig_filename
            ):
                raise self._refused(f"its member {name!r} leads out of where it is unpacked")
            if info.flag_bits & 1:
                raise self._refused(f"its member {name} is encrypted")
            if info.filename in seen:
                raise self._refused(f"its member {name} is there twice")
            seen.add(info.filename)

    def expected(self, installed: Installed, distribution: Distribution) -> Dict[str, Expected]:
        """The SHA-256 of every member by where it is installed, as members are read to their end and their CRC."""
        for name in self.members:
            if is_installers(name) or name.startswith(f"{self.dist_info}/RECORD."):
                continue
            if name.startswith(f"{self.dist_info}/") and self.dist_info != distribution.dist_info:
                continue
            place = installed_path(name, installed, distribution.name)
            if place is None:
                raise self._refused(f"its member {show_name(name)} is below an unknown directory of .data")
            if place in self.places:
                raise self._refused(f"its members {show_name(self.places[place])} and {show_name(name)} are one file")
            self.places[place] = name
        with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as pool:
            return dict(zip(self.places, pool.map(self._hashed, self.places.values())))

    def _hashed(self, name: str) -> Expected:
        with self._open(name) as member:
            return Expected("sha256", hash_of(member))

    def beginning(self, name: str, limit: int) -> bytes:
        with self._open(name) as member:
            return member.read(limit)

    def content(self, path: str, limit: int) -> bytes:
        return self.beginning(self.places[path], limit)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self.archive.open(self.members[name]) as member:
                yield member
        except UNREADABLE as error:
            raise self._refused(f"its member {show_name(name)} cannot be read: {error}") from error


def installed_path(member: str, installed: Installed, distribution: str) -> Optional[str]:
    """Where installers put a wheel's member, relative to site-packages; ``None`` for a scheme that does not exist."""
    top, _slash, rest = member.partition("/")
    if not (top.endswith(".data") and rest and re.fullmatch(r"[^-]+-[^-]+\.data", top)):
        return member
    scheme, _slash, path = rest.partition("/")
    prefix = os.path.relpath(installed.root, installed.site)
    python = posixpath.basename(posixpath.dirname(installed.site))
    places: Dict[str, Tuple[str, ...]] = {
        "purelib": (),
        "platlib": (),
        "scripts": (prefix, "bin"),
        "data": (prefix,),
        "headers": (prefix, "include", "site", python, distribution),
    }
    return posixpath.normpath(posixpath.join(*places[scheme], path)) if scheme in places and path else None
