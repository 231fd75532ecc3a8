# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._service import arm, free, units
from ansible_collections.ddtree.fleet.plugins.module_utils._service import marker as markers
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import ServiceError
from ansible_collections.ddtree.fleet.plugins.module_utils._service.states import Failure
from ansible_collections.ddtree.fleet.tests.unit.service_host import UNIT, A, B, C, ServiceHost, make_host, unit_text

RunModule = Callable[..., Dict[str, Any]]
CHECK_PROGRAM = arm.check_program  # which a host of the tests leaves out


@pytest.fixture(name="host")
def host_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceHost:
    return make_host(tmp_path, monkeypatch)


def test_a_deployment_that_is_confirmed(host: ServiceHost) -> None:
    host.serve()
    armed = host.arm()
    assert (armed["changed"], armed["release"], armed["way_back"], armed["active"]) == (True, B, A, A)
    assert armed["pending"]["phase"] == "armed"
    assert 95 < armed["pending"]["seconds_left"] <= 100
    switched = host.switch()
    assert (switched["changed"], switched["active"], switched["pending"]["phase"]) == (True, B, "switched")
    assert switched["start_seconds"] < 2
    assert [step["name"] for step in switched["steps"]] == [
        "stop",
        "wait until free",
        "link",
        "unit files",
        "reload",
        "start",
    ]
    assert switched["units"] == [
        {
            "name": UNIT,
            "active": True,
            "enabled": True,
            "state": "active",
            "invocation": host.invocation(),
            "since": "Mon 2026-11-30 12:00:00 UTC",
        }
    ]
    confirmed = host.ask("confirmed", proof={"tokens": 3})
    assert (confirmed["changed"], confirmed["pending"], confirmed["drift"]) == (True, {}, [])
    assert confirmed["confirmed"]["release"] == B
    assert confirmed["confirmed"]["proof"] == {"tokens": 3}
    assert host.store.verdict(B) == "passed"
    assert host.nothing_is_left()
    assert not [name for name in host.files() if "way-back" in name]
    host.write("sglang.service.d/new.conf", "[Service]\n")
    assert host.ask("present")["drift"] == ["sglang.service.d/new.conf"]


def test_what_is_armed_survives_a_reboot_and_needs_no_release(
    host: ServiceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.serve()
    host.arm(units=["sglang@a.service"])
    files = host.files()
    timer = files["etc/systemd/system/way-back-of-sglang.timer"]
    assert "\nOnActiveSec=100\n" in timer
    assert "\nOnStartupSec=1100\n" in timer or "\nOnStartupSec=1101\n" in timer  # systemd runs since 1000 s
    boot = files["etc/systemd/system/way-back-at-boot-of-sglang.service"]
    assert "\nBefore=sglang.service sglang@a.service\n" in boot
    assert f"\nConditionPathExists={host.paths.marker}\n" in boot
    assert f"\nExecStart={sys.executable} -I {host.paths.program} restore --boot --root {host.root} sglang\n" in boot
    assert files["etc/systemd/system/timers.target.wants/way-back-of-sglang.timer"] == "-> ../way-back-of-sglang.timer"
    assert "etc/systemd/system/multi-user.target.wants/way-back-at-boot-of-sglang.service" in files
    assert Path(host.paths.marker).stat().st_mode & 0o777 == 0o600
    assert Path(host.paths.state).stat().st_mode & 0o777 == 0o700


def test_no_content_of_files_is_in_a_result(host: ServiceHost) -> None:
    host.key(A, "the-old-key")
    host.write(UNIT, unit_text(A, "Environment=HF_TOKEN=hidden\n"))
    host.serve()
    told = json.dumps([host.arm(), host.switch(), host.restore()])
    assert "the-old-key" not in told
    assert "hidden" not in told


def test_check_mode_writes_nothing_and_says_what_would_change(host: ServiceHost) -> None:
    host.serve()
    before = (host.files(), sorted(map(str, host.root.rglob("*"))))
    assert host.arm(check=True)["changed"] is True
    would = host.switch(check=True, release=B)
    assert (would["changed"], would["active"]) == (True, B)
    assert [(item["before_header"].rpartition("/")[2], item["after"]) for item in would["diff"]] == [
        ("active release", B),
        (UNIT, unit_text(B)),
    ]
    assert host.ask("switched", files={UNIT: unit_text(A)}, release=A, check=True)["changed"] is False
    assert host.ask("confirmed", release=B, check=True)["changed"] is True  # as after the others in a play
    assert host.restore(check=True)["changed"] is False
    assert (host.files(), sorted(map(str, host.root.rglob("*")))) == before
    host.arm()
    assert host.restore(check=True)["changed"] is True
    assert host.restore(run_id="run-2", check=True)["changed"] is False
    with pytest.raises(Failure, match=f"release {B} is armed, not switched"):
        host.ask("confirmed", check=True)
    with pytest.raises(Failure, match="the release that is pending is .*, not of run run-2"):
        host.ask("confirmed", run_id="run-2", check=True)
    assert host.ask("present")["pending"]["phase"] == "armed"


def test_another_release_than_the_one_that_was_armed_is_refused(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    for state in ("switched", "confirmed"):
        with pytest.raises(Failure, match=f"release {B} was armed, not {C}; take the way back"):
            host.ask(state, release=C)


def test_arming_again_that_fails_takes_the_first_one_back(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.arm()
    with monkeypatch.context() as patch:
        patch.setattr(arm.program, "write", lambda _path: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(Failure, match="No space left"):
            host.arm(C)
    assert host.nothing_is_left()
    with pytest.raises(Failure, match="nothing is armed for run run-1"):
        host.ask("switched", files={UNIT: unit_text(B)})


def test_nothing_is_restarted_when_nothing_changed(host: ServiceHost) -> None:
    host.serve()
    invocation = host.invocation()
    host.arm(A)
    switched = host.ask("switched", files={UNIT: unit_text(A)})
    assert switched["changed"] is False
    assert host.invocation() == invocation
    host.ask("confirmed")
    host.arm(A)
    host.switch(unit_text("other flags"))
    assert host.invocation() != invocation
    host.restore()
    assert host.store.verdict(A) == "passed"  # what failed was not the release, which serves again


def test_a_new_key_starts_the_server_anew(host: ServiceHost) -> None:
    host.key(A, "old")
    host.serve()
    host.arm(A)
    host.key(A, "new")
    assert host.ask("switched", files={UNIT: unit_text(A)})["changed"] is True
    invocation = host.invocation()
    host.restore()
    assert host.invocation() != invocation
    assert 'api-key: "old"' in host.files()[f"etc/ddtree-fleet/sglang/{A}.yaml"]


def test_from_one_unit_to_instances_and_back(host: ServiceHost) -> None:
    host.serve()
    picture = host.picture()
    names = ["sglang@a.service", "sglang@b.service"]
    host.arm(units=names)
    host.ask(
        "switched",
        files={"sglang@.service": unit_text(B), "sglang@a.service.d/port.conf": "# Written by ddtree.fleet\n"},
    )
    assert host.running() == names
    assert UNIT not in [name.rpartition("/")[2] for name in host.files()]
    host.restore()
    assert host.picture() == picture


def test_to_a_release_of_before_with_the_unit_files_saved_with_it(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    host.switch()
    host.ask("confirmed")
    assert host.arm("previous", run_id="run-2")["release"] == A
    host.ask("switched", run_id="run-2")
    host.ask("confirmed", run_id="run-2")
    assert host.runs() == unit_text(A)
    host.arm(C, run_id="run-3")
    with pytest.raises(Failure, match=f"no unit files were saved with release {C}; give them as files"):
        host.ask("switched", run_id="run-3")


def test_somebody_else_is_not_overtaken(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    host.switch()
    with pytest.raises(
        Failure, match=rf"release {B} of anna \(run run-1\) since .* is not confirmed yet.* is taken in (99|100) s"
    ):
        host.arm(C, run_id="run-2")
    with pytest.raises(Failure, match=f"the release that is pending is {B} of anna"):
        host.ask("confirmed", run_id="run-2")
    assert host.restore(run_id="run-2")["changed"] is False
    assert host.ask("present")["pending"]["release"] == B
    assert host.restore(run_id=None)["changed"] is True
    assert host.arm(C, run_id="run-2")["pending"]["release"] == C


def test_confirming_after_the_way_back_was_taken_says_so(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    host.switch()
    assert host.program() == 0
    with pytest.raises(Failure) as caught:
        host.ask("confirmed")
    said = str(caught.value)
    assert f"the way back from release {B} was taken at " in said
    assert f"(nobody confirmed it within 100 s), and release {A} serves again; what failed is kept in " in said
    assert caught.value.result["active"] == A
    late = host.restore()
    assert (late["changed"], late["way_back"], late["kept"] != "") == (False, A, True)


def test_confirming_what_does_not_serve_any_more_is_refused(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    with pytest.raises(Failure, match=f"release {B} is armed, not switched"):
        host.ask("confirmed")
    host.switch()
    host.systemctl("stop", UNIT)
    with pytest.raises(Failure, match=f"release {B} does not serve any more: {UNIT} is inactive"):
        host.ask("confirmed")
    host.systemctl("start", UNIT)
    host.store.activate(A)
    with pytest.raises(Failure, match=f"release {B} does not serve any more: .*{host.dest} leads to {A}"):
        host.ask("confirmed")
    with pytest.raises(Failure, match="is not confirmed; take the way back with state=restored"):
        host.ask("confirmed", verdict="failed")
    assert host.ask("present")["pending"]["release"] == B


def test_another_invocation_than_the_one_that_was_started_is_not_confirmed(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    host.switch()
    host.systemctl("stop", UNIT)
    host.systemctl("start", UNIT)
    with pytest.raises(Failure, match=f"{UNIT} was started anew"):
        host.ask("confirmed")


def test_arming_that_fails_leaves_nothing(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    before = host.files()
    with monkeypatch.context() as patch:
        patch.setattr(markers, "store", lambda *_args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(Failure, match="No space left on device"):
            host.arm()
    assert host.nothing_is_left()
    assert host.files() == before


def test_a_confirmation_that_is_cut_off_holds_or_does_not(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.arm()
    host.switch()
    with monkeypatch.context() as patch:
        patch.setattr(markers, "forget", lambda _paths: sys.exit("killed"))
        with pytest.raises(SystemExit):
            host.ask("confirmed")
    assert host.ask("present")["confirmed"] == {}
    with monkeypatch.context() as patch:
        real = markers.forget
        patch.setattr(markers, "forget", lambda paths: (real(paths), sys.exit("killed")))
        with pytest.raises(SystemExit):
            host.ask("confirmed")
    assert host.ask("present")["confirmed"]["release"] == B
    assert host.program() == 0  # the timer still runs, and finds nothing to do but to clear up
    assert host.runs() == unit_text(B)
    assert not [name for name in host.files() if "way-back" in name]


def test_who_holds_the_lock_is_said(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.arm()
    host.switch()
    monkeypatch.setattr(markers.locked.__wrapped__, "__defaults__", (0.1,))
    with (
        markers.locked(host.paths, "the way back"),
        pytest.raises(
            Failure, match=rf"sglang: the way back, process {os.getpid()}, since .* still holds .* after 0 s"
        ),
    ):
        host.ask("confirmed")
    assert host.ask("confirmed")["changed"] is True


def test_a_drop_in_that_runs_something_else_is_refused(host: ServiceHost) -> None:
    host.serve()
    path = host.write("sglang.service.d/by-hand.conf", "[Service]\nExecStart=\nExecStart=/bin/other\n")
    with pytest.raises(Failure, match=rf"{path} sets ExecStart="):
        host.arm()
    path.unlink()
    elsewhere = host.root / "run.conf"
    elsewhere.write_text("[Service]\nExecStart=/bin/other\n")
    (host.systemd.state / "drop_ins").write_text(str(elsewhere))
    with pytest.raises(Failure, match=rf"{elsewhere} sets ExecStart="):
        host.arm()
    assert not os.path.exists(host.paths.marker)


def test_a_drop_in_that_came_after_arming_is_refused_too(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    path = host.write("sglang.service.d/by-hand.conf", "[Service]\nExecStart=\nExecStart=/bin/other\n")
    with pytest.raises(Failure, match=rf"{path} sets ExecStart="):
        host.switch()
    assert host.running() == [UNIT]
    path.unlink()
    elsewhere = host.root / "run.conf"
    elsewhere.write_text("[Service]\nExecStart=/bin/other\n")
    (host.systemd.state / "drop_ins").write_text(str(elsewhere))
    with pytest.raises(Failure, match=rf"{elsewhere} sets ExecStart="):
        host.switch()
    assert host.running() == []


def test_a_systemd_that_would_run_something_else_is_refused_before_it_starts(
    host: ServiceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.serve()
    host.arm()
    real = host.systemd.loaded
    monkeypatch.setattr(host.systemd, "loaded", lambda name: real(name).replace("/venv/bin/python", "/bin/other"))
    with pytest.raises(
        Failure, match=f"{UNIT}: its unit file says /venv/bin/python, but systemd would run .*/bin/other"
    ):
        host.switch()
    monkeypatch.setattr(host.systemd, "loaded", lambda _name: "")
    with pytest.raises(Failure, match=rf"{UNIT}: systemd does not load it \(not-found\); see systemctl status"):
        host.switch()
    assert host.running() == []


def test_a_server_that_ends_at_once_fails_the_switch(host: ServiceHost) -> None:
    host.serve()
    host.arm()
    (host.systemd.state / "journal").write_text("bad interpreter\n")
    with pytest.raises(Failure, match=f"{UNIT} did not start: failed .*\nbad interpreter") as caught:
        host.switch(unit_text(B, "# broken\n"))
    assert caught.value.result["pending"]["phase"] == "switching"
    host.restore()
    assert host.runs() == unit_text(A)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"release": "d" * 16}, "no release d{16} in "),
        ({"release": "previous"}, "has no previous release that served well"),
        ({"units": ["other.service"]}, "units: other.service is no unit of the family sglang"),
        ({"units": ["sglang@.service"]}, "units: sglang@.service is no unit of the family sglang"),
        ({"timeout": 3}, "timeout of 3 s is too short: the new server alone may take 3 s"),
        ({"addresses": ["30001"]}, "addresses: '30001' is no HOST:PORT"),
        ({"addresses": ["[::]:99999"]}, "is no HOST:PORT"),
        ({"stop_timeout": 0}, "stop_timeout must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_armed_is_refused_in_check_mode_too(
    host: ServiceHost, options: Dict[str, Any], problem: str
) -> None:
    for check in (True, False):
        with pytest.raises(Failure, match=problem):
            host.arm(check=check, **options)
    assert host.files() == {}
    assert not os.path.exists(host.paths.marker)


def test_a_directory_at_dest_has_to_be_adopted_first(host: ServiceHost) -> None:
    host.dest.mkdir()
    (host.dest / "file").touch()
    with pytest.raises(Failure, match="is a directory, not a release; adopt it first"):
        host.arm()


def test_units_that_were_not_armed_are_not_switched_to(host: ServiceHost) -> None:
    host.arm()
    with pytest.raises(Failure, match="units sglang.service were armed, not sglang@a.service"):
        host.switch(units=["sglang@a.service"])
    with pytest.raises(Failure, match="nothing is armed for run x|is pending is"):
        host.switch(run_id="x")
    with pytest.raises(Failure, match=f"files have no unit file for {UNIT}"):
        host.ask("switched", files={"sglang@.service": "[Service]\n"})


def test_a_python_inside_of_a_release_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dest = tmp_path / "venv"
    inside = tmp_path / "venv.releases" / A / "bin" / "python"
    inside.parent.mkdir(parents=True)
    inside.write_text("#!/bin/sh\necho 3 12\n")
    inside.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(inside))
    assert arm.choose_python(str(dest)) == os.path.realpath("/usr/bin/python3")
    monkeypatch.setattr(arm, "SYSTEM_PYTHON", "/nonexistent")
    with pytest.raises(
        ServiceError, match=f"needs a Python outside {dest} and its releases: {inside} is inside or too old"
    ):
        arm.choose_python(str(dest))


def test_a_program_that_does_not_run_is_found_when_arming(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    monkeypatch.setattr(arm, "check_program", CHECK_PROGRAM)
    monkeypatch.setattr(arm.program, "write", lambda path: Path(path).write_text("no program"))
    with pytest.raises(Failure, match=f"{host.paths.program} does not run with .*: SyntaxError"):
        host.arm()
    assert not os.path.exists(host.paths.marker)


def test_a_full_disk_refuses_to_arm(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    files = host.files()

    def full(path: str, content: Any, mode: int = 0) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(markers, "write_atomically", full)
    with pytest.raises(Failure, match=r"cannot be kept \(No space left on device\); make room there"):
        host.arm()
    assert (host.files(), host.nothing_is_left()) == (files, True)


def test_a_port_that_is_held_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [{"pid": 9, "command": "other"}, {"pid": 9, "command": "other"}, None]
    monkeypatch.setattr(free._gpu_host, "port_holder", lambda *_args: held.pop(0))
    monkeypatch.setattr(free._gpu_host, "query", lambda *_args: [])
    monkeypatch.setattr(free, "POLL_SECONDS", 0)
    assert free.wait(free.Needs(["127.0.0.1:1"]), 5) == []
    assert held == []


@pytest.mark.parametrize(("gpus", "named"), [([], [0, 3]), ([0, 1], [0]), ([1], [])])
def test_only_our_gpus_have_to_be_free(monkeypatch: pytest.MonkeyPatch, gpus: list[int], named: list[int]) -> None:
    def query(kind: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
        if kind == "gpu":
            return [
                {**dict.fromkeys(fields, "1"), "index": str(number), "uuid": f"GPU-{number}"} for number in range(4)
            ]
        row = {"process_name": "train.py", "used_gpu_memory": "1"}
        return [{**row, "pid": str(2**22 + number), "gpu_uuid": f"GPU-{number}"} for number in (0, 3)]

    monkeypatch.setattr(free._gpu_host, "query", query)
    found = free.holders(free.Needs(gpus=gpus))
    assert found == [f"GPU {number} is held by process {2**22 + number} (train.py)" for number in named]


def test_gpus_that_cannot_be_looked_at_count_as_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(_kind: str, _fields: tuple[str, ...]) -> list[dict[str, str]]:
        raise free.HostError("nvidia-smi failed: Unknown Error")

    monkeypatch.setattr(free._gpu_host, "query", query)
    assert free.wait(free.Needs(), 0) == ["nvidia-smi failed: Unknown Error"]


def test_the_module_by_itself(host: ServiceHost, run_module: RunModule) -> None:
    args = {"dest": str(host.dest), "unit": UNIT}
    present = run_module("service_release", args)
    assert (present["rc"], present["changed"], present["active"], present["pending"]) == (0, False, "", {})
    for more, problem in (
        ({"state": "armed"}, "missing: release, timeout, run_id|all of the following are missing"),
        ({"unit": "a/b.service"}, "unit must be the name of a service"),
        ({"dest": "/"}, "dest must be an absolute path"),
    ):
        refused = run_module("service_release", {**args, **more})
        assert refused["rc"] == 1
        assert any(part in refused["msg"] for part in problem.split("|"))


def test_without_root_what_cannot_be_read_is_said(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.arm()

    def refused(path: str) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(markers, "missing_ok", refused)
    present = host.ask("present")
    assert (present["active"], present["pending"], present["confirmed"]) == (A, {}, {})
    assert [unit["name"] for unit in present["units"]] == [UNIT]
    assert present["warnings"] == [
        f"this user may not read {host.paths.marker}, so that what is pending is not known; use become: true"
    ]
    with pytest.raises(Failure, match=r"pending.json: Permission denied; this needs root, use become: true"):
        host.restore()


def test_a_unit_that_would_not_start_at_boot_is_refused(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.arm()
    monkeypatch.setattr(host.systemd, "enable", lambda *_args: None)
    with pytest.raises(Failure, match=rf"{UNIT} would not start at boot; its unit file needs an \[Install\] section"):
        host.switch()
    assert host.running() == []


def test_a_unit_file_must_be_text(host: ServiceHost) -> None:
    host.arm()
    with pytest.raises(Failure, match=f"files: {UNIT} must be the text of the file, not int"):
        host.ask("switched", files={UNIT: 1})


def test_processes_of_a_server_that_ended_long_ago_are_found(host: ServiceHost) -> None:
    host.serve()
    host.systemctl("kill", UNIT)
    (host.systemd.groups / UNIT / "cgroup.procs").write_text("4194303\n")
    found = units.look("sglang")[UNIT]
    assert found.down
    assert units._processes(host.paths, units._groups_named(host.paths, UNIT)) == [4194303]
    assert list(units._groups_named(host.paths, "other.service")) == []


def test_switching_ends_what_a_unit_that_crashed_has_left(host: ServiceHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve()
    host.systemctl("kill", UNIT)
    left = host.systemd.groups / UNIT / "cgroup.procs"
    left.write_text("4194303\n")
    monkeypatch.setattr(units.os, "kill", lambda pid, _signal: left.write_text("") if pid == 4194303 else None)
    host.arm()
    host.switch()
    assert host.runs() == unit_text(B)
    assert "4194303" not in left.read_text()
