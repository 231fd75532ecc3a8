# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    DATA,
    FILE_INDEX,
    INDEX,
    SUM,
    PeerError,
    Row,
    parse_message,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import scan
from ansible_collections.ddtree.fleet.tests.unit.agents import (
    Destination,
    Source,
    copy,
    copy_in_a_hurry,
    deliver_in_a_hurry,
    forget,
    listing,
    need,
    releases,
)

pytestmark = pytest.mark.usefixtures("forget_hashes")

OLD_PYTHON = "/root/.pyenv/versions/3.9.18/bin/python"
PYTHONS = [sys.executable, *([OLD_PYTHON] if os.path.exists(OLD_PYTHON) else [])]
ODD_NAMES = [b"new\nline", b"quote\"'", b"back\\slash", b"\xff not utf-8", b" blank ", b"-rf", "grün".encode()]
MIB = 1 << 20


def content_of(root: Path) -> Dict[bytes, Tuple[Any, ...]]:
    """What counts of a tree, read without the code under test."""
    found: Dict[bytes, Tuple[Any, ...]] = {}
    top = os.fsencode(root)
    for folder, names, files in os.walk(top):
        if b"__pycache__" in names:
            names.remove(b"__pycache__")
        for name in names + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode & 0o777
            key = os.path.relpath(path, top)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory", mode)
            else:
                with open(path, "rb") as file:
                    found[key] = ("file", mode, os.stat(path).st_mtime_ns, hashlib.sha256(file.read()).hexdigest())
    return found


def fill_odd(root: Path) -> None:
    """A tree with everything in it that may be in one and is easy to lose."""
    root.mkdir()
    for number, name in enumerate(ODD_NAMES):
        with open(os.path.join(os.fsencode(root), name), "wb") as file:
            file.write(b"content %d" % number)
        os.mkdir(os.path.join(os.fsencode(root), b"empty " + name))
        os.symlink(name, os.path.join(os.fsencode(root), b"link " + name))
    (root / "empty").mkdir(mode=0o711)
    (root / "nothing").write_bytes(b"")
    (root / "one").write_bytes(b"hard-linked")
    os.link(root / "one", root / "other")
    with open(root / "sparse", "wb") as file:
        file.truncate(3 * MIB + 5)
    (root / "setuid").write_bytes(b"#!/bin/sh\n")
    (root / "setuid").chmod(0o4755)
    (root / "secret").write_bytes(b"s")
    (root / "secret").chmod(0o600)
    os.utime(root / "one", ns=(1_500_000_000_123_456_789, 1_500_000_000_123_456_789))


@pytest.fixture(name="place")
def place_fixture(tmp_path: Path) -> Tuple[Path, Path]:
    """A small source tree and a dest."""
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (src / "lib" / name).write_text(f"content of {name}\n" * 100)
    (src / "lib" / "deep" / "x").write_text("x" * 1000)
    return src, tmp_path / "dest"


def row(path: str, kind: str = "f", content: bytes = b"", mode: int = 0o644, target: str = "", **more: Any) -> Row:
    size, digest = (len(content), hashlib.sha256(content).hexdigest()) if kind == "f" else (0, "")
    return [path, kind, mode, more.get("size", size), target, more.get("mtime", 0), more.get("digest", digest)]


# what a whole stream does


@pytest.mark.parametrize("python", PYTHONS)
def test_odd_trees_arrive_as_they_are(tmp_path: Path, python: str) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    fill_odd(src)
    before = listing(src)
    done = copy_in_a_hurry(src, dest, python)
    assert listing(src) == before
    (release,) = releases(dest)
    assert done["tree"]["digest"].startswith(release)
    there = Path(f"{dest}.releases") / release
    expected = content_of(src)
    assert content_of(there) == expected
    assert expected[b"secret"][1] == 0o600
    assert (there / "setuid").stat().st_mode & 0o7777 == 0o755
    assert done["need"]["reused"]["repeated"] == {"files": 1, "bytes": 11}
    assert not (there.parent / "staging").exists()
    assert not Path(f"{dest}.lock").exists()
    assert not dest.exists()
    meta = json.loads((there.parent / "meta" / f"{release}.json").read_text())
    assert (meta["received_digest"], meta["source"]) == (done["tree"]["digest"], "src-host")
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", there.parent / "meta" / f"{release}.sha256"],
        cwd=there,
        check=True,
    )


def make_environment(at: Path, dest: Path) -> None:
    """A virtual environment built at ``dest`` that stands at ``at``, with some modules in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", dest], check=True)
    packages = next(dest.glob("lib/python*/site-packages"))
    (packages / "engine").mkdir()
    (packages / "engine" / "__init__.py").write_text("import engine.tree\n")
    (packages / "engine" / "tree.py").write_text("WIDTH = 7\n")
    (packages / "engine" / "broken.py").write_text("def (:\n")
    os.rename(dest, at)


def test_a_changed_environment_sends_one_file_and_shares_the_rest(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    first = copy(src, dest)
    (one,) = releases(dest)
    store = Path(f"{dest}.releases")
    cached = importlib.util.cache_from_source
    module = next((store / one).glob("lib/python*/site-packages/engine/tree.py"))
    changed = next(src.glob("lib/python*/site-packages/engine/tree.py"))
    stays = next((store / one).glob("lib/python*/site-packages/engine/__init__.py"))

    # compiled for the path that the service uses, unchecked, and what does not compile is left to the interpreter
    assert first["done"]["bytecode"] == {"compiled": 2, "refused": 1, "reused": 0}
    code = Path(cached(str(module))).read_bytes()
    assert code[4:8] == b"\1\0\0\0"
    assert f"{dest}/lib/".encode() in code
    assert b"staging" not in code

    assert [json.loads(line)["event"] for line in (store / "history.jsonl").read_text().splitlines()] == ["committed"]

    with Source() as source:
        source.scan(src)  # old enough by now to be remembered
    changed.write_text("WIDTH = 9\n")
    second = copy(src, dest)
    two = next(name for name in releases(dest) if name != one)
    assert (len(second["need"]["want"]), second["need"]["bytes"]) == (1, 10)
    assert second["tree"]["hashed"] == 1
    assert second["need"]["reused"]["linked"]["files"] == first["tree"]["files"] - 1
    assert second["done"]["bytecode"] == {"compiled": 1, "refused": 1, "reused": 1}
    again = store / two / stays.relative_to(store / one)
    assert os.path.samefile(stays, again)
    assert os.path.samefile(cached(str(stays)), cached(str(again)))
    assert module.read_text() == "WIDTH = 7\n"
    assert content_of(store / two) == content_of(src)

    # linking changed the ctime of every shared file, and still nothing is read again on either side
    quiet = listing(tmp_path)
    with Source() as source:
        assert source.scan(src)["hashed"] == 1  # had just been written when it was looked at last
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        assert tree["hashed"] == 0
        target.tell("open", dest=str(dest), check=True, full=False, run="r", who="w", take_over=False)
        message = target.channel.receive("opened", "progress")
        assert message["op"] == "opened"
        assert target.look(tree["digest"])["present"] is True
    assert listing(tmp_path) == quiet
    index = json.loads(Path(os.fsdecode(index_of(store))).read_text())
    inodes = {os.lstat(path).st_ino for name in (one, two) for path in (store / name).rglob("*.py")}
    assert inodes <= {int(inode) for inode in index["files"]}


def index_of(store: Path) -> bytes:
    from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path

    return index_path(os.fsencode(store))


def test_drift_is_named_and_refused_and_repair_heals_it(place: Tuple[Path, Path]) -> None:
    src, dest = place
    copy_in_a_hurry(src, dest)
    (release,) = releases(dest)
    there = Path(f"{dest}.releases") / release
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
    healed = copy_in_a_hurry(src, dest, repair=True)
    assert len(healed["need"]["want"]) == 1
    assert content_of(there) == content_of(src)
    assert releases(dest) == [release]


def test_a_repair_compiles_anew(tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    copy_in_a_hurry(src, dest)
    (release,) = releases(dest)
    there = Path(f"{dest}.releases") / release
    module = next(there.glob("lib/python*/site-packages/engine/tree.py"))
    code = Path(importlib.util.cache_from_source(str(module)))
    good = code.read_bytes()
    code.write_bytes(good.replace(b"WIDTH", b"DEPTH"))
    (there / "extra").write_text("what makes the damage seen")
    copy_in_a_hurry(src, dest, repair=True)
    assert not (there / "extra").exists()
    assert code.read_bytes() == good


def test_an_interrupted_stream_goes_on_where_it_stopped(place: Tuple[Path, Path]) -> None:
    src, dest = place
    store = Path(f"{dest}.releases")
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        assert len(want) == 4
        target.ask("build", "built")
        frames = source.frames("send", "sent", want=want)
        ends = [number for number, (kind, _) in enumerate(frames) if kind == SUM]
        target.send(frames[: ends[1] + 2])  # two files and the number of a third
        target.process.stdin.close()  # type: ignore[union-attr]
        assert "connection ended" in target.complaint()
    assert releases(dest) == []
    assert not dest.exists()
    assert not Path(f"{dest}.lock").exists()
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest, run="another")
        again = need(source, target, tree)
        assert len(again["want"]) == 2
        assert again["reused"]["kept"]["files"] == 2
        deliver_in_a_hurry(source, target, again["want"], dest)
    (release,) = releases(dest)
    assert content_of(store / release) == content_of(src)


def interrupt(src: Path, dest: Path, keep: int) -> None:
    """Stream to ``dest`` until ``keep`` files have arrived, then break off."""
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        target.ask("build", "built")
        frames = source.frames("send", "sent", want=want)
        ends = [number for number, (kind, _) in enumerate(frames) if kind == SUM]
        target.send(frames[: ends[keep - 1] + 1] if keep else [])
        target.process.stdin.close()  # type: ignore[union-attr]
        target.complaint()


def test_a_staging_of_another_tree_is_used_and_cleared(place: Tuple[Path, Path]) -> None:
    src, dest = place
    (src / "old" / "nested" / "deep").mkdir(parents=True)
    (src / "old" / "nested" / "deep" / "file").write_text("gone")
    (src / "lib" / "swap").mkdir()
    interrupt(src, dest, keep=4)
    shutil.rmtree(src / "old")
    (src / "lib" / "swap").rmdir()
    (src / "lib" / "swap").symlink_to("a")
    os.rename(src / "lib" / "b", src / "lib" / "renamed")
    shutil.copy(src / "lib" / "a", src / "lib" / "twin")
    os.utime(src / "lib" / "a", ns=(1, 1))
    done = copy_in_a_hurry(src, dest)
    (release,) = releases(dest)
    assert content_of(Path(f"{dest}.releases") / release) == content_of(src)
    assert done["need"]["reused"]["repeated"]["files"] == 1
    assert done["need"]["reused"]["kept"]["files"] >= 2


def test_an_interrupted_staging_never_changes_the_release_it_shares_files_with(place: Tuple[Path, Path]) -> None:
    src, dest = place
    copy_in_a_hurry(src, dest)
    (release,) = releases(dest)
    there = Path(f"{dest}.releases") / release
    (src / "new").write_text("new")
    interrupt(src, dest, keep=0)
    assert os.path.samefile(there / "lib" / "a", there.parent / "staging" / "tree" / "lib" / "a")
    before = content_of(there)
    (src / "lib" / "a").chmod(0o755)
    os.utime(src / "lib" / "b", ns=(7, 7))
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        wanted = need(source, target, tree)
        target.ask("build", "built")
    assert wanted["reused"]["copied"]["files"] == 2
    assert content_of(there) == before


def test_check_mode_writes_nothing(place: Tuple[Path, Path]) -> None:
    src, dest = place
    shutil.copytree(src, dest)  # adopted one day; its content need not be sent
    (dest / "lib" / "b").write_text("older\n")
    before = listing(src.parent)
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        assert target.open(dest, check=True) == {"op": "opened", "releases": [], "dest_kind": "directory"}
        wanted = need(source, target, tree)
        assert wanted["reused"]["copied"]["files"] == 3
        assert len(wanted["want"]) == 1
        target.tell("bye")
        assert target.process.wait(10) == 0
    assert listing(src.parent) == before
    assert not os.path.exists(index_of(Path(f"{dest}.releases")))


# what the source refuses


def refused_scan(src: Path, **more: Any) -> str:
    with Source() as source:
        source.tell("scan", src=str(src), exclude=more.get("exclude", []), full=False)
        return source.complaint()


def test_what_no_environment_can_have_is_refused_by_name(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    assert refused_scan(src) == f"{src} is empty; name the directory of the environment as src"
    os.mkfifo(src / "pipe")
    assert refused_scan(src) == f"{src}/pipe is a FIFO, which no environment needs; remove it or exclude it"
    os.unlink(src / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(src / "s"))
    assert "/s is a socket" in refused_scan(src)
    (src / "file").write_text("")
    with Source() as source:
        assert source.scan(src, exclude=["s"])["files"] == 1
    os.unlink(src / "s")
    if os.geteuid() == 0:
        os.mknod(src / "null", 0o020666, os.makedev(1, 3))
        assert "/null is a device node" in refused_scan(src)
    assert refused_scan(tmp_path / "nowhere") == f"src {tmp_path}/nowhere does not exist"
    assert refused_scan(src / "file") == f"src {src}/file is not a directory"


def test_a_file_that_changes_after_it_was_listed_is_named(place: Tuple[Path, Path]) -> None:
    src, _ = place
    with Source() as source:
        source.scan(src)
        (src / "lib" / "b").write_text("shorter")
        with pytest.raises(PeerError, match="lib/b changed while it was read; stop what writes"):
            source.frames("send", "sent", want=[2, 3])


def test_a_file_that_grows_while_it_is_read_is_named(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    with open(src / "big", "wb") as file:
        file.truncate(64 * MIB)
    with Source() as source:
        source.scan(src)
        source.tell("send", want=[0])
        assert source.channel.receive_frame() == (FILE_INDEX, INDEX.pack(0))
        source.channel.receive_frame()
        with open(src / "big", "ab") as file:
            file.write(b"more")
        with pytest.raises(PeerError, match="big changed while it was read"):
            while True:
                frame = source.channel.receive_frame()
                if frame[0] != DATA:
                    parse_message(frame)


def test_content_that_changes_behind_an_unchanged_look_is_found_when_it_is_sent(place: Tuple[Path, Path]) -> None:
    src, _ = place
    victim = src / "lib" / "b"
    with Source() as source:
        source.scan(src)
        st = victim.stat()
        victim.write_text(victim.read_text().replace("b", "B"))
        os.utime(victim, ns=(st.st_atime_ns, st.st_mtime_ns))
        with pytest.raises(PeerError, match="lib/b changed after it was listed"):
            source.frames("send", "sent", want=[2])


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
    after = listing(tmp_path)
    assert set(after) == set(before)


def test_a_listing_must_have_the_digest_that_was_named(tmp_path: Path) -> None:
    with Destination() as target, pytest.raises(PeerError, match="does not have the digest that the source named"):
        target.offer(tmp_path / "dest", [row("x")], digest="0" * 64)


def test_a_link_named_pycache_left_in_staging_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    src, dest = tmp_path / "src", tmp_path / "dest"
    make_environment(src, dest)
    package = next(src.glob("lib/python*/site-packages/engine")).relative_to(src)
    staged = Path(f"{dest}.releases") / "staging" / "tree" / package
    staged.mkdir(parents=True)
    (staged / "__pycache__").symlink_to(outside)
    copy_in_a_hurry(src, dest)
    assert list(outside.iterdir()) == []
    (release,) = releases(dest)
    assert not (Path(f"{dest}.releases") / release / package / "__pycache__").is_symlink()


CONTENT = b"expected"
FRAMES: Dict[str, Tuple[List[Tuple[int, bytes]], str]] = {
    "other content": (
        [(FILE_INDEX, INDEX.pack(0)), (DATA, b"EXPECTED"), (SUM, b"\0" * 32)],
        "arrived with other content",
    ),
    "too long": ([(FILE_INDEX, INDEX.pack(0)), (DATA, CONTENT + b"!")], "is longer than the source listed"),
    "too short": ([(FILE_INDEX, INDEX.pack(0)), (DATA, b"exp"), (SUM, b"\0" * 32)], "arrived with other content"),
    "not asked for": ([(FILE_INDEX, INDEX.pack(1))], "sent file 1, which was not asked for"),
    "out of range": ([(FILE_INDEX, INDEX.pack(4_000_000_000))], "which was not asked for"),
    "twice": (
        [(FILE_INDEX, INDEX.pack(0)), (DATA, CONTENT), (SUM, b"\0" * 32), (FILE_INDEX, INDEX.pack(0))],
        "not asked for",
    ),
    "ends early": ([(1, b'{"op":"sent"}')], "ended without 1 of the files"),
    "ends in a file": ([(FILE_INDEX, INDEX.pack(0)), (1, b'{"op":"sent"}')], "stopped in the middle of a file"),
    "source failed": ([(FILE_INDEX, INDEX.pack(0)), (1, b'{"op":"error","message":"disk died"}')], "disk died"),
    "nonsense": ([(9, b"")], "the stream is corrupt"),
    "data without a file": ([(DATA, CONTENT)], "out of step"),
}


@pytest.mark.parametrize(("frames", "problem"), FRAMES.values(), ids=FRAMES.keys())
def test_a_source_that_sends_anything_else_commits_nothing(
    tmp_path: Path, frames: List[Tuple[int, bytes]], problem: str
) -> None:
    dest = tmp_path / "dest"
    with Destination() as target:
        wanted = target.offer(dest, [row("x", content=CONTENT), row("y", "l", mode=0, target="x")])
        assert wanted["want"] == [0]
        target.ask("build", "built")
        target.send(frames)
        assert problem in target.complaint()
    assert releases(dest) == []
    assert not dest.exists()
    assert not Path(f"{dest}.lock").exists()


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
        assert third.open(dest, run="one")["dest_kind"] == "absent"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_agent_that_is_ended_gives_the_lease_back(tmp_path: Path, number: signal.Signals) -> None:
    dest = tmp_path / "dest"
    with Destination() as target:
        target.open(dest)
        assert Path(f"{dest}.lock").exists()
        target.process.send_signal(number)
        target.process.wait(10)
    assert not Path(f"{dest}.lock").exists()


# disks


@pytest.fixture(name="small_disk")
def small_disk_fixture(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        forget(tmp_path)
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_refused_beforehand(tmp_path: Path, small_disk: Path) -> None:
    with Destination() as target, pytest.raises(PeerError) as caught:
        target.offer(small_disk / "dest", [row("x", size=20 * MIB, content=b"x")])
    assert re.search(rf"{small_disk}/dest.releases has \d+ MiB free, the release needs \d+ MiB", str(caught.value))
    assert "free space, prune old releases, or set dest" in str(caught.value)
    assert os.listdir(small_disk) == []


def test_a_disk_that_fills_in_the_middle_commits_nothing_and_can_go_on(tmp_path: Path, small_disk: Path) -> None:
    src, dest = tmp_path / "src", small_disk / "dest"
    src.mkdir()
    for number in range(4):
        (src / str(number)).write_bytes(os.urandom(2 * MIB))
    with Source() as source, Destination() as target:
        tree = source.scan(src)
        target.open(dest)
        want = need(source, target, tree)["want"]
        filler = small_disk / "filler"
        filler.write_bytes(b"\0" * (75 * MIB))
        target.ask("build", "built")
        try:
            target.send(source.frames("send", "sent", want=want))
        except BrokenPipeError:
            pass
        said = target.complaint()
    assert said == (
        f"{dest}.releases/staging/incoming/file: No space left on device; "
        "what arrived stays there, and the next run goes on with it"
    )
    assert releases(dest) == []
    filler.unlink()
    again = copy_in_a_hurry(src, dest)
    assert again["need"]["reused"]["kept"]["files"] == 2
    (release,) = releases(dest)
    assert content_of(Path(f"{dest}.releases") / release) == content_of(src)


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
    assert scan(os.fsencode(src))
