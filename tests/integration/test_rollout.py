# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which order ``deploy-ddtree.yml`` takes the hosts of a fleet, and what it does about those that fail.

The playbook, role ddtree, role venv and the filters are the real ones, run by Ansible over hosts that are this machine. What works on a
host stands in: a release is a word in a file, and a host fails in the phase that its variable ``fails_in`` names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = {"b300": ["b1", "b2", "b3"], "rtx_pro_6000": ["r1", "r2"]}
TARGETS = [host for hosts in HOSTS.values() for host in hosts]
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}

MODULE = """#!/usr/bin/python
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({{name: {{"type": "raw"}} for name in {options}}}, supports_check_mode=True)
given = module.params
{body}
"""
MODULES = {
    # Beside the host's temporary folder, which is the only thing that tells these hosts apart.
    "venv_release": (
        "dest state release run_id actor lock_minutes lock_take_over lock_instead_of keep",
        """
path = module._remote_tmp + ".json"
host = json.load(open(path)) if os.path.exists(path) else {"active": "old", "previous": "older", "lock": {}}
host["lock"] = {"locked": {"run": given["run_id"]}, "unlocked": {}}.get(given["state"], host["lock"])
if given["state"] == "active":
    host.update(active=given["release"], previous={"new": "old", "old": "older"}[given["release"]])
if not module.check_mode:
    json.dump(host, open(path, "w"))
module.exit_json(active=host["active"], lock=host["lock"], store={"previous": host["previous"]})
""",
    ),
    "venv_stream": (
        "source src dest targets exclude verify seeds link compress path direct_ports rate_limit interpreter special_modes "
        "direct_addresses streams repair run_id lock_take_over topology",
        """
if given["source"] in given["seeds"]:
    module.fail_json(msg=given["source"] + ": the source is gone")
verdict = {"failed": False, "changed": True, "release": "new", "msg": ""}
module.exit_json(digest="d", targets={host: verdict for host in given["targets"]}, topology=given["topology"])
""",
    ),
    "manifest_sha256": ("path manifest verify", "module.exit_json()"),
    "sglang_smoke": (
        "gate dest release distribution imports kernels command_line environment timeout memory_limit",
        "",
    ),
}


def fails_in(phase: str) -> Dict[str, Any]:
    return {
        "name": f"Fail in {phase}",
        "ansible.builtin.fail": {"msg": f"{{{{ inventory_hostname }}}} fails in {phase}"},
        "when": f"fails_in | default('') == '{phase}'",
        "no_log": "{{ fails_secretly | default(false) }}",
    }


def switch_to(release: str) -> Dict[str, Any]:
    switch = {"dest": "{{ service_dest }}", "state": "active", "release": release}
    return {"name": f"Switch to {release}", "ddtree.fleet.venv_release": switch}


PROFILE = {
    **{name: {} for name in ("arguments", "environment")},
    **{name: [] for name in ("expect", "log_expect")},
    "kernels": "none",
    "cuda_graphs": "any",
    "timeouts": dict.fromkeys(("ready", "stop", "free", "gate"), 1),
}
ROLES: Dict[str, Dict[str, List[Dict[str, Any]]]] = {
    "preflight": {
        "main": [
            {
                "name": "Choose the profile",
                "ansible.builtin.set_fact": {
                    "preflight_tree": {"budget": 8, "topk_cap": 4, "draft_window": 2048},
                    "preflight_chosen_profile": PROFILE,
                },
            },
            fails_in("preflight"),
        ]
    },
    "verify": {"main": [fails_in("prove"), {"name": "Proved", "ddtree.fleet.manifest_sha256": {}}]},
    "service": {
        "main": [
            {
                "name": "Lose the host in the middle",
                "ansible.builtin.set_fact": NOWHERE,
                "when": "fails_in | default('') == 'the middle'",
            },
            fails_in("serve"),
            switch_to("new"),
            fails_in("the hook after it"),
        ],
        "choose": [
            {"name": "Choose", "ansible.builtin.set_fact": {"service_chosen": "{{ _ddtree_there.store.previous }}"}}
        ],
        "return": [fails_in("going back"), switch_to("{{ service_release }}")],
    },
}


class Run(NamedTuple):
    """What a run printed, its exit code, and what each host serves afterwards."""

    said: str
    status: int
    serves: Dict[str, str]

    def serving(self, release: str) -> List[str]:
        return [host for host, active in self.serves.items() if active == release]

    def took_part(self, task: str) -> List[str]:
        """The hosts of which a task was not skipped, batch after batch."""
        hosts = []
        for _name, ended in re.findall(
            rf"^TASK \[([^\]]*{re.escape(task)})\] \**\n((?:(?!TASK|PLAY).*\n)*)", self.said, re.MULTILINE
        ):
            hosts += sorted(re.findall(r"^(?:ok|changed|fatal): \[(\w+)\]", ended, re.MULTILINE))
        return hosts


class Fleet:
    """A source and five targets, which serve the release ``old``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        collection = folder / "collections" / "ansible_collections" / "ddtree" / "fleet"
        (collection / "plugins" / "modules").mkdir(parents=True)
        (collection / "roles").mkdir()
        for real in ("meta", "playbooks", "plugins/filter", "roles/ddtree", "roles/venv"):
            (collection / real).symlink_to(ROOT / real)
        (collection / "galaxy.yml").symlink_to(ROOT / "galaxy.yml")
        for name, (options, body) in MODULES.items():
            text = MODULE.format(options=options.split(), body=body)
            (collection / "plugins" / "modules" / f"{name}.py").write_text(text, encoding="utf-8")
        for role, files in ROLES.items():
            (collection / "roles" / role / "tasks").mkdir(parents=True)
            for name, tasks in files.items():
                path = collection / "roles" / role / "tasks" / f"{name}.yml"
                path.write_text(json.dumps(tasks), encoding="utf-8")

    def deploy(self, *arguments: str, settings: Dict[str, Any], hosts: Dict[str, Dict[str, Any]]) -> Run:
        """Run the playbook with settings of all hosts, and variables of some."""
        everybody = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "ansible_remote_tmp": str(self.folder / "{{ inventory_hostname }}"),
            "ddtree_model_path": "/model",
            "ddtree_draft_model_path": "/drafter",
            **settings,
        }
        groups = {**HOSTS, "ddtree_source": ["source"]}
        inventory = {
            "vars": everybody,
            "children": {
                group: {"hosts": {name: hosts.get(name, {}) for name in names}} for group, names in groups.items()
            },
        }
        (self.folder / "hosts.json").write_text(json.dumps({"all": inventory}), encoding="utf-8")
        (self.folder / "ansible.cfg").write_text("", encoding="utf-8")
        ended = subprocess.run(
            ["ansible-playbook", "-i", "hosts.json", str(ROOT / "playbooks" / "deploy-ddtree.yml"), *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
                "ANSIBLE_NOCOLOR": "1",
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        said = ended.stdout + ended.stderr
        assert "Unexpected Exception" not in said and "Traceback" not in said, said
        return Run(said, ended.returncode, {host: self._serves(host) for host in TARGETS})

    def _serves(self, host: str) -> str:
        state = self.folder / f"{host}.json"
        return json.loads(state.read_text(encoding="utf-8"))["active"] if state.exists() else "old"


@pytest.fixture(name="fleet")
def fleet_fixture(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def failed(run: Run) -> List[str]:
    """The hosts that the recap shows as failed."""
    return re.findall(r"^(\w+) +: .* failed=[1-9]", run.said, re.MULTILINE)


def test_a_canary_that_fails_holds_the_others_back(fleet: Fleet) -> None:
    run = fleet.deploy(settings={"ddtree_max_failed": "100%"}, hosts={"r1": {"fails_in": "serve"}})
    assert run.status == 2
    assert run.took_part("Ask what the host has") == ["b1", "r1"]
    assert run.serving("new") == ["b1"]
    assert failed(run) == ["r1"]
    assert "1 of 2 hosts of the canary failed, none may: r1. Held back: b2, b3, r2" in run.said


def test_when_a_whole_batch_failed_all_that_switched_goes_back(fleet: Fleet) -> None:
    run = fleet.deploy(
        settings={
            "ddtree_canary": 0,
            "ddtree_batches": [2, 2],
            "ddtree_max_failed": 1,
            "ddtree_on_failure": "roll_back",
        },
        hosts={
            "b1": {"fails_in": "the hook after it"},
            "b2": {"fails_in": "going back"},
            "b3": {"fails_in": "preflight"},
            "r1": {"fails_in": "prove"},
        },
    )
    assert run.status == 2
    assert run.took_part("Switch to new") == ["b1", "b2"]
    assert run.took_part("Switch to old") == ["b1"]
    assert run.serving("new") == ["b2"]
    assert failed(run) == ["b1", "b2", "b3", "r1"]
    assert "2 of 2 hosts of batch 2 of 3 failed, 1 may: b3, r1. Held back: r2" in run.said
    assert '"msg": "b2 fails in going back"' in run.said


def test_what_a_task_hides_is_hidden_in_the_reason_too(fleet: Fleet) -> None:
    run = fleet.deploy(settings={"ddtree_canary": 0}, hosts={"b1": {"fails_in": "serve", "fails_secretly": True}})
    assert run.status == 2
    assert "Fail in serve: what it says is hidden by no_log" in run.said
    # Ansible's own error line says it all the same.
    assert not re.search(r"^(?!\[ERROR\]: Task failed: Action failed: ).*b1 fails in serve", run.said, re.MULTILINE)


def test_hosts_that_are_down_or_lost_in_the_middle_do_not_end_the_run(fleet: Fleet) -> None:
    run = fleet.deploy(
        settings={"ddtree_canary": 0, "ddtree_batches": [2], "ddtree_on_failure": "continue"},
        hosts={"b1": NOWHERE, "b2": NOWHERE, "b3": {"fails_in": "the middle"}},
    )
    assert run.status == 4
    assert run.serving("new") == ["r1", "r2"]
    assert failed(run) == ["b1", "b2"]
    assert re.search(r"^b3 +: .* unreachable=1", run.said, re.MULTILINE)
    assert "unreachable: Failed to connect to the host via ssh" in run.said


def test_a_host_that_is_lost_in_the_middle_counts_as_failed(fleet: Fleet) -> None:
    run = fleet.deploy(settings={"ddtree_canary": 0, "ddtree_batches": [2]}, hosts={"b1": {"fails_in": "the middle"}})
    assert run.status == 4
    assert run.serving("new") == ["b2"]
    assert run.took_part("Ask what the host has") == ["b1", "b2"]


def test_a_source_that_is_lost_in_the_stream_fails_every_host_by_name(fleet: Fleet) -> None:
    run = fleet.deploy(
        settings={"ddtree_seeds": ["source"], "ddtree_canary": 0, "ddtree_batches": ["100%"]},
        hosts={"b1": {"fails_in": "preflight"}},
    )
    assert run.status == 2
    assert failed(run) == TARGETS
    assert set(re.findall(r'(\w+)\]: FAILED! => .*"msg": "source: the source is gone"', run.said)) == set(TARGETS[1:])
    assert '"msg": "b1 fails in preflight"' in run.said


@pytest.mark.parametrize(("source", "status"), [(NOWHERE, 4), ({"fails_in": "prove"}, 2)])
def test_a_source_that_is_down_or_not_proved_ends_the_run_before_any_target(
    fleet: Fleet, source: Dict[str, Any], status: int
) -> None:
    run = fleet.deploy(settings={}, hosts={"source": source})
    assert run.status == status
    assert run.took_part("Ask what the host has") == []


@pytest.mark.parametrize(
    ("phase", "tasks"),
    [
        ("preflight", ["Choose the profile"]),
        ("prove", ["Choose the profile", "The release is on this host", "Proved"]),
    ],
)
def test_a_tag_goes_as_far_as_it_says_on_every_host(fleet: Fleet, phase: str, tasks: List[str]) -> None:
    run = fleet.deploy("--tags", phase, settings={}, hosts={"b1": {"fails_in": "preflight"}})
    ran = {task: run.took_part(task) for task in ("Choose the profile", "The release is on this host", "Proved")}
    assert [task for task, hosts in ran.items() if set(hosts) - {"source"}] == tasks
    assert set(ran[tasks[-1]]) >= set(TARGETS) - {"b1"}
    assert ran["Proved"][:1] == (["source"] if phase != "preflight" else [])
    assert (run.status, failed(run), run.serving("old")) == (2, ["b1"], TARGETS)


def test_a_check_of_some_hosts_looks_at_each_of_them_and_switches_none(fleet: Fleet) -> None:
    run = fleet.deploy("--check", "--limit", "b2:b3:source", settings={}, hosts={"b2": {"fails_in": "preflight"}})
    assert run.took_part("Choose the profile") == ["b2", "b3"]
    assert run.took_part("The release is on this host") == ["b3"]
    assert (run.status, failed(run), run.serving("old")) == (2, ["b2"], TARGETS)


@pytest.mark.parametrize(
    ("arguments", "settings", "hosts", "says"),
    [
        (["--skip-tags", "preflight"], {}, {}, "--tags and --skip-tags leave stream, prove, serve of a rollout"),
        ([], {"ddtree_cannary": 2}, {}, "ddtree_cannary \\(ddtree_canary\\?\\) is not a setting"),
        ([], {"ddtree_on_failure": "pray"}, {}, "value of ddtree_on_failure must be one of: stop, continue, roll_back"),
        ([], {}, {"r2": {"ddtree_dest": "/other"}}, "r2: ddtree_src, ddtree_dest differs from that of b1"),
        (["--limit", "b1"], {}, {}, "do not leave it out: --limit 'b1:source'"),
    ],
)
def test_what_cannot_be_meant_ends_the_run_before_any_host_is_reached(
    fleet: Fleet, arguments: List[str], settings: Dict[str, Any], hosts: Dict[str, Any], says: str
) -> None:
    run = fleet.deploy(*arguments, settings=settings, hosts=hosts)
    assert run.status == 2
    assert re.search(says, run.said), run.said
    assert "PLAY [Prove the source]" not in run.said
