# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._systemd import SystemdError, UnitState

FAKES = Path(__file__).resolve().parents[4] / "tests" / "replay" / "fake_systemd"


def state(**changes: Any) -> UnitState:
    values = {"load": "loaded", "active": "active", "sub": "running", "result": "success", "exit_status": "0"}
    more = {"invocation": "a", "restarts": 0, "main_pid": 1, "control_group": "/a.slice/x.service", "environment": ""}
    return UnitState(unit="x.service", **{**values, **more, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"active": "activating", "sub": "start"}, ""),
        ({"active": "reloading"}, ""),
        ({"load": "not-found", "active": "inactive"}, "systemd knows no such unit"),
        ({"active": "inactive", "sub": "dead"}, "inactive (dead, result success)"),
        (
            {"active": "failed", "sub": "failed", "result": "exit-code", "exit_status": "3"},
            "failed (failed, result exit-code, exit status 3)",
        ),
        ({"active": "activating", "sub": "auto-restart"}, "activating (auto-restart, result success)"),
        ({"active": "activating", "sub": "auto-restart-queued"}, "activating (auto-restart-queued, result success)"),
        ({"restarts": 4}, "active, but systemd restarted it while the gate ran (its 3 restarts became 4)"),
        ({"restarts": 3}, ""),
        ({"invocation": "b"}, "was started anew while the gate ran (invocation a became b)"),
    ],
)
def test_what_counts_as_down(changes: Any, reason: str) -> None:
    found = state(**{"restarts": 3, **changes}).down(state(restarts=3))
    assert reason in found
    assert bool(found) == bool(reason)


def test_restarts_of_last_week_count_only_for_a_fresh_unit() -> None:
    assert state(restarts=2).down() == ""
    assert state(restarts=2).down(fresh=True) == "active, but systemd has restarted it 2 times since it was started"
    assert state().down(state(), fresh=True) == ""


@pytest.fixture(name="systemd")
def systemd_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    return tmp_path


def test_a_unit_is_read(systemd: Path) -> None:
    (systemd / "unit").write_text(f"pid={os.getpid()} restarts=1 invocation=77 group=/a environment='A=1 B=2=3'\n")
    found = _systemd.show("x.service")
    assert (found.active, found.restarts, found.invocation, found.control_group) == ("active", 1, "77", "/a")
    assert found.main_pid == os.getpid()
    assert found.environment == "A=1 B=2=3"


def test_systemctl_that_fails_is_one_clear_error(systemd: Path) -> None:
    (systemd / "fail").write_text("System has not been booted with systemd as init system (PID 1). Can't operate.")
    with pytest.raises(SystemdError, match="systemctl show failed: System has not been booted"):
        _systemd.show("x.service")


def test_a_missing_systemctl_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemdError, match="systemctl cannot be run .*needs a host that systemd runs"):
        _systemd.show("x.service")
    assert _systemd.journal("x.service", "a", Redactor())[0].startswith(
        "(journal not readable: journalctl cannot be run"
    )


def test_a_systemctl_that_hangs_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(_systemd, "ANSWER_SECONDS", 0.3)
    with pytest.raises(SystemdError, match="systemctl did not answer within 0.3 s"):
        _systemd.show("x.service")


def test_journal_lines_are_bounded(systemd: Path) -> None:
    (systemd / "journal").write_text("".join(f"line {number} {'x' * 1000}\n" for number in range(30)))
    lines = _systemd.journal("x.service", "a", Redactor())
    assert len(lines) == 20
    assert lines[-1].startswith("line 29")
    assert max(map(len, lines)) == 400


def test_a_key_at_the_end_of_what_a_journal_line_may_have_is_hidden(systemd: Path) -> None:
    (systemd / "journal").write_text("".join(f"{'x' * (375 + number)} CANARY-KEY\n" for number in range(20)))
    assert "CANARY" not in "".join(_systemd.journal("x.service", "a", Redactor(["CANARY-KEY"])))


def test_a_whole_journal_is_read_line_by_line(systemd: Path) -> None:
    (systemd / "journal").write_text("".join(f"line {number}\n" for number in range(5000)) + "y" * 200_000 + "\nlast")
    lines = list(_systemd.journal_lines("x.service", "a", 20))
    assert (len(lines), lines[0], lines[4999], lines[-1]) == (5002, "line 0", "line 4999", "last")
    assert lines[5000] == "y" * _systemd.LONGEST_LINE


def test_a_journal_that_does_not_end_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "journalctl").write_text("#!/bin/sh\necho first\nexec sleep 60\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines = _systemd.journal_lines("x.service", "a", 0.3)
    assert next(lines) == "first"
    with pytest.raises(SystemdError, match="the journal was not read to its end within 0 s"):
        next(lines)


def test_a_journalctl_that_fails_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "journalctl").write_text("#!/bin/sh\nexit 4\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SystemdError, match="journalctl failed: exit status 4"):
        list(_systemd.journal_lines("x.service", "a", 10))


NAME = "SGLANG_SIMULATE_ACC_LEN"


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        ("SGLANG_SIMULATE_ACC_LEN=3", "3"),
        ("A=1 SGLANG_SIMULATE_ACC_LEN=2.5 B=2", "2.5"),
        ('A=1 "SGLANG_SIMULATE_ACC_LEN=4"', "4"),
        ("SGLANG_SIMULATE_ACC_LEN=", "(empty)"),
        ("NOT_SGLANG_SIMULATE_ACC_LEN=3", None),
    ],
)
def test_a_variable_in_the_unit_is_found(environment: str, value: Optional[str]) -> None:
    found = _systemd.variable(state(environment=environment, main_pid=0, control_group=""), NAME)
    assert found.settings.get("the unit x.service") == value


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (f"A=1\n{NAME}=3\n", "3"),
        (f"export {NAME} = 'x'\n", "x"),
        # systemd takes what looks like a comment for a part of the value.
        (f"{NAME}=-1 # off\n", "-1 # off"),
        (f"{NAME}=\n", "(empty)"),
        (f"#{NAME}=3\n; {NAME}=3\nX{NAME}=3\n", None),
    ],
)
def test_a_variable_in_an_environment_file_is_found(tmp_path: Path, content: str, value: Optional[str]) -> None:
    (tmp_path / "server.env").write_text(content)
    files = (f"{tmp_path}/gone", f"{tmp_path}/*.env")
    found = _systemd.variable(state(environment_files=files, main_pid=0, control_group=""), NAME)
    assert found.settings.get(f"{tmp_path}/server.env") == value
    assert found.unread == ()


def test_an_environment_file_that_is_none_is_said_to_be_unread(tmp_path: Path) -> None:
    found = _systemd.variable(state(environment_files=(str(tmp_path),), main_pid=0, control_group=""), NAME)
    assert found.unread == (f"{tmp_path} (Is a directory)",)


def test_environment_files_of_a_unit_are_read(systemd: Path) -> None:
    (systemd / "unit").write_text(f"pid={os.getpid()} environment_file=/etc/default/server\n")
    assert _systemd.show("x.service").environment_files == ("/etc/default/server",)


def test_a_variable_of_the_process_is_found() -> None:
    name, value = next((name, value) for name, value in os.environ.items() if value and " " not in value)
    found = _systemd.variable(state(main_pid=os.getpid(), control_group="/"), name)
    assert found.settings == {f"/proc/{os.getpid()}/environ": value}
