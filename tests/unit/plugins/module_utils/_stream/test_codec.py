# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import sys
import threading
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import Codec, CodecError, find_codec

BACKENDS = ["compression.zstd", "zstandard", "libzstd", "zstd"]
MIB = 1 << 20
NOISE = random.Random(5).randbytes(4 * MIB)
TEXT = Path(argparse.__file__).read_bytes()


def backend(name: str, monkeypatch: pytest.MonkeyPatch) -> Codec:
    """The codec ``name``; Python's own module is stood in for by its backport where this Python is older."""
    if name == "compression.zstd" and sys.version_info < (3, 14):
        backport = pytest.importorskip("backports.zstd", reason="neither Python 3.14 nor backports.zstd is here")
        monkeypatch.setitem(sys.modules, name, backport)
    if name == "zstandard":
        pytest.importorskip("zstandard", reason="the zstandard package is not installed")
    found = find_codec(name)
    assert found is not None and found.backend == name
    return found


@pytest.fixture(name="subject", params=BACKENDS)
def subject_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Codec:
    return backend(request.param, monkeypatch)


def relabelled(frame: bytes, size: int) -> bytes:
    """``frame`` with ``size`` as the content size in its header, and a window of 128 MiB."""
    descriptor = frame[4]
    single_segment = descriptor >> 5 & 1
    body = 5 + (1 - single_segment) + (single_segment, 2, 4, 8)[descriptor >> 6]
    return frame[:4] + bytes([0xC0 | descriptor & 4, 17 << 3]) + size.to_bytes(8, "little") + frame[body:]


def memory(kind: str) -> int:
    """This process's ``VmRSS`` or ``VmHWM`` in bytes."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.parametrize(
    "data",
    [b"", b"x", TEXT[:255], TEXT[:256], TEXT[:65792], NOISE, bytes(4 * MIB)],
    ids=["empty", "1 byte", "255", "256", "65792", "4 MiB of noise", "4 MiB of zeros"],
)
def test_what_was_compressed_comes_back(subject: Codec, data: bytes) -> None:
    frame = subject.compress(data, 1)
    assert len(frame) <= len(data) + len(data) // 128 + 64
    assert codec.content_size(frame) == len(data)
    assert subject.decompress(frame, len(data)) == data


def test_every_level_works_and_a_higher_one_packs_better(subject: Codec) -> None:
    frames = [subject.compress(TEXT, level) for level in (1, 3, 9, 19)]
    assert all(subject.decompress(frame, len(TEXT)) == TEXT for frame in frames)
    assert len(frames[3]) < len(frames[1]) < len(frames[0]) < len(TEXT) / 2


@pytest.mark.parametrize("reader", BACKENDS)
@pytest.mark.parametrize("data", [b"", TEXT, NOISE[:MIB]], ids=["empty", "text", "noise"])
def test_every_backend_reads_what_another_made(
    subject: Codec, reader: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend(reader, monkeypatch).decompress(subject.compress(data, 3), len(data)) == data


def test_any_buffer_is_taken_and_left_as_it_was(subject: Codec) -> None:
    array = bytearray(TEXT)
    for data in (array, memoryview(array)[10:-10], memoryview(TEXT)[10:-10], memoryview(TEXT)):
        frame = subject.compress(data, 1)
        for same in (frame, bytearray(frame), memoryview(frame), memoryview(bytearray(b"-" + frame))[1:]):
            assert subject.decompress(same, len(data)) == data
    del data
    array.append(1)
    assert array == TEXT + b"\x01"


@pytest.mark.parametrize("content", [TEXT, NOISE[:MIB]], ids=["text", "noise"])
def test_a_damaged_frame_is_told_from_a_sound_one(subject: Codec, content: bytes) -> None:
    frame = subject.compress(content, 1)
    for place in (0, 20, len(frame) // 2, len(frame) - 1):
        damaged = bytearray(frame)
        damaged[place] ^= 4
        with pytest.raises(CodecError, match="^compressed data is damaged: "):
            subject.decompress(damaged, len(content))
    assert subject.decompress(frame, len(content)) == content


@pytest.mark.parametrize("kept", [0, 3, 4, 5, 7, 100, -1])
def test_a_truncated_frame_is_damaged(subject: Codec, kept: int) -> None:
    with pytest.raises(CodecError, match="^compressed data is damaged: "):
        subject.decompress(subject.compress(TEXT, 1)[:kept], len(TEXT))


def test_a_frame_with_more_behind_it_is_damaged(subject: Codec) -> None:
    with pytest.raises(CodecError, match="^compressed data is damaged: "):
        subject.decompress(subject.compress(TEXT, 1) + b"more", len(TEXT))


@pytest.mark.parametrize("size", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 1 << 50])
def test_a_frame_that_names_another_size_is_refused(subject: Codec, size: int) -> None:
    with pytest.raises(CodecError, match=rf"a block of {size} bytes says it holds {len(TEXT)} bytes"):
        subject.decompress(subject.compress(TEXT, 1), size)


def test_a_frame_without_a_size_is_refused(subject: Codec) -> None:
    sizeless = codec.MAGIC + b"\x00\x58" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    with pytest.raises(CodecError, match="a block of 5 bytes is not a zstd frame with a size"):
        subject.decompress(sizeless, 5)


def test_something_else_than_zstd_is_refused(subject: Codec) -> None:
    for data in (b"", b"\x1f\x8b\x08\x00" + bytes(30), TEXT):
        with pytest.raises(CodecError, match="is not a zstd frame"):
            subject.decompress(data, 100)


@pytest.mark.parametrize("size", [len(TEXT) - 1, len(TEXT) + 1, 4 * len(TEXT)])
def test_a_frame_that_lies_about_its_size_is_damaged(subject: Codec, size: int) -> None:
    frame = subject.compress(TEXT, 1)
    assert subject.decompress(relabelled(frame, len(TEXT)), len(TEXT)) == TEXT
    with pytest.raises(CodecError, match="^compressed data is damaged: "):
        subject.decompress(relabelled(frame, size), size)


@pytest.mark.parametrize("form", ["a frame that says less", "a second frame"])
def test_hostile_data_does_not_take_memory(subject: Codec, form: str) -> None:
    large = subject.compress(bytes(128 * MIB), 1)
    hostile = relabelled(large, MIB) if form == "a frame that says less" else subject.compress(bytes(MIB), 1) + large
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is used now
    with pytest.raises(CodecError, match="^compressed data is damaged: "):
        subject.decompress(hostile, MIB)
    assert memory("VmHWM") - before < 64 * MIB


def test_threads_share_a_codec(subject: Codec) -> None:
    wrong = []

    def work(seed: int) -> None:
        source = random.Random(seed)
        for turn in range(12):
            start = source.randrange(len(TEXT))
            data = TEXT[start:] + NOISE[start : start + 50_000]
            if subject.decompress(subject.compress(data, 1 + turn % 3), len(data)) != data:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_thread_that_ends_leaves_no_memory_behind(subject: Codec) -> None:
    def work() -> None:
        subject.decompress(subject.compress(NOISE[:MIB], 9), MIB)

    def run(threads: int) -> int:
        for _turn in range(threads):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return memory("VmRSS")

    before = run(8)
    assert run(24) - before < 64 * MIB


def test_the_best_backend_is_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    backend("compression.zstd", monkeypatch)
    for lost in BACKENDS:
        found = find_codec()
        assert found is not None and found.backend == lost
        lose(lost, monkeypatch)
    assert find_codec() is None


def lose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("libzstd", "zstd"):
        monkeypatch.setattr(codec, {"libzstd": "LIBRARY", "zstd": "PROGRAM"}[name], "zstd-that-is-not-here")
    else:
        monkeypatch.setitem(sys.modules, name, None)


def test_an_unknown_backend_is_none() -> None:
    assert find_codec("lz4") is None


def test_a_broken_package_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zstandard.py").write_text("raise RuntimeError('built for another Python')\n")
    monkeypatch.delitem(sys.modules, "zstandard", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert find_codec("zstandard") is None
    found = find_codec()
    assert found is not None and found.backend != "zstandard"


@pytest.mark.parametrize("library", ["libc.so.6", __file__, "libnothing.so.1"])
def test_a_library_without_zstd_in_it_is_passed_over(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "LIBRARY", library)
    assert find_codec("libzstd") is None


@pytest.mark.parametrize("script", ["exit 1", "cat", "echo zstd 0.1", "exec /usr/bin/zstd -q -c", "kill -9 $$"])
def test_a_program_that_does_something_else_is_passed_over(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zstd").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "zstd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert find_codec("zstd") is None


def test_the_program_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = find_codec("zstd")
    assert found is not None and found.decompress(found.compress(TEXT, 1), len(TEXT)) == TEXT
