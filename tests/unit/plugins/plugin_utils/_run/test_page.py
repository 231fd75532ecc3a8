# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gets from results into page and JSON, and what does not."""

from __future__ import annotations

import json
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.markup import duration, size
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.page import title as title_of
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.timeline import ticks
from ansible_collections.ddtree.fleet.tests.unit.replayed import KEY
from ansible_collections.ddtree.fleet.tests.unit.rollouts import (
    Rollout,
    both,
    recorded,
    replay,
    report_100_hosts_bytes,
)

SECRET_FIELDS: Dict[str, Any] = {
    "api_key": KEY,
    "server_info": {"api_key": KEY, "server_args": f"api_key='{KEY}'"},
    "invocation": {"module_args": {"api_key": KEY}},
    "diff": {"before": "", "after": KEY},
    "journal": [KEY],
    "stdout": KEY,
    "environment": {"server_arguments": {"api_key": KEY}},
    "exception": KEY,
    "warnings": [KEY],
}


def planted(value: Any) -> Any:
    """The key where each text could name it, and in fields that no report asks for."""
    if isinstance(value, str):
        return f"{value} --api-key {KEY}"
    if isinstance(value, list):
        return [planted(item) for item in value]
    if isinstance(value, dict):
        return {**{name: planted(item) for name, item in value.items()}, **SECRET_FIELDS}
    return value


def test_a_key_in_any_place_of_any_result_gets_into_neither() -> None:
    html, found = both(replay(change=lambda result: {**planted(result), **SECRET_FIELDS}))
    assert KEY not in html
    assert KEY not in json.dumps(found)
    assert "REDACTED" in html


def test_the_recorded_rollout_is_told_whole() -> None:
    html, found = both(recorded())
    hosts = {host["name"]: host for host in found["hosts"]}
    assert [(host["name"], host["outcome"]) for host in found["hosts"]] == [
        ("b300-2", "unreachable"),
        ("rtx6000-1", "rolled_back"),
        ("b300-1", "served"),
        ("ct210", "proved"),
    ]
    served, back = hosts["b300-1"], hosts["rtx6000-1"]
    assert [gate["gate"] for gate in served["gates"]] == ["manifest", "patches", "environment", "manifest", "server"]
    assert served["release"]["before"] != served["release"]["serves"] == served["release"]["wanted"]
    assert back["release"]["before"] == back["release"]["serves"] != back["release"]["wanted"]
    server = served["gates"][-1]
    assert server["figures"]["accept_length"] == server["baseline"]["accept_length"] == 8.0
    assert server["server"]["speculative_algorithm"] == "DDTREE"
    assert {span["phase"] for span in served["timeline"]} == {"preflight", "stream", "prove", "serve"}
    assert [span["phase"] for span in back["timeline"]][-2:] == ["serve", "go back"]
    assert [check["name"] for gate in back["gates"] for check in gate.get("failed_checks", [])] == [
        "accept length",
        "concurrent accept length",
    ]
    assert back["way_back_gates"][0]["passed"] is True
    assert found["hosts"][0]["failure"]["reason"].startswith("unreachable: ")
    # A passed check is named by its place in one list for all hosts.
    assert all(place < len(found["checks"]) for place in server["passed_checks"])
    assert html.index("What failed") < html.index("rtx6000-1") < html.index("b300-1</bdi>")


def test_hostile_names_and_messages_stay_text() -> None:
    evil = "</script><script>window.pwned=1</script><img src=x onerror=pwned()>"
    rollout = Rollout()
    rollout.ok(evil, "sglang_smoke", gate=evil, checks=[{"name": evil, "passed": True, "found": evil, "file": evil}])
    rollout.ok(evil, "gpu_host_info", gpus=[{"name": evil, "driver": evil}])
    rollout.ok(
        evil, "venv_stream", tree={"source": evil, "digest": evil}, targets={evil: {"path": evil, "notices": [evil]}}
    )
    rollout.failed(evil, "fail", f"{evil}\n\x1b[31mred\x1b[0m \u202egnp.exe\x00")
    html, found = both(rollout.end())
    assert html.count("<script") == 2  # its own, and its data
    assert "<img" not in html
    assert "\x1b" not in html and "\u202e" not in html and "\x00" not in html
    assert "red \N{REPLACEMENT CHARACTER}gnp.exe" in found["hosts"][0]["failure"]["reason"]


def test_a_hundred_hosts_are_small() -> None:
    html, found = both(recorded(100))
    assert len(found["hosts"]) == 103  # 34 of each target, and the source
    assert report_100_hosts_bytes() < 400_000


def test_a_long_message_is_cut_after_its_secrets_were_taken_out() -> None:
    rollout = Rollout()
    rollout.failed("a", "fail", "x" * 3980 + f" --api-key {KEY} " + "y" * 100_000)
    html, found = both(rollout.end())
    assert len(found["hosts"][0]["failure"]["reason"]) == 4000
    assert KEY[:6] not in html


@pytest.mark.parametrize(
    ("title", "asked", "targets"),
    [
        ("All 2 hosts serve release 7c1e9a04b2d3f581", {}, {"a": True, "b": False}),
        ("1 host serves release 7c1e9a04b2d3f581", {}, {"a": True}),
        ("1 host of 2 would change", {"check": True}, {"a": True, "b": False}),
        ("Nothing would change", {"check": True}, {"a": False}),
        # Nobody asked the servers.
        ("2 hosts: 2 unchanged", {"tags": ("preflight",)}, {"a": False, "b": False}),
    ],
)
def test_the_title_says_what_became_of_the_fleet(title: str, asked: Dict[str, Any], targets: Dict[str, bool]) -> None:
    rollout = Rollout(**asked)
    release = "7c1e9a04b2d3f581"
    verdicts = {host: {"release": release, "changed": changed} for host, changed in targets.items()}
    rollout.ok("a", "venv_stream", targets=verdicts)
    for host, changed in targets.items():
        rollout.ok(host, "service_release", active=release, state="confirmed" if changed and not asked else "")
        if "tags" not in asked:
            rollout.ok(host, "sglang_smoke", gate="server")
    assert title_of(rollout.end()) == title


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (92, "1 min 32 s"), (7260, "2 h 1 min")],
)
def test_durations_are_said_for_people(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1 << 30, "1.0 GiB"), (5 << 41, "10,240.0 GiB")]
)
def test_sizes_are_said_for_people(number: float, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize("whole", [0.001, 3, 61, 3599, 100_000, 10**7])
def test_a_time_axis_has_few_ticks_within_the_run(whole: float) -> None:
    found = ticks(whole)
    assert 1 <= len(found) <= 7
    assert found[0] == 0 and found[-1] <= whole
