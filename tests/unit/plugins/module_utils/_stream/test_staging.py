# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import Iterator, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK_SIZE, PeerError, message_frame
from ansible_collections.ddtree.fleet.tests.unit.agents import (
    Destination,
    Source,
    content_bytes,
    copy,
    forget,
    interrupt,
    listing,
    need,
    releases,
)
from ansible_collections.ddtree.fleet.tests.unit.disks import mounted, reflinking
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB, content_of, make_environment, row

pytestmark = pytest.mark.usefixtures("forget_hashes")
NOISE = random.Random(17)


def write_blocks(path: Path, count: int) -> None:
    """A file of so many blocks, no two of which are equal."""
    start = NOISE.randbytes(BLOCK_SIZE - 8)
    with open(path, "wb") as file:
        for number in range(count):
            file.write(b"%08d" % number + start)


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Tuple[Path, Path]:
    """A source tree with four files of one block each, in the order a, b, c, deep/x, and a dest."""
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c", "deep/x"):
        write_blocks(src / "lib" / name, 1)
    return src, tmp_path / "dest"


def release_of(dest: Path) -> Path:
    """The only release."""
    (release,) = releases(dest)
    return Path(f"{dest}.releases") / release


def staged(dest: Path) -> Path:
    return Path(f"{dest}.releases") / "staging" / "tree"


# interrupted streams


def test_an_interrupted_stream_goes_on_where_it_stopped(place: Tuple[Path, Path]) -> None:
    src, dest = place
    interrupt(src, dest, blocks=2)
    assert releases(dest) == []
    assert not dest.exists()
    assert not Path(f"{dest}.lock").exists()
    again = copy(src, dest, run="another")
    assert len(again["need"]["want"]) == 2
    assert again["need"]["reused"]["kept"] == {"files": 2, "bytes": 2 * MIB}
    assert content_of(release_of(dest)) == content_of(src)
    assert not staged(dest).parent.exists()


@pytest.fixture(name="large", scope="module")
def large_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with one file of 36 blocks, and one after it."""
    src = tmp_path_factory.mktemp("large") / "src"
    src.mkdir()
    write_blocks(src / "big", 36)
    write_blocks(src / "last", 1)
    return src


@pytest.mark.parametrize(
    ("damaged_at", "agreed"),
    [(-1, 34), (33 * MIB, 32), (32 * MIB - 1, 0), (0, 0)],
    ids=["whole", "in the last step", "at the end of the first step", "at the beginning"],
)
def test_of_a_large_file_at_most_the_last_step_comes_again(
    tmp_path: Path, large: Path, damaged_at: int, agreed: int
) -> None:
    dest = tmp_path / "dest"
    interrupt(large, dest, blocks=34)
    assert (staged(dest) / "big").stat().st_size == 34 * MIB
    if damaged_at >= 0:
        with open(staged(dest) / "big", "r+b") as file:
            file.seek(damaged_at)
            file.write(b"?")
    again = copy(large, dest)
    (partial,) = again["need"]["partial"]
    assert (partial[0], [length for length, _sha256 in partial[1]]) == (0, [32 * MIB, 34 * MIB])
    assert again["done"]["resumed"] == agreed * MIB
    assert content_bytes(again["content"]) < (37 - agreed) * (MIB + 99)
    assert content_of(release_of(dest)) == content_of(large)


def test_a_large_file_that_grew_or_shrank_meanwhile_goes_on_too(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    src.mkdir()
    write_blocks(src / "big", 12)
    interrupt(src, dest, blocks=10)
    with open(src / "big", "ab") as file:
        file.write(b"grown" * MIB)
    interrupt(src, dest, blocks=3)
    assert (staged(dest) / "big").stat().st_size == 13 * MIB
    os.truncate(src / "big", 9 * MIB)
    again = copy(src, dest)
    assert again["done"]["resumed"] == 9 * MIB
    assert content_bytes(again["content"]) == 0
    assert content_of(release_of(dest)) == content_of(src)


def test_a_smaller_file_and_one_shared_with_a_release_begin_anew(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    src.mkdir()
    write_blocks(src / "big", 9)
    write_blocks(src / "small", 5)
    copy(src, dest)
    before = content_of(release_of(dest))
    write_blocks(src / "small", 7)
    interrupt(src, dest, blocks=6)
    assert os.path.samefile(staged(dest) / "big", release_of(dest) / "big")
    assert (staged(dest) / "small").stat().st_size == 6 * MIB
    with open(src / "big", "ab") as file:
        file.write(b"grown")
    again = copy(src, dest)
    assert again["need"]["partial"] == []
    assert again["done"]["resumed"] == 0
    one, two = (Path(f"{dest}.releases") / name for name in releases(dest))
    assert before in (content_of(one), content_of(two))
    assert content_of(src) in (content_of(one), content_of(two))


def test_a_staging_of_another_tree_is_used_and_cleared(place: Tuple[Path, Path]) -> None:
    src, dest = place
    (src / "old" / "nested" / "deep").mkdir(parents=True)
    (src / "old" / "nested" / "deep" / "file").write_text("gone")
    (src / "lib" / "swap").mkdir()
    (src / "lib" / "was-link").symlink_to("a")
    interrupt(src, dest, blocks=5)
    shutil.rmtree(src / "old")
    (src / "lib" / "swap").rmdir()
    (src / "lib" / "swap").symlink_to("a")
    (src / "lib" / "was-link").unlink()
    (src / "lib" / "was-link").mkdir()
    os.rename(src / "lib" / "b", src / "lib" / "renamed")
    shutil.copy(src / "lib" / "a", src / "lib" / "twin")
    os.utime(src / "lib" / "a", ns=(1, 1))
    done = copy(src, dest)
    assert content_of(release_of(dest)) == content_of(src)
    assert done["need"]["reused"]["repeated"]["files"] == 1
    assert done["need"]["reused"]["kept"]["files"] >= 2


def test_an_interrupted_staging_never_changes_the_release_it_shares_files_with(place: Tuple[Path, Path]) -> None:
    src, dest = place
    copy(src, dest)
    there = release_of(dest)
    (src / "new").write_text("new")
    interrupt(src, dest, blocks=0)
    assert os.path.samefile(there / "lib" / "a", staged(dest) / "lib" / "a")
    before = content_of(there)
    (src / "lib" / "a").chmod(0o755)
    os.utime(src / "lib" / "b", ns=(7, 7))
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        wanted = need(source, target, tree)
        target.build()
    assert wanted["reused"]["copied"]["files"] == 2
    assert content_of(there) == before


def test_links_where_directories_belong_are_not_written_through(place: Tuple[Path, Path], tmp_path: Path) -> None:
    src, dest = place
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("untouched")
    (outside / "deep").mkdir()
    staged(dest).mkdir(parents=True)
    (staged(dest) / "lib").symlink_to(outside)
    before = listing(outside)
    copy(src, dest)
    assert listing(outside) == before
    assert content_of(release_of(dest)) == content_of(src)


def test_links_where_files_belong_are_not_written_through(place: Tuple[Path, Path], tmp_path: Path) -> None:
    src, dest = place
    victim = tmp_path / "victim"
    victim.write_bytes((src / "lib" / "a").read_bytes())
    os.utime(victim, ns=(1, 1))
    (staged(dest) / "lib").mkdir(parents=True)
    (staged(dest) / "lib" / "a").symlink_to(victim)
    (staged(dest) / "lib" / "b").symlink_to(victim)
    before = listing(victim.parent)[str(victim)]
    copy(src, dest)
    assert listing(victim.parent)[str(victim)] == before
    assert content_of(release_of(dest)) == content_of(src)


@pytest.mark.parametrize("name", ["staging", "staging/tree"])
def test_a_staging_that_leads_elsewhere_is_refused_and_nothing_there_is_touched(
    place: Tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    src, dest = place
    outside = tmp_path / "outside"
    (outside / "tree" / "lib").mkdir(parents=True)
    (outside / "tree" / "lib" / "precious").write_text("untouched")
    link = Path(f"{dest}.releases") / name
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if name == "staging" else outside / "tree")
    before = listing(outside)
    with pytest.raises(PeerError, match=f"{link} is a link, which no stream makes; remove it and run again"):
        copy(src, dest)
    assert listing(outside) == before
    assert releases(dest) == []


def test_a_link_named_pycache_left_in_staging_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    package = next(src.glob("lib/python*/site-packages/engine")).relative_to(src)
    (staged(dest) / package).mkdir(parents=True)
    (staged(dest) / package / "__pycache__").symlink_to(outside)
    copy(src, dest)
    assert list(outside.iterdir()) == []
    assert not (release_of(dest) / package / "__pycache__").is_symlink()


# sharing


def test_hard_links_inside_the_tree_arrive_linked_when_that_is_allowed(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    write_blocks(src / "a", 1)
    os.link(src / "a", src / "b")
    (src / "c").write_bytes((src / "a").read_bytes())
    os.utime(src / "c", ns=(7, 7))
    for link, links in ((True, 2), (False, 1)):
        dest = tmp_path / f"dest-{link}"
        done = copy(src, dest, link=link)
        there = release_of(dest)
        assert done["need"]["want"] == [0]
        assert done["need"]["reused"]["repeated"]["files"] == 2
        assert [(there / name).stat().st_nlink for name in "abc"] == [links, links, 1]
        assert content_of(there) == content_of(src)


def test_link_never_gives_every_release_files_of_its_own(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    (src / "one").write_text("x")
    os.link(src / "one", src / "two")
    copy(src, dest, link=False)
    (src / "new").write_text("new")
    again = copy(src, dest, link=False)
    assert again["done"]["reused"]["linked"]["files"] == 0
    assert again["done"]["bytecode"]["reused"] == 2
    for name in releases(dest):
        files = [path for path in (Path(f"{dest}.releases") / name).rglob("*") if path.is_file()]
        assert any("__pycache__" in path.parts for path in files)
        assert [path for path in files if not path.is_symlink() and path.stat().st_nlink != 1] == []


@pytest.mark.parametrize("before", [False, True])
def test_a_release_that_shares_files_never_lends_or_borrows_special_modes(tmp_path: Path, before: bool) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    src.mkdir()
    (src / "tool").write_text("x" * 100)
    (src / "tool").chmod(0o4755)
    copy(src, dest, special=before)
    one = release_of(dest)
    (src / "new").write_text("makes it another release")
    done = copy(src, dest, special=not before)
    (two,) = [one.parent / name for name in releases(dest) if name != one.name]
    assert len(done["need"]["want"]) == 1
    assert (one / "tool").stat().st_mode & 0o7777 == (0o4755 if before else 0o755)
    assert (two / "tool").stat().st_mode & 0o7777 == (0o755 if before else 0o4755)


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_where_there_are_reflinks_a_new_release_is_made_of_them(tmp_path: Path, kind: str) -> None:
    src = tmp_path / "src"
    src.mkdir()
    write_blocks(src / "a", 2)
    (src / "b").write_text("old")
    with reflinking(tmp_path / "disk", kind) as disk:
        dest = disk / "dest"
        copy(src, dest)
        one = release_of(dest)
        (src / "b").write_text("new")
        done = copy(src, dest)["done"]
        (two,) = [Path(f"{dest}.releases") / name for name in releases(dest) if name != one.name]
        assert done["reused"]["reflinked"] == {"files": 1, "bytes": 2 * MIB}
        assert (one / "a").stat().st_nlink == (two / "a").stat().st_nlink == 1
        (two / "a").write_bytes(b"debugged in place")
        assert (one / "a").read_bytes() == (src / "a").read_bytes()
        forget(disk)


# disks


@pytest.fixture(name="small_disk")
def small_disk_fixture(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=80m", "tmpfs") as disk:
        yield disk
        forget(tmp_path)


def test_a_full_disk_is_refused_beforehand(small_disk: Path) -> None:
    with Destination() as target, pytest.raises(PeerError) as caught:
        target.offer(small_disk / "dest", [row("x", size=20 * MIB, content=b"x")])
    assert re.search(rf"{small_disk}/dest.releases has \d+ MiB free, the release needs \d+ MiB", str(caught.value))
    assert "free space, prune old releases, or set dest" in str(caught.value)
    assert os.listdir(small_disk) == []


def test_a_disk_that_fills_in_the_middle_commits_nothing_and_can_go_on(tmp_path: Path, small_disk: Path) -> None:
    src, dest = tmp_path / "src", small_disk / "dest"
    src.mkdir()
    for number in range(4):
        write_blocks(src / str(number), 2)
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        target.build()
        filler = small_disk / "filler"
        filler.write_bytes(b"\0" * (75 * MIB))
        try:
            target.send([*source.content(want), message_frame("end")])
            said = target.complaint()
        except PeerError as error:  # it ended while it was sent to
            said = str(error)
    assert said == (
        f"{dest}.releases/staging/tree/2: No space left on device; "
        "what arrived stays there, and the next run goes on with it"
    )
    assert releases(dest) == []
    filler.unlink()
    again = copy(src, dest)
    assert again["need"]["reused"]["kept"]["files"] == 2
    assert content_of(release_of(dest)) == content_of(src)
