#!/usr/bin/env python3
# Copyright: the contributors of ddtree.fleet
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the environment that the real-server tests roll out, as read-only overlay layers for a test host.

usage: build.py --rootfs ROOTFS --cache CACHE --out OUT

ROOTFS is a Debian bookworm root file system with python3 and python3-venv; it is only read. CACHE keeps the wheels.
OUT gets directories to be stacked as overlayfs lower layers on top of ROOTFS:

OUT/env            root/venv_sglang211, built at that very path with the root file system's own /usr/bin/python3: the
                   SGLang wheel made to run on a CPU, without the DDTree patch set
OUT/ddtree         only the files that the DDTree patch set changes
OUT/models         root/models: a target model and two drafters
OUT/variants/NAME  only the files that patchset/variants/NAME.diff changes, to be stacked on OUT/ddtree

Every layer is stamped with a digest of its inputs: a finished one is reused, an interrupted one is built again.
Commands run in the root file system through a private mount namespace, so nothing stays mounted, however this ends.
Needs root and the Debian packages patch and util-linux; pip with access to the wheels that requirements.txt pins.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

INPUT = Path(__file__).resolve().parent
REQUIREMENTS = INPUT / "requirements.txt"
PATCHSET = INPUT / "patchset"
STUB = INPUT / "sgl_kernel_stub"

PYTHON_VERSION = "3.11"  # of Debian bookworm; requirements.txt pins for it
GLIBC_MINOR = 36  # of Debian bookworm
VENV = Path("root/venv_sglang211")
MODELS = Path("root/models")
SITE_PACKAGES = VENV / f"lib/python{PYTHON_VERSION}/site-packages"

# Mounts ROOTFS read-only over itself, binds SOURCE:TARGET:ro|rw pairs into it and runs the rest of its arguments there.
IN_ROOTFS = """
rootfs=$1 count=$2
shift 2
mount --bind "$rootfs" "$rootfs"
mount -o remount,bind,ro "$rootfs"
mount -t tmpfs -o mode=1777 tmpfs "$rootfs/tmp"
mount -t proc proc "$rootfs/proc"
mount --rbind /dev "$rootfs/dev"
while [ "$count" -gt 0 ]; do
  mount --bind "$1" "$rootfs/$2"
  [ "$3" = rw ] || mount -o remount,bind,ro "$rootfs/$2"
  shift 3
  count=$((count - 1))
done
exec chroot "$rootfs" /usr/bin/env -i HOME=/tmp LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE "$@"
"""


class BuildError(Exception):
    """The build cannot go on; the message names the thing and the way out."""


@dataclass(frozen=True)
class Bind:
    """A directory of this machine that a command sees inside the root file system."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Layers:
    """Where the finished layers are."""

    rootfs: Path
    out: Path

    @property
    def env(self) -> Path:
        return self.out / "env"

    @property
    def ddtree(self) -> Path:
        return self.out / "ddtree"

    @property
    def models(self) -> Path:
        return self.out / "models"

    def variant(self, name: str) -> Path:
        return self.out / "variants" / name

    def lowerdirs(self, *, environment: bool = True, patched: bool = True, variant: str | None = None) -> list[Path]:
        """Directories for overlayfs' lowerdir option, topmost first; every host gets the models."""
        layers = [self.models, self.rootfs]
        if environment:
            layers.insert(1, self.env)
            if patched or variant:
                layers.insert(1, self.ddtree)
            if variant:
                layers.insert(1, self.variant(variant))
        return layers


def run(command: list[str], failure: str) -> None:
    """Run a command that is quiet when it succeeds; its output belongs to the error when it does not."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace").strip()
        raise BuildError(f"{failure} (exit {done.returncode}):\n{output[-4000:]}")


def run_in_rootfs(rootfs: Path, binds: Iterable[Bind], command: list[str], failure: str) -> None:
    """Run a command in the root file system, without network; its mounts and it end with this process at the latest."""
    mounts = [part for b in binds for part in (str(b.source), b.target, "rw" if b.writable else "ro")]
    # unshare passes no signal on, so a terminated build would leave its child working on the layer.
    namespaces = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    shell = ["sh", "-euc", IN_ROOTFS, "sh", str(rootfs), str(len(mounts) // 3), *mounts]
    run([*namespaces, *shell, *command], failure)


def digest(parts: Mapping[str, bytes | str]) -> str:
    total = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        content = hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def contents(paths: Iterable[Path]) -> dict[str, bytes]:
    return {str(path.relative_to(INPUT)): path.read_bytes() for path in paths}


def variant_names() -> list[str]:
    return sorted(path.stem for path in (PATCHSET / "variants").glob("*.diff"))


def patched_files(diffs: Iterable[Path]) -> list[Path]:
    """Files that the diffs change or add, relative to site-packages."""
    found: dict[Path, None] = {}
    for diff in diffs:
        for name in re.findall(r"^\+\+\+ b/(.+)$", diff.read_text(encoding="utf-8"), re.MULTILINE):
            found[Path(name)] = None
    return list(found)


def apply_diffs(site_packages: Path, diffs: Iterable[Path]) -> None:
    """Apply the diffs exactly: no fuzz, no backup files, and a diff that is already there is an error."""
    options = ["--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "--reject-file=-", "-p1"]
    for diff in diffs:
        command = ["patch", *options, "-d", str(site_packages), "-i", str(diff)]
        run(command, f"{diff}: does not apply to {site_packages}")


def create_layer(part: Path, directory: Path) -> Path:
    """Make a directory of a layer; in an overlay the topmost layer's modes win, so / stays readable, /root private."""
    target = part / directory
    target.mkdir(parents=True)
    part.chmod(0o755)
    (part / "root").chmod(0o700)
    return target


def build_layer(layer: Path, inputs: str, fill: Callable[[Path], None], message: str) -> str:
    """Build one layer unless its stamp says that it was built from the same inputs; returns the inputs' digest."""
    stamp = layer.with_name(f"{layer.name}.stamp")
    if layer.is_dir() and stamp.is_file() and stamp.read_text(encoding="ascii") == inputs:
        return inputs
    print(f"{layer.name}: {message}", flush=True)
    stamp.unlink(missing_ok=True)
    part = layer.with_name(f"{layer.name}.part")
    for leftover in (part, layer):
        if leftover.exists():
            shutil.rmtree(leftover)
    part.mkdir(parents=True)
    fill(part)
    part.rename(layer)
    stamp.write_text(inputs, encoding="ascii")
    return inputs


def fetch_wheels(cache: Path) -> Path:
    """Download the pinned wheels with this machine's pip and its configuration; returns their directory."""
    wheels = cache / "wheels"
    stamp = cache / "wheels.json"
    wanted = digest({**contents([REQUIREMENTS]), "machine": platform.machine(), "python": PYTHON_VERSION})
    if stamp.is_file():
        recorded = json.loads(stamp.read_text(encoding="utf-8"))
        sizes = {path.name: path.stat().st_size for path in wheels.glob("*.whl")}
        if recorded["inputs"] == wanted and recorded["wheels"].items() <= sizes.items():
            return wheels
    print("wheels: downloading what requirements.txt pins", flush=True)
    wheels.mkdir(parents=True, exist_ok=True)
    machine = platform.machine()
    # pip looks for no older tag than the ones that it is given, so all that bookworm's glibc can run are named.
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC_MINOR, 4, -1)]
    tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    target = ["--implementation=cp", f"--python-version={PYTHON_VERSION}", *(f"--platform={tag}" for tag in tags)]
    abi = f"cp{PYTHON_VERSION.replace('.', '')}"
    target += [f"--abi={abi}", "--abi=abi3", "--abi=none", "--only-binary=:all:", "--no-deps"]
    run(
        [sys.executable, "-m", "pip", "download", "-qq", *target, "-r", str(REQUIREMENTS), "-d", str(wheels)],
        f"{wheels}: pip could not download the wheels of {REQUIREMENTS.name}; check pip's configuration and network",
    )
    sizes = {path.name: path.stat().st_size for path in wheels.glob("*.whl")}
    stamp.write_text(json.dumps({"inputs": wanted, "wheels": sizes}, indent=1), encoding="utf-8")
    return wheels


def fill_env(part: Path, rootfs: Path, wheels: Path, cpu_diffs: list[Path]) -> None:
    create_layer(part, Path("root"))
    binds = [Bind(part / "root", "root", writable=True), Bind(wheels, "mnt"), Bind(INPUT, "media")]
    run_in_rootfs(
        rootfs,
        binds,
        ["/usr/bin/python3", "-m", "venv", f"/{VENV}"],
        f"{rootfs}: python3 could not make a virtual environment; is python3-venv installed there?",
    )
    pip = [f"/{VENV}/bin/python", "-m", "pip", "install", "-qq", "--root-user-action=ignore", "--no-cache-dir"]
    offline = ["--no-index", "--find-links=/mnt", "--no-deps", "--no-compile", f"-r/media/{REQUIREMENTS.name}"]
    run_in_rootfs(rootfs, binds, [*pip, *offline], f"{rootfs}: pip could not install the wheels of {wheels}")
    site_packages = part / SITE_PACKAGES
    shutil.copytree(STUB, site_packages / "sgl_kernel", ignore=shutil.ignore_patterns("__pycache__"))
    apply_diffs(site_packages, cpu_diffs)
    for pycache in list(part.rglob("__pycache__")):
        shutil.rmtree(pycache)


def fill_patched(part: Path, below: list[Path], diffs: list[Path]) -> None:
    """Copy what the diffs change from the topmost layer that has it, and change it."""
    site_packages = create_layer(part, SITE_PACKAGES)
    for name in patched_files(diffs):
        (site_packages / name).parent.mkdir(parents=True, exist_ok=True)
        for layer in below:
            source = layer / SITE_PACKAGES / name
            if source.is_file():
                shutil.copy2(source, site_packages / name)
                break
    apply_diffs(site_packages, diffs)


def fill_models(part: Path, rootfs: Path, env: Path) -> None:
    models = create_layer(part, MODELS)
    binds = [Bind(env / "root", "root"), Bind(models, "srv", writable=True), Bind(INPUT, "media")]
    command = [f"/{VENV}/bin/python", "-B", "/media/models.py", "/srv"]
    run_in_rootfs(rootfs, binds, command, f"{models}: training the models failed")


@contextmanager
def locked(*directories: Path) -> Iterator[None]:
    """Two builds that share a directory wait for each other; the locks go with the process."""
    with ExitStack() as stack:
        for directory in sorted(set(directories)):
            directory.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context((directory / "build.lock").open("w"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_prerequisites(rootfs: Path) -> None:
    if os.geteuid() != 0:
        raise BuildError("build.py: must run as root, it mounts and changes root in a namespace of its own")
    missing = [name for name in ("patch", "setpriv", "unshare", "mount", "chroot") if shutil.which(name) is None]
    if missing:
        raise BuildError(f"build.py: {', '.join(missing)} not found; install the packages patch and util-linux")
    if not (rootfs / f"usr/bin/python{PYTHON_VERSION}").is_file():
        raise BuildError(f"{rootfs}: has no /usr/bin/python{PYTHON_VERSION}, for which requirements.txt pins")


def build(rootfs: Path, cache: Path, out: Path) -> Layers:
    """Build whatever is missing or out of date below `out`."""
    rootfs, cache, out = rootfs.resolve(), cache.resolve(), out.resolve()
    check_prerequisites(rootfs)
    os.umask(0o022)
    layers = Layers(rootfs, out)
    cpu_diffs = sorted((PATCHSET / "cpu").glob("*.diff"))
    ddtree_diffs = sorted(PATCHSET.glob("*.diff"))
    program = contents([Path(__file__).resolve()])
    interpreter = (rootfs / f"usr/bin/python{PYTHON_VERSION}").read_bytes()
    with locked(cache, out):
        wheels = fetch_wheels(cache)
        env = build_layer(
            layers.env,
            digest({**program, **contents([REQUIREMENTS, *STUB.glob("*.py"), *cpu_diffs]), "interpreter": interpreter}),
            lambda part: fill_env(part, rootfs, wheels, cpu_diffs),
            f"installing the wheels at /{VENV}",
        )
        ddtree = build_layer(
            layers.ddtree,
            digest({**contents(ddtree_diffs), "env": env}),
            lambda part: fill_patched(part, [layers.env], ddtree_diffs),
            "applying the DDTree patch set",
        )
        for name in variant_names():
            diff = PATCHSET / "variants" / f"{name}.diff"
            build_layer(
                layers.variant(name),
                digest({**contents([diff]), "ddtree": ddtree}),
                lambda part, diff=diff: fill_patched(part, [layers.ddtree, layers.env], [diff]),  # type: ignore[misc]
                f"applying {diff.relative_to(INPUT)}",
            )
        build_layer(
            layers.models,
            digest({**contents([INPUT / "models.py"]), "env": env}),
            lambda part: fill_models(part, rootfs, layers.env),
            f"training the models for /{MODELS}",
        )
    return layers


def main(description: str, build_layers: Callable[[Path, Path, Path], object]) -> None:
    """Read the command line, which is that of every builder, and build; ends the process with what went wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rootfs", type=Path, required=True, help="root file system of the test hosts, only read")
    parser.add_argument("--cache", type=Path, required=True, help="where downloaded wheels are kept")
    parser.add_argument("--out", type=Path, required=True, help="where the layers are built")
    arguments = parser.parse_args()
    try:
        build_layers(arguments.rootfs, arguments.cache, arguments.out)
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main("Build the layers of the real-server tests.", build)
