# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a process, with a stand-in for systemctl."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from ansible_collections.ddtree.fleet.tests.unit.gpu_hosts import host

FAKES = Path(__file__).resolve().parents[3] / "replay" / "fake_systemd"


def test_the_port_is_looked_at_where_the_service_will_listen(
    run_module: Callable[..., Dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    (tmp_path / "unit").write_text("active=inactive\n")
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        addresses = [f"{host}:{port}" for host in ("127.0.0.2", "0.0.0.0", "127.0.0.1")]
        arguments = {"addresses": addresses, "unit": "sglang.service", "paths": ["/", "/nowhere"]}
        found = run_module("gpu_host_info", arguments)
    assert [(holder["pid"], holder["address"]) for holder in found["port_holders"]] == [
        (os.getpid(), f"127.0.0.2:{port}"),
        (os.getpid(), f"127.0.0.2:{port}"),
    ]
    assert found["missing_paths"] == ["/nowhere"]
    assert found["changed"] is False


def test_the_processes_of_all_units_are_not_foreign(
    run_module: Callable[..., Dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    uuids = [row["uuid"] for row in _gpus_of(host(tmp_path, monkeypatch, "b300"))]
    (tmp_path / "unit").write_text(f"pid={os.getpid()} group=/nowhere\n")
    with open(tmp_path / "data" / "compute-apps.csv", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}, python3, 5 MiB, {uuids[4]}\n")
    arguments = {"addresses": ["127.0.0.1:1"], "units": ["one@a.service", "one@b.service"]}
    foreign = {
        str(gpus): run_module("gpu_host_info", {**arguments, "gpus": gpus})["foreign_gpu_processes"]
        for gpus in ([], [0, 1], [4, 5])
    }
    assert {gpus: [process["gpus"] for process in processes] for gpus, processes in foreign.items()} == {
        "[]": [[4]],
        "[0, 1]": [],
        "[4, 5]": [[4]],
    }
    group = next(line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup", encoding="utf-8"))
    (tmp_path / "unit").write_text(f"pid={os.getpid()} group={group}\n")
    found = run_module("gpu_host_info", {**arguments, "gpus": [5, 4]})
    assert found["foreign_gpu_processes"] == []
    assert [gpu["index"] for gpu in found["gpus"]] == [5, 4]
    assert [(unit["name"], unit["active"]) for unit in found["units"]] == [
        ("one@a.service", True),
        ("one@b.service", True),
    ]


def _gpus_of(data: Path) -> List[Dict[str, str]]:
    header, *rows = [line.split(", ") for line in (data / "query-gpu.csv").read_text().splitlines()]
    return [dict(zip(header, row)) for row in rows]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": [3]}, "gpus names GPU 3, this host has no GPU"),
        ({"addresses": ["30001"]}, "addresses: '30001' is no HOST:PORT, such as 127.0.0.1:30001"),
    ],
)
def test_wrong_options_are_one_clear_error(
    run_module: Callable[..., Dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: Dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    (tmp_path / "unit").write_text("active=inactive\n")
    result = run_module("gpu_host_info", {"addresses": ["127.0.0.1:1"], "units": ["one.service"], **options})
    assert result["failed"]
    assert message in result["msg"]
