# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    BLOCK_HEAD,
    RAW,
    ZSTD,
    PeerError,
    Row,
    message_frame,
    send_rows,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, scan
from ansible_collections.ddtree.fleet.tests.unit.agents import (
    WITHOUT_CODEC,
    Destination,
    Source,
    copy,
    listing,
    need,
    packings,
    releases,
)
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB, content_of, fill_odd, make_environment, row

pytestmark = pytest.mark.usefixtures("forget_hashes")

OLD_PYTHON = "/root/.pyenv/versions/3.9.18/bin/python"
STREAMS = [
    (sys.executable, "none"),
    (sys.executable, "zstd"),
    *([(OLD_PYTHON, "auto")] if os.path.exists(OLD_PYTHON) else []),
]


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Tuple[Path, Path]:
    """A small source tree and a dest."""
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (src / "lib" / name).write_text(f"content of {name}\n" * 100)
    (src / "lib" / "deep" / "x").write_text("x" * 1000)
    return src, tmp_path / "dest"


def release_of(dest: Path, *others: str) -> Path:
    """The only release, but for the others."""
    (release,) = [name for name in releases(dest) if name not in others]
    return Path(f"{dest}.releases") / release


# a whole stream


@pytest.mark.parametrize(("python", "compress"), STREAMS)
def test_odd_trees_arrive_as_they_are(tmp_path: Path, python: str, compress: str) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    fill_odd(src)
    before = listing(src)
    done = copy(src, dest, python, compress=compress)
    assert listing(src) == before
    there = release_of(dest)
    assert done["tree"]["digest"].startswith(there.name)
    assert done["done"]["installed"] == done["tree"]["digest"]
    expected = content_of(src)
    assert content_of(there) == expected
    assert expected[b"secret"][1] == 0o600
    assert (there / "setuid").stat().st_mode & 0o7777 == 0o755
    assert (there / "sparse").stat().st_blocks * 512 < (there / "sparse").stat().st_size / 2
    assert done["need"]["reused"]["repeated"] == {"files": 1, "bytes": 11}
    assert os.path.samefile(there / "one", there / "other")
    assert not (there.parent / "staging").exists()
    assert not Path(f"{dest}.lock").exists()
    assert not dest.exists()
    meta = json.loads((there.parent / "meta" / f"{there.name}.json").read_text())
    assert (meta["received_digest"], meta["source"]) == (done["tree"]["digest"], "src-host")
    assert {"compare", "reuse", "receive", "prove", "sync", "commit"} <= set(done["done"]["seconds"])
    assert MIB < done["done"]["peak_memory"] < 200 * MIB
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", there.parent / "meta" / f"{there.name}.sha256"],
        cwd=there,
        check=True,
    )


def test_a_changed_environment_sends_one_file_and_shares_the_rest(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    first = copy(src, dest)
    one = release_of(dest)
    cached = importlib.util.cache_from_source
    module = next(one.glob("lib/python*/site-packages/engine/tree.py"))
    stays = next(one.glob("lib/python*/site-packages/engine/__init__.py"))

    # compiled for the path that the service uses, unchecked, and what does not compile is left to the interpreter
    assert first["done"]["bytecode"] == {"compiled": 2, "refused": 1, "reused": 0}
    code = Path(cached(str(module))).read_bytes()
    assert code[4:8] == b"\1\0\0\0"
    assert f"{dest}/lib/".encode() in code
    assert b"staging" not in code

    history = (one.parent / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in history] == ["committed"]

    next(src.glob("lib/python*/site-packages/engine/tree.py")).write_text("WIDTH = 9\n")
    second = copy(src, dest)
    two = release_of(dest, one.name)
    assert (len(second["need"]["want"]), second["need"]["bytes"]) == (1, 10)
    assert second["done"]["reused"]["linked"]["files"] == first["tree"]["files"] - 1
    assert second["need"]["origins"] == {
        f"release {one.name}": {"files": first["tree"]["files"] - 1, "bytes": first["tree"]["bytes"] - 10}
    }
    assert second["done"]["bytecode"] == {"compiled": 1, "refused": 1, "reused": 1}
    again = two / stays.relative_to(one)
    assert os.path.samefile(stays, again)
    assert os.path.samefile(cached(str(stays)), cached(str(again)))
    assert module.read_text() == "WIDTH = 7\n"
    assert content_of(two) == content_of(src)

    # linking changed the ctime of every shared file, and still everything is known in both releases
    index = HashIndex(index_path(os.fsencode(one.parent)))
    for release in (one, two):
        files = [entry for entry in scan(os.fsencode(release)) if entry.kind == FILE]
        assert [entry.path for entry in files if index.lookup(entry) is None] == []

    # an unchanged environment is recognised, and that writes nothing
    quiet = listing(tmp_path)
    with Source() as source, Destination() as target:
        digest = source.scan(src, check=True)["digest"]
        target.open(dest, check=True)
        state = target.look(digest)
        assert (state["present"], state["release"], state["installed"]) == (True, two.name, digest)
    assert listing(tmp_path) == quiet


@pytest.mark.parametrize("compress", ["none", "zstd", "auto"])
def test_content_is_the_same_however_it_is_packed(tmp_path: Path, compress: str) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    src.mkdir()
    (src / "text").write_bytes(b"a line that compresses\n" * 100_000)
    (src / "noise").write_bytes(os.urandom(MIB + 7))
    with (src / "zeros").open("wb") as file:
        file.truncate(6 * MIB)  # a hole
    done = copy(src, dest, compress=compress)
    there = release_of(dest)
    assert content_of(there) == content_of(src)
    assert (ZSTD in packings(done["content"])) == (compress != "none")
    assert (there / "zeros").stat().st_blocks * 512 <= 2 * MIB  # the ends are in blocks with other files


def test_a_target_without_zstd_says_so_and_refuses_what_it_cannot_read(place: Tuple[Path, Path]) -> None:
    src, dest = place
    with Source() as source, Destination(before=WITHOUT_CODEC) as target:
        tree = source.scan(src)
        assert tree["codec"]
        assert target.open(dest)["codec"] == ""
        want = need(source, target, tree)["want"]
        target.build()
        target.send(source.content(want, compress="zstd"))
        assert "in packing 1, which cannot be read here" in target.complaint()
    assert releases(dest) == []
    with Source() as source, Destination(before=WITHOUT_CODEC) as target:
        tree = source.scan(src)
        target.open(dest)
        target.take(source.content(need(source, target, tree)["want"], compress="none"))
    assert content_of(release_of(dest)) == content_of(src)


# what is here already


def test_drift_is_named_and_refused_and_repair_heals_it(place: Tuple[Path, Path]) -> None:
    src, dest = place
    copy(src, dest)
    there = release_of(dest)
    (there / "lib" / "a").write_text("patched in place\n")
    (there / "lib" / "new").write_text("added\n")
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest, run="second")
        with pytest.raises(PeerError) as caught:
            target.look(tree["digest"])
    assert "was changed after it was committed" in str(caught.value)
    assert "changed lib/a" in str(caught.value)
    assert "extra lib/new" in str(caught.value)
    assert "set repair (ddtree_repair in a deployment)" in str(caught.value)
    assert (there / "lib" / "a").read_text() == "patched in place\n"
    healed = copy(src, dest, repair=True)
    assert len(healed["need"]["want"]) == 1
    assert content_of(there) == content_of(src)
    assert releases(dest) == [there.name]


def test_a_repair_compiles_anew(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    copy(src, dest)
    there = release_of(dest)
    module = next(there.glob("lib/python*/site-packages/engine/tree.py"))
    code = Path(importlib.util.cache_from_source(str(module)))
    good = code.read_bytes()
    code.write_bytes(good.replace(b"WIDTH", b"DEPTH"))
    (there / "extra").write_text("what makes the damage seen")
    copy(src, dest, repair=True)
    assert not (there / "extra").exists()
    assert code.read_bytes() == good


def test_check_mode_writes_nothing(place: Tuple[Path, Path], tmp_path: Path) -> None:
    src, dest = place
    shutil.copytree(src, dest)  # adopted one day; its content need not be sent
    (dest / "lib" / "b").write_text("older\n")
    seed = tmp_path / "seed"
    shutil.copytree(src / "lib" / "deep", seed)
    os.utime(seed / "x", (1, 1))
    before = listing(src.parent)
    with Source() as source, Destination() as target:
        tree = source.scan(src, check=True)
        assert target.open(dest, [seed], check=True)["op"] == "opened"
        wanted = need(source, target, tree, changes=True)
        assert wanted["reused"]["copied"]["files"] == 3
        assert len(wanted["want"]) == 1
        assert (wanted["changes"]["against"], wanted["changes"]["changed"]) == ("dest", ["lib/b"])
        target.tell("bye")
        assert target.process.wait(10) == 0
    assert listing(src.parent) == before
    for root in (Path(f"{dest}.releases"), seed, src):
        assert not os.path.exists(index_path(os.fsencode(root)))


def test_seeds_give_content_under_any_name_and_nothing_else(place: Tuple[Path, Path], tmp_path: Path) -> None:
    src, dest = place
    seed = tmp_path / "seed"
    seed.mkdir()
    shutil.copy2(src / "lib" / "a", seed / "another name")
    shutil.copy2(src / "lib" / "b", seed / "b")
    os.mkfifo(seed / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(seed / "socket"))
    missing = tmp_path / "nowhere"
    before = listing(seed)
    done = copy(src, dest, seeds=[seed, missing])
    assert listing(seed) == before
    assert done["need"]["missing_seeds"] == [str(missing)]
    size = sum((src / "lib" / name).stat().st_size for name in "ab")
    assert done["need"]["origins"] == {f"seed {seed}": {"files": 2, "bytes": size}}
    assert done["done"]["reused"]["copied"]["files"] == 2
    assert len(done["need"]["want"]) == 2
    there = release_of(dest)
    assert content_of(there) == content_of(src)
    for name, other in (("a", "another name"), ("b", "b")):
        assert not os.path.samefile(there / "lib" / name, seed / other)
    with open(seed / "b", "r+") as file:
        file.write("EDITED")
    assert content_of(there) == content_of(src)


def test_what_would_change_is_listed_up_to_a_bound(place: Tuple[Path, Path]) -> None:
    src, dest = place
    copy(src, dest)
    one = release_of(dest)
    for number in range(60):
        (src / f"new-{number:02}").write_text(str(number))
    (src / "lib" / "a").write_text("changed")
    (src / "lib" / "c").chmod(0o600)
    (src / "lib" / "b").unlink()
    changes = copy(src, dest, changes=True)["need"]["changes"]
    assert changes["against"] == one.name
    assert changes["counts"] == {"added": 60, "changed": 2, "removed": 1}
    assert changes["added"] == [f"new-{number:02}" for number in range(50)]
    assert (changes["changed"], changes["removed"]) == (["lib/a", "lib/c"], ["lib/b"])
    assert changes["sizes"]["lib/a"] == 7
    assert len(changes["sizes"]) == 62
    assert copy(src, dest.with_name("other"))["need"]["changes"] == {}


# special modes


def test_special_modes_are_kept_only_when_asked_and_do_not_change_the_identity(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    for name, mode in (("setuid", 0o4755), ("setgid", 0o2755), ("sticky", 0o1644), ("plain", 0o755)):
        (src / name).write_text("same content")
        (src / name).chmod(mode)
        os.utime(src / name, ns=(5, 5))
    names = []
    for special in (False, True):
        dest = tmp_path / f"dest-{special}"
        done = copy(src, dest, special=special)
        there = release_of(dest)
        names.append(there.name)
        assert done["tree"]["special"] == [["setgid", 0o2755], ["setuid", 0o4755], ["sticky", 0o1644]]
        for path in src.iterdir():
            mode = path.stat().st_mode & (0o7777 if special else 0o777)
            assert (there / path.name).stat().st_mode & 0o7777 == mode, path.name
        with Destination() as target:
            target.open(dest)
            assert target.look(done["tree"]["digest"])["present"]
    assert names[0] == names[1]


def test_special_modes_of_any_number_of_files_are_kept(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    src.mkdir()
    for number in range(120):
        (src / str(number)).write_text("x")
        (src / str(number)).chmod(0o4755)
    copy(src, dest, special=True)
    assert {path.stat().st_mode & 0o7777 for path in release_of(dest).iterdir()} == {0o4755}


# what a target refuses


HOSTILE = {
    "parent": [row("../x")],
    "absolute": [row("/etc/x")],
    "parent is a link": [row("d", "l", mode=0, target="/tmp"), row("d/x")],
    "twice": [row("x"), row("x", content=b"other")],
    "bytecode folder": [row("__pycache__", "l", mode=0, target="/tmp")],
    "no row": ["x"],
}


@pytest.mark.parametrize("rows", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_listing_is_refused_and_nothing_is_written(tmp_path: Path, rows: List[Row]) -> None:
    before = listing(tmp_path)
    with Destination() as target, pytest.raises(PeerError, match="the source listed"):
        target.offer(tmp_path / "dest", rows, digest="0" * 64)
    assert set(listing(tmp_path)) == set(before)


@pytest.mark.parametrize("folder", ["x", [], [""], [7, "0" * 64], ["", []], ["\ud800", ""], None])
def test_a_directory_in_another_form_is_refused(tmp_path: Path, folder: Any) -> None:
    with Destination() as target:
        target.open(tmp_path / "dest")
        target.look("0" * 64)
        target.prepare("0" * 64)
        send_rows(target.channel, "folders", [folder])
        assert target.complaint() == "the source listed a directory in a form that is not understood"


def test_a_listing_must_have_the_digest_that_was_named(tmp_path: Path) -> None:
    with Destination() as target, pytest.raises(PeerError, match="does not have the digest that the source named"):
        target.offer(tmp_path / "dest", [row("x")], digest="0" * 64)


def test_a_release_must_be_agreed_on_before_it_is_built(tmp_path: Path) -> None:
    with Destination() as target:
        target.open(tmp_path / "dest")
        target.tell("build", direct=False)
        assert target.complaint() == "the relay asked for a release before it said which one"


CONTENT = b"expected"
GROUP = message_frame("group", runs=[[0, 1]], offsets=[])
STREAMED = {
    "other content": ([GROUP, (BLOCK, BLOCK_HEAD.pack(RAW, 8) + b"EXPECTED")], "x arrived with other content"),
    "not asked for": ([message_frame("group", runs=[[1, 1]], offsets=[])], "sent file 1, which was not asked for"),
    "stops in the middle": ([GROUP, (BLOCK, BLOCK_HEAD.pack(RAW, 3) + b"exp")], "stopped in the middle of a file"),
    "nothing": ([], "ended without 1 of the files"),
    "an error": ([GROUP, message_frame("error", message="disk died")], "disk died"),
}


@pytest.mark.parametrize(("frames", "problem"), STREAMED.values(), ids=STREAMED.keys())
def test_a_source_that_sends_anything_else_commits_nothing(
    tmp_path: Path, frames: List[Tuple[int, bytes]], problem: str
) -> None:
    dest = tmp_path / "dest"
    with Destination() as target:
        offered = target.offer(dest, [row("x", content=CONTENT), row("y", "d", mode=0o755)])
        assert offered["want"] == [0]
        target.build()
        target.send([*frames, message_frame("end")])
        assert problem in target.complaint()
    assert releases(dest) == []
    assert not dest.exists()
    assert not Path(f"{dest}.lock").exists()


def test_a_source_that_lies_about_a_hash_commits_nothing(tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    lie = hashlib.sha256(b"something else").hexdigest()
    with Destination() as target:
        target.offer(dest, [row("x", content=CONTENT, digest=lie)])
        target.build()
        target.send([GROUP, (BLOCK, BLOCK_HEAD.pack(RAW, 8) + CONTENT), message_frame("end")])
        assert "x arrived with other content than the source listed" in target.complaint()
    assert releases(dest) == []


def test_content_that_changed_behind_an_unchanged_look_commits_nothing(place: Tuple[Path, Path]) -> None:
    src, dest = place
    victim = src / "lib" / "b"
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        st = victim.stat()
        victim.write_text(victim.read_text().replace("b", "B"))
        os.utime(victim, ns=(st.st_atime_ns, st.st_mtime_ns))
        target.build()
        target.send([*source.content(want), message_frame("end")])
        assert target.complaint().startswith(
            "lib/b arrived with other content than the source listed: it changed there"
        )
    assert releases(dest) == []


def test_something_that_writes_to_staging_meanwhile_commits_nothing(place: Tuple[Path, Path]) -> None:
    src, dest = place
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        target.build()
        (Path(f"{dest}.releases") / "staging" / "tree" / "lib" / "planted").write_text("x")
        target.send([*source.content(want), message_frame("end")])
        assert "the staged tree is not the source's tree; something else writes to staging" in target.complaint()
    assert releases(dest) == []


def test_links_out_of_the_tree_must_lead_to_something_and_are_reported(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "dest.releases" / "beside").mkdir(parents=True)
    good = row("absolute", "l", mode=0, target=str(tmp_path / "shared"))
    inside = row("inside", "l", mode=0, target=f"{tmp_path}/dest/lib")
    beside = row("beside", "l", mode=0, target="../beside")
    with Destination() as target:
        links = target.offer(tmp_path / "dest", [good, inside, beside])["links"]
    assert links == [f"absolute -> {tmp_path}/shared", "beside -> ../beside"]
    for target_path in ("/nowhere/at/all", "../shared"):  # the latter leads elsewhere from within a release
        with Destination() as target, pytest.raises(PeerError) as caught:
            target.offer(tmp_path / "dest", [good, row("bad", "l", mode=0, target=target_path)])
        assert f"bad -> {target_path}; create it" in str(caught.value)
        assert "absolute ->" not in str(caught.value)


def test_two_runs_keep_apart(place: Tuple[Path, Path]) -> None:
    src, dest = place
    with Destination() as first, Destination() as second, Destination() as third:
        first.open(dest, run="one")
        with pytest.raises(PeerError, match=f"{dest} is being deployed to by tester since .*lock_take_over"):
            second.open(dest, run="two")
        assert third.open(dest, run="one")["op"] == "opened"


def test_the_environment_must_work_at_dest(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    with Source() as source:
        described = source.scan(src)["environment"]
    assert described["built_at"] == str(dest)
    assert described["interpreter"] == os.path.realpath(sys.executable)
    for change, problem in (
        ({"interpreter": "/opt/python/bin/python3"}, "base interpreter /opt/python/bin/python3 .* does not exist here"),
        ({"version": "3.1.4"}, f"is Python {described['version']}, not 3.1.4"),
    ):
        with Source() as source, Destination() as target:
            tree = source.scan(src)
            target.open(dest)
            tree["environment"].update(change)
            with pytest.raises(PeerError, match=problem):
                need(source, target, tree)
    with Destination() as target:
        target.open(dest)
        assert target.ask("check", "checked", environment=described)["why"] == ""
        described["interpreter"] = "/opt/python/bin/python3"
        assert "does not exist here" in target.ask("check", "checked", environment=described)["why"]
