# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.backups import backed_up
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import PATTERNS
from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, found, outcomes
from ansible_collections.ddtree.fleet.tests.unit.patched import failed


@pytest.fixture(name="packages")
def packages_fixture(tmp_path: Path) -> Packages:
    packages = Packages(tmp_path)
    packages.install()
    return packages


def backup(packages: Packages, path: str, text: str, age: int = 0) -> None:
    full = packages.write(path, text)
    os.utime(full, (1_700_000_000 - age, 1_700_000_000 - age))


def test_files_are_compared_with_their_backups(packages: Packages) -> None:
    backup(packages, "pkg/a.py.orig", "a = 0\n")
    backup(packages, "pkg/sub/b.py.bak", "b = 1\n")
    backup(packages, "pkg/gone.py.bak", "")
    packages.write("pkg/new.py", "")
    verdict = packages.compare("backups", files=["pkg/sub/b.py", "pkg/new.py"])
    assert found(verdict) == {
        "modified": ["pkg/a.py"],
        "missing": ["pkg/gone.py"],
        "unmodified": ["pkg/sub/b.py"],
    }
    assert outcomes(verdict) == {"modified": False, "added": True, "missing": False, "unmodified": False}
    assert verdict.warnings == ["pkg/new.py is declared, but backups has nothing to compare it with"]
    (shown,) = verdict.drift or []
    assert shown["diff"].splitlines()[3:5] == ["-a = 0", "+a = 1"]
    (packages.site / "pkg/gone.py.bak").unlink()
    assert not failed(packages.compare("backups", files=["pkg/a.py"]))


def test_the_oldest_of_several_backups_is_the_baseline(packages: Packages) -> None:
    backup(packages, "pkg/a.py.bak2", "a = 0.5\n", age=10)
    backup(packages, "pkg/a.py.orig", "a = 0\n", age=20)
    backup(packages, "pkg/a.py.bak.20260701", "a = 1\n", age=5)
    verdict = packages.compare("backups", files=["pkg/a.py"])
    assert not failed(verdict)
    assert verdict.warnings == ["pkg/a.py has 3 backups; the oldest, pkg/a.py.orig, is its baseline"]
    backup(packages, "pkg/a.py~", "a = 1\n", age=20)
    assert found(packages.compare("backups")) == {}


def test_patterns_say_how_backups_are_named(packages: Packages) -> None:
    backup(packages, "pkg/a.py.before-ddtree", "a = 0\n")
    (said,) = failed(packages.compare("backups"))
    assert said == (
        "baseline backups of pkg: expected one to compare with, "
        "found no file named as a backup (*.orig, *.bak, *.bak[0-9._-]*, *~) below pkg "
        "(say in patterns how backups are named, or compare with another baseline)"
    )
    assert found(packages.compare("backups", patterns=["*.before-*"])) == {"modified": ["pkg/a.py"]}


def test_backups_of_all_distributions_and_of_modules_without_a_package(packages: Packages) -> None:
    packages.install("six", files={"six.py": "x = 1\n"})
    backup(packages, "six.py.orig", "x = 0\n")
    backup(packages, "pkg/a.py.orig", "a = 0\n")
    assert found(packages.compare("backups", "six")) == {"modified": ["six.py"]}
    assert found(packages.compare("backups", "pkg")) == {"modified": ["pkg/a.py"]}
    assert found(packages.compare("backups", "all")) == {"modified": ["pkg/a.py", "six.py"]}


def test_a_package_without_dist_info_has_backups_too(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    packages.write("pkg/__init__.py", "__version__ = '2.0'\n")
    packages.write("pkg/a.py", "a = 1\n")
    backup(packages, "pkg/a.py.orig", "a = 0\n")
    assert found(packages.compare("backups", version="2.0")) == {"modified": ["pkg/a.py"]}
    (said,) = [one for one in failed(packages.compare("backups", version="1.0")) if one.startswith("version")]
    assert said == "version in pkg: expected 1.0, found 2.0"


def test_in_other_baselines_backups_are_what_the_policy_says(packages: Packages) -> None:
    backup(packages, "pkg/a.py.orig", "a = 0\n")
    packages.write("pkg/new.py", "")
    verdict = packages.compare("record")
    assert found(verdict) == {"added": ["pkg/new.py"], "backups": ["pkg/a.py.orig"]}
    assert (outcomes(verdict)["added"], outcomes(verdict)["backups"]) == (False, False)
    warned = packages.compare("record", files=["pkg/new.py"], policy={"backups": "warn"})
    assert (failed(warned), outcomes(warned)["backups"]) == ([], True)
    assert "found 1: pkg/a.py.orig" in warned.warnings[0]
    ignored = packages.compare("record", files=["pkg/new.py"], policy={"backups": "ignore"})
    assert (ignored.warnings, "backups" in outcomes(ignored)) == ([], False)
    assert found(ignored)["backups"] == ["pkg/a.py.orig"]
    declared = packages.compare("record", files=["pkg/new.py", "pkg/a.py.orig"])
    assert (failed(declared), found(declared)) == ([], {"added": ["pkg/a.py.orig", "pkg/new.py"]})


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.py.orig", "a.py"),
        ("d/a.py.bak", "d/a.py"),
        ("a.py.bak2", "a.py"),
        ("a.py.bak.20260701", "a.py"),
        ("a.py.bak-before", "a.py"),
        ("a.py~", "a.py"),
        ("a\n.bak", "a\n"),
        ("a.py", ""),
        (".orig", ""),
        ("a.bakery", ""),
        ("original", ""),
    ],
)
def test_the_file_of_a_backup(name: str, file: str) -> None:
    assert backed_up(name, PATTERNS) == file
