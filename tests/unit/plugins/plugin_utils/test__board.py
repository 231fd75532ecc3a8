# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import time
from typing import Any

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._board import Board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target

MIB = 1 << 20


class Clock:
    """In place of the clock, which a test sets itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def progress(phase: str, files: int, size: int) -> dict[str, Any]:
    return {"op": "progress", "phase": phase, "files": files, "bytes": size}


def target(host: str, want: set[int], size: int) -> Target:
    made = Target(Endpoint(host, ["true"], 10), "python3")
    made.want, made.verdict.bytes_sent = want, size
    return made


def test_sending_is_told_with_amounts_speed_and_time_left(clock: Clock) -> None:
    said: list[str] = []
    board = Board("ct200", said.append)
    clock.now += 100
    board.begin([target("b300-1", {1, 2, 3}, 3000 * MIB), target("b300-2", {3, 4}, 2000 * MIB)])
    clock.now += 10
    board.heard("ct200", progress("send", 2, 1000 * MIB))
    assert said == ["ct200 -> b300-1, b300-2: 2 of 4 files, 1,000 of 3,000 MiB, 100 MiB/s, 20 s left"]


@pytest.mark.parametrize(
    ("phase", "files", "line"),
    [
        ("hash", 12345, "b300-1 hashes: 12,345 files, 2,048 MiB"),
        ("local", 1, "b300-1 hashes what it has: 1 files, 2,048 MiB"),
        ("reuse", 1, "b300-1 reuses: 1 files, 2,048 MiB"),
        ("bytecode", 1, "b300-1 compiles: 1 files, 2,048 MiB"),
        ("sync", 0, "b300-1 syncs"),
    ],
)
def test_each_phase_is_told_in_words(clock: Clock, phase: str, files: int, line: str) -> None:
    said: list[str] = []
    board = Board("ct200", said.append)
    clock.now += 5
    board.heard("b300-1", progress(phase, files, 2048 * MIB))
    assert said == [line]


def test_a_line_comes_every_five_seconds_at_most_whoever_has_news(clock: Clock) -> None:
    said: list[str] = []
    board = Board("ct200", said.append)
    for _ in range(120):
        clock.now += 0.25
        board.heard("ct200", progress("hash", 1, MIB))
        board.heard("b300-1", progress("local", 1, MIB))
    assert len(said) == 30 / _board.EVERY_S == 6


def test_what_targets_receive_is_not_told_twice(clock: Clock) -> None:
    said: list[str] = []
    board = Board("ct200", said.append)
    clock.now += 5
    board.heard("b300-1", progress("receive", 1, MIB))
    assert said == []
    board.heard("ct200", progress("hash", 1, MIB))  # and does not put off what is
    assert len(said) == 1


def test_a_stream_that_has_just_begun_or_is_at_its_end_names_no_time(clock: Clock) -> None:
    said: list[str] = []
    board = Board("ct200", said.append)
    clock.now += 50
    board.begin([target("b300-1", {1}, 10 * MIB)])
    board.heard("ct200", progress("send", 0, 0))
    clock.now += 10
    board.heard("ct200", progress("send", 1, 10 * MIB))
    assert said == [
        "ct200 -> b300-1: 0 of 1 files, 0 of 10 MiB, 0 MiB/s",
        "ct200 -> b300-1: 1 of 1 files, 10 of 10 MiB, 1 MiB/s",
    ]
