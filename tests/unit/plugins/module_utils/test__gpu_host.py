# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError
from ansible_collections.ddtree.fleet.tests.unit.gpu_hosts import host, put_on_path

UUIDS = [
    row.split(", ")[2]
    for row in (Path(__file__).parents[3] / "fleet/nvidia_smi/b300/query-gpu.csv").read_text().splitlines()[1:]
]


@pytest.mark.parametrize(
    ("kind", "name", "capability", "memory"),
    [
        ("b300", "NVIDIA B300 SXM6 AC", "10.3", 275040),
        ("rtx_pro_6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887),
    ],
)
def test_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, capability: str, memory: int
) -> None:
    host(tmp_path, monkeypatch, kind)
    gpus = _gpu_host.gpus()
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert len({gpu["uuid"] for gpu in gpus}) == 8
    assert {(gpu["name"], gpu["compute_capability"], gpu["memory_total_mib"], gpu["mig"]) for gpu in gpus} == {
        (name, capability, memory, False)
    }
    assert _gpu_host.foreign_gpu_processes("/system.slice/sglang.service") == []


def test_foreign_processes_are_told_with_their_command_but_not_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = host(tmp_path, monkeypatch, "b300")
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "--port=1", "x" * 80, "--api-key", "s3cret" * 30]
    ) as process:
        try:
            with open(data / "compute-apps.csv", "a", encoding="utf-8") as file:
                file.write(f"{process.pid}, python3, 120 MiB, {UUIDS[1]}\n{process.pid}, python3, 3 MiB, {UUIDS[2]}\n")
                file.write("4194300, /opt/gone, 7 MiB, GPU-y\n")
            found = _gpu_host.foreign_gpu_processes("/system.slice/sglang.service")
            group = next(
                line.split(":", 2)[2].strip() for line in open(f"/proc/{process.pid}/cgroup", encoding="utf-8")
            )
            inside = _gpu_host.foreign_gpu_processes("/other.slice", group) if group != "/" else []
        finally:
            process.kill()
    assert [one["pid"] for one in found] == [process.pid, 4194300]
    assert "--api-key REDACTED" in found[0]["command"]
    assert "s3cret" not in str(found)
    assert (found[0]["memory_mib"], found[0]["gpus"]) == (123, [1, 2])
    assert (found[1]["command"], found[1]["memory_mib"]) == ("/opt/gone", 7)
    assert process.pid not in [one["pid"] for one in inside]


def test_a_process_name_with_commas_is_not_overlooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_host, "gpus", list)
    put_on_path(tmp_path, monkeypatch, '#!/bin/sh\necho "4194300, 12, GPU-y, /opt/my, odd \\"name"\n')
    assert _gpu_host.foreign_gpu_processes("/x") == [
        {"pid": 4194300, "command": '/opt/my, odd "name', "memory_mib": 12, "gpus": []}
    ]


@pytest.mark.parametrize(
    ("indices", "pids"),
    [
        ([], [4194300, 4194301, 4194302]),
        ([0, 1, 2, 3], [4194300, 4194302]),
        ([6], [4194301, 4194302]),
        ([7], [4194302]),
    ],
)
def test_only_processes_on_the_chosen_gpus_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indices: List[int], pids: List[int]
) -> None:
    """One whose GPU has no known UUID, as an instance of MIG has not, counts wherever one looks."""
    with open(host(tmp_path, monkeypatch, "b300") / "compute-apps.csv", "a", encoding="utf-8") as file:
        file.write(f"4194300, python3, 1 MiB, {UUIDS[1]}\n4194301, python3, 1 MiB, {UUIDS[6]}\n")
        file.write("4194302, python3, 1 MiB, MIG-1\n")
    among = _gpu_host.chosen(_gpu_host.gpus(), indices) if indices else []
    assert [process["pid"] for process in _gpu_host.foreign_gpu_processes(among=among)] == pids


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 8, 9], "gpus names GPU 8, 9, this host has 0, 1, 2, 3, 4, 5, 6, 7"),
        ([-1], "gpus names GPU -1, this host has 0"),
        ([1, 2, 1], "gpus names a GPU twice: 1, 2, 1"),
    ],
)
def test_gpus_that_cannot_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indices: List[int], message: str
) -> None:
    host(tmp_path, monkeypatch, "b300")
    with pytest.raises(HostError, match=message):
        _gpu_host.chosen(_gpu_host.gpus(), indices)
    with pytest.raises(HostError, match="gpus names GPU .*, this host has no GPU"):
        _gpu_host.chosen([], indices)


@pytest.mark.parametrize(
    ("text", "place"), [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::]:30001", ("::", 30001)), ("gpu-1:80", ("gpu-1", 80))]
)
def test_addresses(text: str, place: Tuple[str, int]) -> None:
    assert _gpu_host.split_address(text) == place


@pytest.mark.parametrize("text", ["30001", ":30001", "host:", "host:0", "host:65536", "host:http", "host:\u0661"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(HostError, match="is no HOST:PORT, such as"):
        _gpu_host.split_address(text)


def test_a_host_without_nvidia_smi_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _gpu_host.gpus() == []


def test_a_broken_driver_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(
        tmp_path, monkeypatch, "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    with pytest.raises(
        HostError, match="nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch"
    ):
        _gpu_host.gpus()


def test_an_nvidia_smi_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(_gpu_host, "ANSWER_SECONDS", 0.2)
    with pytest.raises(HostError, match="did not answer within 0.2 s; look at the driver"):
        _gpu_host.gpus()


def test_who_holds_a_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert _gpu_host.port_holder("127.0.0.1", port, "") is None
        listener.listen()
        holder = _gpu_host.port_holder("127.0.0.1", port, "")
        assert holder is not None
        assert holder["pid"] == os.getpid()
        assert holder["address"] == f"127.0.0.1:{port}"
    assert _gpu_host.port_holder("127.0.0.1", port, "") is None


@pytest.mark.parametrize(
    ("bound", "host", "held"),
    [
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("127.0.0.2", "0.0.0.0", True),
        ("127.0.0.2", "::", True),
        ("0.0.0.0", "127.0.0.2", True),
        ("0.0.0.0", "0.0.0.0", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "no such host", False),
    ],
)
def test_who_is_in_the_way_of_an_address(bound: str, host: str, held: bool) -> None:
    with socket.create_server((bound, 0)) as listener:
        holder = _gpu_host.port_holder(host, listener.getsockname()[1], "")
    assert (holder is not None) is held
    assert holder is None or (holder["pid"], holder["address"].rpartition(":")[0]) == (os.getpid(), bound)


def test_the_command_of_a_ports_holder_is_told_without_its_secrets() -> None:
    program = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    arguments = ["-H", "Authorization: Bearer s3cret", "x" * 50, "API_KEY=" + "s3cret" * 30]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        holder = _gpu_host.port_holder("127.0.0.1", int(process.stdout.readline()), "")
        process.stdin.close()
    assert holder is not None
    assert "Authorization: Bearer REDACTED" in holder["command"]
    assert "s3cret" not in holder["command"]
    assert len(holder["command"]) <= 200
