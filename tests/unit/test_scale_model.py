# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The calculation of docs/scale.md is held against what was measured."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.tests.bench import scale_model as model

POINTS = model.measured()
NETWORK = model.Network(uplink=100.0, node=1000.0, fixed=3.0, host=0.5)
ANSIBLE = model.Ansible(cores=2, forks=10, main=0.01, local=0.02, remote=0.05, answer=0.3)
WORK = model.Work(local_tasks=30, remote_tasks=10, gates=20.0)


@pytest.mark.parametrize(
    "point", POINTS["stream"]["points"], ids=lambda point: f"{point['topology']}-{point['targets']}"
)
def test_a_stream_is_as_long_as_it_was_measured(point: Dict[str, Any]) -> None:
    computed = model.stream_seconds(
        model.lab_network(POINTS), POINTS["stream"]["bytes"], point["targets"], point["topology"]
    )
    assert computed == pytest.approx(point["seconds"], rel=0.15)


@pytest.mark.parametrize("point", POINTS["noop"]["points"], ids=lambda point: str(point["hosts"]))
def test_a_rollout_that_changes_nothing_takes_the_processors_that_were_measured(point: Dict[str, Any]) -> None:
    work = model.Work(point["local_tasks"], point["remote_tasks"], 0.0)
    computed = POINTS["noop"]["start"] + model.processor_seconds(model.lab_ansible(POINTS), work, point["hosts"])
    assert computed == pytest.approx(point["control_cpu"] + point["hosts_cpu"], rel=0.25)


def test_a_chain_carries_the_content_over_the_uplink_once_and_a_star_once_for_each_target() -> None:
    assert model.stream_seconds(NETWORK, 1000, 1, "star") == model.stream_seconds(NETWORK, 1000, 1, "chain") == 13
    assert model.stream_seconds(NETWORK, 1000, 8, "chain") == 13 + 7 * 0.5
    assert model.stream_seconds(NETWORK, 1000, 8, "star") == 3 + 80 + 7 * 0.5
    slow_hosts = model.Network(uplink=100.0, node=50.0, fixed=0, host=0)
    assert model.stream_seconds(slow_hosts, 1000, 8, "chain") == 20


def test_hosts_that_share_a_machine_are_bound_by_it() -> None:
    shared = model.Network(uplink=100.0, node=math.inf, fixed=0, host=0, machine=200.0)
    assert [model.stream_seconds(shared, 1000, hosts, "chain") for hosts in (1, 2, 8)] == [10, 10, 40]


def test_tasks_are_bound_by_answers_in_rounds_and_by_processors() -> None:
    assert model.tasks_seconds(ANSIBLE, WORK, 10) == pytest.approx(
        (0.01 * 40 + 0.02 * 30 + 0.05 * 10) * 10 / 2 + 0.3 * 10 + 20
    )
    assert model.tasks_seconds(ANSIBLE, WORK, 11) - model.tasks_seconds(ANSIBLE, WORK, 10) > 23
    one_process = model.Ansible(cores=64, forks=1000, main=0.01, local=0.02, remote=0.05, answer=0.0)
    assert model.tasks_seconds(one_process, model.Work(30, 10, 0.0), 1000) == pytest.approx(0.01 * 40 * 1000)


def test_batches_are_those_of_the_settings() -> None:
    assert model.batches(16, 0.25) == [2, 3, 3, 3, 3, 2]
    assert model.batches(1, 0.25) == [1]
    assert model.batches(4, 1) == [2, 2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(model.__file__)), *arguments], capture_output=True, text=True, check=False
    )


def test_the_script_prints_a_line_for_each_fleet() -> None:
    lines = run("--hosts", "100,1000").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["100", "1000"]
    chain, star = (float(word) for word in lines[1].split()[2:4])
    assert star > 5 * chain


def test_the_script_refuses_what_cannot_be() -> None:
    refused = run("--batch", "2")
    assert refused.returncode == 2
    assert "--batch is a share above 0 and up to 1" in refused.stderr
