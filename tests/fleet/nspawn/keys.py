# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Throw-away ssh keys: one client key and one host key per host, kept in the state directory."""

from __future__ import annotations

from pathlib import Path

from .hosts import Host
from .network import Network
from .shell import run


def client_key(state: Path, host: Host) -> Path:
    """Private key that is authorized on this host only."""
    return _ensure_key(state / "keys" / host.name / "id_ed25519", f"fleet-{host.name}")


def host_key(state: Path, host: Host) -> Path:
    """Private key by which the host's sshd is known."""
    return _ensure_key(state / "keys" / host.name / "host_ed25519", host.name)


def public_key(private: Path) -> str:
    """Public half of a key, as one line."""
    return private.with_name(private.name + ".pub").read_text()


def write_known_hosts(state: Path, network: Network, hosts: list[Host]) -> Path:
    """Write the known_hosts file with which strict host key checking needs no prompt."""
    lines = []
    for host in hosts:
        kind, key, *_comment = public_key(host_key(state, host)).split()
        lines.append(f"[{network.address(host)}]:{host.port} {kind} {key}\n")
    path = state / "known_hosts"
    path.write_text("".join(lines))
    return path


def _ensure_key(path: Path, comment: str) -> Path:
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
    return path
