# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _hashing, _tree
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, TreeError, scan

MIB = 1 << 20
SMALL, LARGE = 600, 2


@pytest.fixture(name="root", scope="module")
def root_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of many small files and two large ones, which tests leave as it is."""
    root = tmp_path_factory.mktemp("root")
    for number in range(SMALL):
        (root / f"small {number:03}").write_bytes(b"content %d" % number * (number % 50))
    for number in range(LARGE):
        with (root / f"large {number}").open("wb") as file:
            file.write(os.urandom(MIB))
            file.truncate(33 * MIB + number)
    (root / "folder").mkdir()
    (root / "link").symlink_to("nowhere")
    return root


@pytest.fixture(name="many")
def many_fixture(tmp_path: Path) -> Path:
    """A tree that several processes hash, to be spoiled."""
    root = tmp_path / "many"
    root.mkdir()
    for number in range(300):
        (root / f"{number:03}").write_bytes(b"content %d" % number)
    return root


@pytest.fixture(name="nothing_left", autouse=True)
def nothing_left_fixture() -> Iterator[None]:
    """Whatever happens, no process and no descriptor is left."""
    before = os.listdir("/proc/self/fd")
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert os.listdir("/proc/self/fd") == before


def expected(root: Path) -> Dict[bytes, str]:
    files = [path for path in root.iterdir() if path.is_file()]
    return {os.fsencode(path.name): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def hash_all(root: Path, **more: Any) -> Dict[bytes, str]:
    top = os.fsencode(root)
    return hash_tree(top, scan(top), **more)


def meddle(monkeypatch: pytest.MonkeyPatch, act: Callable[[bytes], None]) -> None:
    """Do ``act`` with a file's path in the process that is about to hash that file."""

    def meddling(root: bytes, entry: Entry) -> str:
        act(entry.path)
        return _tree.hash_file(root, entry)

    monkeypatch.setattr(_hashing, "hash_file", meddling)


def log_processes(monkeypatch: pytest.MonkeyPatch, log: Path, together: int = 0) -> Callable[[], List[int]]:
    """Gives what tells the process of each file that was read. None goes on before so many have begun, if it can be waited for."""
    log.write_bytes(b"")

    def processes() -> List[int]:
        return [int(line) for line in log.read_bytes().split()]

    def write(path: bytes) -> None:
        with log.open("ab") as file:
            file.write(b"%d\n" % os.getpid())
        patience = time.monotonic() + 10
        while len(set(processes())) < together and time.monotonic() < patience:
            time.sleep(0.001)

    meddle(monkeypatch, write)
    return processes


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_hashes_are_those_of_the_content(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    processes = log_processes(monkeypatch, tmp_path / "log", workers)
    assert hash_all(root, workers=workers) == expected(root)
    assert len(processes()) == SMALL + LARGE
    if workers == 1:
        assert set(processes()) == {os.getpid()}
    elif workers:
        assert len(set(processes())) == workers
        assert os.getpid() not in processes()


def test_a_few_small_files_are_hashed_here(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = log_processes(monkeypatch, tmp_path / "log")
    top = os.fsencode(root)
    few = [entry for entry in scan(top) if entry.size < MIB][:250]
    hash_tree(top, few, workers=4)
    assert set(processes()) == {os.getpid()}
    assert hash_tree(top, []) == {}


def test_known_hashes_spare_reading(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = log_processes(monkeypatch, tmp_path / "log")
    told: List[bytes] = []
    found = hash_all(
        root,
        known=lambda entry: "known" if entry.path.startswith(b"large") or entry.path.endswith(b"7") else None,
        done=lambda entry, sha256, seen_ns: told.append(entry.path),
        workers=2,
    )
    known = {path for path, sha256 in found.items() if sha256 == "known"}
    assert len(known) == SMALL // 10 + LARGE
    assert found == {**expected(root), **dict.fromkeys(known, "known")}
    assert sorted(told) == sorted(set(found) - known)
    assert len(processes()) == SMALL - SMALL // 10


@pytest.mark.parametrize("workers", [1, 3])
def test_each_file_that_was_read_is_told_once_with_the_time_that_reading_it_began(
    root: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    meddle(monkeypatch, lambda path: time.sleep(0.3 if path == b"large 0" else 0))
    told: List[Tuple[bytes, str, int]] = []
    before = time.time_ns()
    hashes = hash_all(
        root, done=lambda entry, sha256, seen_ns: told.append((entry.path, sha256, seen_ns)), workers=workers
    )
    after = time.time_ns()
    assert sorted((path, sha256) for path, sha256, _seen in told) == sorted(hashes.items())
    assert all(before <= seen_ns <= after for _path, _sha256, seen_ns in told)
    assert {path: seen_ns for path, _sha256, seen_ns in told}[b"large 0"] <= after - 300_000_000


def spoil(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "another":
        path.unlink()
        path.write_bytes(b"another")
    elif how == "link":
        path.unlink()
        path.symlink_to("000")
    else:
        path.chmod(0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("gone", "many/123: No such file or directory"),
        ("another", "many/123 changed while it was read; stop what writes to the environment and run again"),
        ("link", "many/123: Too many levels of symbolic links"),
        pytest.param(
            "unreadable",
            "many/123: Permission denied",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything"),
        ),
    ],
)
def test_a_file_that_cannot_be_read_or_is_another_is_named(many: Path, workers: int, how: str, told: str) -> None:
    top = os.fsencode(many)
    entries = scan(top)
    spoil(many / "123", how)
    with pytest.raises(TreeError) as caught:
        hash_tree(top, entries, workers=workers)
    assert str(caught.value) == f"{many.parent}/{told}"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_file_that_changes_while_it_is_hashed_is_named(
    many: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    read = _tree.hash_into

    def changing(digest: Any, fd: int, size: int, full: bytes) -> None:
        read(digest, fd, size, full)
        if full.endswith(b"/200"):
            (many / "200").write_bytes(b"another")

    monkeypatch.setattr(_tree, "hash_into", changing)
    with pytest.raises(TreeError, match="many/200 changed while it was read; stop what writes to the environment"):
        hash_all(many, workers=workers)


def test_a_failure_does_not_wait_for_the_other_processes(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = os.fsencode(many)
    entries = scan(top)
    (many / "100").unlink()  # among the first, since it is as large as any
    meddle(monkeypatch, lambda path: time.sleep(0 if path == b"100" else 60))
    started = time.monotonic()
    with pytest.raises(TreeError, match="many/100: No such file"):
        hash_tree(top, entries, workers=3)
    assert time.monotonic() - started < 10


def test_what_the_caller_raises_ends_the_processes(many: Path) -> None:
    def refuse(entry: Entry, sha256: str, seen_ns: int) -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        hash_all(many, done=refuse, workers=3)


def kill_itself(path: bytes) -> None:
    if path == b"250":
        os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory(path: bytes) -> None:
    if path == b"250":
        raise MemoryError


@pytest.mark.parametrize("act", [kill_itself, run_out_of_memory])
def test_a_process_that_is_ended_is_told(
    many: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[bytes], None]
) -> None:
    meddle(monkeypatch, act)
    with pytest.raises(TreeError, match="^a process that worked on files was ended; run again$"):
        hash_all(many, workers=3)


def test_a_process_that_is_ended_at_once_does_not_tidy_up(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, told = os.fork, many / "told"

    def fork_and_end() -> int:
        pid = fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    def tidy_up(*_signal: object) -> None:
        told.write_text("tidied up")
        os._exit(0)

    before = signal.signal(signal.SIGTERM, tidy_up)
    try:
        monkeypatch.setattr(os, "fork", fork_and_end)
        with pytest.raises(TreeError, match="^a process that worked on files was ended; run again$"):
            hash_all(many, workers=3)
        assert signal.getsignal(signal.SIGTERM) is tidy_up
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not told.exists()


KILLED = """
import os, signal, sys
from ansible_collections.ddtree.fleet.plugins.module_utils import _hashing, _tree
entries = _tree.scan(os.fsencode(sys.argv[1])) * 20
_hashing.hash_tree(os.fsencode(sys.argv[1]), entries, done=lambda *told: os.kill(os.getpid(), 9), workers=2)
"""


def test_the_processes_end_with_the_one_that_started_them(many: Path) -> None:
    """They have more to tell than their pipes hold, and nobody who reads it."""
    process = subprocess.run(
        [sys.executable, "-c", KILLED, many],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,  # which is at its end when no process has it any more
        timeout=20,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
