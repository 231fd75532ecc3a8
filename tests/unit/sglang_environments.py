# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real virtual environments with small packages in SGLang's place, and in torch's and sgl_kernel's with GPUs that are none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.environment import EnvironmentOptions
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateResult

SERVER_ARGS = """
import os
print("noise on stdout", '{"check": 1}')

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", required=True)
        parser.add_argument("--config")
        parser.add_argument("--speculative-algorithm", choices=["DFLASH", "DDTREE"])
        parser.add_argument("--speculative-ddtree-budget", type=int, default=8)
        parser.add_argument("--enable-metrics", action="store_true")
"""
SPEC_INFO = """
import warnings
warnings.warn("an old spelling")
class SpeculativeAlgorithm:
    @classmethod
    def from_string(cls, name):
        made = cls()
        made.name = name
        return made
    def is_ddtree(self):
        return self.name == "DDTREE"
"""
METADATA = """Metadata-Version: 2.1
Name: sglang
Version: {version}
Requires-Dist: small-package>=2
Requires-Dist: never-there; sys_platform == "win32"
Requires-Dist: extra-only; extra == "test"
"""


def make(path: Path, version: str = "0.5.11", metadata_version: str = "") -> Path:
    """An environment at ``path`` with a small sglang and the one package that it requires."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    site = site_of(path)
    write(site / "sglang" / "__init__.py", f"__version__ = '{version}'\n")
    write(site / "sglang" / "srt" / "__init__.py", "")
    write(site / "sglang" / "srt" / "server_args.py", SERVER_ARGS)
    write(site / "sglang" / "srt" / "spec_info.py", SPEC_INFO)
    write(site / "sglang" / "srt" / "hangs.py", "import time\nprint('about to hang', flush=True)\ntime.sleep(600)\n")
    write(
        site / "sglang" / "srt" / "exits.py", "import os, sys\nprint('bye', file=sys.stderr, flush=True)\nos._exit(7)\n"
    )
    write(site / "sglang" / "srt" / "segfaults.py", "import ctypes\nctypes.string_at(0)\n")
    write(
        site / "sglang" / "srt" / "broken.py",
        "try:\n    raise ImportError('undefined symbol: _ZN2at4')\n"
        "except ImportError as error:\n    raise ImportError('no sm100 kernels') from error\n",
    )
    write(site / "sglang" / "srt" / "leaves.py", "import sys\nsys.exit('leaving')\n")
    declared = METADATA.format(version=metadata_version or version)
    write(site / f"sglang-{metadata_version or version}.dist-info" / "METADATA", declared)
    write(
        site / "small_package-2.1.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: small_package\nVersion: 2.1\n"
    )
    import packaging

    shutil.copytree(Path(packaging.__file__).parent, site / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
    return path


def site_of(path: Path) -> Path:
    return next((path / "lib").glob("python3*")) / "site-packages"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


TORCH = '''
"""As much of torch as launches a kernel. FAKE_GPUS says how many GPUs there are, and which of them fail where and how."""
import json, os, signal, types

SETTINGS = json.loads(os.environ.get("FAKE_GPUS", "{}"))
COUNT = SETTINGS.get("count", 0)
__version__ = "2.11.0+cu130" if SETTINGS.get("cuda", True) else "2.11.0+cpu"
version = types.SimpleNamespace(cuda="13.0" if SETTINGS.get("cuda", True) else None)
bfloat16 = "bfloat16"


class AcceleratorError(RuntimeError):
    pass


def launch(library):
    how = SETTINGS.get("fails", {}).get(str(current[0]), {}).get(library)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "hang":
        signal.pause()
    if how == "wrong":
        return 1.5
    if how:
        raise (AcceleratorError if library == "torch" else RuntimeError)(how)
    return 1.0


class Tensor:
    """Rows of numbers, with the operations that are asked for."""

    def __init__(self, rows):
        self.rows = rows

    def float(self):
        return self

    def to(self, dtype):
        return self

    def reshape(self, height, width):
        flat = [number for row in self.rows for number in row]
        return Tensor([flat[start * width : (start + 1) * width] for start in range(height)])

    def each(self, other, operation):
        get = (lambda y, x: other) if isinstance(other, (int, float)) else (lambda y, x: other.rows[y][x % len(other.rows[y])])
        return Tensor([[operation(number, get(y, x)) for x, number in enumerate(row)] for y, row in enumerate(self.rows)])

    def __mul__(self, other):
        return self.each(other, lambda a, b: a * b)

    def __add__(self, other):
        return self.each(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self.each(other, lambda a, b: a - b)

    def __matmul__(self, other):
        factor = launch("torch")
        columns = list(zip(*other.rows))
        return Tensor([[factor * sum(a * b for a, b in zip(row, column)) for column in columns] for row in self.rows])

    def mean(self, axis, keepdim):
        return Tensor([[sum(row) / len(row)] for row in self.rows])

    def abs(self):
        return Tensor([[abs(number) for number in row] for row in self.rows])

    def max(self):
        return Tensor([[max(number for row in self.rows for number in row)]])

    def sum(self):
        return Tensor([[sum(number for row in self.rows for number in row)]])

    def item(self):
        return self.rows[0][0]


def ones(size, dtype=None, device=None):
    height, width = size if isinstance(size, tuple) else (1, size)
    return Tensor([[1.0] * width for _ in range(height)])


def linspace(first, last, count, device=None):
    return Tensor([[first + (last - first) * number / (count - 1) for number in range(count)]])


def rsqrt(tensor):
    return Tensor([[number**-0.5 for number in row] for row in tensor.rows])


def device(kind, number):
    return (kind, number)


def _init():
    if version.cuda is None:
        raise AssertionError("Torch not compiled with CUDA enabled")
    if not COUNT:
        raise RuntimeError(SETTINGS.get("init", "No CUDA GPUs are available"))


def _set_device(number):
    current[0] = number
    launch("device")


current = [0]
cuda = types.SimpleNamespace(
    device_count=lambda: COUNT,
    init=_init,
    set_device=_set_device,
    get_device_name=lambda number: "NVIDIA B300 SXM6 AC",
    get_device_capability=lambda number: (10, 3),
    get_arch_list=lambda: ["sm_80", "sm_90", "sm_100"],
    synchronize=lambda number: None,
)
'''
SGL_KERNEL = """
import torch

def tree_speculative_sampling_target_only():
    pass

optional = None

def rmsnorm(rows, weight, eps):
    factor = torch.launch("sgl_kernel")
    return rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + eps) * factor
"""


def with_gpus(path: Path) -> Path:
    """Give the environment at ``path`` a torch and an sgl_kernel that believe in the GPUs of FAKE_GPUS."""
    write(site_of(path) / "torch" / "__init__.py", TORCH)
    write(site_of(path) / "sgl_kernel" / "__init__.py", SGL_KERNEL)
    return path


def fake_gpus(**settings: Any) -> Dict[str, str]:
    """The variable that makes that torch see ``count`` GPUs; ``fails`` is GPU -> library -> error text, crash, hang or wrong."""
    return {"FAKE_GPUS": json.dumps(settings)}


def gate(dest: Path, **changes: Any) -> GateResult:
    """The gate, which looks at nothing unless it is told."""
    values: Dict[str, Any] = {
        "dest": str(dest),
        "release": "",
        "distribution": "",
        "version": "",
        "requirements": True,
        "requirements_ignore": [],
        "imports": [],
        "symbols": [],
        "probes": [],
        "command_line": [],
        "kernels": "none",
        "environment": {},
        "timeout": 60,
        "memory_limit_mib": 0,
    }
    return environment.run(EnvironmentOptions(**{**values, **changes}))


def failed(result: GateResult) -> Dict[str, str]:
    return {check.name: str(check.found) for check in result.checks if not check.passed}
