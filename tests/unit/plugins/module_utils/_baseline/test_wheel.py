# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline import wheel as wheels
from ansible_collections.ddtree.fleet.tests.unit.packages import FILES, Packages, found, outcomes, wheel
from ansible_collections.ddtree.fleet.tests.unit.patched import failed


@pytest.fixture(name="packages")
def packages_fixture(tmp_path: Path) -> Packages:
    packages = Packages(tmp_path / "env")
    packages.install()
    return packages


def refusal(packages: Packages, path: Path, **more: Any) -> str:
    (said,) = failed(packages.compare("wheel", path=path, **more))
    start = "baseline wheel of pkg: expected one to compare with, found "
    assert said.startswith(start), said
    return said[len(start) :]


def test_each_difference_from_a_wheel_is_found_and_shown(packages: Packages, tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheels")
    untouched = packages.compare("wheel", path=path)
    assert (found(untouched), failed(untouched), untouched.drift) == ({}, [], [])
    packages.write("pkg/a.py", "a = 2\n")
    packages.write("pkg/new.py", "")
    (packages.site / "pkg/sub/b.py").unlink()
    verdict = packages.compare("wheel", path=path.parent, files=["pkg/__init__.py"])
    assert found(verdict) == {
        "modified": ["pkg/a.py"],
        "missing": ["pkg/sub/b.py"],
        "added": ["pkg/new.py"],
        "unmodified": ["pkg/__init__.py"],
    }
    assert verdict.drift == [
        {
            "file": "pkg/a.py",
            "baseline": path.name,
            "diff": "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n ",
        }
    ]
    assert outcomes(verdict) == {
        "modified": False,
        "added": False,
        "missing": False,
        "unmodified": False,
        "backups": True,
    }


def test_a_wheel_needs_no_record(packages: Packages, tmp_path: Path) -> None:
    path = wheel(tmp_path / "wheels")
    packages.write("pkg/a.py", "a = 2\n")
    (packages.site / "pkg-1.0.dist-info/RECORD").unlink()
    packages.write("pkg/new.py", "")
    assert found(packages.compare("wheel", path=path)) == {"modified": ["pkg/a.py"], "added": ["pkg/new.py"]}
    for file in (packages.site / "pkg-1.0.dist-info").iterdir():
        file.unlink()
    (packages.site / "pkg-1.0.dist-info").rmdir()
    copied = packages.compare("wheel", path=path)
    assert found(copied) == {"modified": ["pkg/a.py"], "added": ["pkg/new.py"]}
    assert copied.versions == {"dist_info": None, "package": "1.0"}


def test_the_wheel_of_the_installed_version_is_taken(packages: Packages, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    right = wheel(folder)
    wheel(folder, version="2.0")
    wheel(folder, name="other")
    (folder / "notes.txt").write_text("")
    (folder / "odd.whl").write_text("")
    verdict = packages.compare("wheel", path=folder)
    assert verdict.inventory is not None
    assert verdict.inventory["distributions"][0]["baseline"] == right.name
    right.unlink()
    assert refusal(packages, folder) == (
        f"no wheel of pkg 1.0 in {folder}, which has pkg-2.0-py3-none-any.whl "
        "(put the wheel there that was installed, or name it in path)"
    )
    (folder / "pkg-2.0-py3-none-any.whl").unlink()
    assert f"no wheel of pkg 1.0 in {folder}, which has other-1.0-py3-none-any.whl (" in refusal(packages, folder)
    (folder / "other-1.0-py3-none-any.whl").unlink()
    assert f"no wheel of pkg 1.0 in {folder}, which has no wheel at all (" in refusal(packages, folder)


@pytest.mark.parametrize("name", ["pkg-1.0+cu130-py3-none-any.whl", "pkg-1.0%2Bcu130-py3-none-any.whl"])
def test_a_local_version_is_preferred_where_there_are_several(tmp_path: Path, name: str) -> None:
    packages = Packages(tmp_path / "env")
    packages.install(version="1.0+cu130")
    folder = tmp_path / "wheels"
    wheel(folder, version="1.0")
    wheel(folder, version="1.0+cu128")
    wheel(folder, version="1.0+cu130").rename(folder / name)
    verdict = packages.compare("wheel", path=folder)
    assert found(verdict) == {}
    assert verdict.inventory is not None
    assert verdict.inventory["distributions"][0]["baseline"] == name


def test_of_several_builds_the_one_with_the_same_tags_is_taken(packages: Packages, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel(folder, tags="cp312-cp312-linux_x86_64", WHEEL="Tag: cp312\n")
    right = wheel(folder, tags="1-py3-none-any")
    verdict = packages.compare("wheel", path=folder)
    assert verdict.inventory is not None
    assert verdict.inventory["distributions"][0]["baseline"] == right.name
    wheel(folder, tags="2-py3-none-any")
    assert refusal(packages, folder) == (
        "2 wheels of pkg 1.0: pkg-1.0-1-py3-none-any.whl, pkg-1.0-2-py3-none-any.whl "
        "(which one was installed cannot be told by its WHEEL file; name it in path)"
    )
    assert found(packages.compare("wheel", path=right)) == {}


def test_a_package_copied_over_another_version_is_one_failure(packages: Packages, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel(folder)
    wheel(folder, {**FILES, "pkg/__init__.py": "__version__ = '2.0'\n"}, version="2.0")
    packages.write("pkg/__init__.py", "__version__ = '2.0'\n")
    packages.write("pkg/a.py", "a = 2\n")
    (said,) = failed(packages.compare("wheel", path=folder))
    assert said.startswith(
        "version in pkg-1.0.dist-info: expected one version, found dist-info says 1.0, __version__ says 2.0 ("
    )
    warned = packages.compare("wheel", path=folder, policy={"version": "warn"})
    assert found(warned) == {"modified": ["pkg/a.py"]}
    assert outcomes(warned)["version"] is True
    assert "__version__ says 2.0" in warned.warnings[0]
    ignored = packages.compare("wheel", path=folder, policy={"version": "ignore"})
    assert (found(ignored), ignored.warnings, "version" in outcomes(ignored)) == (found(warned), [], False)


def test_a_version_that_nobody_keeps_up_to_date_does_not_hide_the_wheel(tmp_path: Path) -> None:
    packages, files = Packages(tmp_path / "env"), {"pkg/__init__.py": "__version__ = '0.1'\n"}
    packages.install(files=files)
    path = wheel(tmp_path / "wheels", files)
    for level in ("fail", "warn", "ignore"):
        verdict = packages.compare("wheel", "all", path=path.parent, policy={"version": level})
        assert (found(verdict), failed(verdict), verdict.warnings) == ({}, [], [])


def test_what_a_wheel_puts_elsewhere_is_where_pip_puts_it(tmp_path: Path) -> None:
    data = {
        "purelib/pkg_pure.py": "",
        "platlib/pkg_plat.py": "",
        "scripts/run": "#!python\nimport pkg\n",
        "scripts/other": "#!/bin/sh\ntrue\n",
        "data/share/pkg/d.txt": "d\n",
        "headers/pkg.h": "/* */\n",
    }
    path = wheel(tmp_path / "wheels", {**FILES, **{f"pkg-1.0.data/{name}": text for name, text in data.items()}})
    root = tmp_path / "env"
    venv.create(root, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", root / "bin/python", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", "--no-compile", path], check=True, capture_output=True)
    packages = Packages(tmp_path / "unused")
    packages.root, (packages.site,) = root, root.glob("lib/python3*/site-packages")
    for kind, more in (("wheel", {"path": path}), ("record", {})):
        assert found(packages.compare(kind, **more)) == {}
    (root / "bin/run").write_text("#!/elsewhere/python\nimport pkg\n")
    assert found(packages.compare("wheel", path=path)) == {}
    (root / "bin/run").write_text("#!/elsewhere/python\nimport evil\n")
    (root / "bin/other").write_text("true\n")
    (root / "share/pkg/d.txt").unlink()
    (header,) = root.glob("include/site/python3*/pkg/pkg.h")
    header.write_text("x")
    short = header.parent.parent.name
    assert found(packages.compare("wheel", path=path)) == {
        "modified": ["../../../bin/other", "../../../bin/run", f"../../../include/site/{short}/pkg/pkg.h"],
        "missing": ["../../../share/pkg/d.txt"],
    }


def test_vendored_distributions_are_content(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "env")
    vendored = {f"pkg/_vendor/x-1.0.dist-info/{name}": name for name in ("METADATA", "WHEEL", "RECORD", "INSTALLER")}
    packages.install(files={**FILES, **vendored})
    path = wheel(tmp_path / "wheels", {**vendored, **FILES})
    for kind, more in (("wheel", {"path": path}), ("record", {}), ("snapshot", {"path": packages.root})):
        verdict = packages.compare(kind, **more)
        assert verdict.inventory is not None
        assert (found(verdict), verdict.inventory["counts"]["equal"]) == ({}, 9), kind
    packages.write("pkg/_vendor/x-1.0.dist-info/RECORD", "changed")
    packages.write("pkg/_vendor/x-1.0.dist-info/new", "")
    for kind, more in (("wheel", {"path": path}), ("record", {})):
        assert found(packages.compare(kind, **more)) == {
            "modified": ["pkg/_vendor/x-1.0.dist-info/RECORD"],
            "added": ["pkg/_vendor/x-1.0.dist-info/new"],
        }


def rewrite(path: Path, change: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(path, "a") as archive:
        change(archive)
    return path


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("../evil.py", "its member '../evil.py' leads out of where it is unpacked"),
        ("pkg/../../evil.py", "its member 'pkg/../../evil.py' leads out of where it is unpacked"),
        ("/evil.py", "its member '/evil.py' leads out of where it is unpacked"),
        ("pkg\\evil.py", "its member 'pkg\\\\evil.py' leads out of where it is unpacked"),
        ("pkg-1.0.data/scripts/../../x", "its member 'pkg-1.0.data/scripts/../../x' leads out of where it is unpacked"),
        ("pkg-1.0.data/other/x", "its member pkg-1.0.data/other/x is below an unknown directory of .data"),
        ("pkg/a.py", "its member pkg/a.py is there twice"),
        ("pkg-1.0.data/purelib/pkg/a.py", "its members pkg/a.py and pkg-1.0.data/purelib/pkg/a.py are one file"),
        ("other-1.0.dist-info/WHEEL", "2 dist-info directories with a file WHEEL instead of one"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_members_are_refused_by_name(packages: Packages, tmp_path: Path, member: str, said: str) -> None:
    path = rewrite(wheel(tmp_path / "wheels"), lambda archive: archive.writestr(member, ""))
    assert refusal(packages, path) == (
        f"{path.name}: {said} (it is no wheel to compare with; get it again from where it came)"
    )


def patch(path: Path, name: str, offset: int, value: bytes) -> None:
    """Change a field of a member's entry in the central directory."""
    data = bytearray(path.read_bytes())
    start = data.rindex(name.encode()) - 46
    assert data[start : start + 4] == b"PK\x01\x02"
    data[start + offset : start + offset + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (8, b"\x01", "its member pkg/sub/b.py is encrypted"),
        (16, b"\0\0\0\0", "its member pkg/sub/b.py cannot be read: Bad CRC-32 for file 'pkg/sub/b.py'"),
        (10, b"\x63", "its member pkg/sub/b.py cannot be read: That compression method is not supported"),
        (20, b"\xff\xff\xff\x0f", "its members overlap"),
        (24, b"\xff\xff\xff\xf0", "it unpacks to 3856 MiB out of 0 MiB"),
        (42, b"\xff\xff\0\0", "its member pkg/sub/b.py cannot be read: "),
    ],
    ids=["encrypted", "crc", "compression", "overlap", "bomb", "place"],
)
def test_damaged_members_are_refused_by_name(
    packages: Packages, tmp_path: Path, offset: int, value: bytes, said: str
) -> None:
    path = wheel(tmp_path / "wheels")
    patch(path, "pkg/sub/b.py", offset, value)
    assert refusal(packages, path).startswith(f"{path.name}: {said}")


def test_too_many_members_are_refused(packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "MEMBERS", 5)
    assert "6 members, more than 5" in refusal(packages, wheel(tmp_path / "wheels"))


def test_what_is_no_wheel_is_refused(packages: Packages, tmp_path: Path) -> None:
    path = tmp_path / "pkg-1.0-py3-none-any.whl"
    path.write_bytes(b"hello")
    assert refusal(packages, path) == f"{path.name}: File is not a zip file (get the wheel again)"
    path.write_bytes(wheel(tmp_path / "wheels").read_bytes()[:-30])
    assert refusal(packages, path).startswith(f"{path.name}: ")
    path.unlink()
    os.mkfifo(path)  # nobody writes to it, so reading would wait without end
    assert refusal(packages, path) == f"{path.name}: no regular file (get the wheel again)"
    other = tmp_path / "pkg.zip"
    other.write_bytes(b"")
    assert refusal(packages, other).startswith(f"{other}, which is not named as a wheel (")
    gone = tmp_path / "gone"
    assert refusal(packages, gone) == f"{gone}: No such file or directory (name a wheel or a folder of wheels in path)"


def test_all_distributions_against_a_folder(tmp_path: Path) -> None:
    packages, folder = Packages(tmp_path / "env"), tmp_path / "wheels"
    names: List[str] = ["one", "two", "three"]
    contents: Dict[str, Dict[str, str]] = {name: {f"{name}/__init__.py": "", f"{name}/a.py": name} for name in names}
    for name, files in contents.items():
        packages.install(name, files=files)
        if name != "three":
            wheel(folder, files, name=name)
    packages.write("two/a.py", "patched")
    packages.write("two/b.py", "new")
    packages.write("four.py", "new")
    for allowed in (
        "distutils-precedence.pth",
        "_virtualenv.py",
        "two-1.0.dist-info/INSTALLER",
        "one/__pycache__/a.pyc",
    ):
        packages.write(allowed, "")
    verdict = packages.compare("wheel", "all", path=folder, files=["two/a.py"])
    assert found(verdict) == {"modified": ["two/a.py"], "added": ["four.py", "two/b.py"]}
    assert [said.partition(":")[0] for said in failed(verdict)] == ["baseline wheel of three", "added"]
    assert verdict.inventory is not None
    assert [(one["name"], one["counts"]["modified"]) for one in verdict.inventory["distributions"]] == [
        ("two", 1),
        ("one", 0),
    ]
    assert os.listdir(packages.root / "bin") == []
