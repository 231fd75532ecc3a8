# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that takes the way back without a controller: one file that needs no release, and how it is built.

``python3 -I way-back.pyz restore [--boot] STEM`` takes the way back of a family when one is pending, ``status STEM`` says whether one is.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import io
import json
import os
import sys
import zipfile
from typing import Iterator, List

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    ReleaseError,
    Store,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service import restore as restoring
from ansible_collections.ddtree.fleet.plugins.module_utils._service import way_back
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths, ServiceError, boot_id
from ansible_collections.ddtree.fleet.plugins.module_utils._service.steps import Steps

PACKAGE = "ansible_collections.ddtree.fleet.plugins.module_utils"
MAIN = f"import sys\nfrom {PACKAGE}._service.program import main\nsys.exit(main(sys.argv[1:]))\n"


@functools.cache
def build() -> bytes:
    """The program: this module and all of ours that it needs, under their own names, wherever they were loaded from here."""
    files = {"__main__.py": MAIN}
    waiting = [f"{PACKAGE}._service.program"]
    while waiting:
        name = waiting.pop()
        path = name.replace(".", "/") + ".py"
        if path not in files:
            files[path] = _source(name)
            waiting += _imported(files[path])
    for path in list(files):
        folder = os.path.dirname(path)
        while folder:
            files[folder + "/__init__.py"] = ""
            folder = os.path.dirname(folder)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, source in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path), source)
    return content.getvalue()


def _imported(source: str) -> Iterator[str]:
    """Our modules that a source imports; a package is imported for a module in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
            inside = [f"{node.module}.{item.name}" for item in node.names]
            yield from (inside if _is_package(str(node.module)) else [str(node.module)])


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def write(path: str) -> None:
    write_atomically(path, build(), 0o600)


def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    source = spec.loader.get_source(name) if spec and spec.loader and hasattr(spec.loader, "get_source") else None
    if source is None:
        raise ServiceError(f"the program that goes back cannot be built: the source of {name} is not there")
    return str(source)


def main(arguments: List[str]) -> int:
    """Run one command; gives the exit status, 0 also where nothing is pending."""
    parser = argparse.ArgumentParser(prog="way-back.pyz", description="Takes the way back of a family of units.")
    parser.add_argument("--version", action="version", version="ddtree.fleet way back")
    commands = parser.add_subparsers(dest="command", required=True)
    restore = commands.add_parser("restore", help="take the way back when one is pending")
    restore.add_argument(
        "--boot", action="store_true", help="at boot: put everything back and leave starting to systemd"
    )
    status = commands.add_parser("status", help="say what is pending")
    for command in (restore, status):
        command.add_argument("--root", default="", help=argparse.SUPPRESS)
        command.add_argument("stem", help="such as sglang-ddtree for sglang-ddtree.service")
    given = parser.parse_args(arguments)
    paths = Paths(given.stem, given.root)
    try:
        return _status(paths) if given.command == "status" else _restore(paths, given.boot)
    except (ServiceError, ReleaseError) as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename or given.stem}: {error.strerror or error}"
    _say(f"way back of {given.stem}: {problem}", problem=True)
    return 1


def _status(paths: Paths) -> int:
    marker = markers.load(paths)
    if marker is None:
        _say(f"{paths.stem}: nothing is pending")
        return 0
    back = f"release {marker.way_back}" if marker.way_back else "what was there before any release"
    _say(
        f"{paths.stem}: release {marker.release} of {markers.who(marker)} is {marker.phase} and not confirmed; {back} comes back {marker.due(boot_id())}"
    )
    return 0


def _restore(paths: Paths, boot: bool) -> int:
    pending = markers.load(paths)
    wait = pending.restore_seconds() if pending else markers.MORE_SECONDS
    steps = Steps()
    with markers.locked(paths, "the way back at boot" if boot else "the way back", wait):
        marker = markers.load(paths)
        if marker is None:
            way_back.clean(paths)
            _say(f"{paths.stem}: nothing is pending")
            return 0
        reason = "the host was booted anew" if boot else f"nobody confirmed it within {marker.timeout} s"
        done = restoring.restore(paths, marker, steps, reason, "boot" if boot else "timer", boot=boot)
    back = f"release {done.way_back}" if done.way_back else "what was there before"
    _say(f"{paths.stem}: release {done.release} was taken back ({done.reason}); {back} is there again")
    for remark in (*done.remarks, *done.not_started):
        _say(f"{paths.stem}: {remark}", problem=True)
    _say(
        json.dumps(
            {"start_seconds": done.start_seconds, "teardown_seconds": done.teardown_seconds, "steps": steps.taken}
        )
    )
    if not boot:
        problems = restoring.prove(Store(marker.dest), done, paths.stem, marker.ready_timeout)
        for problem in problems:
            _say(f"{paths.stem}: not healthy within {marker.ready_timeout} s: {problem}", problem=True)
    return 0


def _say(text: str, problem: bool = False) -> None:
    """One line for the journal, at once."""
    stream = sys.stderr if problem else sys.stdout
    stream.write(text + "\n")
    stream.flush()
