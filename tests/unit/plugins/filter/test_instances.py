# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ddtree.fleet.plugins.filter.instances import ORDER, FilterModule, instances

UNIT = "sglang-ddtree.service"
ARGUMENTS = {"model-path": "/m", "host": "127.0.0.1", "port": 30001, "tp-size": 8}


def test_one_server_is_the_unit_itself() -> None:
    assert instances({}, UNIT, ARGUMENTS) == [
        {
            "name": "",
            "unit": UNIT,
            "port": 30001,
            "address": "127.0.0.1:30001",
            "url": "http://127.0.0.1:30001",
            "gpus": [],
            "arguments": ARGUMENTS,
            "own": {},
            "environment": {},
        }
    ]


def test_several_servers_have_units_ports_gpus_and_arguments_of_their_own() -> None:
    chosen = {
        "a": {"port": 30001, "gpus": [0, 1, 2, 3], "arguments": {"tp-size": 4}},
        "b": {"port": "30002", "gpus": [4, 5, 6, 7], "environment": {"NCCL_DEBUG": "INFO"}},
    }
    first, second = instances(chosen, UNIT, ARGUMENTS)
    assert (first["unit"], first["address"]) == ("sglang-ddtree@a.service", "127.0.0.1:30001")
    assert (second["unit"], second["url"]) == ("sglang-ddtree@b.service", "http://127.0.0.1:30002")
    assert first["own"] == {"tp-size": 4, "port": 30001}
    assert first["arguments"]["tp-size"] == 4 and second["arguments"]["tp-size"] == 8
    assert first["environment"] == {**ORDER, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert second["environment"] == {**ORDER, "CUDA_VISIBLE_DEVICES": "4,5,6,7", "NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("0.0.0.0", "0.0.0.0:1", "http://127.0.0.1:1"),
        ("::", "[::]:1", "http://[::1]:1"),
        ("10.0.0.5", "10.0.0.5:1", "http://10.0.0.5:1"),
    ],
)
def test_a_server_that_listens_everywhere_is_reached_by_loopback(host: str, address: str, url: str) -> None:
    (found,) = instances({}, UNIT, {"host": host, "port": 1})
    assert (found["address"], found["url"]) == (address, url)


def test_a_server_with_a_certificate_is_reached_by_https() -> None:
    assert instances({}, UNIT, {**ARGUMENTS, "ssl-certfile": "/c"})[0]["url"] == "https://127.0.0.1:30001"


def test_the_gpus_of_the_one_server() -> None:
    assert instances({}, UNIT, ARGUMENTS, [2, 3])[0]["environment"] == {**ORDER, "CUDA_VISIBLE_DEVICES": "2,3"}


@pytest.mark.parametrize(
    ("chosen", "gpus", "says"),
    [
        (["a"], [], "instances must be a dictionary of names, not list"),
        ({"a b": {"port": 1}}, [], "instance 'a b' must be named with letters"),
        ({"a": 30001}, [], "instance a must be a dictionary with a port, not 30001"),
        ({"a": {"port": 1, "gpu": [0]}}, [], "instance a has unknown keys: gpu; known are"),
        ({"a": {"gpus": [0]}}, [], "instance a needs a port of its own"),
        ({"a": {"port": 1, "gpus": [0]}, "b": {"port": 1, "gpus": [1]}}, [], "instances a and b share port 1"),
        ({"a": {"port": 1, "gpus": [0]}, "b": {"port": 2, "gpus": [0]}}, [], "instances a and b share GPU 0"),
        ({"a": {"port": 1, "gpus": ["x"]}}, [], "must be indices such as"),
        ({"a": {"port": 1}}, [0], "give each instance its own gpus"),
        ({"a": {"port": 1, "gpus": [0]}, "b": {"port": 2}}, [], "instance b needs gpus of its own"),
        ({"a": {"port": 99999}}, [], "instance a needs a port of its own, a number below 65536"),
        ({"a": {"port": 1, "gpus": 3}}, [], "instance a: gpus must be a list of indices"),
        ({"a": {"port": 1, "arguments": "x"}}, [], "instance a: arguments must be a dictionary, not 'x'"),
        ({"a": {"port": 1, "environment": ["x"]}}, [], "instance a: environment must be a dictionary"),
        ({}, "0,1", "gpus must be a list of indices such as"),
    ],
)
def test_what_cannot_be_meant_is_named(chosen: Any, gpus: Any, says: str) -> None:
    with pytest.raises(AnsibleFilterError, match=says):
        instances(chosen, UNIT, ARGUMENTS, gpus)


def test_instances_without_gpus_may_share_a_cpu() -> None:
    found = instances({"a": {"port": 1}, "b": {"port": 2}}, UNIT, {**ARGUMENTS, "device": "cpu"})
    assert [item["environment"] for item in found] == [{}, {}]


def test_the_filter_has_its_name() -> None:
    assert FilterModule().filters() == {"instances": instances}
