# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment gate's kernels on a real GPU, with the torch of the Python that runs this, and its sgl_kernel where it has one.

PYTHONPATH=.collections python3 -m pytest -q -p no:cacheprovider tests/gpu
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateResult
from ansible_collections.ddtree.fleet.tests.unit.sglang_environments import failed, gate, site_of, write

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")

# Where there is no sgl_kernel: the same in torch, and one that has no code for this GPU, as torch tells it.
STANDIN = """
import torch

def rmsnorm(rows, weight, eps):
    numbers = rows.float()
    return (numbers * torch.rsqrt((numbers * numbers).mean(-1, keepdim=True) + eps) * weight.float()).to(rows.dtype)
"""
WITHOUT_CODE = """
def rmsnorm(rows, weight, eps):
    raise RuntimeError("RMSNorm failed with error code no kernel image is available for execution on the device")
"""


@pytest.fixture(name="environment")
def environment_fixture(tmp_path: Path) -> Path:
    """An environment that sees the packages of this Python."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    # Also where this Python is a virtual environment itself.
    write(site_of(venv) / "this_python.pth", "".join(f"{path}\n" for path in site.getsitepackages()))
    if importlib.util.find_spec("sgl_kernel") is None:
        write(site_of(venv) / "sgl_kernel" / "__init__.py", STANDIN)
    return venv


def launch(environment: Path, **variables: str) -> GateResult:
    own: Dict[str, Any] = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **variables}
    return gate(environment, kernels="required", environment=own, timeout=240, memory_limit_mib=32 << 10)


def test_both_kernels_run_on_every_gpu(environment: Path) -> None:
    gpus = _gpu_host.gpus()
    result = launch(environment)
    assert failed(result) == {}
    assert result.not_verified == []
    checks = [check for check in result.checks if check.name.startswith("kernels on GPU ")]
    assert [check.name for check in checks] == [f"kernels on GPU {gpu['index']}" for gpu in gpus]
    assert [check.found for check in checks] == [
        f"{gpu['name']}, compute capability {gpu['compute_capability']}" for gpu in gpus
    ]


def test_a_kernel_without_code_for_this_gpu_is_explained(environment: Path) -> None:
    write(environment / "first" / "sgl_kernel.py", WITHOUT_CODE)
    result = launch(environment, PYTHONPATH=f"{environment}/first:{os.environ.get('PYTHONPATH', '')}")
    assert set(failed(result)) == {f"kernels on GPU {gpu['index']}" for gpu in _gpu_host.gpus()}
    assert "sgl_kernel has no code for sm_" in result.checks[-1].hint


def test_gpus_that_the_service_does_not_see_are_no_gpus(environment: Path) -> None:
    result = launch(environment, CUDA_VISIBLE_DEVICES="")
    assert list(failed(result)) == ["GPUs of torch"]
    assert "No CUDA GPUs are available" in failed(result)["GPUs of torch"]
