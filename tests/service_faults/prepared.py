# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk of a host before a run, as overlay layers: one release serves and was judged good, others are committed beside it.

``service-faults-<server>`` has the releases and the unit, ``service-faults-program`` what controller.py and look.py run on a host.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ansible
from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store, now, release_id
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import scan, tree_digest
from controller import FOLDER

from build import SITE_PACKAGES, VENV, Bind, BuildError, build_layer, create_layer, digest, locked, run_in_rootfs

ROOT = Path(__file__).resolve().parents[2]
UNIT = "sglang-ddtree.service"
PORT = 30001
OLD = "old"
PROGRAM_LAYER = "service-faults-program"
RELEASES = "releases.json"  # ids by name, beside the programs

# How each release of the replayed environment behaves; see tests/input/replayed/README.md.
BENDS: dict[str, dict[str, object]] = {
    OLD: {"stop_seconds": 1, "gpu_seconds": 0.5},
    "good": {"replay": ["--delay-ready", "1.5"], "stop_seconds": 0.3, "gpu_seconds": 0.3},
    "exits": {"replay": ["--exit-at-start"]},
    "never-ready": {"replay": ["--delay-ready", "3600"], "stop_seconds": 1, "gpu_seconds": 0.5},
    "no-speculation": {"replay": ["--speculate-first", "0"], "stop_seconds": 1, "gpu_seconds": 1},
    "hangs": {"replay": ["--hang"], "stop_seconds": 1, "gpu_seconds": 0.5},
    "one-token": {"replay": ["--degenerate"], "stop_seconds": 1.5},
    "html": {"replay": ["--html"], "stop_seconds": 1, "gpu_seconds": 0.5},
    "dies": {"replay": ["--die-after", "2"], "gpu_seconds": 1},
    "stubborn": {
        "replay": ["--speculate-first", "0"],
        "ignore_sigterm": True,
        "gpu_seconds": 1,
        "stubborn_scheduler": True,
    },
}
# The real releases are variants of tests/input; the one that serves is the patched environment itself.
VARIANTS = {"good": "one-line", "no-speculation": "no-speculation", "no-start": "no-start", "no-answer": "no-answer"}

SPECULATION = (
    "--speculative-algorithm DDTREE --speculative-draft-model-path /root/models/tiny-dflash --speculative-ddtree-budget 8 "
    "--speculative-ddtree-topk-cap 4 --speculative-dflash-draft-window-size 2048 --disable-overlap-schedule --enable-metrics "
    "--device cpu --attention-backend torch_native --dtype bfloat16 --disable-cuda-graph --grammar-backend none "
    "--mem-fraction-static 0.05 --max-total-tokens 8192 --max-running-requests 8 --context-length 1024"
)
UNIT_TEXT = """\
# {release}
[Unit]
Description=SGLang of the service faults
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/{venv}/bin/{python} -m sglang.launch_server --model-path /root/models/tiny-llama --host 127.0.0.1 --port {port} {speculation}
Environment=PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
Environment=SGLANG_USE_CPU_ENGINE=1 TRITON_INTERPRET=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
Restart=on-failure
RestartSec=1
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Prepared:
    """The layers to put on a host, and the releases' ids by name."""

    layers: tuple[str, ...]
    releases: dict[str, str]


def unit_text(release: str, startable: bool = True) -> str:
    """Each release has another unit, so that a unit of the wrong one shows."""
    return UNIT_TEXT.format(
        release=release,
        venv=VENV,
        port=PORT,
        speculation=SPECULATION,
        python="python" if startable else "no-such-python",
    )


def prepare(server: str, rootfs: Path, layers: Path) -> Prepared:
    """Build what is missing of the layers for ``server``, ``replay`` or ``real``."""
    name = f"service-faults-{server}"
    own = {path.name: path.read_bytes() for path in (Path(__file__), Path(__file__).with_name("controller.py"))}
    below = ["replayed"] if server == "replay" else ["env", "ddtree", *(f"variants/{v}" for v in VARIANTS.values())]
    try:
        stamps = {layer: (layers / f"{layer}.stamp").read_bytes() for layer in below}
    except FileNotFoundError as error:
        raise BuildError(f"{error.filename} is missing; build the layers first: make input") from None
    fill = fill_replayed if server == "replay" else fill_real
    with locked(layers):
        build_layer(
            layers / name, digest({**own, **stamps}), lambda part: fill(part, rootfs, layers), "committing the releases"
        )
        build_layer(
            layers / PROGRAM_LAYER, program_digest(), lambda part: fill_program(part, rootfs), "collecting the modules"
        )
    ids = json.loads((layers / name / FOLDER[1:] / RELEASES).read_text(encoding="ascii"))
    return Prepared((name, PROGRAM_LAYER), ids)


def fill_replayed(part: Path, rootfs: Path, layers: Path) -> None:
    def bend(name: str) -> Callable[[Path], None]:
        def change(tree: Path) -> None:
            replace_file(tree / SITE_PACKAGES.relative_to(VENV) / "sglang/bend.json", json.dumps(BENDS[name]).encode())

        return change

    fill_releases(part, rootfs, [layers / "replayed"], {name: bend(name) for name in BENDS})


def fill_real(part: Path, rootfs: Path, layers: Path) -> None:
    def variant(name: str) -> Callable[[Path], None]:
        def change(tree: Path) -> None:
            copy_over(layers / "variants" / VARIANTS[name] / VENV, tree)

        return change

    changes = {OLD: lambda tree: None, **{name: variant(name) for name in VARIANTS}}
    fill_releases(part, rootfs, [layers / "env", layers / "ddtree"], changes)


def fill_releases(part: Path, rootfs: Path, below: list[Path], changes: dict[str, Callable[[Path], None]]) -> None:
    """Commit one release a change, with bytecode, all sharing the inodes of what they share; the old one is live."""
    create_layer(part, Path("root"))
    store = Store(str(part / VENV))
    store.create()
    base = Path(store.root) / "base"
    for layer in below:
        copy_over(layer / VENV, base)
    compile_all(rootfs, part / "root", "root", f"/{VENV}.releases/base")
    ids = {name: commit(store, base, change) for name, change in changes.items()}
    shutil.rmtree(base)
    store.activate(ids[OLD], "the test")
    store.judge(ids[OLD], "passed", "the test")
    units = part / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / UNIT).write_text(unit_text(OLD), encoding="utf-8")
    (units / "multi-user.target.wants" / UNIT).symlink_to(f"/etc/systemd/system/{UNIT}")
    program = part / FOLDER[1:]
    program.mkdir(parents=True)
    (program / RELEASES).write_text(json.dumps(ids), encoding="ascii")


def commit(store: Store, base: Path, change: Callable[[Path], None]) -> str:
    """Make a release of a changed copy of ``base``; gives its id."""
    tree = base.with_name("changed")
    shutil.copytree(base, tree, symlinks=True, copy_function=os.link)
    change(tree)
    root = os.fsencode(tree)
    entries = scan(root)
    hashes = hash_tree(root, entries)
    received = tree_digest(entries, hashes)
    release = release_id(received)
    facts = {"received_digest": received, "installed_digest": received, "committed": now(), "environment": {}}
    store.write_meta(release, {**facts, "files": len(hashes), "bytes": sum(entry.size for entry in entries)})
    Path(store.manifest_path(release)).write_bytes(_manifest.render(entries, hashes))
    tree.rename(store.path(release))
    return release


def copy_over(source: Path, target: Path) -> None:
    """Copy a tree onto another one; a file that is there is replaced, not written into, since others may share it."""
    for folder, folders, files in os.walk(source):
        there = target / Path(folder).relative_to(source)
        there.mkdir(parents=True, exist_ok=True)
        for name in [*files, *(name for name in folders if (Path(folder) / name).is_symlink())]:
            (there / name).unlink(missing_ok=True)
            shutil.copy2(Path(folder) / name, there / name, follow_symlinks=False)


def replace_file(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def compile_all(rootfs: Path, folder: Path, place: str, what: str) -> None:
    """Compile Python files at the place where the host has them; those that do not compile are nobody's concern here."""
    command = ["/bin/sh", "-c", f"/usr/bin/python3 -m compileall -q -j 0 {what} >/dev/null || true"]
    run_in_rootfs(rootfs, [Bind(folder, place, writable=True)], command, f"{what}: cannot be compiled")


def modules() -> list[Path]:
    plugins = ROOT / "plugins"
    return [*plugins.glob("modules/*.py"), *plugins.glob("module_utils/**/*.py")]


def program_digest() -> str:
    parts: dict[str, bytes | str] = {str(path.relative_to(ROOT)): path.read_bytes() for path in modules()}
    own = [Path(__file__), Path(__file__).with_name("look.py"), Path(__file__).with_name("controller.py")]
    parts.update({path.name: path.read_bytes() for path in own})
    return digest({**parts, "ansible": ansible.__version__, "python": sys.version})


def fill_program(part: Path, rootfs: Path) -> None:
    """Ansible's module_utils, the collection's modules and their module_utils, and what looks at a host."""
    folder = part / FOLDER[1:]
    folder.mkdir(parents=True)
    package = Path(ansible.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package / "module_utils", folder / "ansible/module_utils", ignore=ignore)
    (folder / "ansible/__init__.py").write_text(f'__version__ = "{ansible.__version__}"\n', encoding="ascii")
    for path in modules():
        target = folder / "ansible_collections/ddtree/fleet" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(Path(__file__).with_name("look.py"), folder)
    compile_all(rootfs, part / "opt", "opt", FOLDER)
