# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people move an environment with today, as a table of shell commands, and venv_stream as they would call it.

In a command, ``src`` and ``dst`` are ssh command lines from the control node to the source and to the target, ``fast_src`` and
``fast_dst`` the same with a cipher that the processor does in hardware, ``venv`` is the environment, ``copy`` the peers' directory on the
target. ``target`` is the target's name as the source's own ssh configuration knows it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lab import FLOOR_COPY, PEER_COPY, SOURCE, TARGET, Lab

ROOT = Path(__file__).resolve().parents[2]
FAST = "-oCiphers=aes128-gcm@openssh.com"
PLAY = ROOT / "tests" / "integration" / "stream.yml"


class ToolError(Exception):
    """A timed command failed; the message has the end of what it said."""


@dataclass(frozen=True)
class Figures:
    """What a tool says of its own run; ``seconds`` is None where only a clock outside can tell. Memory in bytes."""

    seconds: float | None = None
    bytes: int | None = None
    memory: dict[str, int] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """Anything that is timed."""

    @property
    def name(self) -> str: ...

    def run(self, lab: Lab) -> Figures: ...


@dataclass(frozen=True)
class Peer:
    """A shell command of this machine."""

    name: str
    command: str

    def run(self, lab: Lab) -> Figures:
        """Run it to its end; the first failure in a pipe is its failure."""
        ends = {"src": lab.source, "dst": lab.target}
        words = {name: shlex.join(machine.ssh()) for name, machine in ends.items()}
        words |= {f"fast_{name}": shlex.join(["ssh", FAST, *machine.ssh()[1:]]) for name, machine in ends.items()}
        command = self.command.format(**words, venv=lab.venv, copy=PEER_COPY, floor=FLOOR_COPY, target=TARGET)
        _run(["bash", "-euo", "pipefail", "-c", command], self.name)
        return Figures()


PIPES = (
    Peer("plain", "{src} tar -C / -cf - .{venv} | {dst} 'mkdir -p {copy} && tar -C {copy} -xf -'"),
    Peer("aes", "{fast_src} tar -C / -cf - .{venv} | {fast_dst} 'mkdir -p {copy} && tar -C {copy} -xf -'"),
    *(
        Peer(
            name,
            f"{{{how}src}} 'tar -C / -cf - .{{venv}} | zstd -q -T0 -{level}'"
            f" | {{{how}dst}} 'mkdir -p {{copy}} && zstd -q -d | tar -C {{copy}} -xf -'",
        )
        for name, how, level in (("zstd1", "", 1), ("zstd3", "", 3), ("aes_zstd1", "fast_", 1))
    ),
)
PLAIN, ZSTD = PIPES[0], tuple(pipe for pipe in PIPES if "zstd" in pipe.name)

# It goes straight from the source to the target, since rsync does not go from one remote host to another.
RSYNC = Peer("rsync", "{src} 'rsync -a --mkpath {venv}/ {target}:{copy}{venv}/'")
RSYNC_CHECKSUM = Peer("rsync_checksum", "{src} 'rsync -a --checksum {venv}/ {target}:{copy}{venv}/'")
FLOOR = Peer("cp", "{dst} 'cp -a --reflink=never {copy}{venv} {floor} && sync -f {floor}'")


@dataclass(frozen=True)
class Stream:
    """The venv_stream task, run by a playbook; ``options`` are those of the module beside source, src and dest."""

    name: str = "ours"
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, lab: Lab) -> Figures:
        """Run the playbook; seconds are the task's own."""
        options = {"source": SOURCE, "src": lab.venv, "dest": lab.venv, "bytecode": False, **self.options}
        inventories = [f"-i{lab.fleet.state / 'inventory'}", f"-i{ROOT / 'tests' / 'inventory'}"]
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            result = Path(folder, "result.json")
            variables = {f"stream_{name}": value for name, value in options.items()} | {"stream_result": str(result)}
            command = ["ansible-playbook", *inventories, str(PLAY), "--limit", TARGET, "-e", json.dumps(variables)]
            _run(command, self.name)
            stream = json.loads(result.read_text(encoding="utf-8"))
        tree, target = stream["tree"], stream["targets"][TARGET]
        wanted = self.options.get("path", target["path"])
        if target["path"] not in ("", wanted):
            raise ToolError(
                f"{self.name}: the content went by path {target['path']}, not {wanted}: {target['notices']}"
            )
        peaks = (tree["source_peak_memory"], tree["relay_peak_memory"], target["peak_memory"])
        kept = ("path", "compress", "files_sent", "bytes_sent", "wire_bytes", "reused", "origins", "seconds")
        return Figures(
            seconds=tree["seconds"],
            bytes=target["bytes_sent"],
            memory=dict(zip(("source", "relay", "target"), peaks)),
            detail={name: target[name] for name in kept} | {"rates": tree["rates"], "source": tree["source_seconds"]},
        )


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolError(f"{name}: exit {done.returncode}: {(done.stdout + done.stderr).strip()[-3000:]}")
