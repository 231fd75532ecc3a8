# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import BLOCK, MAGIC, PROTOCOL, Message
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _leg
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError

pytestmark = pytest.mark.usefixtures("forget_hashes")

AGENT = shlex.join([sys.executable, "-c", BOOTSTRAP])


def login(script: str, timeout: int = 10, **more: Any) -> Endpoint:
    """A host whose login runs a shell script; ``AGENT`` in it is the real agent."""
    return Endpoint("gpu-1", ["/bin/sh", "-c", script], timeout, **more)


def refused(script: str, python: str = sys.executable, timeout: int = 10, idle: float = 10, **more: Any) -> str:
    with pytest.raises(LegError) as caught:
        Leg(login(script, timeout, **more), python, idle)
    return str(caught.value)


@pytest.fixture(name="hasty")
def hasty_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are waited for as long as the connection only."""
    monkeypatch.setattr(_leg, "AGENT_START_S", 0)


def scan(src: Any) -> dict[str, Any]:
    """The fields of a source's first message."""
    return {"protocol": PROTOCOL, "src": str(src), "exclude": [], "full": False, "check": True}


def fake(tmp_path: Path, body: str) -> Endpoint:
    """A host whose agent is a program of the test's own; it has ``channel``, ``sys``, ``time`` and the program already read."""
    program = tmp_path / "fake.py"
    program.write_text(
        f"import sys, time\nsys.path[:0] = {sys.path!r}\n"
        "from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import *\n"
        "print(MAGIC, '3.12 1', flush=True)\n"
        "i = sys.stdin.buffer\ni.read(int(i.readline())); i.read(int(i.readline()))\n"
        f"channel = Channel(i, sys.stdout.buffer)\n{body}\n"
    )
    return Endpoint("gpu-1", [sys.executable, str(program)], 10)


def test_a_leg_talks_to_the_agent_and_ends_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with Leg(login(AGENT), sys.executable, 10) as leg:
        tree = leg.ask("scan", "tree", **scan(tmp_path))
        assert (tree["files"], tree["bytes"]) == (1, 1)
        leg.tell("bye")
    assert leg._process.returncode == 0


def test_an_error_of_the_agent_starts_with_the_host(tmp_path: Path) -> None:
    with Leg(login(AGENT), sys.executable, 10) as leg, pytest.raises(LegError) as caught:
        leg.ask("scan", "tree", **scan("/nowhere"))
    assert str(caught.value) == "gpu-1: src /nowhere does not exist"


@pytest.mark.parametrize(
    "greeting", ["echo 'Welcome to gpu-1'", "printf 'Welcome to gpu-1'", "printf 'Welcome to gpu-1\\r\\n\\n'"]
)
def test_a_login_that_prints_is_refused_with_what_it_prints(greeting: str) -> None:
    said = refused(f"{greeting}; exec {AGENT}")
    assert said.startswith(
        "gpu-1: something prints to standard output before any command runs there, first 'Welcome to gpu-1"
    )
    assert "start-up files" in said


def test_what_privilege_escalation_prints_is_no_noise(tmp_path: Path) -> None:
    with Leg(login(f"echo BECOME-SUCCESS-x; exec {AGENT}", success="BECOME-SUCCESS-x"), sys.executable, 10):
        pass


def test_a_login_that_prints_without_end_is_refused() -> None:
    assert refused("exec yes hello", timeout=5) == "gpu-1: the login prints without end, first 'hello'"


@pytest.mark.parametrize("python", ["/opt/none/python3", "python3.77"])
def test_a_host_without_that_python_is_told_what_to_set(python: str) -> None:
    said = refused(f"exec {python} -c x", python)
    assert said == f"gpu-1: there is no {python}; install Python 3.9 or newer there or set ansible_python_interpreter"


@pytest.mark.parametrize("version", ["3.6", "3.8", "2.7"])
def test_an_old_python_is_refused_with_its_version(version: str) -> None:
    said = refused(f"echo {MAGIC} {version} 1; cat >/dev/null", "/usr/bin/python3")
    assert (
        said
        == f"gpu-1: /usr/bin/python3 is Python {version}, streams need 3.9 or newer; set ansible_python_interpreter"
    )


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.8.18"])
def test_real_old_pythons_say_so_themselves(version: str) -> None:
    python = f"/root/.pyenv/versions/{version}/bin/python"
    if not os.path.exists(python):
        pytest.skip(f"there is no Python {version} here")
    assert "streams need 3.9 or newer" in refused("exec " + shlex.join([python, "-c", BOOTSTRAP]), python)


def test_a_connection_that_fails_is_told_in_its_own_words() -> None:
    said = refused("echo 'ssh: Could not resolve hostname gpu-1' >&2; exit 255")
    assert (
        said
        == "gpu-1: the connection ended before the agent started (exit status 255): ssh: Could not resolve hostname gpu-1"
    )


@pytest.mark.slow
def test_a_login_that_closes_its_output_but_stays_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    assert "ended before the agent started (still running)" in refused("exec >&- 2>&-; while read -r x; do :; done")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("problem", ["sudo: a password is required", "Sorry, try again.", "su: incorrect password"])
def test_a_missing_become_password_is_told(problem: str) -> None:
    assert "set ansible_become_password" in refused(f"echo '{problem}' >&2; exit 1")


def test_a_prompt_is_answered_once() -> None:
    script = f"printf 'Password: ' >&2; read -r word; test \"$word\" = s3cret || {{ echo incorrect password >&2; exit 1; }}; exec {AGENT}"
    with Leg(login(script, prompt="Password:", become_password="s3cret"), sys.executable, 10):
        pass
    assert "s3cret" not in refused(script, prompt="Password:", become_password="s3cret and more")


@pytest.mark.usefixtures("hasty")
def test_a_host_that_never_answers_is_given_up() -> None:
    started = time.monotonic()
    assert (
        refused("echo connecting >&2; while read -r x; do :; done", timeout=1)
        == "gpu-1: no answer within 1 s: connecting"
    )
    assert time.monotonic() - started < 5


def test_a_full_sshd_is_asked_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = (
        f"if test -e {mark}; then exec {AGENT}; fi; touch {mark}; "
        "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255"
    )
    with Leg(login(script), sys.executable, 10):
        pass
    assert mark.exists()


def test_an_agent_that_falls_silent_is_given_up(tmp_path: Path) -> None:
    started = time.monotonic()
    with Leg(fake(tmp_path, "i.read()"), sys.executable, idle=0.6) as leg, pytest.raises(LegError) as caught:
        leg.ask("scan", "tree", src="/", exclude=[], full=False)
    assert "gpu-1: nothing came for 1 s; the host or the network hangs" in str(caught.value)
    assert time.monotonic() - started < 5


def test_an_agent_that_tells_its_progress_is_waited_for(tmp_path: Path) -> None:
    body = "channel.receive()\nfor _ in range(6):\n    time.sleep(0.2)\n    channel.send('progress')\nchannel.send('tree', files=3)\ni.read()"
    with Leg(fake(tmp_path, body), sys.executable, idle=0.6) as leg:
        assert leg.ask("scan", "tree", src="/")["files"] == 3


def test_progress_is_told_with_the_host(tmp_path: Path) -> None:
    body = "channel.receive()\nfor n in (1, 2):\n    channel.send('progress', phase='hash', files=n, bytes=10 * n)\nchannel.send('tree')\ni.read()"
    heard: list[tuple[str, Message]] = []
    with Leg(fake(tmp_path, body), sys.executable, 10, lambda host, progress: heard.append((host, progress))) as leg:
        leg.ask("scan", "tree")
    assert [(host, progress["files"], progress["bytes"]) for host, progress in heard] == [
        ("gpu-1", 1, 10),
        ("gpu-1", 2, 20),
    ]


def ciphered(tmp_path: Path, aes: str) -> tuple[Endpoint, Path]:
    """A host that is reached by a program that takes ssh's options, and the file in which it writes down what it got."""
    log = tmp_path / "argv"
    program = tmp_path / "ssh"
    banner = BOOTSTRAP.replace("%(sys.version_info[:2]+(a,))", f"%(sys.version_info[:2]+({aes},))")
    assert banner != BOOTSTRAP
    script = f'echo "$@" >> {log}\nexec {shlex.join([sys.executable, "-c", banner])}\n'
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    ciphers = "Ciphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com"
    return Endpoint("gpu-1", [str(program), "-o", ciphers, "-o", "A=b", "gpu-1", "agent"], 10, ciphers=ciphers), log


def test_a_host_that_is_slow_with_aes_is_reached_again_with_what_ssh_prefers(tmp_path: Path) -> None:
    endpoint, log = ciphered(tmp_path, "0")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "file").write_text("x")
    with Leg(endpoint, sys.executable, 10) as leg:
        assert leg.ask("scan", "tree", **scan(tmp_path / "src"))["files"] == 1
        leg.tell("bye")
    assert log.read_text().splitlines() == [f"-o {endpoint.ciphers} -o A=b gpu-1 agent", "-o A=b gpu-1 agent"]


def test_a_host_that_is_fast_with_aes_is_reached_once(tmp_path: Path) -> None:
    endpoint, log = ciphered(tmp_path, "1")
    with Leg(endpoint, sys.executable, 10):
        pass
    assert log.read_text().splitlines() == [f"-o {endpoint.ciphers} -o A=b gpu-1 agent"]


def test_a_cipher_that_nobody_preferred_stays_where_a_host_is_slow_with_aes(tmp_path: Path) -> None:
    endpoint, log = ciphered(tmp_path, "0")
    with Leg(dataclasses.replace(endpoint, ciphers=""), sys.executable, 10):
        pass
    assert len(log.read_text().splitlines()) == 1


def test_an_agent_of_another_version_is_told_by_both_numbers(tmp_path: Path) -> None:
    with Leg(login(AGENT), sys.executable, 10) as leg, pytest.raises(LegError) as caught:
        leg.ask("scan", "tree", **{**scan(tmp_path), "protocol": 1})
    assert str(caught.value).startswith(f"gpu-1: this agent speaks version {PROTOCOL} of the stream protocol")


@pytest.mark.slow
def test_an_agent_that_takes_nothing_is_given_up_and_ended_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with (
        Leg(fake(tmp_path, "time.sleep(60)"), sys.executable, idle=0.5) as leg,
        pytest.raises(LegError, match="nothing was taken"),
        leg.named(),
    ):
        for _ in range(8):
            leg.channel.send_frame(BLOCK, b"x" * (1 << 20))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            "channel.receive()\nsys.exit('out of memory')",
            "gpu-1: the connection ended before the work was done: out of memory",
        ),
        (
            "print('hello', flush=True)\ni.read()",
            "gpu-1: the stream is corrupt: something else than the agent writes to this connection",
        ),
        ("channel.send('what')\ni.read()", "gpu-1: the stream is out of step: expected progress or tree, got what"),
    ],
)
def test_an_agent_that_dies_or_talks_nonsense_is_told(tmp_path: Path, body: str, problem: str) -> None:
    with Leg(fake(tmp_path, body), sys.executable, 10) as leg, pytest.raises(LegError) as caught:
        leg.ask("scan", "tree", src="/")
    assert str(caught.value) == problem


def test_the_agents_own_error_tells_more_than_a_broken_pipe(tmp_path: Path) -> None:
    body = "channel.send('progress')\nchannel.send('error', message='disk full')\nsys.exit(1)"
    with Leg(fake(tmp_path, body), sys.executable, 10) as leg:
        leg._process.wait(10)
        with pytest.raises(LegError, match="^gpu-1: disk full"):
            leg.tell("build")


def test_killing_a_leg_wakes_who_reads_from_it(tmp_path: Path) -> None:
    with Leg(fake(tmp_path, "time.sleep(60)"), sys.executable, 30) as leg:
        threading.Timer(0.3, leg.kill).start()
        with pytest.raises(LegError, match="connection ended"):
            leg.answer("tree")


def test_an_agent_that_a_signal_did_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_leg, "TIDY_UP_S", 0.2)
    stubborn = "import signal\nsignal.signal(15, signal.SIG_IGN)\nchannel.send('ready')\ntime.sleep(60)"
    with Leg(fake(tmp_path, stubborn), sys.executable, 30) as leg:
        leg.answer("ready")
        leg.kill()
        with pytest.raises(LegError, match="connection ended"):
            leg.answer("tree")


@pytest.mark.slow
def test_what_a_dead_leg_did_not_send_never_reaches_another(tmp_path: Path) -> None:
    with (
        Leg(fake(tmp_path, "i.close()\ntime.sleep(60)"), sys.executable, 0.5) as leg,
        pytest.raises(LegError),
        leg.named(),
    ):
        leg.channel.send_frame(BLOCK, b"stale" * 1000)
        leg.channel.flush()
        for _ in range(3):
            leg.channel.send_frame(BLOCK, b"stale" * 100_000)
            leg.channel.flush()
    number = leg._sink.fd
    target = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    moved = os.dup2(target, number) if target != number else target
    leg._writer.flush()
    del leg
    assert (tmp_path / "other").read_bytes() == b""
    for fd in {target, moved}:
        os.close(fd)
