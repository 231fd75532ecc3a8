# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, Dict, List

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import Message
from ansible_collections.ddtree.fleet.plugins.plugin_utils._chains import Chain, groups
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._targets import Target

SHORT, LONG = [[1, "a"]], [[1, "a"], [2, "b"]]


def target(number: int, want: List[int], partial: Dict[int, Any]) -> Target:
    made = Target(Endpoint(f"t{number}", ["true"], 10), "python3")
    made.number, made.want, made.partial = number, set(want), partial
    return made


def asked(*chains: Chain) -> List[Message]:
    return [group.message() for group in groups(chains)]


def test_a_star_gives_each_the_rest_that_it_lacks() -> None:
    targets = [target(1, [1, 2, 3], {}), target(2, [2, 3], {3: SHORT}), target(3, [3], {3: SHORT})]
    assert asked(*(Chain([one], direct=one.number != 3) for one in targets)) == [
        {"runs": [[1, 1], [3, 1]], "partial": [], "sinks": [1], "takers": [1]},
        {"runs": [[2, 1]], "partial": [], "sinks": [1, 2], "takers": [1, 2]},
        {"runs": [[3, 1]], "partial": [[3, SHORT]], "sinks": [0, 2], "takers": [2, 3]},
    ]


def test_a_chain_gets_each_file_once_from_the_place_that_all_have() -> None:
    targets = [target(1, [1, 2], {1: SHORT, 2: LONG}), target(2, [1, 2], {1: LONG}), target(3, [1], {1: SHORT})]
    assert asked(Chain(targets, direct=True)) == [
        {"runs": [[1, 1]], "partial": [[1, SHORT], [1, LONG]], "sinks": [1], "takers": [1, 2, 3]},
        {"runs": [[2, 1]], "partial": [], "sinks": [1], "takers": [1, 2]},
    ]


def test_several_chains_are_told_apart_by_their_heads() -> None:
    first, second = Chain([target(1, [1], {}), target(2, [1, 2], {})]), Chain([target(3, [1], {})], direct=True)
    assert asked(first, second) == [
        {"runs": [[1, 1]], "partial": [], "sinks": [0, 3], "takers": [1, 2, 3]},
        {"runs": [[2, 1]], "partial": [], "sinks": [0], "takers": [2]},
    ]
