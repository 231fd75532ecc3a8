# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Debian root file system below all test hosts, built once and named by the digest of its recipe."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

from .shell import FleetError, locked, run

SUITE = "bookworm"

PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "openssh-server",
    "procps",
    "python3",
    "python3-venv",
    "rsync",
    "sudo",
    "systemd",
    "systemd-sysv",
    "zstd",
)

LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")

# Periodic housekeeping and consoles: they only make a boot slower and a state less predictable.
MASKED_UNITS = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "systemd-pstore.service",
)

# An empty resolv.conf and no DNS in sshd: a look-up that cannot be answered would wait 10 s each time.
FILES = {
    "etc/resolv.conf": "",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "localhost\n",
    "etc/machine-id": "",
    "etc/ssh/sshd_config.d/fleet.conf": (
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUseDNS no\n"
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
    ),
}


def recipe_digest() -> str:
    """Digest of everything that decides what the root file system holds."""
    recipe = [SUITE, PACKAGES, LEFT_OUT, MASKED_UNITS, sorted(FILES.items())]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


def ensure_base(cache: Path) -> Path:
    """Return ``cache/base``, built first when it is absent, unfinished or of another recipe.

    ``cache/base.complete`` holds the recipe's digest and is written last, so an interrupted build is never used.
    """
    base, stamp = cache / "base", cache / "base.complete"
    with locked(cache / "base.lock"):
        (cache / ".gitignore").write_text("*\n")
        if not (base.is_dir() and stamp.is_file() and stamp.read_text().strip() == recipe_digest()):
            _refuse_if_mounted(base)
            stamp.unlink(missing_ok=True)
            _build(base)
            stamp.write_text(recipe_digest() + "\n")
    return base


def _refuse_if_mounted(base: Path) -> None:
    """A root file system that hosts are running on cannot be replaced under them; they mount it out of our sight."""
    in_use = re.compile(rf"[=:]{re.escape(str(base))}[:,]")
    for mounts in Path("/proc").glob("[0-9]*/mounts"):
        try:
            found = in_use.search(mounts.read_text())
        except OSError:
            continue
        if found:
            raise FleetError(f"{base} is of another recipe but hosts are running on it; take them down first")


def _build(base: Path) -> None:
    part = base.with_name("base.part")
    for leftover in (part, base):
        shutil.rmtree(leftover, ignore_errors=True)
    print(f"fleet: building the {SUITE} root file system at {base}, about 40 s", flush=True)
    run(
        "mmdebstrap",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        SUITE,
        str(part),
        timeout=900,
    )
    _customise(part)
    part.rename(base)


def _customise(root: Path) -> None:
    for unit in MASKED_UNITS:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
