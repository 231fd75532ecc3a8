# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import UnitFile
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import ServiceError, stem_of

A, B = "a" * 16, "b" * 16


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    """What a host has of the family ``sglang``, and of others."""
    folder = tmp_path / "system"
    for name, text in {
        "sglang.service": "[Service]\nExecStart=/old\n",
        "sglang@.service": "[Service]\n",
        "sglang@a.service.d/port.conf": "[Service]\n",
        "sglang.service.d/10-gpu.conf": "[Service]\n",
        "sglang.service.d/notes.txt": "not systemd's",
        "sglang-other.service": "another family",
        "sglang-other.service.d/x.conf": "another family",
        "sglang.timer": "no service",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "multi-user.target.wants").mkdir()
    (folder / "multi-user.target.wants/sglang@a.service").symlink_to("/etc/systemd/system/sglang@.service")
    (folder / "multi-user.target.wants/sglang-other.service").symlink_to("/etc/systemd/system/sglang-other.service")
    (folder / "llm.service").symlink_to("/etc/systemd/system/sglang.service")
    return folder


def test_a_picture_has_all_of_a_family_and_nothing_else(folder: Path) -> None:
    found = family.read(str(folder), "sglang")
    assert sorted(found) == [
        "llm.service",
        "multi-user.target.wants/sglang@a.service",
        "sglang.service",
        "sglang.service.d/10-gpu.conf",
        "sglang@.service",
        "sglang@a.service.d/port.conf",
    ]
    assert found["llm.service"].is_link
    assert family.enabled("sglang", found) == ["sglang@a.service"]
    assert family.from_json(json.loads(json.dumps(family.to_json(found)))) == found


def test_a_picture_comes_back_as_it_was(folder: Path) -> None:
    (folder / "sglang.service").chmod(0o600)
    found = family.read(str(folder), "sglang")
    others = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "sglang-" in path.name}
    assert sorted(family.write(str(folder), "sglang", {})) == sorted(found)
    assert family.read(str(folder), "sglang") == {}
    assert not (folder / "sglang@a.service.d").exists()
    assert (folder / "sglang.service.d/notes.txt").exists()
    (folder / "sglang@new.service").write_text("new")
    family.write(str(folder), "sglang", found)
    assert family.read(str(folder), "sglang") == found
    assert (folder / "sglang.service").stat().st_mode & 0o777 == 0o600
    assert os.readlink(folder / "llm.service") == "/etc/systemd/system/sglang.service"
    assert {path: path.read_bytes() for path in others} == others
    assert family.write(str(folder), "sglang", found) == []


def test_unit_files_that_people_wrote_are_told_from_ours(folder: Path) -> None:
    (folder / "sglang@.service").write_text("# Written by ddtree.fleet; drop-ins are kept.\n[Service]\n")
    found = family.read(str(folder), "sglang")
    assert family.hand_written("sglang", found) == ["sglang.service"]
    assert family.hand_written("sglang", {name: found[name] for name in found if name != "sglang.service"}) == []


def test_what_says_how_one_unit_runs(folder: Path) -> None:
    found = family.read(str(folder), "sglang")
    assert sorted(family.of_unit("sglang@a.service", found)) == ["sglang@.service", "sglang@a.service.d/port.conf"]
    assert sorted(family.of_unit("sglang@b.service", found)) == ["sglang@.service"]
    assert sorted(family.of_unit("sglang.service", found)) == ["sglang.service", "sglang.service.d/10-gpu.conf"]


def test_drop_ins_that_people_wrote_stay_and_ours_go(folder: Path) -> None:
    (folder / "sglang@a.service.d/port.conf").write_text("# Written by ddtree.fleet\n[Service]\n")
    present = family.read(str(folder), "sglang")
    given = family.given_files("sglang", {"sglang.service": "[Service]\nExecStart=/new\n"})
    assert sorted(family.replaced("sglang", present, given)) == [
        "llm.service",
        "multi-user.target.wants/sglang@a.service",
        "sglang.service",
        "sglang.service.d/10-gpu.conf",
    ]


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("[Service]\nExecStart=\nExecStart=/other\n", True),
        ("[Service]\n ExecStart = /other\n", True),
        ("[Service]\nExecStartPre=/other\n# ExecStart=/other\n", False),
    ],
)
def test_drop_ins_that_run_something_else_are_found(text: str, overrides: bool) -> None:
    name = "sglang.service.d/x.conf"
    files = {name: UnitFile(text.encode(), 0o644), "sglang.service": UnitFile(b"[Service]\nExecStart=/x\n", 0o644)}
    assert family.overriding(files, {}) == ([name] if overrides else [])
    assert family.overriding(files, files) == []


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("ExecStart=/venv/bin/python -m x", "/venv/bin/python"),
        ("ExecStart=-/bin/x", "/bin/x"),
        ('ExecStart="/with space/python" -m x', "/with space/python"),
        ("ExecStart=/bin/%i", ""),
        ("ExecStart=/first\nExecStart=\nExecStart=/second", "/second"),
        ("Environment=x", ""),
    ],
)
def test_the_program_that_a_unit_runs(line: str, program: str) -> None:
    files = {"sglang@.service": UnitFile(f"[Service]\n{line}\n".encode(), 0o644)}
    assert family.program_of("sglang@a.service", files) == program


@pytest.mark.parametrize(
    "name",
    ["other.service", "../sglang.service", "sglang.service.d/x.txt", "sglang.service.d/../x.conf", "a/sglang.service"],
)
def test_files_of_no_family_are_refused(name: str) -> None:
    with pytest.raises(ServiceError, match="is no file of the family sglang"):
        family.given_files("sglang", {name: ""})


@pytest.mark.parametrize(
    "name", ["sglang", "sglang@a.service", "/etc/sglang.service", "sglang.timer", ".service", "-x.service"]
)
def test_what_names_no_family_is_refused(name: str) -> None:
    with pytest.raises(ServiceError, match="unit must be the name of a service"):
        stem_of(name)


def test_the_units_that_a_release_served_with_are_kept_as_they_are(folder: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "venv"))
    (folder / "sglang.service").chmod(0o600)
    present = family.read(str(folder), "sglang")
    assert family.save(store, A, "sglang", present) is True
    assert family.save(store, A, "sglang", present) is False
    assert family.saved(store, A, "sglang") == present


def test_drop_ins_without_a_unit_are_not_saved(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "venv"))
    assert family.save(store, A, "sglang", {"sglang.service.d/x.conf": UnitFile(b"", 0o644)}) is False
