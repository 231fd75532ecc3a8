# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import ReleaseError, Store, exchange

A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Store:
    """A store with three releases, committed in this order."""
    store = Store(str(tmp_path / "venv"))
    for number, name in enumerate((A, B, C)):
        os.makedirs(store.path(name))
        Path(store.path(name), "name").write_text(name)
        store.write_meta(name, {"committed": f"2026-01-0{number + 1}T00:00:00Z"})
        Path(store.manifest_path(name)).write_text("")
    return store


def serve(store: Store, name: str, verdict: str = "passed") -> None:
    store.activate(name)
    store.judge(name, verdict)


@pytest.mark.parametrize("dest", ["venv", "", "/", "//", "/x/.."])
def test_a_dest_of_its_own_is_needed(dest: str) -> None:
    with pytest.raises(ReleaseError, match="must be an absolute path of a directory of its own"):
        Store(dest)


def test_looking_creates_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "venv"))
    assert (store.releases(), store.history(), store.active(), store.previous()) == ([], [], None, None)
    assert store.listing()["dest_kind"] == "absent"
    assert os.listdir(tmp_path) == []


def test_activating_switches_the_link_and_says_what_was_before(store: Store) -> None:
    assert store.activate(A, actor="anna") is True
    assert Path(store.dest, "name").read_text() == A
    assert os.readlink(store.dest) == f"venv.releases/{A}"
    assert store.activate(A) is False
    assert store.activate(B) is True
    events = store.history()
    assert [(event["event"], event["release"], event["before"]) for event in events] == [
        ("activated", A, None),
        ("activated", B, A),
    ]
    assert events[0]["actor"] == "anna"
    assert store.active() == B


def test_dest_is_never_missing_while_releases_are_switched(store: Store) -> None:
    store.activate(A)
    for _ in range(50):
        for name in (B, A):
            fd = os.open(store.dest, os.O_RDONLY)
            store.activate(name)
            assert os.path.exists(store.dest)
            os.close(fd)


@pytest.mark.parametrize(
    ("kind", "make", "message"),
    [
        (
            "directory",
            lambda dest: (dest.mkdir(), (dest / "x").touch()),
            "is a directory, not a release; adopt it first",
        ),
        ("other", lambda dest: dest.touch(), "is no directory, not a release; move it away"),
        ("link", lambda dest: dest.symlink_to("/tmp"), "is a link to somewhere else, not a release; move it away"),
    ],
)
def test_what_was_never_deployed_is_not_replaced(store: Store, kind: str, make: object, message: str) -> None:
    make(Path(store.dest))  # type: ignore[operator]
    assert store.dest_kind() == kind
    with pytest.raises(ReleaseError, match=message):
        store.activate(A)
    assert store.dest_kind() == kind
    assert store.history() == []


def test_an_empty_directory_at_dest_gives_way(store: Store) -> None:
    os.mkdir(store.dest)
    assert store.dest_kind() == "empty"
    assert store.activate(A) is True


def test_a_release_that_is_not_there_is_named_with_those_that_are(store: Store) -> None:
    with pytest.raises(ReleaseError, match=f"no release 0000 in {store.root}; it has: {A}, {B}, {C}"):
        store.activate("0000")


def test_the_way_back_is_the_last_that_served_well_not_the_newest(store: Store) -> None:
    serve(store, B)
    assert store.previous() is None
    serve(store, A)
    assert store.previous() == B
    serve(store, C, "failed")
    assert store.previous() == A
    store.activate(B)  # rolled back by hand past A
    assert store.previous() == A
    store.judge(A, "failed")
    assert store.previous() is None


def test_a_way_back_that_is_gone_is_none(store: Store) -> None:
    serve(store, A)
    serve(store, B)
    serve(store, C)
    store.remove(A)
    assert store.previous() == B
    os.rename(store.path(B), store.path(B) + "-moved")
    assert store.previous() is None


def test_the_live_one_and_the_way_back_cannot_be_removed(store: Store) -> None:
    serve(store, A)
    serve(store, B)
    with pytest.raises(ReleaseError, match=f"{B} is active at .* activate another one first"):
        store.remove(B)
    with pytest.raises(ReleaseError, match=f"{A} is the way back"):
        store.remove(A)
    store.remove(C)
    assert store.releases() == [A, B]
    assert sorted(os.listdir(store.meta)) == sorted(f"{name}.{end}" for name in (A, B) for end in ("json", "sha256"))
    assert not os.path.exists(store.path(f"removed-{C}"))


def test_pruning_keeps_the_newest_the_live_one_and_the_way_back(store: Store) -> None:
    assert store.prunable(keep=0) == [A, B, C]
    assert store.prunable(keep=2) == [A]
    serve(store, B)
    serve(store, A)
    assert store.prunable(keep=0) == [C]
    assert store.prunable(keep=1) == []


def ship(store: Store, name: str, *users: str) -> None:
    """A shipped interpreter that some releases use."""
    interpreters = store.interpreters()
    os.makedirs(interpreters.path(name))
    interpreters.write_meta(name, {"committed": "2026-01-01T00:00:00Z"})
    for user in users:
        store.write_meta(user, {**store.describe(user), "interpreter": name})


def test_interpreters_are_in_a_store_of_their_own_and_are_no_releases(store: Store) -> None:
    ship(store, "d" * 16, A)
    interpreters = store.interpreters()
    assert interpreters.path("d" * 16) == f"{store.root}/interpreters/{'d' * 16}"
    assert (interpreters.releases(), interpreters.active(), interpreters.previous()) == (["d" * 16], None, None)
    assert interpreters.dest_kind() == "absent"
    assert store.releases() == [A, B, C]
    assert store.dest_kind() == "absent"


def test_an_interpreter_is_kept_as_long_as_a_release_uses_it(store: Store) -> None:
    assert store.unused_interpreters() == []
    ship(store, "d" * 16, A, B)
    ship(store, "e" * 16)
    assert store.unused_interpreters() == ["e" * 16]
    assert store.unused_interpreters(without=[A]) == ["e" * 16]
    assert store.unused_interpreters(without=[A, B]) == ["d" * 16, "e" * 16]
    store.remove(A)
    assert store.unused_interpreters() == ["e" * 16]
    store.remove(B)
    assert store.unused_interpreters() == ["d" * 16, "e" * 16]
    store.interpreters().remove("d" * 16)
    assert store.unused_interpreters() == ["e" * 16]
    assert os.listdir(f"{store.root}/interpreters/meta") == [f"{'e' * 16}.json"]


def test_adopting_exchanges_dest_for_a_link_to_it(store: Store) -> None:
    live = Path(store.dest)
    live.mkdir()
    (live / "name").write_text("by hand")
    inode = live.stat().st_ino
    release = store.adoption_id("d" * 64)
    assert release == "d" * 16
    store.write_meta(release, {"files": 1, "adopted": True})
    store.adopt(release)
    assert (store.active(), live.is_symlink()) == (release, True)
    assert os.stat(store.path(release)).st_ino == inode
    assert (live / "name").read_text() == "by hand"
    serve(store, A)
    assert store.previous() == release


def test_an_adopted_tree_that_was_deployed_too_becomes_one_beside_it(store: Store) -> None:
    Path(store.dest).mkdir()
    Path(store.dest, "name").write_text("by hand")
    release = store.adopt("a" * 64, {})
    assert release != A
    assert Path(store.path(A), "name").read_text() == A
    assert Path(store.dest, "name").read_text() == "by hand"


def test_an_adoption_that_was_cut_off_is_done_by_the_next(store: Store) -> None:
    Path(store.dest).mkdir()
    Path(store.dest, "name").write_text("by hand")
    os.symlink(f"venv.releases/{'d' * 16}", store.path("d" * 16))
    assert "d" * 16 not in store.releases()
    store.adopt(store.adoption_id("d" * 64))
    assert Path(store.dest, "name").read_text() == "by hand"


def test_a_history_line_that_a_crash_cut_off_is_passed_over(store: Store) -> None:
    serve(store, A)
    with open(store.history_path, "a", encoding="utf-8") as file:
        file.write('{"event": "activ')
    assert store.verdict(A) == "passed"
    assert len(store.history()) == 2


def test_an_event_after_a_line_that_was_cut_off_is_not_lost(store: Store) -> None:
    serve(store, A)
    with open(store.history_path, "a", encoding="utf-8") as file:
        file.write('{"event": "activ')
    store.judge(A, "failed")
    assert store.verdict(A) == "failed"


def test_a_verdict_is_recorded_when_it_is_news(store: Store) -> None:
    assert store.judge(A, "passed") is True
    assert store.judge(A, "passed") is False
    assert store.judge(A, "failed") is True
    assert store.verdict(A) == "failed"
    assert store.verdict(B) == ""


def test_an_adoption_whose_record_was_cut_off_is_still_the_way_back(store: Store) -> None:
    Path(store.dest).mkdir()
    Path(store.dest, "name").write_text("by hand")
    store.write_meta("d" * 16, {"adopted": True})
    os.symlink(f"venv.releases/{'d' * 16}", store.path("d" * 16))
    exchange(store.dest, store.path("d" * 16))
    assert store.verdict("d" * 16) == "adopted"
    store.activate(A)
    assert store.previous() == "d" * 16


def test_damaged_metadata_is_named_and_does_not_keep_a_release_from_being_removed(store: Store) -> None:
    (Path(store.meta) / f"{A}.json").write_text("{")
    assert f"{A}.json is damaged" in store.describe(A)["damaged"]
    store.remove(A)
    assert A not in store.releases()


def test_exchanging_across_file_systems_says_so(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="cross-device|Invalid"):
        _releases.exchange(str(tmp_path / "x"), "/proc/self")
    assert (tmp_path / "x").is_dir()


def test_writing_atomically_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError):
        _releases.write_atomically(str(tmp_path / "target"), "text")
    assert os.listdir(tmp_path) == ["target"]
