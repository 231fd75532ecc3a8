# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import same_version
from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, found
from ansible_collections.ddtree.fleet.tests.unit.patched import Fake, failed, recorded


@pytest.fixture(name="packages")
def packages_fixture(tmp_path: Path) -> Packages:
    return Packages(tmp_path / "env")


def refusal(packages: Packages, name: str = "pkg", kind: str = "record", **more: Any) -> str:
    (said,) = failed(packages.compare(kind, name, **more))
    start = f"baseline {kind} of {name}: expected one to compare with, found "
    assert said.startswith(start)
    return said[len(start) :]


def test_all_spellings_of_a_name_are_one(packages: Packages) -> None:
    packages.install("My.Pkg_x")
    for name in ("my-pkg-x", "My_Pkg.X", "MY--PKG..X"):
        assert found(packages.compare("record", name)) == {}


def test_a_name_with_a_dash_is_told_by_metadata(packages: Packages) -> None:
    info = packages.install("my-pkg", "1.0-1")
    packages.write(f"{info.name}/METADATA", "Name: my-pkg\nVersion: 1.0-1\n\nName: other\n")
    installed = packages.installed()
    assert (installed.find("my_pkg").name, installed.find("my_pkg").version) == ("my-pkg", "1.0-1")


def test_two_of_one_name_are_refused_by_both_names(packages: Packages) -> None:
    packages.install(version="1.0")
    packages.install(version="2.0")
    assert refusal(packages) == (
        "pkg-1.0.dist-info, pkg-2.0.dist-info (remove those that are not the installed one; which counts cannot be told)"
    )


def test_a_distribution_of_one_path_file_that_runs_code_is_not_editable(packages: Packages) -> None:
    packages.install(files={"pkg.pth": "import sys; sys.x = 1\n"})
    assert found(packages.compare("record")) == {}


def test_what_pip_leaves_of_an_uninstall_is_no_distribution(packages: Packages) -> None:
    packages.install()
    (packages.site / "~kg-1.0.dist-info").mkdir()
    assert found(packages.compare("record")) == {}


def test_a_renamed_distribution_is_named(packages: Packages) -> None:
    packages.install("sglang-kernel", files={"sgl_kernel/__init__.py": ""})
    assert refusal(packages, "sgl-kernel") == (
        "no dist-info directory of that name; sgl_kernel/ belongs to sglang-kernel-1.0.dist-info "
        "(it was renamed: name the distribution that is installed now)"
    )


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"direct_url.json": json.dumps({"url": "file:///src/a%20b", "dir_info": {"editable": True}})}, " of /src/a b"),
        (
            {"direct_url.json": json.dumps({"url": "https://user:key@h/x", "dir_info": {"editable": True}})},
            " of /x",
        ),
        ({"../__editable___pkg_1_0_finder.py": "", "../__editable__.pkg-1.0.pth": ""}, ""),
        ({"../pkg.pth": "/src\n"}, ""),
    ],
)
def test_an_editable_install_is_refused_by_its_source(packages: Packages, files: Any, source: str) -> None:
    info = packages.site / "pkg-1.0.dist-info"
    for path, text in files.items():
        packages.write(f"{info.name}/{path}", text)
    rows = [[os.path.normpath(f"{info.name}/{path}"), recorded(text.encode()), ""] for path, text in files.items()]
    packages.record(info, rows)
    for kind, more in (("record", {}), ("wheel", {"path": "/"}), ("backups", {})):
        said = f"pkg-1.0.dist-info of an editable install{source} (its files are elsewhere; install the wheel)"
        assert refusal(packages, kind=kind, **more) == said


@pytest.mark.parametrize("origin", ["{", "[]", '{"dir_info": {"editable": false}}', '{"dir_info": []}', "[" * 100_000])
def test_an_install_from_a_url_is_a_distribution_like_others(packages: Packages, origin: str) -> None:
    info = packages.install()
    packages.write(f"{info.name}/direct_url.json", origin)
    packages.write(f"{info.name}/REQUESTED", "")
    assert found(packages.compare("record")) == {}


def test_installs_without_a_record(packages: Packages) -> None:
    info = packages.install()
    (info / "RECORD").unlink()
    another = "compare with kind wheel or snapshot, or install it from a wheel"
    assert refusal(packages) == f"pkg-1.0.dist-info without a RECORD (it was not installed from a wheel; {another})"
    (info / "INSTALLER").write_text("debian\n")
    assert refusal(packages) == f"pkg-1.0.dist-info without a RECORD (debian installed it without one; {another})"
    os.mkfifo(info / "RECORD")
    assert refusal(packages) == "pkg-1.0.dist-info/RECORD: no regular file (read it as a user that may)"
    for path in info.iterdir():
        path.unlink()
    info.rmdir()
    copied = f"(it was copied there and has no RECORD; {another})"
    assert refusal(packages) == f"no dist-info directory, only pkg/ {copied}"
    packages.write("../../../conda-meta/pkg-1.0-py312_0.json", "{}")
    assert refusal(packages) == (
        f"no dist-info directory, but conda-meta/pkg-1.0-py312_0.json (conda installed it without a RECORD; {another})"
    )
    packages.write("pkg-1.0-py3.12.egg-info/installed-files.txt", "../pkg/__init__.py\n../pkg/a.py\nPKG-INFO\n\n")
    legacy = f"(setuptools installed it without a wheel; {another})"
    assert refusal(packages) == f"pkg-1.0-py3.12.egg-info, whose installed-files.txt has no hashes {legacy}"
    (packages.site / "pkg-1.0-py3.12.egg-info/installed-files.txt").unlink()
    assert refusal(packages) == f"pkg-1.0-py3.12.egg-info, which lists no files {legacy}"


def test_an_egg_link_is_an_editable_install(packages: Packages) -> None:
    packages.write("pkg.egg-link", "/src\n.")
    assert refusal(packages) == "pkg.egg-link of an editable install (its files are elsewhere; install the wheel)"


def test_files_of_legacy_installs_belong_to_somebody(packages: Packages) -> None:
    packages.write("old/__init__.py", "")
    packages.write("old/new.py", "")
    packages.write("old-1.0.egg-info/installed-files.txt", "../old/__init__.py\n")
    verdict = packages.compare("record", "all")
    assert [said.partition(",")[0] for said in failed(verdict)] == [
        "baseline record of old: expected one to compare with"
    ]
    packages.install()
    assert found(packages.compare("record", "all"), "added") == {"added": ["old/new.py"]}


def test_the_files_of_a_broken_install_are_not_strays(packages: Packages) -> None:
    packages.install()
    info = packages.install("broken", files={"broken/a.py": "", "broken_tools/b.py": ""})
    (info / "RECORD").write_text("a,b,c,d\n")
    assert found(packages.compare("record", "all")) == {"added": ["broken_tools/b.py"]}
    (info / "top_level.txt").write_text("broken\nbroken_tools\n")
    verdict = packages.compare("record", "all")
    assert (found(verdict), len(failed(verdict))) == ({}, 1)


def test_a_package_that_another_adds_to(packages: Packages) -> None:
    packages.install()
    packages.install("plugin", files={"pkg/plugins/p.py": "", "pkg/plugin.py": ""})
    packages.write("pkg/new.py", "")
    packages.write("pkg/plugins/new.py", "")
    packages.write("pkg/sub/deep/new.py", "")
    assert found(packages.compare("record")) == {"added": ["pkg/new.py", "pkg/sub/deep/new.py"]}
    assert found(packages.compare("record", "plugin")) == {"added": ["pkg/plugins/new.py"]}


def test_the_version_of_a_package_is_read_without_importing(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "venv")
    packages = Packages(tmp_path / "other")
    packages.root, packages.site = fake.root, fake.site

    def own() -> Any:
        installed = packages.installed()
        return installed.own_version(installed.find("SGLang"))

    assert own() == "0.5.11"
    (fake.site / "sglang/_version.py").unlink()
    assert own() is None
    fake.write("sglang/__init__.py", "__version__: str = '1.0'\nraise SystemExit\n")
    assert own() == "1.0"
    for broken in ("def broken(:\n", "(" * 100_000, "\0"):
        fake.write("sglang/version.py", broken)
        assert own() == "1.0"
    (fake.site / "sglang/version.py").unlink()
    os.mkfifo(fake.site / "sglang/version.py")
    assert own() == "1.0"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5.11", "0.5.11", True),
        ("v0.5.11", "0.5.11", True),
        ("2.9.1", "2.9.1+cu130", True),
        ("2.9.1+cu128", "2.9.1+cu130", False),
        ("1.0-post1", "1.0.post1", True),
        ("0.5.9", "0.5.11", False),
    ],
)
def test_versions_compare_by_meaning(one: str, other: str, same: bool) -> None:
    assert same_version(one, other) is same
