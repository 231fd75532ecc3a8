# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError, find_environment


def test_environments_that_cannot_be_told(tmp_path: Path) -> None:
    def refused(root: Path, site: Optional[str] = None) -> str:
        with pytest.raises(PatchError) as raised:
            find_environment(str(root), site)
        return str(raised.value)

    root = tmp_path / "e"
    assert refused(root) == f"root {root}: no such directory"
    root.write_text("")
    assert refused(root) == f"root {root}: not a directory"
    root.unlink()
    root.mkdir()
    assert refused(root) == (
        f"root {root} has no lib/python3.*/site-packages; name an environment there, or its packages in site_packages"
    )
    assert refused(root, "packages") == f"site_packages {root}/packages: no such directory"
    for version in ("python3.11", "python3.12"):
        (root / "lib" / version / "site-packages").mkdir(parents=True)
    assert refused(root) == (
        f"root {root} has more than one lib/python3.*/site-packages: {root}/lib/python3.11/site-packages, "
        f"{root}/lib/python3.12/site-packages; choose one with site_packages"
    )
    chosen = find_environment(str(root), "lib/python3.12/site-packages")
    assert (chosen.site, chosen.interpreter) == (f"{root}/lib/python3.12/site-packages", f"{root}/bin/python")


def test_a_root_with_glob_characters(tmp_path: Path) -> None:
    site = tmp_path / "a[b]*" / "lib" / "python3.9" / "site-packages"
    site.mkdir(parents=True)
    assert find_environment(str(tmp_path / "a[b]*")).site == str(site)
