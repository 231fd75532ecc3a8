# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest
from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, found, outcomes, wheel
from ansible_collections.ddtree.fleet.tests.unit.patched import failed


@pytest.fixture(name="packages")
def packages_fixture(tmp_path: Path) -> Packages:
    packages = Packages(tmp_path / "env")
    packages.install()
    packages.install("other", files={"other/__init__.py": ""})
    return packages


@pytest.fixture(name="good")
def good_fixture(packages: Packages, tmp_path: Path) -> Path:
    """The environment as it was, before each kind of difference came."""
    good = tmp_path / "good"
    (packages.root / "bin/run").write_text("#!/venv/bin/python\n")
    (packages.site / "pkg/link").symlink_to("sub")
    packages.write("pkg/alone.pyc", "")
    shutil.copytree(packages.root, good, symlinks=True)
    packages.write("pkg/a.py", "a = 2\n")
    packages.write("pkg/new.py", "")
    packages.write("pkg/__pycache__/a.cpython-312.pyc", "")
    packages.write("pkg/a.pyc", "")
    (packages.site / "pkg/sub/b.py").unlink()
    (packages.site / "pkg/link").unlink()
    (packages.site / "pkg/link").symlink_to("elsewhere")
    packages.write("other/new.py", "")
    packages.write("third.py", "")
    packages.write("pkg-1.0.dist-info/INSTALLER", "uv")
    return good


DIFFERENCES = {"modified": ["pkg/a.py", "pkg/link"], "missing": ["pkg/sub/b.py"], "added": ["pkg/new.py"]}


def refusal(packages: Packages, path: Path, name: str = "pkg") -> str:
    (said,) = failed(packages.compare("snapshot", name, path=path))
    start = f"baseline snapshot of {name}: expected one to compare with, found "
    assert said.startswith(start), said
    return said[len(start) :]


def test_an_environment_and_its_packages_are_snapshots(packages: Packages, good: Path) -> None:
    for path in (good, good / "lib/python3.12/site-packages"):
        assert found(packages.compare("snapshot", path=path)) == DIFFERENCES
        assert outcomes(packages.compare("snapshot", path=path))["modified"] is False
        verdict = packages.compare("snapshot", ["other"], path=path)
        assert found(verdict) == {"added": ["other/new.py"]}
    same = packages.compare("snapshot", path=packages.root)
    assert (found(same), failed(same), same.drift) == ({}, [], [])


def test_all_of_site_packages_against_a_snapshot(packages: Packages, good: Path) -> None:
    verdict = packages.compare("snapshot", "all", path=good)
    assert found(verdict) == {**DIFFERENCES, "added": ["other/new.py", "pkg/new.py", "third.py"]}
    assert [one["file"] for one in verdict.drift or []] == ["pkg/a.py", "pkg/link"]


def test_an_unpacked_wheel_is_a_snapshot(packages: Packages, good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    path = wheel(tmp_path / "wheels", {"pkg/a.py": "a = 1\n", "pkg-1.0.data/scripts/run": "#!python\n"})
    shutil.unpack_archive(path, folder, "zip")
    verdict = packages.compare("snapshot", path=folder)
    assert found(verdict, "modified") == {"modified": ["pkg/a.py"]}
    assert {"pkg/__init__.py", "pkg/new.py"} <= set(found(verdict)["added"])


def manifests(good: Path, out: Path) -> List[Path]:
    """Manifests of an environment as this collection, engineers and sha256sum write them."""
    out.mkdir()
    site = "lib/python3.12/site-packages"
    commands: Dict[str, Any] = {
        "top": ("find . -type f -exec sha256sum {} + | sort -k2", good),
        "dated": (
            "echo '# MANIFEST of the environment'; echo '# 2026-07-01'; find . -type f -exec sha256sum {} + | sort -k2",
            good,
        ),
        "site": ("find pkg other -type f -exec sha256sum {} +", good / site),
        "above": ("find good -type f -exec sha256sum {} +", good.parent),
    }
    for name, (command, place) in commands.items():
        (out / name).write_bytes(subprocess.run(command, shell=True, cwd=place, check=True, capture_output=True).stdout)
    for name, place in (("ours", good), ("ours-site", good / site)):
        (out / name).write_bytes(_manifest.render(*_manifest.read_tree(os.fsencode(place))))
    return sorted(out.iterdir())


def test_manifests_of_all_forms_are_snapshots(packages: Packages, good: Path, tmp_path: Path) -> None:
    for path in manifests(good, tmp_path / "manifests"):
        verdict = packages.compare("snapshot", path=path)
        # Only this collection's own form lists links, and others say nothing of them.
        links = path.name.startswith("ours")
        assert found(verdict) == (DIFFERENCES if links else {**DIFFERENCES, "modified": ["pkg/a.py"]}), path.name
        assert verdict.drift is None


def test_what_is_no_snapshot_is_refused(packages: Packages, good: Path, tmp_path: Path) -> None:
    gone, bad, other = tmp_path / "gone", tmp_path / "bad", tmp_path / "empty"
    name = "name a directory or a manifest in path"
    assert refusal(packages, gone) == f"snapshot {gone}: No such file or directory ({name})"
    os.mkfifo(tmp_path / "fifo")
    assert refusal(packages, tmp_path / "fifo") == f"snapshot {tmp_path}/fifo: no regular file ({name})"
    again = "write it again from a good environment"
    bad.write_text(f"{'0' * 64}  pkg/a.py\nhello\n")
    assert refusal(packages, bad) == f"manifest {bad} line 2 is not '<64 hex digits>  <path>' ({again})"
    bad.write_text(f"{'0' * 64}  ../pkg/a.py\n")
    assert refusal(packages, bad) == f"manifest {bad} line 1 lists ../pkg/a.py, which climbs out of the tree ({again})"
    kinds = "a snapshot is of an environment, of its site-packages, or of an unpacked wheel"
    bad.write_text(f"{'0' * 64}  srt/a.py\n")
    assert refusal(packages, bad) == f"nothing of pkg in {bad} ({kinds})"
    other.mkdir()
    assert refusal(packages, other) == f"nothing of pkg in {other} ({kinds})"
    assert refusal(packages, other, "all") == f"nothing of site-packages in {other} ({kinds})"
    (good / "lib/python3.11/site-packages").mkdir(parents=True)
    assert refusal(packages, good) == (
        f"{good} with lib/python3.11/site-packages, lib/python3.12/site-packages (name one of them in path)"
    )
    os.mkfifo(other / "pipe")
    assert refusal(packages, other).startswith(f"snapshot {other}: {other}/pipe is a FIFO")


def test_a_package_copied_over_another_version_equals_its_snapshot(packages: Packages, tmp_path: Path) -> None:
    packages.write("pkg/__init__.py", "__version__ = '2.0'\n")
    good = tmp_path / "copied"
    shutil.copytree(packages.root, good)
    packages.write("pkg/a.py", "a = 3\n")
    verdict = packages.compare("snapshot", path=good, files=["pkg/a.py"], version="2.0")
    assert (found(verdict), failed(verdict)) == ({"modified": ["pkg/a.py"]}, [])
    assert verdict.warnings == [
        "pkg: dist-info says 1.0, __version__ says 2.0; the package directory was copied over another version"
    ]
    (said,) = failed(packages.compare("snapshot", path=good, files=["pkg/a.py"], version="3.0"))
    assert said.startswith("version in pkg-1.0.dist-info: expected 3.0 in both, found dist-info says 1.0")


def test_launchers_of_another_place_are_equal(packages: Packages, tmp_path: Path) -> None:
    packages.install("tool", files={"../../../bin/tool": "#!/venv/bin/python\nimport tool\n", "tool.py": ""})
    good = tmp_path / "good"
    shutil.copytree(packages.root, good)
    packages.write("../../../bin/tool", "#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\nimport tool\n")
    assert found(packages.compare("snapshot", "tool", path=good)) == {}
    packages.write("../../../bin/tool", "#!/venv/bin/python\nimport evil\n")
    assert found(packages.compare("snapshot", "tool", path=good)) == {"modified": ["../../../bin/tool"]}
