# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How work is divided; how workers and their results are handled is tried with hashing, in test__hashing.py."""

from __future__ import annotations

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._workers import BATCH, batches_in_order, make_batches

PIPE_BYTES = 1 << 16


@pytest.mark.parametrize("cheap", [3200, 700_000])
def test_costly_places_come_first_and_the_batches_fit_into_a_pipe(cheap: int) -> None:
    costs = [1, 60_000, 40_000, *[1000] * 100, *[1] * cheap, 100_000]
    batches = make_batches(costs, 4000)
    assert sorted(place for batch in batches for place in batch) == list(range(len(costs)))
    assert [[costs[place] for place in batch] for batch in batches[:3]] == [[100_000], [60_000], [40_000]]
    assert len(batches) * BATCH.size <= PIPE_BYTES
    assert sum(costs[place] for place in batches[-1]) <= 4000


def test_a_million_costly_places_fit_into_a_pipe_too() -> None:
    batches = make_batches([5000] * 100_000, 4000)
    assert len(batches) * BATCH.size <= PIPE_BYTES
    assert sum(len(batch) for batch in batches) == 100_000


def test_neighbours_stay_together_unless_they_are_large() -> None:
    sizes = [1] * 100 + [60 << 20, 10 << 20, 1]
    assert batches_in_order(sizes) == [range(64), range(64, 101), range(101, 103)]


@pytest.mark.parametrize("size", [0, 65 << 20])
def test_batches_of_many_neighbours_fit_into_a_pipe_too(size: int) -> None:
    batches = batches_in_order([size] * 1_200_000)
    assert len(batches) * BATCH.size <= PIPE_BYTES
    assert [place for batch in batches for place in batch] == list(range(1_200_000))


def test_nothing_makes_no_batch() -> None:
    assert make_batches([], 4000) == batches_in_order([]) == []
