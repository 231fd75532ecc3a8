# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import itertools
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ddtree.fleet.plugins.filter.rollout import FilterModule, rollout, rollout_stopped

GROUPS = {
    "b300": ["b1", "b2", "b3", "b4", "b5", "b6"],
    "rtx_pro_6000": ["r1", "r2", "r3", "r4"],
    "pilots": ["b6", "r3"],
    "empty": [],
}
HOSTS = GROUPS["b300"] + GROUPS["rtx_pro_6000"]


def test_the_canary_is_the_first_host_of_each_hardware_group_and_the_rest_goes_in_quarters() -> None:
    planned = rollout(HOSTS, GROUPS)
    assert planned["canary"] == ["b1", "r1"]
    assert planned["batches"] == [["b2", "b3"], ["b4", "b5"], ["b6", "r2"], ["r3", "r4"]]


@pytest.mark.parametrize(
    ("canary", "chosen"),
    [
        (0, []),
        ("0", []),
        (2, ["b1", "b2", "r1", "r2"]),
        (99, HOSTS),
        ("pilots", ["b6", "r3"]),
        ("b300", GROUPS["b300"]),
    ],
)
def test_a_canary_is_a_number_of_each_group_or_a_group(canary: Any, chosen: list[str]) -> None:
    planned = rollout(HOSTS, GROUPS, canary, ["100%"])
    assert planned["canary"] == chosen
    assert sorted([*planned["canary"], *itertools.chain(*planned["batches"])]) == sorted(HOSTS)


def test_the_canary_is_chosen_among_the_hosts_of_the_run() -> None:
    assert rollout(["b4", "b5", "r3"], GROUPS, 1)["canary"] == ["b4", "r3"]
    assert rollout(["b4", "b6"], GROUPS, "pilots")["canary"] == ["b6"]
    assert rollout(["b1"], {"b300": ["b1"], "rtx_pro_6000": ["b1"]}, 1)["canary"] == ["b1"]
    assert rollout([], GROUPS, "pilots") == {"canary": [], "batches": [], "max_failed": 0}


@pytest.mark.parametrize(
    ("batches", "sizes"),
    [
        (["100%"], [10]),
        ([1, 2], [1, 2, 2, 2, 2, 1]),
        (["10%", "30%", "100%"], [1, 3, 6]),
        (["1%"], [1] * 10),
        ("1,50%", [1, 5, 4]),
        (4, [4, 4, 2]),
        ([99], [10]),
    ],
)
def test_batches_are_as_serial_has_them(batches: Any, sizes: list[int]) -> None:
    assert [len(batch) for batch in rollout(HOSTS, GROUPS, 0, batches)["batches"]] == sizes


def test_a_share_is_not_less_by_what_floating_point_makes_of_it() -> None:
    hosts = [f"b{number}" for number in range(100)]
    assert len(rollout(hosts, {"b300": hosts}, 0, ["29%"])["batches"][0]) == 29


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            ("pilot",),
            "ddtree_canary is 'pilot', which is neither a number nor a group of the inventory; the groups are b300, ",
        ),
        ((-1,), "ddtree_canary is -1"),
        ((True,), "ddtree_canary is True"),
        (("empty",), "none of the hosts of this run is in the group empty"),
        ((1, []), "ddtree_batches is empty"),
        ((["b1"], ["25%"]), "ddtree_canary is ['b1'], which is neither a number nor a group of the inventory; "),
        ((1, None), "ddtree_batches is empty; say ['100%'] for all hosts at once"),
        ((1, [0]), "ddtree_batches has 0, which is neither a number of hosts from 1 nor a share such as 25%"),
        ((1, ["0%"]), "ddtree_batches has '0%'"),
        ((1, ["101%"]), "ddtree_batches has '101%'"),
        ((1, ["half"]), "ddtree_batches has 'half'"),
        ((1, [True]), "ddtree_batches has True"),
        ((1, ["25%"], "some"), "ddtree_max_failed has 'some', which is neither a number of hosts from 0"),
        ((1, ["25%"], -1), "ddtree_max_failed has -1"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(settings: tuple[Any, ...], says: str) -> None:
    with pytest.raises(AnsibleFilterError) as error:
        rollout(HOSTS, GROUPS, *settings)
    assert str(error.value).startswith(says)


PLANNED = {"canary": ["c1", "c2"], "batches": [["h1", "h2", "h3", "h4", "h5"], ["h6"]], "max_failed": 0}


def test_a_canary_of_which_one_failed_holds_all_others_back_whatever_may_fail() -> None:
    planned = {**PLANNED, "max_failed": "100%"}
    said = "1 of 2 hosts of the canary failed, none may: c2. Held back: h1, h2, h3, h4, h5, h6"
    assert rollout_stopped(planned, ["c1"], "h1") == said
    assert rollout_stopped(planned, ["c1"]) == said
    assert rollout_stopped(planned, ["c1", "c2"], "h1") == ""


def test_a_stage_is_not_judged_by_itself() -> None:
    assert rollout_stopped(PLANNED, [], "c1") == ""
    assert rollout_stopped(PLANNED, ["c1", "c2"], "h3") == ""


@pytest.mark.parametrize(
    ("max_failed", "failed", "stops"),
    [(0, 0, False), (0, 1, True), (1, 1, False), (1, 2, True), ("20%", 1, False), ("20%", 2, True), ("19%", 1, True)],
)
def test_a_rollout_stops_when_more_failed_than_may(max_failed: Any, failed: int, stops: bool) -> None:
    done = [*PLANNED["canary"], *PLANNED["batches"][0][failed:]]
    assert bool(rollout_stopped({**PLANNED, "max_failed": max_failed}, done, "h6")) is stops


def test_the_last_batch_counts_at_the_end() -> None:
    done = [*PLANNED["canary"], *PLANNED["batches"][0]]
    assert rollout_stopped(PLANNED, done) == "1 of 1 hosts of batch 2 of 2 failed, none may: h6. Held back: none"
    assert rollout_stopped(PLANNED, [*done, "h6"]) == ""


def test_the_filters_have_their_names() -> None:
    assert set(FilterModule().filters()) == {"rollout", "rollout_stopped"}
