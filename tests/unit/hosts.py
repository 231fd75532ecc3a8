# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts for the relay that all are this one: real agents, in some of which a few lines run first, to fail where a host may fail."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP, PACKAGE
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Request, Target
from ansible_collections.ddtree.fleet.tests.unit.agents import releases

MIB = 1 << 20


def request(src: Any, dest: Any, **more: Any) -> Request:
    fields: Dict[str, Any] = {
        "src": str(src),
        "dest": str(dest),
        "exclude": [],
        "source": "source",
        "full": False,
        "repair": False,
    }
    fields.update({"bytecode": True, "check": False, "run": "run", "who": "me", "take_over": False, "idle": 10.0})
    return Request(**{**fields, **more})


def here(name: str, program: str = BOOTSTRAP) -> Endpoint:
    """A host that is this one, with the real agent or a ``program`` in its place."""
    return Endpoint(name, [sys.executable, "-c", program], 10)


def elsewhere(name: str, program: str = BOOTSTRAP) -> Endpoint:
    """The same by another connection, so that nothing tells that it is this machine, too."""
    return Endpoint(name, [sys.executable, "-X", f"host={name}", "-c", program], 10)


def recorded(name: str, program: str, file: Path) -> Endpoint:
    """A host with everything that is sent to it in ``file``, too."""
    agent = shlex.join([sys.executable, "-c", program])
    return Endpoint(name, ["/bin/sh", "-c", f"tee {shlex.quote(str(file))} | {agent}"], 10)


def altered(code: str) -> str:
    """The real agent with some lines that run in it before it serves."""
    names = "addresses, codec, conversation, progress, receiver, sender, sinks, source, staging, target"
    lines = f"import time\nfrom {PACKAGE} import _releases\nfrom {PACKAGE}._stream import {names}\n{code}\nagent.main("
    load = "exec(i.read(int(i.readline()or 0)))"
    assert load in BOOTSTRAP
    return BOOTSTRAP.replace(load, f"exec(i.read(int(i.readline()or 0)).replace(b'agent.main(', {lines.encode()!r}))")


def below(root: Path, code: str = "") -> str:
    """An agent whose releases all are below ``root``, so that several hosts with the same dest fit on this one."""
    root.mkdir(exist_ok=True)
    store = (
        "make = _releases.Store.__init__\n"
        "def make_below(self, dest, root=''):\n"
        f"    make(self, dest if root else {str(root)!r} + dest, root)\n"
        "_releases.Store.__init__ = make_below\n"
    )
    return altered(store + code)


def target(endpoint: Endpoint) -> Target:
    return Target(endpoint, sys.executable)


def hosts(tmp_path: Path, *names: str, code: str = "") -> List[Target]:
    """Targets by name, each with a folder of its own in place of the root directory."""
    return [target(here(name, below(tmp_path / name, code))) for name in names]


def run(
    wanted: Request,
    targets: List[Target],
    source: Optional[Endpoint] = None,
    say: Callable[[str], None] = lambda line: None,
) -> Dict[str, Any]:
    return Relay(wanted, say).run(source or here("source"), sys.executable, targets)


def verdicts(targets: List[Target]) -> Dict[str, Dict[str, Any]]:
    return {one.verdict.host: dataclasses.asdict(one.verdict) for one in targets}


def content(root: Path) -> Dict[str, bytes]:
    """Every file below ``root`` but bytecode."""
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


# Lines for ``altered``: what may go wrong on a host.

# Dies when it has got so many blocks, once what came before is written.
DIES_AFTER = """
take = receiver.Receiver._take
taken = []
def dying(self, data, zeros):
    take(self, data, zeros)
    taken.append(1)
    if len(taken) == {blocks}:
        while any(lane.waiting() for lane in self._lanes):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), 9)
receiver.Receiver._take = dying
"""
NO_ZSTD = "for module in (source, sender, conversation, receiver):\n    module.find_codec = lambda: None\n"
# Writes down what it reads to send it.
LOGS_READS = """
opened = sender.open_scanned
def logging(root, entry):
    with open({file!r}, "ab") as log:
        log.write(entry.path + b"\\n")
    return opened(root, entry)
sender.open_scanned = logging
"""
NO_ADDRESS = "addresses.addresses = lambda: []\n"


MANY_BYTES = 30 * MIB // 4 + 1  # of the files in many_files


def many_files(folder: Path) -> Path:
    """A tree of 30 files of a quarter mebibyte that differ, and a small one below them."""
    (folder / "lib" / "deep").mkdir(parents=True)
    for number in range(30):
        (folder / "lib" / f"{number:02}").write_bytes(os.urandom(MIB // 4))
    (folder / "lib" / "deep" / "x").write_text("x")
    return folder


def one_large_file(folder: Path) -> Path:
    """A tree whose content is a large file, and a few small ones around it."""
    folder.mkdir()
    (folder / "a").write_bytes(b"before")
    (folder / "large").write_bytes(os.urandom(24 * MIB + 11))
    with (folder / "sparse").open("wb") as file:
        file.truncate(3 * MIB)
        file.write(b"before a hole")
    (folder / "z").write_bytes(b"after")
    return folder


def release_of(tmp_path: Path, name: str) -> Path:
    """The only release of a host."""
    (release,) = releases(tmp_path / name / "venv")
    return tmp_path / name / "venv.releases" / release
