# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible_collections.ddtree.fleet.tests.unit.agents import listing

RunModule = Callable[..., Dict[str, Any]]
A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture(name="dest")
def dest_fixture(tmp_path: Path) -> Path:
    """A dest with three releases beside it, none live."""
    store = tmp_path / "host" / "venv.releases"
    (store / "meta").mkdir(parents=True)
    for number, name in enumerate((A, B, C)):
        (store / name).mkdir()
        (store / "meta" / f"{name}.json").write_text(json.dumps({"committed": f"2026-01-0{number + 1}T00:00:00Z"}))
    return tmp_path / "host" / "venv"


def both(run_module: RunModule, dest: Path, **args: Any) -> Dict[str, Any]:
    """Run in check mode, which may write nothing, then for real: both must agree on what changes and on what is refused."""
    before = listing(dest.parent)
    would = run_module("venv_release", {"dest": str(dest), **args}, check=True, diff=True)
    assert listing(dest.parent) == before
    done = run_module("venv_release", {"dest": str(dest), **args}, diff=True)
    for key in ("changed", "rc", "removed", "active", "unit_changed", "msg", "diff"):
        assert would.get(key) == done.get(key), key
    return done


def act(run_module: RunModule, dest: Path, **args: Any) -> Dict[str, Any]:
    return run_module("venv_release", {"dest": str(dest), **args})


def test_activating_is_idempotent_and_predicted(run_module: RunModule, dest: Path) -> None:
    first = both(run_module, dest, state="active", release=A, actor="anna")
    assert (first["changed"], first["active"], first["way_back"]) == (True, A, A)
    assert first["diff"] == {"before": {"active": ""}, "after": {"active": A}}
    assert os.readlink(dest) == f"venv.releases/{A}"
    assert both(run_module, dest, state="active", release=A)["changed"] is False
    assert both(run_module, dest, release=A, verdict="passed")["changed"] is True
    second = both(run_module, dest, release=A, verdict="passed")
    assert (second["changed"], second["way_back"]) == (False, A)


def test_back_to_the_previous_one(run_module: RunModule, dest: Path) -> None:
    refused = both(run_module, dest, state="active", release="previous")
    assert refused["msg"] == f"{dest} has no previous release that served well, so there is no way back"
    for name in (B, A):
        act(run_module, dest, state="active", release=name)
        act(run_module, dest, release=name, verdict="passed")
    act(run_module, dest, state="active", release=C)
    act(run_module, dest, release=C, verdict="failed")
    back = both(run_module, dest, state="active", release="previous")
    assert (back["active"], back["release"], back["store"]["previous"]) == (A, A, B)


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_what_was_never_deployed_is_refused_in_check_mode_too(run_module: RunModule, dest: Path, kind: str) -> None:
    if kind == "directory":
        dest.mkdir()
        (dest / "x").touch()
    elif kind == "file":
        dest.touch()
    else:
        dest.symlink_to("/opt")
    refused = both(run_module, dest, state="active", release=A)
    assert refused["rc"] == 1
    assert refused["msg"].startswith(f"{dest} is ")


def test_the_unit_is_kept_with_the_release_that_it_served(run_module: RunModule, dest: Path) -> None:
    unit = dest.parent / "sglang.service"
    unit.write_text("old")
    act(run_module, dest, state="active", release=A)
    act(run_module, dest, state="active", release=B, unit=str(unit))
    kept = dest.parent / "venv.releases" / "meta" / f"{A}.unit" / "sglang.service"
    assert kept.read_text() == "old"


def test_adopting_a_directory(run_module: RunModule, dest: Path) -> None:
    assert both(run_module, dest, state="adopted")["changed"] is False
    dest.mkdir()
    (dest / "file").write_text("by hand")
    unit = dest.parent / "sglang.service"
    unit.write_text("by hand")
    before = listing(dest.parent)
    would = run_module("venv_release", {"dest": str(dest), "state": "adopted"}, check=True)
    assert (would["changed"], listing(dest.parent)) == (True, before)
    done = run_module("venv_release", {"dest": str(dest), "state": "adopted", "unit": str(unit)})
    assert (done["changed"], done["active"], done["way_back"]) == (True, done["release"], done["release"])
    assert (dest / "file").read_text() == "by hand"
    assert dest.is_symlink()
    meta = dest.parent / "venv.releases" / "meta"
    assert "./file" in (meta / f"{done['release']}.sha256").read_text()
    assert (meta / f"{done['release']}.unit" / "sglang.service").read_text() == "by hand"
    assert both(run_module, dest, state="adopted")["changed"] is False


def test_a_directory_whose_links_would_break_is_not_adopted(run_module: RunModule, dest: Path) -> None:
    dest.mkdir()
    (dest.parent / "shared").mkdir()
    (dest / "cache").symlink_to("../shared")
    (dest / "dead").symlink_to("../nowhere")
    refused = run_module("venv_release", {"dest": str(dest), "state": "adopted"})
    assert refused["msg"].startswith(
        f"{dest}/cache is a link to ../shared, which would lead nowhere once the directory stands in"
    )
    assert not dest.is_symlink()
    (dest / "cache").unlink()
    (dest / "cache").symlink_to(dest.parent / "shared")
    assert run_module("venv_release", {"dest": str(dest), "state": "adopted"})["changed"] is True
    assert (dest / "cache").is_dir()


def test_a_directory_that_holds_a_fifo_is_not_adopted(run_module: RunModule, dest: Path) -> None:
    dest.mkdir()
    os.mkfifo(dest / "pipe")
    refused = run_module("venv_release", {"dest": str(dest), "state": "adopted"})
    assert refused["msg"] == f"{dest}/pipe is a FIFO, which no environment needs; remove it or exclude it"
    assert dest.is_dir()
    assert not dest.is_symlink()


@pytest.mark.slow
def test_removing_and_pruning(run_module: RunModule, dest: Path) -> None:
    act(run_module, dest, state="active", release=A)
    act(run_module, dest, release=A, verdict="passed")
    act(run_module, dest, state="active", release=B)
    assert "is active at" in both(run_module, dest, state="absent", release=B)["msg"]
    assert "is the way back" in both(run_module, dest, state="absent", release=A)["msg"]
    assert both(run_module, dest, state="absent", release="0" * 16)["changed"] is False
    assert "keep must be 0 or more" in both(run_module, dest, state="pruned", keep=-1)["msg"]
    assert both(run_module, dest, state="pruned", keep=3)["removed"] == []
    pruned = both(run_module, dest, state="pruned", keep=0)
    assert (pruned["changed"], pruned["removed"]) == (True, [C])
    assert [one["id"] for one in pruned["store"]["releases"]] == [A, B]
    assert both(run_module, dest, state="pruned", keep=0)["changed"] is False


@pytest.mark.slow
def test_pruning_takes_interpreters_along_that_no_release_uses_any_more(run_module: RunModule, dest: Path) -> None:
    store = Path(f"{dest}.releases")
    for name, user in (("d" * 16, A), ("e" * 16, C)):
        (store / "interpreters" / name).mkdir(parents=True)
        (store / "meta" / f"{user}.json").write_text(
            json.dumps({"committed": "2026-01-01T00:00:00Z", "interpreter": name})
        )
    interpreters = store / "interpreters"
    act(run_module, dest, state="active", release=C)
    assert both(run_module, dest, state="pruned", keep=3)["changed"] is False
    assert {path.name for path in interpreters.iterdir()} == {"d" * 16, "e" * 16}
    assert both(run_module, dest, state="pruned", keep=0)["removed"] == [A, B]
    assert sorted(path.name for path in interpreters.iterdir() if len(path.name) == 16) == ["e" * 16]
    assert [one["id"] for one in both(run_module, dest)["store"]["releases"]] == [C]
    (interpreters / ("f" * 16)).mkdir()  # of a release that never came to be
    only = both(run_module, dest, state="pruned", keep=0)
    assert (only["changed"], only["removed"]) == (True, [])
    assert not (interpreters / ("f" * 16)).exists()
    assert both(run_module, dest, state="pruned", keep=0)["changed"] is False


@pytest.mark.parametrize("release", ["../../etc", ".", "meta", "", "/etc"])
def test_only_a_release_can_be_removed_or_activated(run_module: RunModule, dest: Path, release: str) -> None:
    before = listing(dest.parent)
    run_module("venv_release", {"dest": str(dest), "state": "absent", "release": release})
    assert run_module("venv_release", {"dest": str(dest), "state": "active", "release": release})["rc"] == 1
    assert listing(dest.parent) == before


def test_no_release_live(run_module: RunModule, dest: Path) -> None:
    assert both(run_module, dest, state="inactive")["changed"] is False
    act(run_module, dest, state="active", release=A)
    done = both(run_module, dest, state="inactive")
    assert (done["changed"], done["active"], os.path.lexists(dest)) == (True, "", False)


def test_the_lease(run_module: RunModule, dest: Path) -> None:
    lock = Path(f"{dest}.lock")
    locked = {"dest": str(dest), "state": "locked", "run_id": "one", "actor": "anna"}
    assert run_module("venv_release", locked, check=True)["changed"] is False
    assert not lock.exists()
    assert run_module("venv_release", locked)["changed"] is False
    for check in (True, False):
        refused = run_module("venv_release", {**locked, "run_id": "two"}, check=check)
        assert f"{dest} is being deployed to by anna since" in refused["msg"]
    run_module("venv_release", {**locked, "state": "unlocked", "run_id": "two"})
    assert lock.exists()
    run_module("venv_release", {**locked, "run_id": "two", "lock_take_over": True})
    run_module("venv_release", {**locked, "state": "unlocked", "run_id": "two"})
    assert not lock.exists()


def test_wrong_parameters_and_paths_are_named(run_module: RunModule, dest: Path) -> None:
    for args, problem in (
        ({"dest": "/"}, "must be an absolute path"),
        ({"state": "active"}, "release"),
        ({"state": "locked"}, "run_id"),
        ({"verdict": "passed"}, "release"),
        ({"release": "0" * 16}, f"no release {'0' * 16} in {dest}.releases; it has: {A}, {B}, {C}"),
    ):
        refused = run_module("venv_release", {"dest": str(dest), **args})
        assert refused["rc"] == 1
        assert problem in refused["msg"]


def test_without_a_release_it_only_lists(run_module: RunModule, dest: Path) -> None:
    listed = both(run_module, dest)
    assert (listed["changed"], listed["store"]["dest_kind"], listed["active"]) == (False, "absent", "")
    assert [one["id"] for one in listed["store"]["releases"]] == [A, B, C]
