#!/usr/bin/env python3
# Copyright: the contributors of ddtree.fleet
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the replayed environment, an overlay layer for a test host whose "SGLang" replays recorded replies.

usage: build_replayed.py --rootfs ROOTFS --cache CACHE --out OUT

OUT/replayed   root/venv_sglang211, built at that very path with the root file system's own /usr/bin/python3: the package
               replayed/sglang with tests/replay's server and recorded replies, and the wheels that a server gate needs

ROOTFS and CACHE are those of build.py, which downloads the wheels; a few MB and a few seconds.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

from build import (
    INPUT,
    PYTHON_VERSION,
    SITE_PACKAGES,
    VENV,
    Bind,
    BuildError,
    build_layer,
    check_prerequisites,
    create_layer,
    digest,
    fetch_wheels,
    locked,
    main,
    run_in_rootfs,
)

PACKAGE = INPUT / "replayed" / "sglang"
SERVER = INPUT.parent / "replay" / "replay_server.py"
RECORDED = [INPUT.parent / "recorded" / name for name in ("dflash_accepted", "plain")]
WHEELS = ("certifi", "charset_normalizer", "idna", "packaging", "requests", "urllib3")
METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.11\nRequires-Dist: requests\n"


def fill_replayed(part: Path, rootfs: Path, wheels: Path) -> None:
    create_layer(part, Path("root"))
    run_in_rootfs(
        rootfs,
        [Bind(part / "root", "root", writable=True)],
        ["/usr/bin/python3", "-m", "venv", "--without-pip", f"/{VENV}"],
        f"{rootfs}: python3 could not make a virtual environment; is python3-venv installed there?",
    )
    site_packages = part / SITE_PACKAGES
    for name in WHEELS:
        with zipfile.ZipFile(wheel(wheels, name)) as archive:
            archive.extractall(site_packages)
    package = site_packages / "sglang"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SERVER, package)
    for folder in RECORDED:
        shutil.copytree(folder, package / "recorded" / folder.name)
    metadata = site_packages / "sglang-0.5.11.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(METADATA, encoding="ascii")


def wheel(wheels: Path, name: str) -> Path:
    """The wheel of a package that requirements.txt pins."""
    found = list(wheels.glob(f"{name}-*.whl"))
    if len(found) != 1:
        raise BuildError(
            f"{wheels}: expected one wheel of {name}, found {len(found)}; remove the directory to fetch anew"
        )
    return found[0]


def inputs(rootfs: Path, wheels: Path) -> str:
    """Digest of all that the layer is made of."""
    files = [Path(__file__).resolve(), SERVER, *PACKAGE.rglob("*.py"), PACKAGE / "bend.json"]
    files += [path for folder in RECORDED for path in folder.iterdir()]
    parts: dict[str, bytes | str] = {str(path.relative_to(INPUT.parent)): path.read_bytes() for path in files}
    parts["interpreter"] = (rootfs / f"usr/bin/python{PYTHON_VERSION}").read_bytes()
    parts["wheels"] = "\n".join(wheel(wheels, name).name for name in WHEELS)
    return digest(parts)


def build(rootfs: Path, cache: Path, out: Path) -> None:
    """Build the layer if it is missing or out of date."""
    rootfs, cache, out = rootfs.resolve(), cache.resolve(), out.resolve()
    check_prerequisites(rootfs)
    os.umask(0o022)
    with locked(cache, out):
        wheels = fetch_wheels(cache)
        build_layer(
            out / "replayed",
            inputs(rootfs, wheels),
            lambda part: fill_replayed(part, rootfs, wheels),
            f"making the replayed environment at /{VENV}",
        )


if __name__ == "__main__":
    main("Build the replayed environment.", build)
