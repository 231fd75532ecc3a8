# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in the release's own interpreter, sent there by program.py: launches one kernel of torch and one of sgl_kernel on every GPU.

A kernel without code for a GPU imports well and fails at launch. The first GPU that fails ends this program, since an
error of CUDA may stay in a process: the gate starts another one for the GPUs that are left.
"""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.probe_report import (
    Found,
    Report,
    Step,
    error_text,
    failed,
    result,
    run_steps,
)

GPU_STEP = "kernels on GPU "
_EXPECTED = "torch and sgl_kernel launch, and compute what torch computes"
_ERROR_LIMIT = 700
_SIZE = 64
_EPSILON = 1e-6
# Of values up to 2 in bfloat16, against a computation in single precision.
_TOLERANCE = 2e-2
# Texts of CUDA, of torch and of kernels that pass CUDA's on, with what each means here. The first that fits is told.
_MEANINGS: Tuple[Tuple[str, str], ...] = (
    ("no kernel image", "{library} has no code for {architecture}; install a build that has"),
    ("kernel image is invalid", "{library} has no usable code for {architecture}; install a build that has"),
    ("unsupported toolchain", "the driver is older than the CUDA that {library} was built with; update the driver"),
    ("driver version is insufficient", "the driver is older than the CUDA of {library}; update the driver"),
    ("driver on your system is too old", "the driver is older than the CUDA of {library}; update the driver"),
    ("not compiled with CUDA", "{library} is a build for the CPU; install the one for CUDA"),
    ("undefined symbol", "{library} was built for another torch than the one in this environment"),
    ("out of memory", "another process holds the memory of this GPU"),
    ("busy or unavailable", "another process holds this GPU for itself, or its compute mode forbids sharing"),
    ("system not yet initialized", "the NVLink fabric is not up; look at nvidia-fabricmanager"),
)


def main(request: Dict[str, Any], answers: int) -> None:
    run_steps(request, answers, (kernels_step,))


def kernels_step(request: Dict[str, Any], report: Report) -> Step:
    """``first`` is torch's number of the first GPU to launch on, ``gpus`` what nvidia-smi says about those of the host."""
    labels: List[str] = []
    yield "GPUs of torch", partial(_visible, request, labels)
    for number in range(request["first"], len(labels)):
        label = labels[number]
        gpu = next((gpu for gpu in request["gpus"] if label in (str(gpu["index"]), gpu["uuid"])), None)
        free = gpu["memory_total_mib"] - gpu["memory_used_mib"] if gpu else request["room_mib"]
        found: List[Found] = []
        if free < request["room_mib"]:
            report.not_verified.append(
                f"{GPU_STEP}{label}: only {free} MiB of its memory are free, which the server that runs there may "
                f"need; nothing is launched below {request['room_mib']} MiB"
            )
            yield f"{GPU_STEP}{label}", lambda: None
        else:
            yield f"{GPU_STEP}{label}", partial(_launch, number, found)
        if found and not found[0]["passed"]:
            return


def _visible(request: Dict[str, Any], labels: List[str]) -> Optional[Found]:
    """Fills ``labels`` with the index, or whatever CUDA_VISIBLE_DEVICES says, of every GPU that torch sees."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [word.strip() for word in (visible or "").split(",") if word.strip()]
    wanted = len(request["gpus"]) if visible is None else len(named)
    expected = f"{wanted or 'any'} GPUs"
    try:
        torch = importlib.import_module("torch")
        count = torch.cuda.device_count()
    except BaseException as error:
        return failed(expected, error_text(error, _ERROR_LIMIT), _meaning(str(error), "torch"))
    labels += named if len(named) == count else [str(number) for number in range(count)]
    if request["first"]:
        return None
    if count and count >= wanted:
        return result(True, expected, f"{count} GPUs")
    try:
        torch.cuda.init()
        reason = f"{count} GPUs"
    except BaseException as error:
        reason = error_text(error, _ERROR_LIMIT)
    return failed(expected, reason, _meaning(reason, "torch"))


def _launch(number: int, found: List[Found]) -> Found:
    """Launches on torch's GPU ``number``; what came of it is returned and put into ``found``."""
    torch = importlib.import_module("torch")
    library, gpu, architecture = "torch", "", ""
    try:
        torch.cuda.set_device(number)
        major, minor = torch.cuda.get_device_capability(number)
        gpu, architecture = (
            f"{torch.cuda.get_device_name(number)}, compute capability {major}.{minor}",
            f"sm_{major}{minor}",
        )
        wrong = _multiply(torch, number)
        if not wrong:
            library = "sgl_kernel"
            wrong = _normalise(torch, importlib.import_module("sgl_kernel"), number)
        answer = result(not wrong, _EXPECTED, f"{gpu}: {library} {wrong}" if wrong else gpu)
    except BaseException as error:
        text = error_text(error, _ERROR_LIMIT)
        hint = _meaning(text, library, architecture, torch)
        answer = failed(_EXPECTED, f"{gpu or 'a GPU that cannot be opened'}: {library} fails with {text}", hint)
    found.append(answer)
    return answer


def _multiply(torch: Any, number: int) -> str:
    """A matrix product, which goes through cuBLAS; every sum in it is exact. Says what is wrong, or nothing."""
    ones = torch.ones((_SIZE, _SIZE), dtype=torch.bfloat16, device=torch.device("cuda", number))
    total = (ones @ ones).float().sum().item()
    torch.cuda.synchronize(number)
    return "" if total == _SIZE**3 else f"computes {total} where {_SIZE**3} is right"


def _normalise(torch: Any, sgl_kernel: Any, number: int) -> str:
    """The kernel that every layer begins with, against plain torch. Says what is wrong, or nothing."""
    device = torch.device("cuda", number)
    rows = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, device=device).reshape(_SIZE, _SIZE).to(torch.bfloat16)
    weight = torch.ones(_SIZE, dtype=torch.bfloat16, device=device)
    computed = sgl_kernel.rmsnorm(rows, weight, _EPSILON)
    torch.cuda.synchronize(number)
    plain = rows.float()
    plain = plain * torch.rsqrt((plain * plain).mean(-1, keepdim=True) + _EPSILON)
    difference = (computed.float() - plain).abs().max().item()
    return "" if difference <= _TOLERANCE else f"computes what differs by up to {difference:.3g} from plain torch"


def _meaning(text: str, library: str, architecture: str = "this GPU", torch: Any = None) -> str:
    """What an error of CUDA means here; empty for one that is not known."""
    for part, meaning in _MEANINGS:
        if part in text:
            says = meaning.format(library=library, architecture=architecture or "this GPU")
            if torch is not None and library == "torch" and "no kernel image" in text:
                says += f"; this one has code for {' '.join(torch.cuda.get_arch_list())}"
            return says
    return ""
