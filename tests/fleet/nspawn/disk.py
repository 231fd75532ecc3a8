# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's disk: an own writable layer over shared read-only ones, seeded with what makes this host itself."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from . import keys
from .hosts import Host
from .shell import FleetError

NVIDIA_SMI = Path(__file__).resolve().parent.parent / "nvidia_smi"
DEPLOY_ID = 1000


@dataclass(frozen=True)
class Disk:
    """Directories of one host's disk; ``lower`` is topmost first, as overlayfs wants it."""

    home: Path
    lower: tuple[Path, ...]

    @property
    def upper(self) -> Path:
        """What the host itself has written; its folder may be a mount of limited size, which outlives the host."""
        return self.home / "disk" / "upper"

    @property
    def work(self) -> Path:
        """overlayfs' own, on the same file system."""
        return self.home / "disk" / "work"

    @property
    def root(self) -> Path:
        """Mount point; mounted only in the mount namespace of the host's supervisor, so nothing is left to unmount."""
        return self.home / "root"

    def mount_options(self) -> str:
        """Options for ``mount -t overlay``.

        redirect_dir lets a directory of a lower layer be renamed; metacopy keeps a hard link or a change of mode from
        copying the data up.
        """
        lower = ":".join(str(path) for path in self.lower)
        return f"lowerdir={lower},upperdir={self.upper},workdir={self.work},redirect_dir=on,metacopy=on"

    def create_empty(self) -> None:
        """Begin with an empty disk, whatever an earlier run left."""
        shutil.rmtree(self.home, ignore_errors=True)
        for path in (self.upper, self.work, self.root):
            path.mkdir(parents=True)


def lower_directories(layer_dir: Path, base: Path, layers: tuple[str, ...]) -> tuple[Path, ...]:
    """Directories for the named layers (lowest first) over ``base``, returned topmost first."""
    paths = [layer_dir / name for name in layers]
    missing = [str(path) for path in paths if not path.is_dir()]
    if missing:
        raise FleetError(f"layers not built: {', '.join(missing)}; build them first, or start the hosts with --bare")
    lower = (*reversed(paths), base)
    for path in lower:
        if set(str(path)) & set(":,\\"):
            raise FleetError(f"{path}: overlayfs takes no path with a colon, comma or backslash; use another --cache")
    return lower


def seed(disk: Disk, state: Path, base: Path, host: Host) -> None:
    """Write name, ssh access and the nvidia-smi stand-in of ``host`` to its empty disk."""
    upper = disk.upper
    _write(upper / "etc/hostname", f"{host.name}\n")
    _write(upper / "etc/hosts", f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {host.name}\n")
    _write(upper / "etc/machine-id", hashlib.sha256(host.name.encode()).hexdigest()[:32] + "\n", 0o444)
    _write(upper / "etc/ssh/sshd_config.d/port.conf", f"Port {host.port}\n")
    private = keys.host_key(state, host)
    _write(upper / "etc/ssh/ssh_host_ed25519_key", private.read_text(), 0o600)
    _write(upper / "etc/ssh/ssh_host_ed25519_key.pub", keys.public_key(private))
    (upper / "root").mkdir(mode=0o700)
    if host.user == "root":
        _authorize(upper / "root", keys.public_key(keys.client_key(state, host)), owner=0)
    else:
        _add_user(upper, base, host.user)
        _authorize(upper / "home" / host.user, keys.public_key(keys.client_key(state, host)), owner=DEPLOY_ID)
    _install_nvidia_smi(upper, host.gpu)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _authorize(home: Path, public_key: str, owner: int) -> None:
    home.mkdir(parents=True, exist_ok=True)
    _write(home / ".ssh/authorized_keys", public_key, 0o600)
    (home / ".ssh").chmod(0o700)
    for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
        os.chown(path, owner, owner)


def _add_user(upper: Path, base: Path, name: str) -> None:
    """A user with a passwordless sudo and no password."""
    for file, line, mode in (
        ("passwd", f"{name}:x:{DEPLOY_ID}:{DEPLOY_ID}::/home/{name}:/bin/bash\n", 0o644),
        ("group", f"{name}:x:{DEPLOY_ID}:\n", 0o644),
        ("shadow", f"{name}:*:19000:0:99999:7:::\n", 0o600),
    ):
        _write(upper / "etc" / file, (base / "etc" / file).read_text() + line, mode)
    _write(upper / "etc/sudoers.d" / name, f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)


def _install_nvidia_smi(upper: Path, gpu: str) -> None:
    data = upper / "etc/nvidia-smi-standin"
    _write(data / "query-gpu.csv", (NVIDIA_SMI / gpu / "query-gpu.csv").read_text())
    _write(data / "compute-apps.csv", (NVIDIA_SMI / gpu / "compute-apps.csv").read_text())
    _write(upper / "usr/lib/nvidia-smi-standin/nvidia_smi.py", (NVIDIA_SMI / "nvidia_smi.py").read_text())
    start = '#!/bin/sh\nexec /usr/bin/python3 -I /usr/lib/nvidia-smi-standin/nvidia_smi.py "$@"\n'
    _write(upper / "usr/bin/nvidia-smi", start, 0o755)
