# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What roles and playbooks refuse by themselves: each ``assert`` as Ansible evaluates it, with what passes and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).resolve().parents[3]
# Those of the other files are held against whole hosts in test_preflight_rules.py.
FILES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *(ROOT / "roles").glob("*/tasks/*.yml"),
        *((ROOT / "playbooks" / f"{name}_ddtree.yml") for name in ("deploy", "rollback", "verify", "status")),
    ]
    if path.relative_to(ROOT).parts[1:]
    not in (("preflight", "tasks", "profile.yml"), ("preflight", "tasks", "rules.yml"))
)
Tasks = List[Dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def lookups() -> None:
    """Lookups are found as in a play."""
    init_plugin_loader()


class Case(NamedTuple):
    """A refusal by its file and the name of its task. ``refused`` is laid over ``passes``; ``says`` begins the message."""

    file: str
    task: str
    passes: Dict[str, Any]
    refused: Dict[str, Any]
    says: str


HOLDER = {"address": "127.0.0.1:30001", "pid": 9, "command": "python3 other.py"}
PROCESS = {"pid": 7, "command": "train.py", "memory_mib": 1024, "gpus": [0, 1]}
FOUND: Dict[str, Any] = {"port_holders": [], "foreign_gpu_processes": [], "missing_paths": []}
RELEASES = [
    {"id": "a" * 16, "verdict": "passed"},
    {"id": "b" * 16, "verdict": "failed"},
    {"id": "c" * 16, "verdict": "adopted"},
]
CONFIRMED: Dict[str, Any] = {"pending": {}, "active": "a", "confirmed": {"release": "a"}, "drift": []}
THRESHOLDS = {
    "ddtree_min_accept_rate": 0.1,
    "ddtree_min_accept_length": "1.5",
    "ddtree_speed_tolerance": 0.15,
    "ddtree_generations": 6,
    "ddtree_concurrent": 0,
    "ddtree_max_new_tokens": 64,
}
KEY = "/proc/sys/kernel/ostype"  # a file with one word in it
PHASES = ["preflight", "stream", "prove", "serve"]
THERE = {"store": {"previous": "c" * 16, "releases": RELEASES}}
LOOKED: Dict[str, Any] = {"store": {**THERE["store"], "dest_kind": "release"}, "hand_written": []}
READY: Dict[str, Any] = {
    "service_dest": "/v",
    "service_release": "a" * 16,
    "service_now": LOOKED,
    "service_hand_written_unit": "adopt",
    "_service_needed_seconds": "90",
    "_service_way_back_seconds": "90",
    "service_way_back_timeout": 89,
}

CASES = [
    Case(
        "roles/ddtree/tasks/settings.yml",
        "Every ddtree variable of the inventory is a known setting",
        {
            "hostvars": {"h": {"ddtree_port": 1, "ddtree_run_id": 2, "other": 3}},
            "_ddtree_known": ["ddtree_port", "ddtree_user"],
            "_ddtree_facts": ["ddtree_run_id"],
        },
        {"hostvars": {"h": {"ddtree_prot": 1}}, "_ddtree_misspelt": ["ddtree_prot (ddtree_port?)"]},
        "h: ddtree_prot (ddtree_port?) is not a setting of ddtree.fleet; the settings are ddtree_port, ddtree_user",
    ),
    Case(
        "roles/ddtree/tasks/main.yml",
        "The source is a host of its group",
        {"ddtree_source": "s", "groups": {"ddtree_source": ["s"]}},
        {"groups": {}},
        "the source host s is not in the group ddtree_source of the inventory",
    ),
    *(
        Case(
            "roles/ddtree/tasks/main.yml",
            "The models are named",
            {"ddtree_model_path": "/m", "ddtree_draft_model_path": "/d"},
            {name: ""},
            "h: ddtree_model_path and ddtree_draft_model_path must name the model and the drafter",
        )
        for name in ("ddtree_model_path", "ddtree_draft_model_path")
    ),
    *(
        Case(
            "roles/ddtree/tasks/main.yml",
            "The files that are named on this control node are there",
            {"item": {"key": "ddtree_before_stop", "value": value}},
            {"item": {"key": "ddtree_before_stop", "value": refused}},
            f"ddtree_before_stop is {refused}, which must be the absolute path of a file",
        )
        for value, refused in (("", "/nowhere.yml"), (__file__, "drain.yml"))
    ),
    *(
        Case(
            "roles/preflight/tasks/main.yml",
            "Nothing is in the way of the server",
            {"preflight_found": FOUND, "preflight_units": ["s.service"]},
            {"preflight_found": {**FOUND, **refused}},
            says,
        )
        for refused, says in (
            (
                {"port_holders": [HOLDER]},
                "h: 127.0.0.1:30001 is taken by pid 9 (python3 other.py), which is not s.service; stop it",
            ),
            (
                {"foreign_gpu_processes": [PROCESS] * 9},
                "h: GPU memory is held by "
                + "pid 7 (train.py, 1024 MiB on GPU 0, 1), " * 8
                + "1 more, which is not s.service; end what is not needed",
            ),
            ({"missing_paths": ["/m", "/d"]}, "h: /m, /d does not exist; put the models there first"),
            (
                {"port_holders": [HOLDER], "missing_paths": ["/m"]},
                "h: 127.0.0.1:30001 is taken by pid 9 (python3 other.py), which is not s.service; stop it, set ddtree_port, or set "
                "ddtree_unit to the unit that runs it so that it is taken over\nh: /m does not exist; put the models there first",
            ),
        )
    ),
    Case(
        "roles/venv/tasks/main.yml",
        "The release is on this host",
        {"_venv_verdict": {"failed": False, "msg": ""}},
        {"_venv_verdict": {"failed": True, "msg": "h: no room"}},
        "h: no room",
    ),
    *(
        Case(
            "roles/ddtree/tasks/plan.yml",
            "The run goes through the phases in their order",
            {"_ddtree_phases": PHASES, "_ddtree_asked_phases": passes},
            {"_ddtree_asked_phases": refused},
            f"--tags and --skip-tags leave {says} of a rollout, but each phase needs those before it; ",
        )
        for passes, refused, says in (
            (PHASES, PHASES[1:], "stream, prove, serve"),
            (PHASES[:1], [], "no phase"),
            (PHASES[:2], ["preflight", "serve"], "preflight, serve"),
        )
    ),
    *(
        Case(
            "roles/ddtree/tasks/plan.yml",
            "The source takes part",
            {"ddtree_source": "s", "ansible_play_hosts_all": hosts, "_ddtree_asked_phases": phases},
            {"ansible_play_hosts_all": ["h"], "_ddtree_asked_phases": PHASES},
            "the source s is left out, but every run proves it before anything is taken from it; do not leave it out: --limit 'h:s'",
        )
        for hosts, phases in ((["h", "s"], PHASES), (["h"], PHASES[:1]))
    ),
    Case(
        "roles/ddtree/tasks/plan.yml",
        "What holds for the whole rollout is the same for every host",
        {
            "ansible_play_hosts_all": ["g", "h"],
            "_ddtree_shared": {"ddtree_dest": "/v", "ddtree_batches": [1]},
            "hostvars": {"localhost": {"ddtree_rollout": {"shared": {"ddtree_dest": "/v", "ddtree_batches": [1]}}}},
        },
        {"_ddtree_shared": {"ddtree_dest": "/w", "ddtree_batches": [1]}},
        "h: ddtree_dest differs from that of g, but one stream and one plan serve all hosts of a run; ",
    ),
    *(
        Case(
            "roles/service/tasks/look.yml", "Nothing stands in the way of a switch", {**READY, **passes}, refused, says
        )
        for passes, refused, says in (
            (
                {},
                {"service_release": "d" * 16},
                f"h: there is no release {'d' * 16} in /v.releases; deploy it first",
            ),
            (
                {},
                {"service_now": {**LOOKED, "store": {**THERE["store"], "dest_kind": "link"}}},
                "h: /v is a link to somewhere else than its releases; move it away",
            ),
            (
                {"service_now": {**LOOKED, "store": {**THERE["store"], "dest_kind": "directory"}}},
                {"service_now": {**LOOKED, "store": {**THERE["store"], "dest_kind": "other"}}},
                "h: /v is neither a directory nor a link; move it away",
            ),
            *(
                (
                    passes,
                    {"service_hand_written_unit": "refuse", "service_now": {**LOOKED, "hand_written": ["s.service"]}},
                    "h: s.service was not written by ddtree.fleet and would be replaced",
                )
                for passes in (
                    {"service_now": {**LOOKED, "hand_written": ["s.service"]}},
                    {"service_hand_written_unit": "refuse"},
                )
            ),
            (
                {},
                {"_service_way_back_seconds": "89"},
                "h: ddtree_way_back_timeout is 89 s, but draining, teardown, loading and gates may take 90 s",
            ),
            (
                {},
                {"service_release": "d" * 16, "_service_way_back_seconds": "89"},
                f"h: there is no release {'d' * 16} in /v.releases; deploy it first; ddtree_way_back_timeout is 89 s",
            ),
        )
    ),
    Case(
        "roles/service/tasks/verify.yml",
        "Nothing is unfinished, and nobody has changed the unit files",
        {"service_now": CONFIRMED},
        {"service_now": {**CONFIRMED, "pending": {"release": "r", "phase": "switched"}}},
        "h: release r is switched and not confirmed; deploy again",
    ),
    Case(
        "roles/service/tasks/verify.yml",
        "Nothing is unfinished, and nobody has changed the unit files",
        {"service_now": CONFIRMED},
        {"service_now": {**CONFIRMED, "drift": ["s.service"]}},
        "h: s.service differ from what was confirmed",
    ),
    Case(
        "roles/service/tasks/verify.yml",
        "Nothing is unfinished, and nobody has changed the unit files",
        {"service_now": CONFIRMED},
        {"service_now": {**CONFIRMED, "confirmed": {}}},
        "h: release a was never confirmed",
    ),
    *(
        Case(
            "roles/ddtree/tasks/main.yml",
            "The thresholds of the server gate can be met",
            THRESHOLDS,
            refused,
            "h: ddtree_min_accept_rate is a share from 0 to 1, ",
        )
        for refused in (
            {"ddtree_min_accept_rate": 7},
            {"ddtree_speed_tolerance": "15"},
            {"ddtree_min_accept_length": -1},
            {"ddtree_generations": 0},
            {"ddtree_concurrent": -1},
            {"ddtree_max_new_tokens": 4},
        )
    ),
    *(
        Case(
            "roles/ddtree/tasks/main.yml",
            "The API key is one",
            {"ddtree_api_key_file": KEY},
            {"ddtree_api_key_file": str(file)},
            f"h: {file} must hold the API key and nothing else, on one line",
        )
        for file in (Path("/dev/null"), Path(__file__))
    ),
    Case(
        "roles/service/tasks/choose.yml",
        "It can be served from",
        {"service_unit": "s.service", "service_dest": "/v", "service_unit_files": {"stat": {"exists": True}}},
        {"service_unit_files": {"stat": {"exists": False}}},
        "h: no unit of s.service was there when /v was adopted",
    ),
    Case(
        "roles/service/tasks/gates.yml",
        "There is a server to prove",
        {"service_unit": "s.service", "service_proved": [{"unit": "s.service"}]},
        {"service_proved": []},
        "h: no unit of s.service runs, so nothing serves",
    ),
    *(
        Case(
            "roles/service/tasks/choose.yml",
            "The release is one that can be returned to",
            {"service_chosen": passes, "service_there": THERE},
            refused,
            says,
        )
        for passes, refused, says in (
            ("a" * 16, {"service_chosen": "b" * 16}, f"h: release {'b' * 16} is one whose server gate never passed; "),
            ("c" * 16, {"service_chosen": "d" * 16}, f"h: release {'d' * 16} is not on this host; the releases that "),
            (
                "c" * 16,
                {"service_chosen": ""},
                "h: there is no earlier release that served well, so no way back; ",
            ),
        )
    ),
    Case(
        "playbooks/verify_ddtree.yml",
        "The host serves a release",
        {"ddtree_dest": "/v", "_ddtree_there": {"active": "a" * 16}},
        {"_ddtree_there": {"active": ""}},
        "h: /v leads to no release, so there is nothing to verify",
    ),
]


def tasks_of(file: str) -> Iterator[Dict[str, Any]]:
    """The tasks of a file, those of its plays and blocks among them."""

    def below(tasks: Tasks) -> Iterator[Dict[str, Any]]:
        for task in tasks:
            yield task
            for part in ("tasks", "block", "rescue", "always"):
                yield from below(task.get(part, []))

    yield from below(DataLoader().load_from_file(str(ROOT / file), trusted_as_template=True))


def outcome(case: Case, more: Dict[str, Any]) -> Tuple[bool, str]:
    """Whether the task passes with these variables, and its message."""
    task = next(task for task in tasks_of(case.file) if task["name"] == case.task)
    parts = Path(case.file).parts
    role_vars = ROOT / "roles" / parts[1] / "vars" / "main.yml"
    own = DataLoader().load_from_file(str(role_vars), trusted_as_template=True) if role_vars.is_file() else {}
    variables = {**own, **task.get("vars", {}), "inventory_hostname": "h", **case.passes, **more}
    templar, asserted = Templar(loader=DataLoader(), variables=variables), task["ansible.builtin.assert"]
    conditions = asserted["that"] if isinstance(asserted["that"], list) else [asserted["that"]]
    passed = all(templar.evaluate_conditional(condition) for condition in conditions)
    return passed, "" if passed else str(templar.template(asserted["fail_msg"])).strip()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.task}-{case.says[:40]}")
def test_what_is_not_right_is_refused_with_its_name_and_what_is_passes(case: Case) -> None:
    assert outcome(case, {}) == (True, "")
    passed, said = outcome(case, case.refused)
    assert not passed
    assert said.startswith(case.says)


def test_no_refusal_is_without_a_case() -> None:
    refusals = {(file, task["name"]) for file in FILES for task in tasks_of(file) if "ansible.builtin.assert" in task}
    assert refusals == {(case.file, case.task) for case in CASES}


def test_a_way_back_waits_for_all_that_a_deployment_may_take() -> None:
    variables = {
        **DataLoader().load_from_file(str(ROOT / "roles/service/vars/main.yml"), trusted_as_template=True),
        "service_drain_timeout": 300,
        "service_stop_timeout": 120,
        "service_free_timeout": 60,
        "service_ready_timeout": 1800,
        "service_gate_timeout": 900,
        "service_way_back_timeout": 0,
        "service_before_stop": "/drain.yml",
        "service_speed_baseline": "none",
        "service_now": {"units": [{"active": True}, {"active": True}, {"active": True}, {"active": False}]},
        "_service_servers": ["a", "b"],
        "ansible_play_batch": list("123456"),
        "ansible_forks": 5,
    }

    def text(expression: str, **more: Any) -> int:
        templar = Templar(loader=DataLoader(), variables={**variables, **more})
        return int(templar.template(trust_as_template(expression)))

    def own(**more: Any) -> int:
        return text("{{ _service_own_seconds }}", **more)

    def needed(**more: Any) -> int:
        return text("{{ _service_way_back_seconds }}", **more)

    assert own() == 300 + 120 + 30 + 60 + 60 + 3 * (1800 + 900)
    idle: Dict[str, Any] = {"units": []}
    assert own(service_before_stop="", service_now=idle) == 120 + 30 + 60 + 60 + 2 * (1800 + 900)
    assert own(service_speed_baseline="record", service_now=idle) == 300 + 120 + 30 + 60 + 60 + 2 * (1800 + 2 * 900)
    hosts = {"hostvars": {host: {"service_own_seconds": str(1000 + int(host))} for host in "12345"} | {"6": {}}}
    assert needed(**hosts) == 1005 * 2
    assert needed(ansible_forks=6, **hosts) == 1005
    assert needed(service_way_back_timeout=7) == 7


def test_a_stream_that_reached_no_host_counts_for_each_of_them() -> None:
    verdict = DataLoader().load_from_file(str(ROOT / "roles/venv/vars/main.yml"), trusted_as_template=True)[
        "_venv_verdict"
    ]

    def said(stream: Dict[str, Any]) -> Any:
        return Templar(loader=DataLoader(), variables={"inventory_hostname": "h", "venv_stream": stream}).template(
            verdict
        )

    assert said({"failed": False, "targets": {"h": {"failed": False, "msg": ""}}}) == {"failed": False, "msg": ""}
    # What failed_when: false makes of a failed task.
    assert said({"failed": False, "failed_when_result": False, "msg": "s: src is empty"})["failed"] is True


SHARED = DataLoader().load_from_file(str(ROOT / "roles/ddtree/vars/main/rollout.yml"), trusted_as_template=True)


def test_a_stream_goes_to_those_hosts_of_a_batch_that_came_as_far() -> None:
    hostvars = {
        name: {"inventory_hostname": name, "_ddtree_locked": locked}
        for name, locked in (("a", True), ("failed", False), ("b", True), ("other", True))
    }
    variables = {"ansible_play_batch": ["a", "failed", "b"], "hostvars": hostvars}
    assert Templar(loader=DataLoader(), variables=variables).template(SHARED["_ddtree_arrived"]) == ["a", "b"]


def test_what_may_differ_between_hosts_is_not_held_to_be_the_same() -> None:
    defaults = DataLoader().load_from_file(str(ROOT / "roles/ddtree/defaults/main.yml"))
    shared = set(SHARED["_ddtree_of_all"] + SHARED["_ddtree_of_targets"])
    streamed = {
        name.replace("venv_", "ddtree_")
        for name in DataLoader().load_from_file(str(ROOT / "roles/venv/defaults/main.yml"))
    }
    assert shared <= set(defaults)
    # Whatever the one stream takes is one for all, but for what is given by host.
    of_stream = streamed & set(defaults) - {"ddtree_run_id", "ddtree_lock_take_over"}
    assert of_stream <= shared
