#!/usr/bin/env python3
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds the two environments of the transfer benchmark, as read-only layers for the test hosts.

usage: payload.py [--cache DIR] [--small]

CACHE/bench/bench-env    /root/venv_bench: torch with its CUDA wheels and what inference servers stand on; this is what is moved
CACHE/bench/bench-seed   /root/venv_other: the same large packages, fewer small ones, some of them of other versions

--small builds small-env and small-seed instead, without the large packages. Both are real virtual environments, made by the root file
system's own python3 at the very path, without bytecode. A layer is stamped with a digest of its inputs: a finished one is reused, also
after the directory was moved, an interrupted one is built anew. The downloaded wheels are deleted at the end. The root file system of
the test hosts is built first where it is missing. Needs root, pip with an index, and 22 GB of disk while it builds.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

BENCH = Path(__file__).resolve().parent
TESTS = BENCH.parent
sys.path[:0] = [str(TESTS / "fleet"), str(TESTS / "input")]

from nspawn.base import ensure_base
from nspawn.shell import FleetError

from build import (
    GLIBC_MINOR,
    PYTHON_VERSION,
    Bind,
    BuildError,
    build_layer,
    check_prerequisites,
    create_layer,
    digest,
    locked,
    run,
    run_in_rootfs,
)

REQUIREMENTS = BENCH / "requirements"
LARGE, REST, OTHER = (REQUIREMENTS / f"{name}.txt" for name in ("large", "rest", "other"))
CACHE = Path(os.environ.get("DDTREE_CACHE", TESTS.parent / ".cache" / "fleet"))
VENV = Path("root/venv_bench")
SEED = Path("root/venv_other")


@dataclass(frozen=True)
class Layer:
    """One environment: its name below the layer directory, its place on a host, and the requirements that fill it."""

    name: str
    venv: Path
    requirements: Sequence[Path]


@dataclass(frozen=True)
class Payload:
    """Two finished layers in ``directory``, and the figures of the first: regular files and their apparent size."""

    directory: Path
    env: Layer
    seed: Layer
    files: int
    bytes: int


def layers(small: bool) -> tuple[Layer, Layer]:
    """What is moved, and the other environment that a target may have."""
    if small:
        return Layer("small-env", VENV, [REST]), Layer("small-seed", SEED, [OTHER])
    return Layer("bench-env", VENV, [LARGE, REST]), Layer("bench-seed", SEED, [LARGE, OTHER])


def download(requirements: Sequence[Path], wheels: Path) -> None:
    """Download the wheels that are not there yet, for the test hosts' Python, whichever Python runs this."""
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 4, -1)]
    tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    options = ["--implementation=cp", f"--python-version={PYTHON_VERSION}", *(f"--platform={tag}" for tag in tags)]
    options += [f"--abi=cp{PYTHON_VERSION.replace('.', '')}", "--abi=abi3", "--abi=none", "--only-binary=:all:"]
    options += ["--no-deps", "--no-cache-dir", *(f"--requirement={path}" for path in requirements)]
    run(
        [sys.executable, "-m", "pip", "download", "-qq", *options, f"--dest={wheels}"],
        f"{wheels}: pip could not download the wheels of {REQUIREMENTS}; check pip's configuration and network",
    )


def fill(part: Path, rootfs: Path, layer: Layer, wheels: Path) -> None:
    """Make the layer's environment at its own path and install its wheels."""
    print(f"{layer.name}: downloading wheels", flush=True)
    wheels.mkdir(parents=True, exist_ok=True)
    download(layer.requirements, wheels)
    print(f"{layer.name}: installing them at /{layer.venv}", flush=True)
    create_layer(part, Path("root"))
    binds = [Bind(part / "root", "root", writable=True), Bind(wheels, "mnt"), Bind(REQUIREMENTS, "media")]
    venv = ["/usr/bin/python3", "-m", "venv", f"/{layer.venv}"]
    run_in_rootfs(rootfs, binds, venv, f"{rootfs}: python3 could not make a virtual environment")
    pip = [f"/{layer.venv}/bin/python", "-m", "pip", "install", "-qq", "--root-user-action=ignore", "--no-cache-dir"]
    pip += ["--no-index", "--find-links=/mnt", "--no-deps", "--no-compile"]
    names = [f"--requirement=/media/{path.name}" for path in layer.requirements]
    run_in_rootfs(rootfs, binds, [*pip, *names], f"{rootfs}: pip could not install the wheels of {wheels}")
    for pycache in list(part.rglob("__pycache__")):
        shutil.rmtree(pycache)


def count(directory: Path) -> tuple[int, int]:
    """Regular files below the directory and the sum of their sizes."""
    files = size = 0
    for folder, _directories, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                files, size = files + 1, size + path.stat().st_size
    return files, size


def build(cache: Path, small: bool) -> Payload:
    """Build what is missing or out of date below ``cache/bench``. Raises BuildError and FleetError."""
    os.umask(0o022)
    base = ensure_base(cache.resolve())
    check_prerequisites(base)
    out = cache.resolve() / "bench"
    wheels = out / "wheels"
    interpreter = (base / f"usr/bin/python{PYTHON_VERSION}").read_bytes()
    env, seed = layers(small)
    with locked(out):
        for layer in (env, seed):
            inputs = digest({**_pins(layer.requirements), "venv": str(layer.venv), "interpreter": interpreter})
            began = time.monotonic()
            build_layer(
                out / layer.name,
                inputs,
                partial(fill, rootfs=base, layer=layer, wheels=wheels),
                f"building {'a small' if small else 'a real'} environment, which takes minutes",
            )
            files, size = count(out / layer.name / layer.venv)
            took = time.monotonic() - began
            print(f"{layer.name}: {files} files, {size / 1e9:.2f} GB, ready after {took:.0f} s", flush=True)
        if wheels.exists():
            shutil.rmtree(wheels)
    return Payload(out, env, seed, *count(out / env.name / env.venv))


def _pins(requirements: Iterable[Path]) -> dict[str, bytes | str]:
    return {path.name: path.read_bytes() for path in requirements}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the environments of the transfer benchmark.")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default {CACHE}")
    parser.add_argument("--small", action="store_true", help="without the large packages, for a quick try")
    arguments = parser.parse_args()
    try:
        build(arguments.cache, arguments.small)
    except (BuildError, FleetError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
