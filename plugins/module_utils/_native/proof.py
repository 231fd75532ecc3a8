# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds an environment's native libraries against what is asked of them.

A library is read once for all questions. To ask another question, add a function beside ``_check_libraries`` and call it in
``prove``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._files import show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError
from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import Architecture
from ansible_collections.ddtree.fleet.plugins.module_utils._native.cuobjdump import (
    CuobjdumpError,
    find_tools,
    list_images,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import (
    Dynamic,
    Elf,
    ElfError,
    ForeignError,
    TruncatedError,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._native.fatbin import Fatbins, read_fatbins
from ansible_collections.ddtree.fleet.plugins.module_utils._native.host import (
    DRIVER,
    ENVIRONMENT,
    Host,
    Libraries,
    index_libraries,
    read_host,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._native.request import Group, Request
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment, PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import NAMES_IN_MESSAGE
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

FILES_SHOWN, NAME_SHOWN = 200, 255
NO_CODE = "install a build of the package for this GPU, or name the library that this GPU loads"
NO_TOOL = "install a cuobjdump that can read it, in the environment or on the host (package nvidia-cuda-cuobjdump)"


class Proof(NamedTuple):
    """``result`` is for JSON: bounded, and what was seen whether it was asked for or not."""

    checks: List[Check]
    warnings: List[str]
    result: Dict[str, Any]


@dataclass
class Reading:
    """One library as read. ``foreign`` and ``damaged`` say why there is nothing, ``unread`` why GPU code may be missing."""

    file: str
    path: str
    dynamic: Dynamic = field(default_factory=Dynamic)
    fatbins: Fatbins = field(default_factory=Fatbins)
    foreign: str = ""
    damaged: str = ""
    unread: str = ""
    reader: str = ""
    unresolved: List[str] = field(default_factory=list)
    from_environment: List[str] = field(default_factory=list)

    def result(self) -> Dict[str, Any]:
        images = self.fatbins.images()
        found: Dict[str, Any] = {
            "file": show_name(self.file),
            "sass": [str(image) for image in sorted(images) if not image.ptx],
            "ptx": [str(image) for image in sorted(images) if image.ptx],
            "fatbins": self.fatbins.count,
            "entries": self.fatbins.entries,
            "reader": self.reader,
            "glibc": self.glibc(),
            "unresolved": self.unresolved[:NAMES_IN_MESSAGE],
            "from_environment": self.from_environment[:FILES_SHOWN],
            "problem": self.foreign or self.damaged or self.unread,
        }
        return {key: value for key, value in found.items() if value}

    def glibc(self) -> str:
        """The newest version of glibc that the library needs."""
        matches = [re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", version.name) for version in self.dynamic.versions]
        return max((match[1] for match in matches if match), key=_numbers, default="")


class Coverage(NamedTuple):
    """In how many of a library's fatbins a GPU finds code: finished, or only to be compiled."""

    finished: int
    compiled: int
    total: int
    reading: Reading

    def sentence(self) -> str:
        if not self.total:
            return f"code in {show_name(self.reading.file)}"
        return f"{self.finished + self.compiled} of {self.total} fatbins of {show_name(self.reading.file)}"


def prove(environment: Environment, request: Request) -> Proof:
    """Look at all that is asked, in one go. Raises PatchError for a directory that cannot be read."""
    proof = Proof([], [], {})
    unverified: List[str] = []
    host = _host(request, proof, unverified)
    try:
        below = index_libraries(environment.site)
    except OSError as error:
        raise PatchError(f"{show_name(error.filename)}: {error.strerror}") from error
    tools = find_tools(environment.root, environment.site)
    readings: Dict[str, Reading] = {}
    for group in request.groups:
        files = sorted(file for file in below if group.matches(file))
        for file in files:
            if file not in readings:
                readings[file] = _read(file, below[file], host.machine, tools)
        found = [readings[file] for file in files if not readings[file].foreign]
        hint = (
            "" if found else f"patterns are relative to {environment.site}, and only names such as x.so or x.so.1 count"
        )
        seen = f"{len(found)} of {len(files)} that match" if len(found) < len(files) else str(len(files))
        proof.checks.append(
            Check("native libraries", bool(found), f"libraries for {host.machine}", seen, hint, group.pattern)
        )
        _check_architectures(group, found, host, proof)
    _check_intact(readings, proof, unverified)
    libraries = Libraries(host.machine, _by_name(environment, below))
    whole = [reading for reading in readings.values() if not (reading.foreign or reading.damaged)]
    if request.libraries:
        _check_libraries(whole, libraries, host, proof, unverified)
    if request.glibc:
        _check_versions(whole, libraries, host, proof, unverified)
    proof.warnings.extend(f"not verified: {what}" for what in unverified)
    shown = [reading.result() for _file, reading in sorted(readings.items())]
    proof.result.update(
        files=[one for one in shown if set(one) - {"file", "glibc", "from_environment"}][:FILES_SHOWN],
        counts={"files": len(readings), "with_gpu_code": sum(bool(one.fatbins.images()) for one in readings.values())},
        host={"glibc": host.glibc, "architectures": [str(one) for one in host.architectures]},
        not_verified=unverified[:FILES_SHOWN],
    )
    return proof


def _host(request: Request, proof: Proof, unverified: List[str]) -> Host:
    asked = any(group.for_host for group in request.groups)
    try:
        host, problem = read_host(), ""
    except HostError as error:
        host, problem = read_host(with_gpus=False), str(error)
    if problem and asked:
        hint = "repair the GPU driver; require_arch of host needs its answer"
        proof.checks.append(Check("GPUs of this host", False, "nvidia-smi names them", problem, hint))
    elif problem:
        unverified.append(f"the GPUs of this host: {problem}")
    elif asked and not host.architectures:
        unverified.append(
            "GPU code for this host, which has no GPU (no nvidia-smi); name the architecture to ask for it"
        )
    return host


def _read(file: str, path: str, machine: str, tools: List[str]) -> Reading:
    reading = Reading(file, path)
    try:
        with Elf(path) as elf:
            if elf.machine != machine:
                reading.foreign = f"a library for {elf.machine}"
                return reading
            reading.dynamic = elf.dynamic()
            _read_gpu_code(elf, reading, tools)
    except ForeignError as error:
        reading.foreign = str(error)
    except ElfError as error:
        reading.damaged = str(error)
    except OSError as error:
        reading.damaged = str(error.strerror)
    return reading


def _read_gpu_code(elf: Elf, reading: Reading, tools: List[str]) -> None:
    try:
        reading.fatbins = read_fatbins(elf)
        reading.unread = ", ".join(reading.fatbins.unknown)
    except TruncatedError:
        raise
    except ElfError as error:
        reading.unread = str(error)
    if not reading.unread:
        reading.reader = "headers" if reading.fatbins.entries else ""
        return
    try:
        images = list_images(tools, reading.path)
    except CuobjdumpError as error:
        reading.unread += f"; {error}"
        return
    reading.fatbins = Fatbins()
    reading.fatbins.containers[frozenset(images)] = 1
    reading.unread, reading.reader = "", "cuobjdump"


def _check_architectures(group: Group, readings: Sequence[Reading], host: Host, proof: Proof) -> None:
    """One check for each wanted architecture: at least one of the group's libraries has code that such a GPU runs."""
    for wanted in dict.fromkeys([*group.architectures, *(host.architectures if group.for_host else ())]):
        name, expected = f"GPU code for {wanted}", "one library with code for it"
        best = max((_coverage(reading, wanted) for reading in readings), key=_quality, default=None)
        if best and best.finished + best.compiled:
            proof.checks.append(Check(name, True, expected, best.sentence(), "", group.pattern))
            _warn(best, wanted, proof)
            continue
        unread = [reading for reading in readings if reading.unread]
        if unread:
            found = f"not verified: {show_name(unread[0].file)}: {unread[0].unread}"
        else:
            carried = sorted({image for reading in readings for image in reading.fatbins.images()})
            found = ", ".join(str(image) for image in carried) or "no GPU code"
        proof.checks.append(Check(name, False, expected, found, NO_TOOL if unread else NO_CODE, group.pattern))


def _coverage(reading: Reading, wanted: Architecture) -> Coverage:
    finished = compiled = 0
    for images, count in reading.fatbins.containers.items():
        running = [image for image in images if image.runs_on(wanted)]
        if any(not image.ptx for image in running):
            finished += count
        elif running:
            compiled += count
    return Coverage(finished, compiled, reading.fatbins.count, reading)


def _quality(coverage: Coverage) -> Tuple[float, int]:
    return (coverage.finished + coverage.compiled) / (coverage.total or 1), coverage.finished


def _warn(best: Coverage, wanted: Architecture, proof: Proof) -> None:
    file, covered = show_name(best.reading.file), best.finished + best.compiled
    if best.compiled:
        proof.warnings.append(
            f"{file} has only PTX for {wanted} in {best.compiled} of its fatbins: it will be compiled at first use"
        )
    if covered < best.total:
        proof.warnings.append(
            f"{file} has no code for {wanted} in {best.total - covered} of {best.total} fatbins: kernels in those cannot be launched"
        )


def _check_intact(readings: Dict[str, Reading], proof: Proof, unverified: List[str]) -> None:
    for file, reading in sorted(readings.items()):
        if reading.damaged:
            hint = "install its package again"
            proof.checks.append(Check("native library", False, "intact", reading.damaged, hint, show_name(file)))
        elif reading.foreign or reading.unread:
            unverified.append(f"{show_name(file)}: {reading.foreign or reading.unread}")


def _by_name(environment: Environment, below: Dict[str, str]) -> Dict[str, str]:
    """The libraries of the environment and of the interpreter under it, by file name."""
    found: Dict[str, str] = {}
    interpreter = os.path.dirname(os.path.dirname(os.path.realpath(environment.interpreter)))
    for path in sorted(below.values()):
        found.setdefault(os.path.basename(path), path)
    for base in (environment.root, interpreter):
        directory = os.path.join(base, "lib")
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            found.setdefault(name, os.path.join(directory, name))
    return found


def _check_libraries(
    readings: Sequence[Reading], libraries: Libraries, host: Host, proof: Proof, unverified: List[str]
) -> None:
    missing: Dict[str, List[str]] = {}
    driver: Dict[str, List[str]] = {}
    for reading in readings:
        for name in reading.dynamic.needed:
            found = libraries.find(name, reading.path, reading.dynamic)
            if found and found.where == ENVIRONMENT:
                reading.from_environment.append(_shown(name))
            elif not found and DRIVER.fullmatch(name) and not host.architectures:
                driver.setdefault(name, []).append(reading.file)
            elif not found:
                reading.unresolved.append(_shown(name))
                missing.setdefault(name, []).append(reading.file)
    proof.checks.append(
        _named(
            "needed libraries",
            "every needed library to be found",
            [f"{_shown(name)} for {_files(files)}" for name, files in sorted(missing.items())],
            "install the packages that have them, in the environment or on the host",
        )
    )
    unverified.extend(
        f"{_shown(name)} of the GPU driver, which this host without GPU has not, for {_files(files)}"
        for name, files in sorted(driver.items())
    )


def _check_versions(
    readings: Sequence[Reading], libraries: Libraries, host: Host, proof: Proof, unverified: List[str]
) -> None:
    missing: Dict[str, List[str]] = {}
    unknown: Dict[str, List[str]] = {}
    for reading in readings:
        names = {version.library for version in reading.dynamic.versions}
        places = {name: libraries.find(name, reading.path, reading.dynamic) for name in names}
        for version in reading.dynamic.versions:
            found = places[version.library]
            defined = libraries.defined(found.path) if found else frozenset()
            if not found:
                unknown.setdefault(version.library, []).append(reading.file)
            elif defined and not version.weak and version.name not in defined:
                missing.setdefault(f"{_shown(version.name)} of {show_name(found.path)}", []).append(reading.file)
    proof.checks.append(
        _named(
            "symbol versions",
            f"only versions that this host has (glibc {host.glibc})"
            if host.glibc
            else "only versions that this host has",
            [f"{what} for {_files(files)}" for what, files in sorted(missing.items())],
            "use a host with a newer system, or a build of the package for this one",
        )
    )
    unverified.extend(
        f"the symbol versions of {_shown(name)}, which is not found, for {_files(list(dict.fromkeys(files)))}"
        for name, files in sorted(unknown.items())
    )


def _named(name: str, expected: str, problems: Sequence[str], hint: str) -> Check:
    shown = "; ".join(problems[:NAMES_IN_MESSAGE])
    if len(problems) > NAMES_IN_MESSAGE:
        shown += f"; and {len(problems) - NAMES_IN_MESSAGE} more"
    return Check(
        name,
        not problems,
        expected,
        f"{len(problems)} missing: {shown}" if problems else "all",
        hint if problems else "",
    )


def _shown(name: str) -> str:
    """A name from inside a library, which may be of any length."""
    return show_name(name[:NAME_SHOWN])


def _files(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return show_name(files[0]) + more


def _numbers(version: str) -> List[int]:
    return [int(part) for part in version.split(".")]
