# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Endpoints: how to run one program on a host of the inventory over a connection of its own.

Address, port, user, key, jump host, common arguments and privilege escalation are resolved as Ansible resolves them for that
host, so two hosts of one task never share a setting. A data leg differs from Ansible's own connections in three ways: it is
never multiplexed, never compressed by ssh, and has no terminal. All private calls into ansible-core are in this file.
"""

from __future__ import annotations

import functools
import getpass
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible import constants as C
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import become_loader, connection_loader

SSH_NAMES = ("ssh", "ansible.builtin.ssh", "smart")
LOCAL_NAMES = ("local", "ansible.builtin.local")
PASSWORD_VARS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
BECOME_PASSWORD_VARS = ("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")

# ssh takes the first value it sees of an -o option and the last of a flag, so these stand before and after the user's.
OPTIONS_FIRST = (
    "ControlPath=none",
    "ControlMaster=no",
    "ControlPersist=no",
    "Compression=no",
    "RequestTTY=no",
)
OPTIONS_LAST = ("ServerAliveInterval=15", "ServerAliveCountMax=4")
FLAGS_LAST = ("-T", "-S", "none")
COMPRESSING_FLAGS = re.compile(r"-[A-Za-z0-9]*C[A-Za-z0-9]*\Z")
FLAGS_WITHOUT_VALUE = set("46AaCfGgKkMNnqsTtVvXxYy")


class EndpointError(Exception):
    """A host that no data leg can be opened to, for a reason that stands before any connection; the message names it."""


class UnknownHostError(EndpointError):
    """A host that the inventory lacks: the request is wrong, not the host."""


@dataclass(frozen=True)
class Endpoint:
    """One program on one host, ready to be started.

    ``argv`` starts it from the control node, and its last word is all that runs on the host. ``success`` is what privilege
    escalation prints before the program runs, and ``prompt`` what it prints when it wants ``become_password``; both are empty
    without escalation. ``timeout`` in seconds.
    """

    host: str
    argv: Sequence[str]
    timeout: int
    ciphers: str = ""
    success: str = ""
    prompt: str = ""
    become_password: str = ""
    login_password: str = ""

    @property
    def connection(self) -> tuple[str, ...]:
        """How the host is reached: the same for two names of one machine, whatever runs there, as whom and with which marker."""
        return tuple(self.argv[:-1])

    def without_ciphers(self) -> Endpoint:
        """The same with ssh's own choice of a cipher, for a host whose processor is slow with AES."""
        place = list(self.argv).index(self.ciphers)
        return replace(self, argv=[*self.argv[: place - 1], *self.argv[place + 1 :]], ciphers="")


def resolve(
    host: str, command: Sequence[str], task: Task, play_context: PlayContext, task_vars: Mapping[str, Any]
) -> Endpoint:
    """How to run ``command`` on ``host``; raises EndpointError when the inventory lacks it or its connection cannot carry data."""
    hostvars = task_vars["hostvars"]
    if host not in hostvars:
        raise UnknownHostError(f"{host} is not in the inventory; name a host of it as source, or add {host} to it")
    variables = hostvars[host]
    context = _context(play_context, host, variables, task_vars)
    kind = str(variables.get("ansible_connection") or task.connection or C.DEFAULT_TRANSPORT)
    if kind not in SSH_NAMES + LOCAL_NAMES:
        raise EndpointError(f"{host}: a stream needs connection ssh or local, not {kind}")
    name = "ansible.builtin.ssh" if kind in SSH_NAMES else "ansible.builtin.local"
    connection = connection_loader.get(name, context)
    keys = task.dump_attrs()
    keys["timeout"] = context.timeout
    keys.pop("retries", None)
    if context.password:
        keys["password"] = context.password
    connection.set_options(task_keys=keys, var_options=_known(variables, "connection", connection))
    shell = connection._shell
    text = " ".join(shlex.quote(word) for word in command)
    become = _become(task, context, variables, keys, connection)
    if become:
        text = become.build_become_command(text, shell)
    login_password, timeout, ciphers = "", int(context.timeout), ""
    if name == "ansible.builtin.local":
        argv: list[str] = ["/bin/sh", "-c", text]
    else:
        login_password, timeout = str(connection.get_option("password") or ""), int(connection.get_option("timeout"))
        argv = _ssh_command(connection, text, bool(login_password))
        ciphers = fast_ciphers(argv) if has_aes() else ""
        if ciphers:
            argv[1:1] = ["-o", ciphers]
        if login_password and not shutil.which("sshpass"):
            raise EndpointError(
                f"{host} is reached by password, which a data leg needs sshpass for; install sshpass or use a key"
            )
    return Endpoint(
        host=host,
        argv=argv,
        timeout=timeout,
        ciphers=ciphers,
        success=become.success if become else "",
        prompt=str(become.prompt or "") if become else "",
        become_password=str(become.get_option("become_pass") or "") if become else "",
        login_password=login_password,
    )


def python_of(host: str, task_vars: Mapping[str, Any]) -> str:
    """The Python that Ansible uses on a host, as far as it is known without asking: ``python3`` where it is not."""
    if host not in task_vars["hostvars"]:
        return "python3"  # resolve has the message
    variables = task_vars["hostvars"][host]
    configured = str(variables.get("ansible_python_interpreter") or "auto")
    if not configured.startswith("auto"):
        return configured
    facts = variables.get("ansible_facts") or {}
    return str(
        facts.get("discovered_interpreter_python") or variables.get("discovered_interpreter_python") or "python3"
    )


def _context(base: PlayContext, host: str, variables: Mapping[str, Any], task_vars: Mapping[str, Any]) -> PlayContext:
    """The play's settings without those that Ansible took from the current host's variables."""
    context = base.copy()
    context.remote_addr = str(variables.get("ansible_host") or host)
    context.port = None
    context.remote_user = None
    if "ansible_timeout" in variables:
        context.timeout = int(variables["ansible_timeout"])
    elif "ansible_timeout" in task_vars:
        context.timeout = C.DEFAULT_TIMEOUT
    if any(name in task_vars for name in PASSWORD_VARS):
        context.password = ""
    if any(name in task_vars for name in BECOME_PASSWORD_VARS):
        context.become_pass = ""
    return context


def _known(variables: Mapping[str, Any], kind: str, plugin: Any) -> dict[str, Any]:
    """The host's variables that set options of a plugin, which ansible-core lists by the name it was loaded under."""
    return {key: variables[key] for key in C.config.get_plugin_vars(kind, plugin._load_name) if key in variables}


def _become(
    task: Task, context: PlayContext, variables: Mapping[str, Any], keys: dict[str, Any], connection: Any
) -> Optional[Any]:
    """The privilege escalation of a host, or None where there is none or the login user already is the wanted one."""
    if not boolean(variables.get("ansible_become", task.become), strict=False):
        return None
    method = str(variables.get("ansible_become_method") or task.become_method or C.DEFAULT_BECOME_METHOD)
    plugin = become_loader.get(method)
    if plugin is None:
        raise EndpointError(f"{variables['inventory_hostname']}: there is no become method {method}")
    if context.become_pass:
        keys["become_pass"] = context.become_pass
    plugin.set_options(task_keys=keys, var_options=_known(variables, "become", plugin))
    wanted = plugin.get_option("become_user") or "root"
    login = connection.get_option("remote_user") if connection.transport == "ssh" else getpass.getuser()
    return None if wanted == login and not C.BECOME_ALLOW_SAME_USER else plugin


def _ssh_command(connection: Any, text: str, password: bool) -> list[str]:
    host = connection.get_option("host")
    built = [
        word.decode() for word in connection._build_command(connection.get_option("ssh_executable"), "ssh", host, text)
    ]
    program, user_args = built[0], built[1:-2]
    first = [word for option in OPTIONS_FIRST + (() if password else ("BatchMode=yes",)) for word in ("-o", option)]
    last = [word for option in OPTIONS_LAST for word in ("-o", option)]
    return [program, *first, *_without_compression(user_args), *last, *FLAGS_LAST, host, text]


def _without_compression(args: Sequence[str]) -> list[str]:
    """``args`` without ssh's -C, which no option overrides."""
    kept, value_of = [], ""
    for word in args:
        if value_of:
            value_of = ""
        elif COMPRESSING_FLAGS.match(word) and set(word[1:]) <= FLAGS_WITHOUT_VALUE:
            word = word.replace("C", "")
            if word == "-":
                continue
        elif len(word) == 2 and word[0] == "-" and word[1] not in FLAGS_WITHOUT_VALUE:
            value_of = word
        kept.append(word)
    return kept


def has_aes() -> bool:
    """Whether this machine's processor has instructions for AES, which makes AES-GCM faster than ssh's own first choice."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return " aes" in file.read()
    except OSError:
        return False


def fast_ciphers(argv: Sequence[str]) -> str:
    """An option that has ssh prefer AES-GCM and leaves every other cipher possible; empty when the user chose ciphers.

    ssh itself says what it would use: once for this command line, once without any configuration.
    """
    program, host = argv[0], argv[-2]
    chosen = _ciphers((program, "-G", *argv[1:-1]))
    if not chosen or chosen != _ciphers((program, "-G", "-F", "none", host)):
        return ""
    names = chosen.split(",")
    first = [name for name in names if re.match(r"aes\d+-gcm@", name)]
    return f"Ciphers={','.join(first + [name for name in names if name not in first])}" if first else ""


@functools.lru_cache(maxsize=256)
def _ciphers(command: tuple[str, ...]) -> str:
    """The ciphers that an ssh command would offer, empty when it cannot say."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("ciphers ")), "")
