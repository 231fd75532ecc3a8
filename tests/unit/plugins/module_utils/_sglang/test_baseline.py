# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.baseline import BaselineFile, Entry
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import failures
from ansible_collections.ddtree.fleet.tests.unit.replayed import RECORDED

WORK = baseline.workload(["one"], 64, 8)
FIGURES: Dict[str, Any] = {
    "tokens_per_second": 100.0,
    "tokens_per_second_concurrent": 400.0,
    "time_to_first_token_seconds": 0.5,
    "accept_length": 4.0,
    "accept_rate": 0.5,
}


def info(folder: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((RECORDED / folder / "server_info.json").read_text())
    return found


def configuration(folder: str, **changes: Any) -> Dict[str, Any]:
    return baseline.configuration({**info(folder), **changes}, "1x NVIDIA H200", WORK)


def entry(found: Dict[str, Any], **figures: float) -> Entry:
    return Entry(found, {**FIGURES, **figures}, 1796000000.0, "0.5.11")


def test_the_lack_of_graphs_is_no_other_configuration_but_a_loss_of_speed() -> None:
    assert configuration("h200_dflash_graphs") == configuration("h200_dflash_no_graphs")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_path": "/models/other"},
        {"speculative_draft_model_path": "/models/other"},
        {"speculative_algorithm": None},
        {"speculative_num_draft_tokens": 4},
        {"speculative_ddtree_budget": 8},
        {"tp_size": 8},
        {"device": "cpu"},
    ],
)
def test_what_makes_figures_incomparable_is_another_configuration(changes: Dict[str, Any]) -> None:
    assert configuration("h200_dflash_graphs", **changes) != configuration("h200_dflash_graphs")


def test_other_hardware_and_other_requests_are_another_configuration() -> None:
    said = info("plain")
    ours = baseline.configuration(said, "8x NVIDIA B300", WORK)
    assert ours != baseline.configuration(said, "1x NVIDIA H200", WORK)
    for other in (["two"], 64, 8), (["one"], 32, 8), (["one"], 64, 4):
        assert ours != baseline.configuration(said, "8x NVIDIA B300", baseline.workload(*other))


def test_plain_decoding_of_the_same_server_is_found_whatever_its_unused_settings(tmp_path: Path) -> None:
    file = BaselineFile(str(tmp_path / "baseline.json"))
    plain = configuration("h200_dflash_graphs", speculative_algorithm=None)
    file.put(entry(plain, tokens_per_second=50.0), write=True)
    assert baseline.speedup(FIGURES, file.plain(configuration("h200_dflash_graphs"))) == 2.0
    assert baseline.speedup(FIGURES, file.plain(configuration("dflash_accepted"))) is None


@pytest.mark.parametrize(
    ("figures", "worse"),
    [
        ({}, []),
        ({"tokens_per_second": 85.1, "time_to_first_token_seconds": 0.57}, []),
        ({"tokens_per_second": 84.9}, ["baseline tokens_per_second"]),
        ({"tokens_per_second_concurrent": 300.0}, ["baseline tokens_per_second_concurrent"]),
        ({"time_to_first_token_seconds": 0.58}, ["baseline time_to_first_token_seconds"]),
        ({"accept_length": 3.0}, ["baseline accept_length"]),
        ({"tokens_per_second": None}, ["baseline tokens_per_second"]),
        ({"tokens_per_second": 1000.0}, []),
    ],
)
def test_figures_may_be_worse_by_the_tolerance(figures: Dict[str, Any], worse: Any) -> None:
    checks = baseline.compared({**FIGURES, **figures}, entry({}), 0.15)
    assert [check.name for check in failures(checks)] == worse


def test_a_first_token_within_what_hosts_vary_is_no_loss() -> None:
    recorded = entry({}, time_to_first_token_seconds=0.004)
    assert failures(baseline.compared({**FIGURES, "time_to_first_token_seconds": 0.05}, recorded, 0.15)) == []
    assert failures(baseline.compared({**FIGURES, "time_to_first_token_seconds": 0.06}, recorded, 0.15)) != []


def test_nothing_recorded_is_a_failure_with_the_way_out() -> None:
    (check,) = baseline.compared(FIGURES, None, 0.15)
    assert not check.passed
    assert "baseline=record first" in check.hint


def test_an_entry_takes_the_place_of_the_same_configuration_only(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    before = os.umask(0o077)
    try:
        for name, speed in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
            BaselineFile(str(path)).put(entry({"name": name}, tokens_per_second=speed), write=True)
    finally:
        os.umask(before)
    speeds = {kept.configuration["name"]: kept.figures["tokens_per_second"] for kept in BaselineFile(str(path)).entries}
    assert speeds == {"a": 3.0, "b": 2.0}
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["baseline.json"]


def test_instances_that_record_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "baseline.json")
    files = [BaselineFile(path) for _instance in range(8)]
    threads = [
        threading.Thread(target=file.put, args=(entry({"instance": number}), True)) for number, file in enumerate(files)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept.configuration["instance"] for kept in BaselineFile(path).entries) == list(range(8))


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    BaselineFile(str(tmp_path / "baseline.json")).put(entry({}), write=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "it is no object with format 1 and entries"),
        ('{"format": 2, "entries": []}', "it is no object with format 1 and entries"),
        ('{"format": 1, "entries": [{}]}', "entry 1 lacks configuration"),
        (
            '{"format": 1, "entries": [{"configuration": {}, "figures": {"a": "fast"}, "recorded": 1, "version": "1"}]}',
            "its figures are no numbers",
        ),
        ("\udcff", "utf-8"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(GateError) as caught:
        BaselineFile(str(path))
    assert str(caught.value).startswith(f"baseline_file {path} is damaged (")
    assert reason in str(caught.value)
    assert "move it away and record anew" in str(caught.value)


def test_a_file_that_is_none_or_has_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="cannot be read: Is a directory"):
        BaselineFile(str(tmp_path))
    for path in (str(tmp_path / "gone" / "baseline.json"), "baseline.json"):
        with pytest.raises(GateError, match="must be an absolute path in a folder that exists"):
            BaselineFile(path)


def test_hardware_is_the_gpus_or_the_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert baseline.hardware().startswith(f"{os.cpu_count()}x ")
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\nprintf "NVIDIA B300\\nNVIDIA B300\\nNVIDIA H200\\n"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert baseline.hardware() == "2x NVIDIA B300, 1x NVIDIA H200"
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "No devices were found"; exit 6\n')
    with pytest.raises(GateError, match="a baseline needs to know this host's GPUs: nvidia-smi failed: No devices"):
        baseline.hardware()
