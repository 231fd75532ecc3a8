# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A torch and an sgl_kernel that fail as the real ones do, with the texts of CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateResult
from ansible_collections.ddtree.fleet.tests.unit.gpu_hosts import host, put_on_path
from ansible_collections.ddtree.fleet.tests.unit.sglang_environments import (
    failed,
    fake_gpus,
    gate,
    make,
    site_of,
    with_gpus,
    write,
)

NO_IMAGE = """CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda/ for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
SGL_NO_IMAGE = "RMSNorm failed with error code no kernel image is available for execution on the device"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 12080). Please update your GPU driver."


@pytest.fixture(scope="module", name="built")
def built_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_gpus(make(tmp_path_factory.mktemp("built") / "venv"))


def launch(built: Path, kernels: str = "required", environment: Dict[str, str] = {}, **settings: Any) -> GateResult:  # noqa: B006
    return gate(built, imports=["torch"], kernels=kernels, environment={**fake_gpus(**settings), **environment})


def names(result: GateResult) -> List[str]:
    return [check.name for check in result.checks if check.name.startswith("kernels")]


def test_a_kernel_runs_on_every_gpu(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path, monkeypatch, "b300")
    result = launch(built, kernels="auto", count=8)
    assert failed(result) == {}
    assert names(result) == [f"kernels on GPU {number}" for number in range(8)]
    assert result.checks[-1].found == "NVIDIA B300 SXM6 AC, compute capability 10.3"
    assert result.details["gpus"] == 8
    assert result.not_verified == []


@pytest.mark.parametrize(
    ("library", "how", "found", "hint"),
    [
        (
            "torch",
            NO_IMAGE,
            "torch fails with AcceleratorError: CUDA error: no kernel image is available for execution on the device; Search",
            "torch has no code for sm_103; install a build that has; this one has code for sm_80 sm_90 sm_100",
        ),
        (
            "sgl_kernel",
            SGL_NO_IMAGE,
            f"sgl_kernel fails with RuntimeError: {SGL_NO_IMAGE}",
            "sgl_kernel has no code for sm_103; install a build that has",
        ),
        ("torch", "CUDA error: out of memory", "out of memory", "another process holds the memory of this GPU"),
        ("device", "CUDA error: system not yet initialized", "a GPU that cannot be opened", "nvidia-fabricmanager"),
        ("torch", "wrong", "torch computes 393216.0 where 262144 is right", ""),
        ("sgl_kernel", "wrong", "sgl_kernel computes what differs by up to 0.858 from plain torch", ""),
        ("sgl_kernel", "crash", "ended by SIGSEGV", "last output: "),
    ],
)
def test_a_gpu_that_fails_is_named_and_the_others_are_tried(
    built: Path, library: str, how: str, found: str, hint: str
) -> None:
    result = launch(built, count=3, fails={"1": {library: how}})
    assert list(failed(result)) == ["kernels on GPU 1"]
    assert names(result) == ["kernels on GPU 0", "kernels on GPU 1", "kernels on GPU 2"]
    check = next(check for check in result.checks if not check.passed)
    assert found in check.found
    assert hint in check.hint
    assert library == "device" or how == "crash" or "NVIDIA B300 SXM6 AC, compute capability 10.3: " in check.found
    assert [check.name for check in result.checks].count("GPUs of torch") == 1


def test_the_cause_of_a_kernel_library_that_does_not_load_is_told(tmp_path: Path) -> None:
    built = with_gpus(make(tmp_path / "venv"))
    write(
        site_of(built) / "sgl_kernel" / "__init__.py",
        "try:\n    raise ImportError('common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check')\n"
        "except ImportError as error:\n    raise ImportError('Could not load any common_ops library!') from error\n",
    )
    result = launch(built, count=1)
    found = failed(result)["kernels on GPU 0"]
    assert (
        "sgl_kernel fails with ImportError: Could not load any common_ops library! <- ImportError: common_ops" in found
    )
    assert result.checks[-1].hint == "sgl_kernel was built for another torch than the one in this environment"


@pytest.mark.slow
def test_a_launch_that_hangs_ends_with_the_gate(built: Path) -> None:
    result = gate(built, kernels="required", timeout=3, environment=fake_gpus(count=3, fails={"1": {"torch": "hang"}}))
    assert failed(result) == {"kernels on GPU 1": "no end within the gate's 3 s"}
    assert result.not_verified == ["everything after the step 'kernels on GPU 1'"]


def test_gpus_are_called_what_the_service_calls_them(built: Path) -> None:
    result = launch(built, environment={"CUDA_VISIBLE_DEVICES": "4, 5"}, count=2, fails={"1": {"torch": NO_IMAGE}})
    assert list(failed(result)) == ["kernels on GPU 5"]


def test_a_gpu_that_a_server_fills_is_left_alone_and_said(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = host(tmp_path, monkeypatch, "b300") / "query-gpu.csv"
    lines = table.read_text().splitlines()
    lines[2] = lines[2].replace("275040 MiB, 0 MiB", "275040 MiB, 274000 MiB")
    table.write_text("\n".join(lines) + "\n")
    result = launch(built, count=8, fails={"1": {"torch": NO_IMAGE}, "3": {"torch": NO_IMAGE}})
    assert list(failed(result)) == ["kernels on GPU 3"]
    assert names(result) == [f"kernels on GPU {number}" for number in range(8) if number != 1]
    assert result.not_verified == [
        "kernels on GPU 1: only 1040 MiB of its memory are free, which the server that runs there may need; "
        "nothing is launched below 2048 MiB"
    ]


@pytest.mark.parametrize("kernels", ["auto", "required"])
def test_a_driver_that_is_too_old_for_torch(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    host(tmp_path, monkeypatch, "b300")
    result = launch(built, kernels=kernels, init=TOO_OLD)
    assert failed(result) == {"GPUs of torch": f"RuntimeError: {TOO_OLD}"}
    assert result.checks[-1].expected == "8 GPUs"
    assert result.checks[-1].hint == "the driver is older than the CUDA of torch; update the driver"


def test_fewer_gpus_than_the_host_has(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(tmp_path, monkeypatch, "b300")
    result = launch(built, kernels="auto", count=7)
    assert failed(result) == {"GPUs of torch": "7 GPUs"}
    assert len(names(result)) == 7


@pytest.mark.parametrize(
    ("kernels", "smi", "settings", "reason"),
    [
        ("auto", False, {}, "kernels: neither nvidia-smi nor torch shows a GPU"),
        ("auto", True, {"cuda": False}, "kernels: torch 2.11.0+cpu is a build without CUDA"),
        ("auto", True, {"visible": ""}, "kernels: CUDA_VISIBLE_DEVICES shows the service no GPU"),
        ("none", True, {"count": 8}, "kernels: kernels is none"),
    ],
)
def test_where_nothing_is_launched_it_is_said(
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernels: str,
    smi: bool,
    settings: Dict[str, Any],
    reason: str,
) -> None:
    if smi:
        host(tmp_path, monkeypatch, "b300")
    visible = {"CUDA_VISIBLE_DEVICES": settings["visible"]} if "visible" in settings else {}
    result = launch(built, kernels=kernels, environment=visible, **settings)
    assert failed(result) == {}
    assert result.not_verified == [reason]


@pytest.mark.parametrize(
    ("settings", "found", "hint"),
    [
        ({}, "RuntimeError: No CUDA GPUs are available", ""),
        (
            {"cuda": False},
            "AssertionError: Torch not compiled with CUDA enabled",
            "torch is a build for the CPU; install the one for CUDA",
        ),
    ],
)
def test_required_kernels_need_a_gpu(built: Path, settings: Dict[str, Any], found: str, hint: str) -> None:
    result = launch(built, **settings)
    assert failed(result) == {"GPUs of torch": found}
    assert result.checks[-1].hint == hint


def test_a_torch_that_does_not_import(tmp_path: Path) -> None:
    result = gate(make(tmp_path / "venv"), kernels="required")
    assert failed(result) == {"GPUs of torch": "ModuleNotFoundError: No module named 'torch'"}


def test_a_broken_driver_is_a_failed_check(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, "#!/bin/sh\necho 'Failed to initialize NVML: Unknown Error'\nexit 18\n")
    result = launch(built, kernels="auto")
    assert failed(result) == {"GPUs of nvidia-smi": "nvidia-smi failed: Failed to initialize NVML: Unknown Error"}
