# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an environment keeps its packages and its interpreter, and why one of its files cannot be looked at."""

from __future__ import annotations

import glob
import os
import stat
from typing import NamedTuple, Optional

MAX_FILE_BYTES = 64 << 20  # of a file that is looked into


class PatchError(Exception):
    """A request that cannot be carried out as it stands; the message names the thing and the way out."""


class Environment(NamedTuple):
    root: str
    site: str
    interpreter: str


def find_environment(root: str, site_packages: Optional[str] = None, interpreter: Optional[str] = None) -> Environment:
    """Where an environment keeps its packages and its interpreter; both overrides may be relative to ``root``."""
    if not os.path.isdir(root):
        raise PatchError(f"root {root}: " + ("not a directory" if os.path.lexists(root) else "no such directory"))
    if site_packages:
        sites = [os.path.join(root, site_packages)]
        if not os.path.isdir(sites[0]):
            raise PatchError(f"site_packages {sites[0]}: no such directory")
    else:
        pattern = os.path.join(glob.escape(root), "lib", "python3.*", "site-packages")
        sites = sorted(path for path in glob.glob(pattern) if os.path.isdir(path))
        if not sites:
            raise PatchError(
                f"root {root} has no lib/python3.*/site-packages; name an environment there, or its packages in site_packages"
            )
        if len(sites) > 1:
            raise PatchError(
                f"root {root} has more than one lib/python3.*/site-packages: {', '.join(sites)}; choose one with site_packages"
            )
    return Environment(root, sites[0], os.path.join(root, interpreter or os.path.join("bin", "python")))


def why_unreadable(path: str, whole: bool = False) -> str:
    """Empty for a regular file that can be read, or a link to one; ``whole`` if it is to fit into memory."""
    try:
        status = os.stat(path)
    except OSError as error:
        return "a dangling link" if os.path.islink(path) else str(error.strerror)
    if not stat.S_ISREG(status.st_mode):
        return "a directory" if stat.S_ISDIR(status.st_mode) else "no regular file"
    if whole and status.st_size > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES >> 20} MiB"
    return "" if os.access(path, os.R_OK) else "permission denied"
