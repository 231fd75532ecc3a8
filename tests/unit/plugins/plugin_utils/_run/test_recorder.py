# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of each host, told from what its tasks returned."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks, document
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.page import page, title
from ansible_collections.ddtree.fleet.tests.unit.rollouts import Rollout, outcomes

OLD, NEW = "0f3a6be291c84d77", "7c1e9a04b2d3f581"
GATE_PASSED: Dict[str, Any] = {
    "gate": "server",
    "checks": [{"name": "ready", "passed": True}],
    "figures": {"accept_length": 3.9},
}
GATE_FAILED: Dict[str, Any] = {
    "gate": "server",
    "checks": [{"name": "ready", "passed": False}],
    "figures": {"accept_length": 1.02},
}


def bring(rollout: Rollout, *hosts: str, changed: bool = True) -> None:
    """The release is on these hosts."""
    for host in hosts:
        rollout.ok(host, "venv_release", active=OLD if changed else NEW)
    targets = {host: {"release": NEW, "changed": changed, "failed": False} for host in hosts}
    rollout.ok(hosts[0], "venv_stream", tree={"source": "src"}, targets=targets)


def switch(rollout: Rollout, host: str) -> None:
    rollout.ok(host, "service_release", state="armed", active=OLD)
    rollout.ok(host, "service_release", state="switched", active=NEW, changed=True)


def serve(rollout: Rollout, host: str) -> None:
    switch(rollout, host)
    rollout.ok(host, "sglang_smoke", **GATE_PASSED)
    rollout.ok(host, "service_release", state="confirmed", active=NEW)


def roll_back(rollout: Rollout, host: str) -> None:
    switch(rollout, host)
    rollout.failed(host, "sglang_smoke", "server gate failed", rescued=True, phase="serve", **GATE_FAILED)
    rollout.ok(host, "service_release", state="restored", phase="go back", active=OLD, changed=True)


def test_a_rollout_tells_each_outcome() -> None:
    rollout = Rollout()
    rollout.ok("src", "patch_assert", source=True, checks=[{"name": "compiles", "passed": True}])
    for host in ("a", "b", "c", "d", "e", "f"):
        rollout.fact(host, ddtree_rollout_stage="canary" if host == "a" else "batch")
    bring(rollout, "a", "b", "d")
    bring(rollout, "c", changed=False)
    serve(rollout, "a")
    rollout.ok("c", "sglang_smoke", **GATE_PASSED)
    roll_back(rollout, "b")
    rollout.ok("b", "sglang_smoke", phase="go back", **GATE_PASSED)
    rollout.failed(
        "b", "fail", f"b: server gate failed\nRolled back: release {OLD} serves again", rescued=True, phase="go back"
    )
    rollout.fact("b", ddtree_failed={"reason": "b: server gate failed"})
    rollout.failed("d", "assert", "d: no space", rescued=True)
    rollout.fact("d", ddtree_failed={"reason": "d: no space"})
    rollout.unreachable("e", "No route to host", ignored=True)
    rollout.fact("e", ddtree_failed={"reason": "unreachable: No route to host"})
    for host in ("b", "d", "e"):
        rollout.failed(host, "fail", "as remembered")
    run = rollout.end()
    # What needs a look stands first; a host without any task since its stage was chosen was held back.
    assert list(outcomes(run).items()) == [
        ("d", "failed"),
        ("e", "unreachable"),
        ("b", "rolled_back"),
        ("f", "held_back"),
        ("a", "served"),
        ("c", "unchanged"),
        ("src", "proved"),
    ]
    assert run.headline() == "6 hosts: 1 failed, 1 unreachable, 1 rolled back, 1 held back, 1 served, 1 unchanged"
    found = {host.name: host for host in run.hosts}
    assert (found["a"].before, found["a"].serves, found["a"].stage) == (OLD, NEW, "canary")
    assert (found["b"].before, found["b"].wanted, found["b"].serves) == (OLD, NEW, OLD)
    assert found["d"].reason == "d: no space"


def test_a_way_back_that_is_not_proved_is_no_rollback() -> None:
    rollout = Rollout()
    bring(rollout, "a", "b", "c")
    for host in ("a", "b", "c"):
        roll_back(rollout, host)
    rollout.failed("a", "sglang_smoke", "does not answer", rescued=True, phase="go back", **GATE_FAILED)
    rollout.failed("a", "fail", "a: is back, but does not prove well", phase="go back")
    # The key of a hand-written unit is not known, so its health has the last word.
    rollout.failed("b", "sglang_smoke", "HTTP 401", rescued=True, phase="go back", **GATE_FAILED)
    rollout.ok("b", "uri", phase="go back")
    rollout.failed("b", "fail", "b: rolled back", phase="go back")
    rollout.failed("c", "fail", "c: Nothing ran before", phase="go back")
    assert outcomes(rollout.end()) == {"a": "failed", "b": "rolled_back", "c": "rolled_back"}


def test_a_host_that_should_go_back_and_serves_on_has_failed() -> None:
    rollout = Rollout()
    rollout.fact("a", ddtree_rollout_stage="batch")
    bring(rollout, "a")
    serve(rollout, "a")
    # On its way back with the fleet the old release fails, so the new one, which was proved, stays.
    rollout.ok("a", "service_release", state="switched", phase="go back", active=OLD)
    rollout.failed("a", "sglang_smoke", "server gate failed", rescued=True, phase="go back", **GATE_FAILED)
    rollout.ok("a", "service_release", state="restored", phase="go back", active=NEW, changed=True)
    rollout.ok("a", "sglang_smoke", phase="go back", **GATE_PASSED)
    rollout.fact("a", ddtree_failed={"reason": "a: server gate failed"})
    rollout.failed("a", "fail", "as remembered")
    run = rollout.end()
    assert outcomes(run) == {"a": "failed"}
    html = page(run, Checks(), "run.json")
    assert "The way back failed: release <code>" in html
    assert "serves again" not in html


def test_a_hook_neither_proves_nor_disproves_what_came_back() -> None:
    rollout = Rollout()
    bring(rollout, "a", "b")
    for host in ("a", "b"):
        roll_back(rollout, host)
        serving = {"serves": [{"unit": "s.service", "url": "http://127.0.0.1:1"}]}
        rollout.ok(host, "service_release", state="restored", phase="go back", active=OLD, **serving)
    rollout.ok("a", "sglang_smoke", phase="go back", **GATE_PASSED)
    rollout.failed("a", "uri", "the load balancer refused", rescued=True, phase="serve")
    rollout.ok("b", "uri", phase="serve")
    for host in ("a", "b"):
        rollout.failed(host, "fail", f"{host}: server gate failed", phase="go back")
    assert outcomes(rollout.end()) == {"b": "failed", "a": "rolled_back"}


def test_a_run_that_did_not_end_is_not_well() -> None:
    rollout = Rollout()
    rollout.fact("a", ddtree_rollout_stage="batch")
    bring(rollout, "a", changed=False)
    assert document(rollout.end(finished=False), Checks())["well"] is False


def test_a_host_that_was_taken_back_with_the_fleet_is_rolled_back() -> None:
    rollout = Rollout()
    for host in ("a", "b"):
        rollout.fact(host, ddtree_rollout_stage="batch")
    bring(rollout, "a", "b")
    serve(rollout, "a")
    rollout.ok("a", "service_release", state="switched", phase="go back", active=OLD)
    rollout.ok("a", "sglang_smoke", phase="go back", gate="server", figures={"accept_length": 3.1})
    rollout.ok("a", "service_release", state="confirmed", phase="go back", active=OLD)
    rollout.fact("a", ddtree_taken_back=True)
    roll_back(rollout, "b")
    rollout.failed("b", "fail", "b: server gate failed", phase="go back")
    run = rollout.end()
    assert list(outcomes(run).items()) == [("b", "rolled_back"), ("a", "rolled_back")]
    taken = run.hosts[1]
    assert (taken.serves, taken.fell_with_the_fleet, taken.figures("accept_length")[0]) == (OLD, True, 3.9)
    assert [gate.figures["accept_length"] for gate in taken.way_back_gates()] == [3.1]
    assert run.reasons()[1][0] == "taken back with the rest of the fleet, since the rollout stopped"
    assert title(run) == "1 of 2 hosts failed, 1 taken back with the fleet"


def test_a_source_that_is_a_target_too_is_a_host_of_the_rollout() -> None:
    rollout = Rollout()
    rollout.ok("a", "patch_assert", source=True)
    rollout.fact("a", ddtree_rollout_stage="batch")
    bring(rollout, "a")
    serve(rollout, "a")
    assert rollout.end().counts() == {"served": 1}


def test_a_plan_that_fails_is_worth_telling() -> None:
    rollout = Rollout()
    rollout.failed("a", "assert", "a: ddtree_canari is not a setting", of_our_role=True)
    assert outcomes(rollout.end()) == {"a": "failed"}
    assert rollout.recorder.worth_telling


def test_what_the_plan_resets_does_not_count() -> None:
    rollout = Rollout()
    rollout.fact("a", ddtree_failed={"reason": "of the last run"}, ddtree_taken_back=True)
    rollout.fact("a", ddtree_failed={}, ddtree_taken_back=False, ddtree_rollout_stage="batch")
    bring(rollout, "a")
    serve(rollout, "a")
    assert outcomes(rollout.end()) == {"a": "served"}


def test_a_rescued_failure_does_not_count_and_one_that_was_not_hides_what_came_after() -> None:
    rollout = Rollout()
    bring(rollout, "failing", "rescued")
    for host in ("failing", "rescued"):
        rollout.failed(host, "sglang_smoke", "server gate failed", rescued=True, **GATE_FAILED)
        rollout.ok(host, "sglang_smoke", **GATE_PASSED)
    rollout.failed("failing", "fail", "it broke")
    failing, rescued = rollout.end().hosts
    assert failing.figures("accept_length")[0] == 1.02
    assert [gate.passed for gate in failing.own_gates()] == [False]
    assert [gate.passed for gate in failing.way_back_gates()] == [True]
    assert (rescued.outcome, rescued.reason, rescued.figures("accept_length")[0]) == ("changed", "", 3.9)


@pytest.mark.parametrize(
    ("asked", "outcome"), [({}, "unfinished"), ({"tags": ("stream",)}, "changed"), ({"check": True}, "changed")]
)
def test_a_host_of_a_rollout_is_not_called_well_before_its_server_was_proved(
    asked: Dict[str, Any], outcome: str
) -> None:
    rollout = Rollout(**asked)
    rollout.fact("a", ddtree_rollout_stage="batch")
    bring(rollout, "a")
    assert outcomes(rollout.end()) == {"a": outcome}


def test_an_interrupted_run_says_how_far_each_host_came() -> None:
    rollout = Rollout()
    for host in ("a", "b", "c", "d"):
        rollout.fact(host, ddtree_rollout_stage="batch")
    bring(rollout, "a", "b", "c")
    serve(rollout, "a")
    rollout.failed("b", "assert", "b: no space", rescued=True)
    run = rollout.end(finished=False)
    assert outcomes(run) == {"b": "failed", "c": "unfinished", "d": "held_back", "a": "served"}


def test_a_source_that_fails_is_told_before_any_target() -> None:
    rollout = Rollout()
    rollout.failed("src", "patch_assert", "patches gate failed")
    run = rollout.end()
    assert (outcomes(run), run.headline()) == ({"src": "failed"}, "1 host: 1 failed")


def test_results_of_any_shape_are_survived() -> None:
    rollout = Rollout()
    odd: Any
    for odd in (None, 1, "text", [], {}, [None], {"a": None}, float("nan")):
        for action in (
            "patch_assert",
            "manifest_sha256",
            "sglang_smoke",
            "gpu_host_info",
            "venv_release",
            "service_release",
        ):
            rollout.ok(
                "a", action, checks=odd, figures=odd, not_verified=odd, differences=odd, gpus=odd, active=odd, drift=odd,
                server=odd, inventory=odd, results=odd, remarks=odd, digest=odd,
            )  # fmt: skip
        rollout.ok("a", "venv_stream", tree=odd, targets=odd)
        rollout.ok(
            "a",
            "venv_stream",
            tree={"chains": odd, "bytes": odd},
            targets={"b": odd, "c": {"reused": odd, "seconds": odd}},
        )
        rollout.fact("a", ddtree_failed=odd, ddtree_rollout_stage=odd, ddtree_run_id=odd, ddtree_taken_back=odd)
    assert set(outcomes(rollout.end())) == {"a", "b", "c"}


def test_a_reason_is_told_once_for_all_its_hosts() -> None:
    rollout = Rollout()
    for host in ("host-10", "host-9"):
        rollout.failed(host, "assert", f"{host}: port 30001 is taken")
    rollout.failed("host-1", "assert", "host-1: no space")
    told = [(reason, [host.name for host in hosts]) for reason, hosts in rollout.end().reasons()]
    assert told == [("no space", ["host-1"]), ("port 30001 is taken", ["host-9", "host-10"])]


def test_the_reason_of_a_loop_is_that_of_its_items() -> None:
    rollout = Rollout()
    items = [{"msg": "fine"}, {"failed": True, "msg": "instance b: no such flag"}]
    rollout.failed("a", "sglang_smoke", "One or more items failed", results=items)
    assert rollout.end().hosts[0].reason == "instance b: no such flag"
