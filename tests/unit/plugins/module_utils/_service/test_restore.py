# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host, _releases
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service import units
from ansible_collections.ddtree.fleet.plugins.module_utils._service.states import Failure
from ansible_collections.ddtree.fleet.tests.unit.service_host import UNIT, A, B, ServiceHost, make_host, unit_text

INSTANCES = ["sglang@a.service", "sglang@b.service"]


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(name="host")
def host_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceHost:
    return make_host(tmp_path, monkeypatch)


def serving(host: ServiceHost) -> None:
    host.key(A, "old-key")
    host.write("sglang.service.d/10-by-hand.conf", "[Service]\nLimitNOFILE=4096\n", 0o600)
    host.serve()


def by_hand(host: ServiceHost) -> None:
    host.write(UNIT, "[Service]\nExecStart=/opt/old/server\nEnvironment=TOKEN=x\n", 0o640)
    host.systemctl("daemon-reload")
    host.systemctl("enable", UNIT)
    host.systemctl("start", UNIT)


def nothing(host: ServiceHost) -> None:
    pass


def instances(host: ServiceHost) -> None:
    host.write("sglang@.service", unit_text(A))
    host.write("sglang@a.service.d/port.conf", "# Written by ddtree.fleet\n[Service]\nEnvironment=PORT=1\n")
    host.serve(names=INSTANCES)


def failed_before(host: ServiceHost) -> None:
    serving(host)
    host.arm(B)
    host.switch()
    host.ask("confirmed")
    host.store.judge(B, "failed")


BEFORE: List[Callable[[ServiceHost], None]] = [serving, by_hand, nothing, instances]


def switched(host: ServiceHost) -> None:
    host.arm()
    host.key(B, "new-key")
    host.switch()
    assert host.runs() == unit_text(B) + (
        "[Service]\nLimitNOFILE=4096\n" if (Path(host.paths.units) / "sglang.service.d").exists() else ""
    )
    assert host.store.active() == B


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("by", ["module", "timer"])
def test_going_back_brings_everything_back(host: ServiceHost, before: Callable[[ServiceHost], None], by: str) -> None:
    before(host)
    picture = host.picture()
    switched(host)
    if by == "module":
        result = host.restore()
        assert (result["changed"], result["release"], result["pending"]) == (True, B, {})
        assert result["way_back"] == (A if before in (serving, instances) else "")
    else:
        assert host.program() == 0
    assert host.picture() == picture
    assert host.nothing_is_left()
    event = [event for event in host.store.history() if event["event"] == "restored"][-1]
    assert (event["before"], event["by"]) == (B, by)
    assert host.restore()["changed"] is False
    assert host.picture() == picture


def killing(monkeypatch: pytest.MonkeyPatch, host: ServiceHost, after: int) -> None:
    """Let the process die before its change number ``after`` of the host."""
    left = [after]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*args, **options)

        return call

    for name in ("replace", "unlink", "symlink"):
        monkeypatch.setattr(os, name, deadly(getattr(os, name)))
    monkeypatch.setattr(units, "systemctl", deadly(host.systemctl))


def until_it_lives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[ServiceHost], None],
    steps: Callable[[ServiceHost], None],
    doomed: Callable[[ServiceHost], None],
) -> Iterator[Tuple[ServiceHost, Dict[str, Any], int]]:
    """Let ``doomed`` die before its first change of the host, then before its second, and so on until it lives.

    Gives each time the host, the picture of it before ``steps``, and how many deaths there were.
    """
    deaths, ended = 0, False
    while not ended:
        (tmp_path / str(deaths)).mkdir()
        with monkeypatch.context() as patch:
            host = make_host(tmp_path / str(deaths), patch)
            before(host)
            picture = host.picture()
            steps(host)
            with patch.context() as deadly:
                killing(deadly, host, deaths)
                try:
                    doomed(host)
                    ended = True
                except Killed:
                    deaths += 1
            yield host, picture, deaths
    assert deaths > 15


@pytest.mark.slow
@pytest.mark.parametrize("before", BEFORE)
def test_a_restore_that_is_killed_anywhere_and_run_again_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Callable[[ServiceHost], None]
) -> None:
    for host, picture, deaths in until_it_lives(tmp_path, monkeypatch, before, switched, ServiceHost.restore):
        started = host.invocation()
        running = host.runs()
        host.program()
        assert host.picture() == picture, deaths
        assert host.nothing_is_left(), deaths
        if running and running == picture["runs"].get(UNIT):
            assert host.invocation() == started, f"started again although it ran already, after {deaths} changes"
        assert len(list((Path(host.store.root) / "failed").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("before", BEFORE)
def test_a_switch_that_is_killed_anywhere_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Callable[[ServiceHost], None]
) -> None:
    def switch(host: ServiceHost) -> None:
        host.arm()
        host.switch()

    for host, picture, deaths in until_it_lives(tmp_path, monkeypatch, before, lambda host: None, switch):
        host.program()
        assert host.picture() == picture, deaths
        assert not os.path.exists(host.paths.marker)


def test_what_was_armed_and_not_switched_restarts_nothing(host: ServiceHost) -> None:
    serving(host)
    invocation = host.invocation()
    host.arm()
    result = host.restore()
    assert (result["changed"], result["kept"], result["teardown_seconds"] < 0.5) == (True, "", True)
    assert host.invocation() == invocation
    assert host.nothing_is_left()
    assert not os.path.exists(os.path.join(host.store.root, "failed"))


def test_a_server_that_systemd_restarted_before_the_switch_is_left_alone(host: ServiceHost) -> None:
    serving(host)
    host.arm()
    host.systemctl("stop", UNIT)
    host.systemctl("start", UNIT)
    invocation = host.invocation()
    host.program()
    assert host.invocation() == invocation


def test_only_what_was_stopped_is_started_when_the_switch_did_not_come_to_the_link(
    host: ServiceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances(host)
    host.arm(A, units=INSTANCES, addresses=["127.0.0.1:39999"])
    texts = {"sglang@.service": unit_text(A), "sglang@a.service.d/port.conf": "# Written by ddtree.fleet\n"}
    kept = host.invocation("sglang@b.service")
    monkeypatch.setattr(_gpu_host, "port_holder", lambda *_args: {"pid": 7, "command": "foreign"})
    with pytest.raises(Failure, match=r"127.0.0.1:39999 is held by process 7 \(foreign\)"):
        host.ask("switched", files=texts)
    assert host.running() == ["sglang@b.service"]
    result = host.restore()
    assert host.running() == INSTANCES
    assert host.invocation("sglang@b.service") == kept
    assert any("started although" in remark for remark in result["remarks"])


def test_a_reboot_goes_back_before_anything_starts(host: ServiceHost) -> None:
    serving(host)
    picture = host.picture()
    switched(host)
    host.systemd.boot()
    assert host.program(boot=True) == 0
    assert host.picture() == picture
    stopped = host.calls("stop")[-2]  # the last one stops the timer
    assert stopped == f"stop --no-block -- {UNIT}"


def test_a_reboot_starts_nothing_of_a_first_deployment(host: ServiceHost) -> None:
    switched(host)
    host.systemd.boot()
    assert host.program(boot=True) == 0
    assert host.running() == []
    assert not host.systemd.unit(UNIT)["job"]
    assert host.files() == {}


def test_an_active_release_whose_gate_failed_is_not_the_way_back(host: ServiceHost) -> None:
    serving(host)
    picture = host.picture()
    failed_before(host)
    armed = host.arm("c" * 16)
    assert armed["way_back"] == A
    host.switch(unit_text("c"))
    host.restore()
    after = host.picture()
    assert after["link"] == picture["link"]
    assert after["runs"] == picture["runs"]
    assert after["files"]["etc/systemd/system/sglang.service"] == picture["files"]["etc/systemd/system/sglang.service"]


def test_a_full_disk_does_not_stop_it(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    serving(host)
    picture = host.picture()
    switched(host)
    real = os.fsync
    store = os.path.realpath(host.store.root)

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").startswith((store + "/history", store + "/failed")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(_releases.os, "fsync", full)
    result = host.restore()
    assert host.picture() == picture
    assert host.nothing_is_left()
    assert [remark for remark in result["remarks"] if remark.startswith("the history") and "No space left" in remark]


def test_a_disk_that_is_full_takes_what_was_reserved(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before it is needed: a disk that fills up while a server is stopped would be full again."""
    serving(host)
    picture = host.picture()
    switched(host)
    reserves = list(host.root.rglob("*reserve"))
    assert sorted(path.stat().st_size for path in reserves) == [4096]
    real = os.fsync

    def full(fd: int) -> None:
        if any(map(Path.exists, reserves)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(_releases.os, "fsync", full)
    host.restore()
    assert host.picture() == picture
    assert host.nothing_is_left()


def test_a_stubborn_server_is_killed_when_its_time_is_over(host: ServiceHost) -> None:
    serving(host)
    host.arm()
    host.switch(unit_text(B, "# stubborn\n"))
    result = host.restore()
    assert host.calls("kill") == [f"kill --signal=KILL -- {UNIT}"]
    assert 1 <= result["teardown_seconds"] < 2
    assert result["start_seconds"] < 1
    assert host.runs().startswith(unit_text(A))


def test_what_a_unit_left_in_its_control_group_is_ended_and_nothing_else(host: ServiceHost) -> None:
    serving(host)
    host.arm()
    with subprocess.Popen(["sleep", "60"]) as ours, subprocess.Popen(["sleep", "60"]) as foreign:
        host.switch(unit_text(B, f"# leaves {ours.pid}\n"))
        group = host.systemd.groups / UNIT / "cgroup.procs"
        real = units._kill

        def kill(paths: Any, groups: Any) -> None:
            real(paths, groups)
            ours.wait(10)
            group.write_text("")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(units, "_kill", kill)
            host.restore()
        assert ours.poll() == -9
        assert foreign.poll() is None
        foreign.kill()


def test_the_failed_release_is_kept_without_secrets(host: ServiceHost) -> None:
    serving(host)
    switched(host)
    invocation = host.invocation()
    (host.systemd.state / "journal").write_text("newest line new-key\nServerArgs(api_key='new-key', old='old-key')\n")
    result = host.restore()
    kept = Path(result["kept"])
    assert kept.parent == Path(host.store.root) / "failed"
    assert kept.stat().st_mode & 0o777 == 0o700
    log = (kept / f"{UNIT}.log").read_text()
    assert log == "ServerArgs(api_key=REDACTED, old='REDACTED')\nnewest line REDACTED\n"
    assert (
        f"_SYSTEMD_INVOCATION_ID={invocation} + INVOCATION_ID={invocation}"
        in (host.systemd.state / "journal_calls").read_text()
    )
    assert json.loads((kept / "reason.json").read_text())["reason"] == "the gate failed"
    assert (kept / "units" / UNIT).read_text() == unit_text(B)


def test_the_newest_five_are_kept(host: ServiceHost) -> None:
    serving(host)
    root = Path(host.store.root) / "failed"
    for number in range(7):
        (root / f"2020010{number + 1}T000000Z-{B}").mkdir(parents=True)
    switched(host)
    host.restore()
    names = sorted(path.name for path in root.iterdir())
    assert len(names) == 5
    assert names[0] == f"20200104T000000Z-{B}"


def test_an_old_server_that_does_not_start_is_said(host: ServiceHost) -> None:
    host.write(UNIT, unit_text(A))
    serving(host)
    switched(host)
    marker = markers.load(host.paths)
    assert marker is not None
    path = Path(host.paths.marker)
    data = json.loads(path.read_text())
    data["before"]["files"][UNIT]["content"] = (
        "IyBicm9rZW4KRXhlY1N0YXJ0PS9vbGQK"  # a unit that ends as soon as it starts
    )
    path.write_text(json.dumps(data))
    with pytest.raises(Failure, match=f"release {A} is back, but does not serve: {UNIT} did not start: failed"):
        host.restore()
    assert host.store.active() == A


def test_a_systemd_that_does_not_answer_leaves_the_marker(
    host: ServiceHost, capsys: pytest.CaptureFixture[str]
) -> None:
    serving(host)
    picture = host.picture()
    switched(host)
    (host.systemd.state / "fails").write_text("daemon-reload")
    assert host.program() == 1
    assert "daemon-reload fails here" in capsys.readouterr().err
    assert os.path.exists(host.paths.marker)
    (host.systemd.state / "fails").unlink()
    assert host.program() == 0
    assert host.picture() == picture


def test_a_damaged_marker_is_named(host: ServiceHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.arm()
    Path(host.paths.marker).write_text('{"unit": "sg')
    assert host.program() == 1
    assert f"{host.paths.marker} is damaged" in capsys.readouterr().err


def test_the_program_runs_by_itself(host: ServiceHost) -> None:
    serving(host)
    picture = host.picture()
    switched(host)
    command = [sys.executable, "-I", host.paths.program]
    told = subprocess.run(
        [*command, "status", "--root", str(host.root), "sglang"], capture_output=True, text=True, check=True
    )
    assert f"release {B} of anna (run run-1)" in told.stdout
    assert f"release {A} comes back in " in told.stdout
    done = subprocess.run(
        [*command, "restore", "--root", str(host.root), "sglang"], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert f"release {B} was taken back (nobody confirmed it within 100 s); release {A} is there again" in done.stdout
    assert host.picture() == picture
    looked = host.store.history()[-1]
    assert (looked["event"], looked["by"]) == ("looked", "timer")
    assert "Connection refused" in looked["health"]
