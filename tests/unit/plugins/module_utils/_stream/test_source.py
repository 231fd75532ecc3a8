# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._index import index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    BLOCK_HEAD,
    BLOCK_SIZE,
    RAW,
    ZSTD,
    Message,
    PeerError,
    parse_message,
    to_runs,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import make_pair
from ansible_collections.ddtree.fleet.tests.unit.agents import (
    WITHOUT_CODEC,
    Destination,
    Source,
    content_bytes,
    listing,
    need,
    packings,
    releases,
)
from ansible_collections.ddtree.fleet.tests.unit.trees import MIB, ODD_NAMES, content_of, fill_odd, make_environment

pytestmark = pytest.mark.usefixtures("forget_hashes")
NOISE = random.Random(11).randbytes(BLOCK_SIZE)


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    """A small tree: lib, lib/a, lib/b, lib/c, lib/deep, lib/deep/x, by number."""
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (src / "lib" / name).write_text(f"content of {name}\n" * 100)
    (src / "lib" / "deep" / "x").write_text("x" * 1000)
    return src


def refused(src: Path) -> str:
    with Source() as source, pytest.raises(PeerError) as caught:
        source.scan(src)
    return str(caught.value)


def age(root: Path) -> None:
    """Let a tree be as quiet as one that stands for a while: the hash index trusts what nobody wrote to for two seconds."""
    youngest = max(path.lstat().st_ctime for path in root.rglob("*"))
    time.sleep(max(0.0, youngest + 2.05 - time.time()))


# what it says of a tree


def test_a_tree_is_described(tmp_path: Path) -> None:
    src = tmp_path / "src"
    fill_odd(src)
    before = listing(src)
    with Source() as source:
        tree = source.scan(src)
        rows = [parse_message(frame) for frame in source.frames("list", "end", want=[])]
    assert listing(src) == before
    assert rows == [{"op": "end"}]
    files = [path for path in src.rglob("*") if path.is_file() and not path.is_symlink()]
    assert tree["files"] == len(files)
    assert tree["bytes"] == sum(path.stat().st_size for path in files)
    assert tree["entries"] == len(files) + 2 * len(ODD_NAMES) + 1
    assert (tree["hashed"], tree["hashed_bytes"]) == (tree["files"], tree["bytes"])
    assert tree["special"] == [["setuid", 0o4755]]
    assert tree["shared"] == 2
    assert tree["environment"] == {}
    assert tree["codec"]
    assert tree["processors"] == os.cpu_count()


def test_an_environment_is_described_unless_an_interpreter_is_streamed(tmp_path: Path) -> None:
    make_environment(tmp_path / "src", tmp_path / "dest")
    with Source() as source:
        assert source.scan(tmp_path / "src")["environment"]["built_at"] == str(tmp_path / "dest")
    with Source() as source:
        assert source.scan(tmp_path / "src", interpreter=True)["environment"] == {}


@pytest.mark.slow
def test_what_was_read_once_is_not_read_again(src: Path) -> None:
    with Source() as source:
        digest = source.scan(src)["digest"]
    age(src)
    with Source() as source:
        assert source.scan(src, check=True)["hashed"] == 4
    assert not os.path.exists(index_path(os.fsencode(src)))  # checking writes nothing, not even what it learnt
    with Source() as source:
        assert source.scan(src)["hashed"] == 4  # the first one had been too young to be remembered
    (src / "lib" / "a").write_text("changed\n")
    with Source() as source:
        tree = source.scan(src)
        assert (tree["hashed"], tree["hashed_bytes"]) == (1, 8)
        assert tree["digest"] != digest
    with Source() as source:
        assert source.scan(src, full=True)["hashed"] == 4


def test_a_source_without_zstd_says_so(src: Path) -> None:
    with Source(before=WITHOUT_CODEC) as source:
        assert source.scan(src)["codec"] == ""
        assert set(packings(source.content([1, 2], compress="zstd"))) == {0}


def test_what_no_environment_can_have_is_refused_by_name(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    assert refused(src) == f"{src} is empty; name the directory of the environment as src"
    os.mkfifo(src / "pipe")
    assert refused(src) == f"{src}/pipe is a FIFO, which no environment needs; remove it or exclude it"
    os.unlink(src / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(src / "s"))
    assert "/s is a socket" in refused(src)
    (src / "file").write_text("")
    with Source() as source:
        assert source.scan(src, exclude=["s"])["files"] == 1
    os.unlink(src / "s")
    if os.geteuid() == 0:
        os.mknod(src / "null", 0o020666, os.makedev(1, 3))
        assert "/null is a device node" in refused(src)
    assert refused(tmp_path / "nowhere") == f"src {tmp_path}/nowhere does not exist"
    assert refused(src / "file") == f"src {src}/file is not a directory"


# what it sends


def test_a_source_sends_the_files_it_is_asked_for_and_no_others(src: Path) -> None:
    with Source() as source:
        source.scan(src)
        frames = source.content([1, 5])
        said = parse_message(source.frames("send", "sent", groups=[], compress="auto", rate=0)[-1])
    assert parse_message(frames[0])["runs"] == [[1, 1], [5, 1]]
    assert [payload[5:] for kind, payload in frames if kind == BLOCK] == [
        (src / "lib" / "a").read_bytes() + (src / "lib" / "deep" / "x").read_bytes()
    ]
    assert (said["lost"], said["rates"]) == ({}, {})
    assert {"scan", "hash", "send"} <= set(said["seconds"])
    assert MIB < said["peak_memory"] < 200 * MIB


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ([[6, 1]], "named file 6, which the listing has not"),
        ([[-1, 1]], "named file -1, which the listing has not"),
        ([[2, 1], [1, 1]], "named file 1, which the listing has not"),
        ([["x"]], "in a form that is not understood"),
    ],
)
def test_only_files_of_the_listing_are_read(src: Path, runs: List[Any], problem: str) -> None:
    with Source() as source:
        source.scan(src)
        group = {"runs": runs, "partial": [], "sinks": [0], "takers": [1]}
        source.tell("send", groups=[group], compress="none", rate=0)
        assert problem in source.complaint()


def test_the_content_of_what_is_no_file_does_not_come(src: Path) -> None:
    with Source() as source:
        source.scan(src)
        frames = source.content([0, 1], [[0, [[1, "0" * 64]]]])
    assert parse_message(frames[0])["runs"] == [[1, 1]]
    assert [payload[5:] for kind, payload in frames if kind == BLOCK] == [(src / "lib" / "a").read_bytes()]


def test_only_directories_of_the_listing_are_listed(src: Path) -> None:
    with Source() as source:
        source.scan(src)
        source.frames("folders", "end")
        assert [parse_message(frame)["op"] for frame in source.frames("list", "end", want=[-1, 3])] == ["end"]


def partial(content: bytes, *lengths: int) -> List[Tuple[int, str]]:
    return [(length, hashlib.sha256(content[:length]).hexdigest()) for length in lengths]


def test_a_large_file_goes_on_from_the_longest_beginning_that_is_equal(tmp_path: Path) -> None:
    src, content = tmp_path / "src", NOISE * 3 + b"grown since"
    src.mkdir()
    (src / "x").write_bytes(content)
    good = partial(content, MIB, 2 * MIB, 3 * MIB)
    cases: List[Tuple[List[Tuple[int, str]], int]] = [
        ([], 0),
        (good, 3 * MIB),
        (good[:1], MIB),
        (partial(content, len(content)), len(content)),
        ([*good[:2], (3 * MIB, "0" * 64)], 2 * MIB),
        ([good[0], (2 * MIB, "0" * 64), good[2]], MIB),
        ([(MIB, "0" * 64), *good[1:]], 0),
        ([*good, (len(content) + 1, "0" * 64)], 3 * MIB),
        ([good[1], good[0]], 2 * MIB),
        ([(0, hashlib.sha256().hexdigest())], 0),
        ([(-5, "0" * 64)], 0),
    ]
    with Source() as source:
        source.scan(src)
        for prefixes, agreed in cases:
            frames = source.content([0], [[0, prefixes]])
            assert parse_message(frames[0])["offsets"] == ([[0, agreed]] if agreed else []), prefixes
            assert b"".join(payload[5:] for kind, payload in frames if kind == BLOCK) == content[agreed:]


def test_packing_is_what_was_asked_for(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "text").write_bytes(b"the same line again and again\n" * 80_000)
    with Source() as source:
        source.scan(src)
        plain, packed, auto = (source.content([0], compress=mode) for mode in ("none", "zstd", "auto"))
    assert set(packings(plain)) == {RAW}
    assert set(packings(packed)) == set(packings(auto)) == {ZSTD}
    assert content_bytes(packed) < content_bytes(plain) / 20


# trees that change meanwhile


@pytest.mark.parametrize("content", ["shorter", "CONTENT of b\n" * 100], ids=["size", "content"])
def test_a_file_that_changed_after_it_was_listed_is_named(src: Path, content: str) -> None:
    with Source() as source:
        source.scan(src)
        (src / "lib" / "b").write_text(content)
        with pytest.raises(PeerError, match="lib/b changed while it was read; stop what writes to the environment"):
            source.content([1, 2, 3])


def test_of_a_large_file_that_is_cut_short_on_the_way_the_error_arrives_in_step(src: Path) -> None:
    """It is sent without a copy, so the block that it ends in was announced as a whole one."""
    (src / "large").write_bytes(NOISE * 20)
    with Source() as source:
        source.scan(src)
        group = {"runs": [[0, 1]], "partial": [], "sinks": [0], "takers": [1]}
        source.tell("send", groups=[group], compress="none", rate=0)
        assert source.answer("group")["runs"] == [[0, 1]]
        blocks = [source.channel.receive_frame()]
        os.truncate(src / "large", 5 * BLOCK_SIZE + 7)
        with pytest.raises(PeerError) as caught:
            while True:
                frame = source.channel.receive_frame()
                if frame[0] == BLOCK:
                    blocks.append(frame)
                else:
                    parse_message(frame, "progress")
    told = "src/large changed while it was read; stop what writes to the environment and run again"
    assert str(caught.value) == f"{src.parent}/{told}"
    assert [payload[BLOCK_HEAD.size :] for _kind, payload in blocks[:5]] == [NOISE] * 5
    assert [payload[BLOCK_HEAD.size :] for _kind, payload in blocks[5:]] == [NOISE[:7] + bytes(BLOCK_SIZE - 7)]


def test_a_file_that_is_gone_or_replaced_is_named(src: Path) -> None:
    with Source() as source:
        source.scan(src)
        os.unlink(src / "lib" / "b")
        with pytest.raises(PeerError, match="lib/b: No such file"):
            source.content([2])
    (src / "lib" / "b").write_text("again")
    with Source() as source:
        source.scan(src)
        os.unlink(src / "lib" / "b")
        (src / "lib" / "b").symlink_to("/etc/hostname")
        with pytest.raises(PeerError, match="lib/b: Too many levels of symbolic links"):
            source.content([2])
    os.unlink(src / "lib" / "b")
    (src / "lib" / "b").write_text("again")
    with Source() as source:
        source.scan(src)
        os.unlink(src / "lib" / "b")
        os.mkfifo(src / "lib" / "b")
        with pytest.raises(PeerError, match="lib/b changed while it was read"):
            source.content([2])


def test_a_file_that_grows_while_it_is_read_is_named(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "big").write_bytes(NOISE * 24)
    with Source() as source:
        source.scan(src)
        group = {"runs": [[0, 1]], "partial": [], "sinks": [0], "takers": [1]}
        source.tell("send", groups=[group], compress="none", rate=0)
        assert parse_message(source.channel.receive_frame())["op"] == "group"
        assert source.channel.receive_frame()[0] == BLOCK
        with open(src / "big", "ab") as file:
            file.write(b"more")
        with pytest.raises(PeerError, match="big changed while it was read"):
            while True:
                frame = source.channel.receive_frame()
                if frame[0] != BLOCK:
                    parse_message(frame, "progress")


def test_a_directory_that_vanishes_does_not_stop_another_run(src: Path) -> None:
    with Source() as source:
        source.scan(src)
        shutil.rmtree(src / "lib" / "deep")
        with pytest.raises(PeerError, match="lib/deep/x: No such file"):
            source.content([5])
    with Source() as source:
        assert source.scan(src)["files"] == 3


# targets that it has connections of its own to


def listen(target: Destination, src: Path, source: Source, dest: Path) -> Tuple[Dict[str, Any], Message, List[int]]:
    """Bring a target as far as waiting for the source; gives what the source must know, the tree, and what is wanted."""
    tree = source.scan(src)
    target.open(dest)
    want = need(source, target, tree)["want"]
    own, peer = make_pair("target"), make_pair("source")
    fields = {"certificate": own.certificate, "key": own.key, "peer": peer.certificate, "streams": 1, "idle": 20}
    port = target.ask("listen", "listening", ports=[0, 0], **fields)["port"]
    mine = {"certificate": peer.certificate, "key": peer.key, "peer": own.certificate, "streams": 1}
    return {"addresses": [["127.0.0.1", port]], "sink": 1, **mine}, tree, want


def test_content_reaches_a_target_directly_and_through_the_relay_at_once(src: Path, tmp_path: Path) -> None:
    (src / "large").write_bytes(NOISE * 5)
    near, far = tmp_path / "near", tmp_path / "far"
    with Source() as source, Destination() as direct, Destination() as relayed:
        peer, tree, want = listen(direct, src, source, near)
        assert source.ask("connect", "connected", peers=[peer], idle=20)["failed"] == {}
        relayed.open(far)
        assert need(source, relayed, tree)["want"] == want
        direct.ask("build", "built")
        direct.tell("take", direct=True, number=1, after=[])
        group = {"runs": to_runs(want), "partial": [], "sinks": [0, 1], "takers": [1, 2]}
        frames = source.frames("send", "sent", groups=[group], compress="none", rate=0)
        assert parse_message(frames[-1])["lost"] == {}
        done = direct.answer("committed")
        relayed.take(frames[:-1])
    assert done["wire"] > 5 * MIB
    for dest in (near, far):
        (release,) = releases(dest)
        assert content_of(Path(f"{dest}.releases") / release) == content_of(src)


def test_a_target_that_cannot_be_reached_is_told_and_the_others_are_served(src: Path) -> None:
    peer = {"certificate": make_pair("source").certificate, "key": make_pair("source").key}
    with socket.socket() as unused, Source() as source:
        unused.bind(("127.0.0.1", 0))
        source.scan(src)
        asked = {**peer, "addresses": [["127.0.0.1", unused.getsockname()[1]]], "peer": "", "streams": 1, "sink": 1}
        failed = source.ask("connect", "connected", peers=[asked], idle=5)["failed"]
        assert list(failed) == ["1"]
        assert failed["1"]
        assert [kind for kind, payload in source.content([1])][1:] == [BLOCK]


def test_a_target_that_dies_in_the_middle_is_lost_and_the_others_are_served(src: Path, tmp_path: Path) -> None:
    (src / "large").write_bytes(NOISE * 40)
    with Source() as source, Destination() as direct:
        peer, tree, want = listen(direct, src, source, tmp_path / "dest")
        assert source.ask("connect", "connected", peers=[peer], idle=20)["failed"] == {}
        direct.ask("build", "built")
        direct.tell("take", direct=True, number=1, after=[])
        direct.process.kill()
        group = {"runs": to_runs(want), "partial": [], "sinks": [0, 1], "takers": [1, 2]}
        frames = source.frames("send", "sent", groups=[group], compress="none", rate=0)
    assert list(parse_message(frames[-1])["lost"]) == ["1"]
    assert content_bytes(frames) > 40 * MIB
