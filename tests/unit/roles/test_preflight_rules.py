# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles and rules as Ansible templates them, and one run of the role's tasks, in which every case is a host of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = Path(__file__).with_name("preflight_rules.yml")
RULES = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text(encoding="utf-8"))["_preflight_rules"]
BASE = {
    "speculative-algorithm": "DDTREE",
    "speculative-draft-model-path": "/d",
    "speculative-ddtree-budget": 8,
    "speculative-dflash-draft-window-size": 2048,
    "disable-overlap-schedule": True,
}


class Case(NamedTuple):
    """A rule, what it refuses, and what is close to that and passes; on a host with eight GPUs of ``capability``."""

    rule: str
    refused: Dict[str, Any]
    passes: Dict[str, Any]
    says: str
    capability: str = "10.3"


CASES = [
    Case(
        "sm_103_graph_budget",
        {"speculative-ddtree-budget": 9},
        {"speculative-ddtree-budget": 8},
        "budget 9 with CUDA graphs",
    ),
    Case(
        "sm_103_graph_budget",
        {"speculative-ddtree-budget": "16"},
        {"speculative-ddtree-budget": 16, "disable-cuda-graph": True},
        "budget 16 with CUDA graphs crashes with profile b300_nvlink: on sm_103",
    ),
    Case(
        "rtx_pro_6000_memory",
        {"mem-fraction-static": 0.86},
        {"mem-fraction-static": 0.85},
        "mem-fraction-static 0.86",
        "12.0",
    ),
    Case(
        "gpus_for_parallelism",
        {"tp-size": 16},
        {"tp-size": 4},
        "tp-size 16, pp-size 1 and dp-size 1 need 16 GPUs, and 8",
    ),
    Case("gpus_for_parallelism", {"tp": 4, "dp-size": 3}, {"tp": 4, "data-parallel-size": 2}, "need 12 GPUs"),
    Case("gpus_for_parallelism", {"base-gpu-id": 1}, {"base-gpu-id": 4, "tp-size": 4}, "need 9 GPUs"),
    Case(
        "gpus_for_parallelism",
        {"tp-size": 8, "gpu-id-step": 2},
        {"tp-size": 16, "nnodes": 2},
        "need 15 GPUs, and 8 are usable",
    ),
    Case("experts_over_all_gpus", {"ep-size": 4}, {"ep-size": 4, "moe-dp-size": 2}, "ep-size 4 does not fit tp-size 8"),
    Case("experts_over_all_gpus", {"expert-parallel-size": 2}, {"ep": 1}, "ep-size 2 does not fit tp-size 8", "12.0"),
    Case(
        "nvls_without_nvlink",
        {"enable-nccl-nvls": True},
        {"enable-nccl-nvls": False},
        "enable-nccl-nvls does nothing",
        "12.0",
    ),
    Case(
        "graphs_silently_off",
        {"attention-backend": "torch_native"},
        {"attention-backend": "torch_native", "disable-cuda-graph": True},
        "asks for CUDA graphs, and SGLang turns them off with only a warning for attention backend torch_native",
    ),
    Case(
        "graphs_silently_off",
        {"decode-attention-backend": "torch_native"},
        {"decode-attention-backend": "fa4"},
        "torch_native",
    ),
    Case("graphs_silently_off", {"deepep-mode": "normal"}, {"deepep-mode": "auto"}, "deepep-mode normal"),
    Case("graphs_silently_off", {"enable-mis": True}, {"enable-mis": False}, "for enable-mis"),
    Case("drafts_pipeline", {"pipeline-parallel-size": 2, "tp-size": 4}, {"pp-size": 1}, "pp-size 2 with DDTREE"),
    Case(
        "drafts_dp_attention",
        {"enable-dp-attention": True},
        {"enable-dp-attention": False},
        "enable-dp-attention with DDTREE",
    ),
    Case(
        "drafts_overlap_schedule",
        {"disable-overlap-schedule": False},
        {"disable-overlap-schedule": False, "speculative-algorithm": None},
        "the overlap schedule is left on with DDTREE",
    ),
    Case(
        "drafts_without_drafter",
        {"speculative-draft-model-path": ""},
        {"speculative-draft-model-path": "", "speculative-draft-model": "/d"},
        "DDTREE without speculative-draft-model-path",
    ),
    Case(
        "drafts_block_size",
        {"speculative-dflash-block-size": 8, "speculative-num-draft-tokens": 16},
        {"speculative-dflash-block-size": 8, "speculative-num-draft-tokens": 8},
        "speculative-dflash-block-size 8 and speculative-num-draft-tokens 16",
    ),
    Case(
        "drafts_block_size",
        {"speculative-dflash-block-size": 0},
        {"speculative-dflash-block-size": 1},
        "a positive size",
    ),
    Case(
        "drafts_window",
        {"speculative-dflash-draft-window-size": 8, "speculative-num-draft-tokens": 16},
        {"speculative-dflash-draft-window-size": 16, "speculative-num-draft-tokens": 16},
        "speculative-dflash-draft-window-size 8 with blocks of 16",
    ),
    Case(
        "drafts_window",
        {"speculative-dflash-draft-window-size": 0},
        {"speculative-dflash-draft-window-size": False},
        "speculative-dflash-draft-window-size 0 with blocks of unknown size",
    ),
    Case(
        "drafts_backend",
        {"speculative-draft-attention-backend": "trtllm_mha"},
        {"speculative-draft-attention-backend": "fa4"},
        "speculative-draft-attention-backend trtllm_mha is none that the drafter has",
    ),
    Case(
        "drafts_flex_attention",
        {"prefill-attention-backend": "flex_attention", "disable-cuda-graph": True},
        {"prefill-attention-backend": "fa4", "disable-cuda-graph": True},
        "attention backend flex_attention with DDTREE",
    ),
    Case(
        "drafts_mixed_chunk",
        {"enable-mixed-chunk": True},
        {"enable-mixed-chunk": False},
        "enable-mixed-chunk with DDTREE",
    ),
    Case(
        "drafts_grammar",
        {"grammar-backend": "xgrammar"},
        {"grammar-backend": "none"},
        "grammar-backend xgrammar with DDTREE",
    ),
    Case(
        "deterministic_backend",
        {"enable-deterministic-inference": True, "attention-backend": "trtllm_mha"},
        {"enable-deterministic-inference": True, "attention-backend": "flashinfer"},
        "enable-deterministic-inference with attention backend trtllm_mha",
    ),
    Case(
        "deterministic_sampling",
        {"enable-deterministic-inference": True, "sampling-backend": "flashinfer"},
        {"enable-deterministic-inference": True, "sampling-backend": "pytorch"},
        "enable-deterministic-inference with sampling-backend flashinfer",
    ),
]


def found(capability: str, count: int = 8, mig: bool = False) -> Dict[str, Any]:
    """What the role has read of a host with ``count`` GPUs."""
    return {"gpus": [{"index": index, "compute_capability": capability, "mig": mig} for index in range(count)]}


class Host:
    """The role's variables for one host, templated by Ansible as its tasks do."""

    def __init__(self, host: Dict[str, Any], profile: str = "", **variables: Any) -> None:
        loader = DataLoader()
        self._variables: Dict[str, Any] = {"preflight_base_arguments": BASE, "preflight_found": host, **variables}
        for name in ("defaults", "vars"):
            path = ROOT / "roles" / "preflight" / name / "main.yml"
            self._variables = {**loader.load_from_file(str(path), trusted_as_template=True), **self._variables}
        self._loader = loader
        chosen = profile or self["_preflight_profile_of[_preflight_capability]"]
        self._variables["preflight_chosen"] = chosen
        self._variables["preflight_settings"] = self["_preflight_settings"]

    def __getitem__(self, expression: str) -> Any:
        templar = Templar(loader=self._loader, variables=self._variables)
        return templar.template(trust_as_template(f"{{{{ {expression} }}}}"))

    def expects(self) -> Dict[str, Any]:
        return {entry["query"]: entry["equals"] for entry in self["_preflight_profiles[preflight_chosen].expect"]}

    def log_expects(self) -> List[str]:
        return [entry["matches"] for entry in self["_preflight_profiles[preflight_chosen].log_expect"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.refused}")
def test_every_rule_refuses_what_it_names_and_nothing_that_is_close_to_it(case: Case) -> None:
    refused = Host(found(case.capability), preflight_arguments=case.refused)
    assert refused["_preflight_applying"] == [case.rule]
    assert case.says in refused[f"_preflight_rules.{case.rule}.reason"]
    assert Host(found(case.capability), preflight_arguments=case.passes)["_preflight_applying"] == []


def test_no_rule_is_without_a_case_and_a_reason() -> None:
    assert {case.rule for case in CASES} == set(RULES)
    documented = (ROOT / "docs/profiles.md").read_text(encoding="utf-8")
    for name, rule in RULES.items():
        assert set(rule) == {"applies", "reason", "way_out"}, name
        assert f"`{name}`" in documented, name


def test_a_budget_is_judged_without_arguments_too() -> None:
    assert Host(found("10.3"), preflight_base_arguments={}, preflight_budget=16)["_preflight_applying"] == [
        "sm_103_graph_budget"
    ]


def test_a_gpu_that_is_gone_is_missed() -> None:
    seven = Host(found("10.3", 7))
    assert seven["_preflight_applying"] == ["gpus_for_parallelism"]
    assert "need 8 GPUs, and 7 are usable" in seven["_preflight_rules.gpus_for_parallelism.reason"]


SAME = {"speculative_algorithm": "DDTREE", "pp_size": 1, "speculative_dflash_draft_window_size": 2048}
GRAPHS = {**SAME, "disable_cuda_graph": False}
NO_GRAPHS = {**SAME, "disable_cuda_graph": True}
WINDOW = "draft_window_size=2048, compact_cache=True"
NVLS = "NVLS comm 0x[0-9a-f]+ headRank -?[0-9]+ nHeads [0-9]+"


@pytest.mark.parametrize(
    ("host", "expects", "log_expects"),
    [
        (Host(found("10.3")), {**GRAPHS, "tp_size": 8, "ep_size": 1, "enable_nccl_nvls": True}, [WINDOW, NVLS]),
        (Host(found("12.0")), {**GRAPHS, "tp_size": 8, "ep_size": 8, "enable_nccl_nvls": False}, [WINDOW]),
        (
            Host(found("12.0"), "rtx_pro_6000_tp8"),
            {**GRAPHS, "tp_size": 8, "ep_size": 1, "enable_nccl_nvls": False},
            [WINDOW],
        ),
        (
            Host(found("10.3", 4), preflight_gpus=[4, 5, 6, 7]),
            {**GRAPHS, "tp_size": 4, "ep_size": 1, "enable_nccl_nvls": True},
            [WINDOW, NVLS],
        ),
        (
            Host(found("12.0", 2), preflight_gpus=[0, 1]),
            {**GRAPHS, "tp_size": 2, "ep_size": 2, "enable_nccl_nvls": False},
            [WINDOW],
        ),
        (
            Host(found("", 0), "cpu_reference"),
            {**NO_GRAPHS, "tp_size": 1, "ep_size": 1, "enable_nccl_nvls": False},
            [WINDOW],
        ),
        (
            Host(found("10.3"), preflight_arguments={"disable-cuda-graph": True, "tp": "4", "enable-nccl-nvls": False}),
            {**NO_GRAPHS, "tp_size": 4, "ep_size": 1, "enable_nccl_nvls": False},
            [WINDOW],
        ),
    ],
    ids=["b300", "rtx", "rtx tp8", "half b300", "two rtx", "cpu", "eager"],
)
def test_what_the_server_must_say_follows_what_it_is_started_with(
    host: Host, expects: Dict[str, Any], log_expects: List[str]
) -> None:
    assert host["_preflight_applying"] == []
    assert host.expects() == expects
    assert host.log_expects() == log_expects
    assert host["_preflight_cuda_graphs"] == ("absent" if expects["disable_cuda_graph"] else "required")


def test_without_a_draft_window_nothing_is_said_about_one() -> None:
    host = Host(found("12.0"), preflight_arguments={"speculative-dflash-draft-window-size": None})
    assert "speculative_dflash_draft_window_size" not in host.expects()
    assert host.log_expects() == []


def test_what_the_server_must_say_can_be_found_in_what_a_server_says() -> None:
    recorded = ROOT / "tests" / "recorded" / "dflash_accepted" / "server_info.json"
    assert set(Host(found("10.3")).expects()) <= set(json.loads(recorded.read_text(encoding="utf-8")))


def test_every_profile_says_the_same_things_and_why() -> None:
    host = Host(found("10.3"))
    keys = set(host["_preflight_profiles.b300_nvlink"])
    for name, profile in host["_preflight_profiles"].items():
        assert set(profile) == keys, name
        assert len(profile["reason"]) > 40, name
        assert (profile["budget"], profile["topk_cap"], profile["draft_window"]) == (8, 4, 2048)
        assert set(profile["timeouts"]) == {"ready", "stop", "free", "gate"}
    assert host["_preflight_profiles.b300_nvlink.environment.NCCL_DEBUG_SUBSYS"] == "NVLS"


HOSTS: Dict[str, Dict[str, Any]] = {
    "fits": {"preflight_found": found("10.3")},
    "half": {"preflight_found": found("10.3", 4), "preflight_gpus": [4, 5, 6, 7]},
    "refused": {"preflight_found": found("10.3"), "preflight_arguments": {"pp-size": 2, "enable-mixed-chunk": True}},
    "overridden": {
        "preflight_found": found("10.3"),
        "preflight_arguments": {"speculative-ddtree-budget": 16},
        "preflight_override_rules": ["sm_103_graph_budget", "drafts_window"],
    },
    "other-override": {
        "preflight_found": found("10.3"),
        "preflight_arguments": {"speculative-ddtree-budget": 16},
        "preflight_override_rules": ["drafts_window"],
    },
    "unknown-rule": {"preflight_found": found("10.3"), "preflight_override_rules": ["drafts_window", "drafts_windows"]},
    "no-gpus": {"preflight_found": found("", 0)},
    "other-gpus": {"preflight_found": found("10.3"), "preflight_profile": "rtx_pro_6000_tp8"},
    "mixed-gpus": {"preflight_found": {"gpus": found("10.3", 1)["gpus"] + found("12.0", 1)["gpus"]}},
    "mig": {"preflight_found": found("10.3", mig=True)},
}


@pytest.fixture(scope="module", name="run")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    """The role's tasks for all hosts in one run; what it printed is in ``said``."""
    folder = tmp_path_factory.mktemp("rules")
    inventory = {"cases": {"hosts": HOSTS, "vars": {"preflight_base_arguments": BASE}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    done = subprocess.run(
        [
            "ansible-playbook",
            *("-i", str(folder / "hosts.yml"), "-f", "2", "-e", f"outcomes={folder / 'outcomes'}", str(PLAYBOOK)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
            "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
        },
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    outcomes: Dict[str, Any] = json.loads((folder / "outcomes").read_text(encoding="utf-8"))
    return {**outcomes, "said": " ".join((done.stdout + done.stderr).split())}


@pytest.mark.slow
def test_a_run_of_the_role_over_hosts_that_fit_and_hosts_that_do_not(run: Dict[str, Any]) -> None:
    said = {host: run[host]["outcome"].strip() for host in HOSTS}
    assert (said["fits"], said["half"], said["overridden"]) == ("", "", "")
    assert [line.rpartition("(rule ")[2] for line in said["refused"].splitlines()] == [
        "gpus_for_parallelism)",
        "drafts_pipeline)",
        "drafts_mixed_chunk); what is meant so may be named in ddtree_override_rules",
    ]
    assert said["refused"].splitlines()[1] == (
        "refused: pp-size 2 with DDTREE, which SGLang refuses for more than 1. "
        "Leave pp-size out; tp-size or ep-size split the model too (rule drafts_pipeline)"
    )
    assert said["other-override"].startswith(
        "other-override: budget 16 with CUDA graphs crashes with profile b300_nvlink: on "
    )
    assert said["unknown-rule"].startswith(
        "unknown-rule: drafts_windows in ddtree_override_rules is no rule; the rules are "
    )
    assert all(rule in said["unknown-rule"] for rule in RULES)
    assert said["no-gpus"].startswith(
        "no-gpus: no profile is known for a host without GPUs; set ddtree_profile to one of b300"
    )
    assert said["other-gpus"] == (
        "other-gpus: profile rtx_pro_6000_tp8 needs 8 GPUs of compute capability 12.0 without MIG, found 8 of 10.3; set ddtree_profile"
    )
    assert said["mixed-gpus"] == "mixed-gpus: GPUs of different compute capabilities (10.3, 12.0) serve no one model"
    assert "without MIG, found 8 of 10.3, with MIG; set" in said["mig"]


@pytest.mark.slow
def test_an_overridden_rule_that_applies_is_a_warning(run: Dict[str, Any]) -> None:
    assert run["overridden"]["preflight_overridden"] == ["sm_103_graph_budget"]
    assert run["fits"]["preflight_overridden"] == []
    assert "WARNING: overridden: budget 16 with CUDA graphs crashes" in run["said"]
    assert run["said"].count("WARNING: ") == 1


@pytest.mark.slow
def test_a_server_on_some_gpus_is_split_over_those(run: Dict[str, Any]) -> None:
    half = run["half"]["preflight_chosen_profile"]
    assert (half["name"], half["arguments"]["tp-size"], half["cuda_graphs"]) == ("b300_nvlink", 4, "required")
    assert run["half"]["preflight_settings"]["tp-size"] == 4
