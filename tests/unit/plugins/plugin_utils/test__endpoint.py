# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import getpass
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play import Play
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.collection_loader import AnsibleCollectionConfig
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint, EndpointError, python_of, resolve

INVENTORY = """
all:
  vars:
    ansible_user: deploy
  hosts:
    plain:
    gpu-1:
      ansible_host: 10.0.0.1
      ansible_port: 2201
      ansible_user: root
      ansible_ssh_private_key_file: /keys/one
    gpu-2:
      ansible_host: 10.0.0.2
      ansible_port: "{{ 2200 + 2 }}"
      ansible_user: admin
      ansible_ssh_private_key_file: /keys/two
      ansible_become: true
      ansible_become_user: sglang
      ansible_become_password: "{{ 'sec' + 'ret' }}"
      ansible_timeout: 77
    jumped:
      ansible_host: 192.168.1.9
      ansible_ssh_common_args: -o ProxyJump=bastion.example -qC
    cloaked:
      ansible_ssh_args: -C -vC -o User=CC -o ControlMaster=auto -o ControlPath=/tmp/shared -o Compression=yes -i /keys/C -lCarol
    worded:
      ansible_password: hunter2
    local:
      ansible_connection: local
    windows:
      ansible_connection: winrm
    odd:
      ansible_become: true
      ansible_become_method: nonsense
    itself:
      ansible_become: true
      ansible_become_user: deploy
    gpu-2-again:
      ansible_host: 10.0.0.2
      ansible_port: 2202
      ansible_user: admin
      ansible_ssh_private_key_file: /keys/two
      ansible_become: true
      ansible_timeout: 77
    by_name:
      ansible_connection: ansible.builtin.ssh
"""

Resolve = Callable[..., Endpoint]


@pytest.fixture(name="resolved")
def resolved_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """``resolve`` on real objects of ansible-core, from a task that runs on ``on`` with ``keywords``."""
    if not AnsibleCollectionConfig.collection_finder:
        init_plugin_loader()
    monkeypatch.setattr(
        context,
        "CLIARGS",
        ImmutableDict(connection="ssh", become=False, become_method="sudo", become_user=None, timeout=10, verbosity=0),
    )
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(tmp_path / "hosts.yml")])
    variables = VariableManager(loader=loader, inventory=inventory)
    hostvars = HostVars(inventory=inventory, variable_manager=variables, loader=loader)

    def run(
        host: str,
        command: Sequence[str] = ("python3", "-c", "print(1)"),
        on: str = "plain",
        host_vars: Optional[dict[str, str]] = None,
        **keywords: Any,
    ) -> Endpoint:
        for name, value in (host_vars or {}).items():
            inventory.get_host(host).set_variable(name, value)
        play = Play.load({"name": "test", "hosts": "all", "tasks": []}, variable_manager=variables, loader=loader)
        task = Task.load({"action": "debug", **keywords}, variable_manager=variables, loader=loader)
        task_vars = {**variables.get_vars(play=play, host=inventory.get_host(on), task=task), "hostvars": hostvars}
        play_context = PlayContext(play=play, passwords={"conn_pass": "", "become_pass": ""})
        play_context = play_context.set_task_and_variable_override(task=task, variables=task_vars, templar=None)
        return resolve(host, command, task, play_context, task_vars)

    run.hostvars = hostvars  # type: ignore[attr-defined]
    return run


def options(endpoint: Endpoint) -> dict[str, str]:
    """What ssh itself makes of the command line: of every option the value it will use."""
    argv = list(endpoint.argv)
    done = subprocess.run([argv[0], "-G", "-F", "none", *argv[1:-1]], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_each_host_has_its_own_address_port_user_and_key(resolved: Resolve) -> None:
    for on in ("gpu-1", "gpu-2", "jumped"):
        one, two = options(resolved("gpu-1", on=on)), options(resolved("gpu-2", on=on))
        assert (one["hostname"], one["port"], one["user"], one["identityfile"]) == (
            "10.0.0.1",
            "2201",
            "root",
            "/keys/one",
        )
        assert (two["hostname"], two["port"], two["user"], two["identityfile"]) == (
            "10.0.0.2",
            "2202",
            "admin",
            "/keys/two",
        )
        plain = options(resolved("plain", on=on))
        assert (plain["hostname"], plain["port"], plain["user"]) == ("plain", "22", "deploy")
        assert plain["identityfile"] not in ("/keys/one", "/keys/two")


def test_each_host_has_its_own_time_out(resolved: Resolve) -> None:
    slow, plain = resolved("gpu-2", on="plain"), resolved("plain", on="gpu-2")
    assert (slow.timeout, options(slow)["connecttimeout"]) == (77, "77")
    assert (plain.timeout, options(plain)["connecttimeout"]) == (10, "10")


@pytest.mark.parametrize("host", ["plain", "jumped", "cloaked", "gpu-2", "by_name"])
def test_a_data_leg_is_never_shared_compressed_or_on_a_terminal(resolved: Resolve, host: str) -> None:
    endpoint = resolved(host)
    before = ["-o", endpoint.ciphers] if endpoint.ciphers else []
    assert list(endpoint.argv[1 : len(before) + 3]) == [*before, "-o", "ControlPath=none"]
    found = options(endpoint)
    assert found.get("controlpath", "none") == "none"
    assert (found["controlmaster"], found["compression"], found["requesttty"]) == ("false", "no", "false")
    assert found["serveraliveinterval"] == "15"
    assert found["batchmode"] == "yes"


def test_jump_hosts_are_kept(resolved: Resolve) -> None:
    endpoint = resolved("jumped")
    assert options(endpoint)["proxyjump"] == "bastion.example"
    assert "-q" in endpoint.argv
    assert "-qC" not in endpoint.argv


def test_only_compression_is_taken_out_of_the_users_arguments(resolved: Resolve) -> None:
    argv = list(resolved("cloaked").argv)
    assert "-C" not in argv
    assert "-v" in argv
    assert argv[argv.index("-i") + 1] == "/keys/C"
    assert "User=CC" in argv
    assert "-lCarol" in argv


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["-C"], []),
        (["-qC"], ["-q"]),
        (["-CCv", "-4C6"], ["-v", "-46"]),
        (["-o", "-C"], ["-o", "-C"]),
        (["-i", "C", "-C"], ["-i", "C"]),
        (["-oProxyCommand=ssh -C x"], ["-oProxyCommand=ssh -C x"]),
        (["-pC"], ["-pC"]),
        (["C"], ["C"]),
    ],
)
def test_taking_compression_out(before: list[str], after: list[str]) -> None:
    assert _endpoint._without_compression(before) == after


def test_the_command_arrives_as_it_was_given(resolved: Resolve, tmp_path: Path) -> None:
    words = ["printf", "%s\\n", "it's", 'a "quoted" $HOME', "new\nline", ""]
    for host in ("plain", "local"):
        text = resolved(host, words).argv[-1]
        done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=True)
        assert done.stdout == 'it\'s\na "quoted" $HOME\nnew\nline\n\n'


def test_escalation_is_the_hosts_own(resolved: Resolve) -> None:
    endpoint = resolved("gpu-2", on="gpu-1")
    assert "sudo" in endpoint.argv[-1]
    assert "-u sglang" in endpoint.argv[-1]
    assert endpoint.success.startswith("BECOME-SUCCESS-")
    assert endpoint.success in endpoint.argv[-1]
    assert endpoint.become_password == "secret"
    assert "secret" not in " ".join(endpoint.argv)
    assert endpoint.prompt
    assert endpoint.prompt in endpoint.argv[-1]
    none = resolved("gpu-1", on="gpu-2")
    assert (none.success, none.prompt, none.become_password, "sudo" in none.argv[-1]) == ("", "", "", False)


def test_two_names_of_one_machine_have_one_connection(resolved: Resolve) -> None:
    one, same, other = (resolved(host, become=True) for host in ("gpu-2", "gpu-2-again", "plain"))
    assert one.argv != same.argv
    assert one.connection == same.connection
    assert one.connection[-1] == "10.0.0.2"
    assert other.connection != one.connection
    assert resolved("local", become=True, become_user="sglang").connection == resolved("local", ["true"]).connection


def test_escalation_of_the_task_counts_for_all(resolved: Resolve) -> None:
    endpoint = resolved("plain", become=True, become_user="sglang")
    assert "-u sglang" in endpoint.argv[-1]
    assert "-u root" in resolved("plain", become=True).argv[-1]
    assert "sudo" not in resolved("itself").argv[-1]
    assert "sudo" not in resolved("gpu-1", become=True).argv[-1]  # it already logs in as root


def test_an_unknown_become_method_is_named(resolved: Resolve) -> None:
    with pytest.raises(EndpointError, match="odd: there is no become method nonsense"):
        resolved("odd")


def test_a_local_host_needs_no_ssh(resolved: Resolve) -> None:
    endpoint = resolved("local", ["python3", "-c", "print(1)"])
    assert list(endpoint.argv) == ["/bin/sh", "-c", "python3 -c 'print(1)'"]
    become = resolved("local", become=True, become_user="sglang")
    assert "-u sglang" in become.argv[-1]
    if getpass.getuser() == "root":
        assert "sudo" not in resolved("local", become=True).argv[-1]


def test_the_control_node_itself_can_be_named(resolved: Resolve) -> None:
    assert resolved("localhost").argv[0] == "/bin/sh"


def test_a_host_that_is_not_in_the_inventory_is_named(resolved: Resolve) -> None:
    with pytest.raises(
        EndpointError, match="^gpu-9 is not in the inventory; name a host of it as source, or add gpu-9 to it$"
    ):
        resolved("gpu-9")


def test_a_connection_that_carries_no_data_is_refused(resolved: Resolve) -> None:
    with pytest.raises(EndpointError, match="^windows: a stream needs connection ssh or local, not winrm$"):
        resolved("windows")


def test_a_password_without_sshpass_is_a_clear_error(
    resolved: Resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        EndpointError, match="worded is reached by password, which a data leg needs sshpass for; install sshpass"
    ):
        resolved("worded")
    sshpass = tmp_path / "bin" / "sshpass"
    sshpass.write_text("#!/bin/sh\n")
    sshpass.chmod(0o755)
    endpoint = resolved("worded")
    assert endpoint.login_password == "hunter2"
    assert "hunter2" not in " ".join(endpoint.argv)
    assert "BatchMode=yes" not in endpoint.argv
    assert resolved("plain", on="worded").login_password == ""


def ciphers_of(endpoint: Endpoint) -> list[str]:
    """What ssh would offer, with the configuration that the command line names or no other."""
    argv = list(endpoint.argv)
    if "-F" not in argv:
        argv[1:1] = ["-F", "none"]
    done = subprocess.run([argv[0], "-G", *argv[1:-1]], capture_output=True, text=True, check=True)
    return next(line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("ciphers ")).split(",")


@pytest.fixture(name="aes", autouse=True)
def aes_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control node's processor has instructions for AES, whatever runs this test."""
    monkeypatch.setattr(_endpoint, "has_aes", lambda: True)


def test_fast_ciphers_come_first_and_all_others_stay(resolved: Resolve) -> None:
    endpoint = resolved("plain")
    assert list(endpoint.argv[1:3]) == ["-o", endpoint.ciphers]
    found, usual = ciphers_of(endpoint), ciphers_of(endpoint.without_ciphers())
    assert sorted(found) == sorted(usual)
    assert found[0] in ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
    assert usual[0].startswith("chacha20")
    assert found.index("chacha20-poly1305@openssh.com") == 2


def test_without_the_choice_of_a_cipher_the_command_line_is_the_same(resolved: Resolve) -> None:
    endpoint = resolved("jumped")
    plain = endpoint.without_ciphers()
    assert (plain.ciphers, list(plain.argv)) == ("", [endpoint.argv[0], *endpoint.argv[3:]])
    assert (plain.host, plain.timeout) == (endpoint.host, endpoint.timeout)


CONFIGURED = "aes256-ctr"


@pytest.mark.parametrize("host", ["args", "common", "flag", "extra", "file"])
def test_ciphers_that_a_user_chose_are_left_alone(resolved: Resolve, tmp_path: Path, host: str) -> None:
    (tmp_path / "ssh_config").write_text(f"Host gpu-*\n  Ciphers {CONFIGURED}\n")
    options = {
        "args": {"ansible_ssh_args": f"-o Ciphers={CONFIGURED}"},
        "common": {"ansible_ssh_common_args": f"-oCiphers={CONFIGURED}"},
        "flag": {"ansible_ssh_common_args": f"-c {CONFIGURED}"},
        "extra": {"ansible_ssh_extra_args": f"-c{CONFIGURED}"},
        "file": {"ansible_ssh_common_args": f"-F {tmp_path}/ssh_config", "ansible_host": "gpu-77"},
    }
    endpoint = resolved("plain", host_vars=options[host])
    assert endpoint.ciphers == ""
    assert not [word for word in endpoint.argv if word.startswith("Ciphers=aes128-gcm")]
    assert ciphers_of(endpoint) == [CONFIGURED]


def test_a_configuration_that_says_nothing_of_ciphers_counts_as_none(resolved: Resolve, tmp_path: Path) -> None:
    (tmp_path / "ssh_config").write_text(f"Host other\n  Ciphers {CONFIGURED}\n")
    endpoint = resolved("plain", host_vars={"ansible_ssh_common_args": f"-F {tmp_path}/ssh_config"})
    assert endpoint.ciphers
    assert "gcm" in ciphers_of(endpoint)[0]


def test_no_cipher_is_chosen_where_aes_is_slow_here_or_no_ssh_is_used(
    resolved: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolved("local").ciphers == ""
    monkeypatch.setattr(_endpoint, "has_aes", lambda: False)
    assert resolved("plain").ciphers == ""


def test_an_ssh_that_cannot_say_what_it_would_use_keeps_its_ciphers(resolved: Resolve, tmp_path: Path) -> None:
    old = tmp_path / "old-ssh"
    old.write_text("#!/bin/sh\necho 'unknown option -- G' >&2\nexit 255\n")
    old.chmod(0o755)
    endpoint = resolved("plain", host_vars={"ansible_ssh_executable": str(old)})
    assert (endpoint.argv[0], endpoint.ciphers) == (str(old), "")


def test_the_python_of_a_host(resolved: Resolve) -> None:
    hostvars: Any = {
        "set": {"ansible_python_interpreter": "/opt/python3"},
        "automatic": {
            "ansible_python_interpreter": "auto_silent",
            "ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3.9"},
        },
        "found": {"discovered_interpreter_python": "/usr/bin/python3.12"},
        "new": {},
    }
    found: dict[str, Optional[str]] = {host: python_of(host, {"hostvars": hostvars}) for host in [*hostvars, "unknown"]}
    assert found == {
        "set": "/opt/python3",
        "automatic": "/usr/bin/python3.9",
        "found": "/usr/bin/python3.12",
        "new": "python3",
        "unknown": "python3",
    }
    assert python_of("nowhere", {"hostvars": resolved.hostvars}) == "python3"  # type: ignore[attr-defined]
    assert os.path.isabs(python_of("localhost", {"hostvars": resolved.hostvars}))  # type: ignore[attr-defined]
