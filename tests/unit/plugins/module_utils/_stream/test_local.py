# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Sequence

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _hashing
from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import local as under_test
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.local import Found, Local
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Channel
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, TreeError

pytestmark = pytest.mark.usefixtures("forget_hashes")
ONE, TWO = "1" * 16, "2" * 16


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fill(root: Path, **files: str) -> None:
    root.mkdir(parents=True)
    for name, content in files.items():
        (root / name).write_text(content)


def wanted(*texts: str) -> Dict[str, int]:
    return {sha256(text): len(text) for text in texts}


class Counts:
    """How often trees were listed and files read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        scan, hash_file = under_test.scan, _hashing.hash_file

        def counting_scan(root: bytes, *more: Any, **options: Any) -> List[Entry]:
            self.listed[os.path.basename(os.fsdecode(root))] += 1
            return scan(root, *more, **options)

        def counting_hash(root: bytes, entry: Entry) -> str:
            self.read[os.fsdecode(entry.path)] += 1
            return hash_file(root, entry)

        monkeypatch.setattr(under_test, "scan", counting_scan)
        monkeypatch.setattr(_hashing, "hash_file", counting_hash)


@pytest.fixture(name="counts")
def counts_fixture(monkeypatch: pytest.MonkeyPatch) -> Counts:
    return Counts(monkeypatch)


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "dest"))


def local(store: Store, seeds: Sequence[Path] = (), full: bool = False) -> Local:
    return Local(Channel(io.BytesIO(), io.BytesIO()), store, [str(seed) for seed in seeds], full)


def commit(store: Store, release: str, when: str, **files: str) -> Path:
    root = Path(store.path(release))
    fill(root, **files)
    store.write_meta(release, {"committed": when})
    return root


def origin(found: Found, text: str) -> str:
    there = found.any(sha256(text))
    return there.where if there else ""


@pytest.fixture(name="later")
def later_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything has been quiet for a while."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3_000_000_000)


def test_the_likeliest_tree_is_the_active_release_else_the_newest_else_what_stands_at_dest(store: Store) -> None:
    assert local(store).base() is None
    fill(Path(store.dest), a="at dest")
    base = local(store).base()
    assert base and (base.root, base.release) == (os.fsencode(store.dest), "")
    commit(store, TWO, "2026-01-01", a="older")
    commit(store, ONE, "2026-01-02", a="newer")
    base = local(store).base()
    assert base and base.release == ONE
    shutil.rmtree(store.dest)
    os.symlink(store.path(TWO), store.dest)
    base = local(store).base()
    assert base and base.release == TWO


def test_each_tree_is_listed_once(store: Store, counts: Counts, tmp_path: Path) -> None:
    commit(store, ONE, "2026-01-01", a="first")
    commit(store, TWO, "2026-01-02", a="second")
    fill(Path(store.dest), b="at dest")
    fill(tmp_path / "seed", c="seeds")
    subject = local(store, [tmp_path / "seed"])
    assert subject.base() is subject.base() is subject.release(TWO)
    found = subject.find(wanted("first", "second", "at dest", "seeds"))
    assert [origin(found, text) for text in ("first", "second", "at dest", "seeds", "nowhere")] == [
        f"release {ONE}",
        f"release {TWO}",
        "dest",
        f"seed {tmp_path}/seed",
        "",
    ]
    assert counts.listed == {ONE: 1, TWO: 1, "dest": 1, "seed": 1}


def test_only_what_has_a_wanted_size_is_read(store: Store, counts: Counts, tmp_path: Path) -> None:
    commit(store, ONE, "2026-01-01", old="12345", other="123456")
    commit(store, TWO, "2026-01-02", base="1")
    fill(tmp_path / "seed", five="54321", seven="7654321")
    found = local(store, [tmp_path / "seed"]).find(wanted("54321"))
    assert origin(found, "54321") == f"seed {tmp_path}/seed"
    assert counts.read == {"base": 1, "old": 1, "five": 1}


def test_a_release_comes_before_a_seed_and_only_a_release_may_share_inodes(store: Store, tmp_path: Path) -> None:
    fill(tmp_path / "seed", a="content", b="only here")
    root = commit(store, ONE, "2026-01-01", a="content")
    subject = local(store, [tmp_path / "seed"])
    (entry,) = subject.release(ONE).entries
    found = subject.find(wanted("content", "only here"))
    assert origin(found, "content") == f"release {ONE}"
    same = found.same(sha256("content"), entry)
    assert same and same.root == os.fsencode(root)
    assert found.same(sha256("content"), entry._replace(mode=0o755)) is None
    assert found.same(sha256("content"), entry._replace(mtime_ns=1)) is None
    (other,) = [e for e in under_test.scan(os.fsencode(tmp_path / "seed")) if e.path == b"b"]
    assert found.any(sha256("only here"))
    assert found.same(sha256("only here"), other) is None


def test_a_missing_seed_is_reported_and_no_error(store: Store, tmp_path: Path) -> None:
    fill(tmp_path / "seed", a="content")
    (tmp_path / "file").write_text("")
    seeds = [tmp_path / "nowhere", tmp_path / "seed", tmp_path / "file"]
    subject = local(store, seeds)
    assert subject.missing_seeds == [str(tmp_path / "nowhere"), str(tmp_path / "file")]
    assert origin(subject.find(wanted("content")), "content")


def test_a_seed_may_hold_anything(store: Store, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    fill(seed, a="content", b="second!")
    os.mkfifo(seed / "pipe")
    (seed / "link").symlink_to("a")
    (seed / "dangling").symlink_to("nowhere")
    (seed / "loop").symlink_to(seed)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(seed / "socket"))
        if os.geteuid() == 0:
            os.mknod(seed / "null", 0o020666, os.makedev(1, 3))
        found = local(store, [seed]).find(wanted("content", "second!"))
    assert origin(found, "content") == origin(found, "second!") == f"seed {seed}"
    with pytest.raises(TreeError, match="seed/(pipe|socket|null) is a"):
        local(store).read(os.fsencode(seed))


def test_a_server_may_run_from_the_directory_at_dest(store: Store) -> None:
    """It leaves a socket there, of which nothing is said; what else there is counts, links too."""
    dest = Path(store.dest)
    fill(dest, a="content")
    (dest / "link").symlink_to("a")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dest / "socket"))
        subject = local(store)
        base = subject.base()
        found = subject.find(wanted("content"))
    assert base and list(base.by_path) == [b"a", b"link"]
    assert origin(found, "content") == "dest"


def test_what_of_a_seed_cannot_be_read_is_passed_over() -> None:
    """As a user that may not read everything; root may."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        seed = Path(name) / "seed"
        fill(seed, a="content", b="secret!")
        (seed / "b").chmod(0)
        (seed / "closed").mkdir(mode=0)
        subject = local(Store(f"{name}/dest"), [seed])
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            found = subject.find(wanted("content", "secret!"))
        finally:
            os.seteuid(user)
        assert origin(found, "content") == f"seed {seed}"
        assert not origin(found, "secret!")


@pytest.mark.parametrize("change", ["unlink", "write", "fifo", "directory"])
def test_what_of_a_seed_vanishes_or_changes_meanwhile_is_passed_over(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    seed = tmp_path / "seed"
    fill(seed, a="content", b="victim!", c="another")
    scan = under_test.scan

    def scan_and_change(*arguments: Any, **options: Any) -> List[Entry]:
        entries = scan(*arguments, **options)
        if change == "write":
            (seed / "b").write_text("something else")
        else:
            (seed / "b").unlink()
            {"unlink": str, "fifo": os.mkfifo, "directory": os.mkdir}[change](str(seed / "b"))
        return entries

    monkeypatch.setattr(under_test, "scan", scan_and_change)
    found = local(store, [seed]).find(wanted("content", "victim!", "another"))
    assert [bool(origin(found, text)) for text in ("content", "victim!", "another")] == [True, False, True]


@pytest.mark.usefixtures("later")
def test_what_was_read_of_a_seed_is_remembered_unless_only_checking(
    store: Store, tmp_path: Path, counts: Counts
) -> None:
    seed = tmp_path / "seed"
    fill(seed, a="content")
    local(store, [seed]).find(wanted("content"))
    assert not os.path.exists(index_path(os.fsencode(seed)))
    for expected in (2, 2):
        subject = local(store, [seed])
        there = subject.find(wanted("content")).any(sha256("content"))
        assert there and there.trusted
        subject.save()
        assert counts.read["a"] == expected
    assert local(store, [seed], full=True).find(wanted("content")).any(sha256("content"))
    assert counts.read["a"] == 3


def test_what_was_just_written_is_not_trusted(store: Store, tmp_path: Path) -> None:
    fill(tmp_path / "seed", a="content")
    there = local(store, [tmp_path / "seed"]).find(wanted("content")).any(sha256("content"))
    assert there and not there.trusted


@pytest.mark.usefixtures("later")
def test_records_of_removed_releases_are_dropped_once_all_others_were_looked_at(store: Store, counts: Counts) -> None:
    one = commit(store, ONE, "2026-01-01", a="first")
    commit(store, TWO, "2026-01-02", b="second")
    subject = local(store)
    subject.release(ONE)
    subject.release(TWO)
    subject.save()
    size = os.path.getsize(index_path(os.fsencode(store.root)))
    subject = local(store)
    subject.base()
    subject.save()  # only one was looked at: the other's records stay
    assert os.path.getsize(index_path(os.fsencode(store.root))) == size
    shutil.rmtree(one)
    subject = local(store)
    subject.base()
    subject.save()
    assert os.path.getsize(index_path(os.fsencode(store.root))) < size
    assert counts.read == {"a": 1, "b": 1}
