# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment gate: can this release serve, before anything live is touched?

Everything is looked at in the release's own interpreter, at the path where it will be used: a staged release is
bind-mounted over dest in a mount namespace that only the probe sees, since an absolute .pth line or shebang would
otherwise test the live release.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Dict, Iterator, List

from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import (
    environment_probe,
    kernel_probe,
    probe_command_line,
    probe_report,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.descendants import MemoryWatch, ending_all_that_start
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError, GateResult
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.program import (
    Outcome,
    cleaning_up_on_signals,
    run_program,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

MOUNT_FAILED = 97
# The release is mounted read-only: what is committed is never changed, not even by an import that writes beside itself.
_MOUNT = f'mount --bind -- "$1" "$2" && mount -o remount,bind,ro -- "$2" || exit {MOUNT_FAILED}; shift 2; exec "$@"'
# Where imports of PyTorch, Triton, FlashInfer and friends would write; each gets a private folder instead.
_CACHE_VARIABLES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "TRITON_CACHE_DIR",
    "TRITON_DUMP_DIR",
    "TRITON_HOME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "TVM_FFI_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_MODULES_CACHE",
    "DG_JIT_CACHE_DIR",
    "SGLANG_DG_CACHE_DIR",
    "OUTLINES_CACHE_DIR",
)
_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


# What a CUDA context and one kernel take. With less of it free, a launch could end the server that runs on that GPU.
_ROOM_MIB = 2048
_NO_REQUEST = ("environment", "timeout", "release", "memory_limit_mib")


@dataclass(frozen=True)
class EnvironmentOptions:
    """The environment gate's parameters, as the module documents them; ``memory_limit_mib`` 0 is no limit."""

    dest: str
    release: str
    distribution: str
    version: str
    requirements: bool
    requirements_ignore: List[str]
    imports: List[str]
    symbols: List[str]
    probes: List[Dict[str, Any]]
    command_line: List[str]
    kernels: str
    environment: Dict[str, str]
    timeout: int
    memory_limit_mib: int


def run(options: EnvironmentOptions) -> GateResult:
    result = GateResult(subject=options.release or options.dest)
    bind = bool(options.release) and os.path.realpath(options.release) != os.path.realpath(options.dest)
    _require_interpreter(options.release if bind else options.dest)
    started = time.monotonic()
    with (
        cleaning_up_on_signals(),
        ending_all_that_start(),
        _mount_point(options.dest, bind),
        _private_folder() as folder,
    ):
        probes = _Probes(options, bind, _environment(options.environment, folder), result)
        request = {key: value for key, value in asdict(options).items() if key not in _NO_REQUEST}
        progress = probes.run(environment_probe, request)
        if progress.done:
            _launch_kernels(options, probes, result)
        else:
            result.not_verified.append(f"everything after the step '{progress.place}'")
    result.figures["seconds"] = round(time.monotonic() - started, 1)
    result.figures["memory_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return result


class _Probes:
    """Runs the gate's programs in the release, one after the other, within one bound of time and one of memory."""

    def __init__(
        self, options: EnvironmentOptions, bind: bool, environment: Dict[str, str], result: GateResult
    ) -> None:
        self._options = options
        self._bind = bind
        self._environment = environment
        self._result = result
        self._until = time.monotonic() + options.timeout
        interpreter = [os.path.join(options.dest, "bin", "python"), "-B"]
        wrapper = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", _MOUNT, "sh"]
        self._argv = [*wrapper, options.release, options.dest, *interpreter] if bind else interpreter

    def run(self, program: ModuleType, request: Dict[str, Any], **environment: str) -> _Progress:
        """The program's checks and remarks go into the gate's result. A mount that is refused is a GateError."""
        progress = _Progress(self._result)
        seconds = max(self._until - time.monotonic(), 1.0)
        watch = MemoryWatch(self._options.memory_limit_mib)
        outcome = run_program(
            self._argv,
            program,
            {**request, "stacks_after": max(seconds - 3, 1)},
            {**environment, **self._environment},
            seconds,
            progress.answer,
            watch,
            libraries=[probe_report, probe_command_line],
        )
        self._require_mount(progress, outcome)
        if not progress.done:
            found = outcome.ending()
            if watch.exceeded():
                found = f"ended at {watch.seen_mib} MiB of memory, memory_limit is {watch.limit_mib} MiB"
            elif outcome.timed_out:
                found = f"no end within the gate's {self._options.timeout} s"
            self._judge_ending(progress, found, outcome)
        return progress

    def _judge_ending(self, progress: _Progress, found: str, outcome: Outcome) -> None:
        """A program that did not reach its end is one failed check, named after the step that it was in."""
        expected = "ends by itself" if progress.steps else "starts"
        self._result.checks.append(Check(progress.place, False, expected, found, _last_words(outcome.output)))

    def out_of_time(self) -> bool:
        return time.monotonic() >= self._until

    def _require_mount(self, progress: _Progress, outcome: Outcome) -> None:
        unshare_failed = bool(outcome.output) and outcome.output[-1].startswith("unshare:")
        if self._bind and not progress.steps and (outcome.returncode == MOUNT_FAILED or unshare_failed):
            raise GateError(
                f"{self._options.release} cannot be mounted over {self._options.dest} for the gate: "
                f"{' '.join(outcome.output[-2:]) or outcome.ending()}; "
                "this needs root and the right to make a mount namespace"
            )


class _Progress:
    """What one program has answered so far."""

    def __init__(self, result: GateResult) -> None:
        self._result = result
        self.steps: List[str] = []
        self.done = False

    @property
    def place(self) -> str:
        """The step that it is in."""
        return self.steps[-1] if self.steps else "interpreter"

    def answer(self, answer: Dict[str, Any]) -> None:
        if "started" in answer:
            self.steps.append(answer["started"])
        elif "check" in answer:
            self._result.checks.append(Check(**answer["check"]))
        elif "done" in answer:
            self.done = True
            self._result.remarks += answer["done"]["remarks"]
            self._result.not_verified += answer["done"]["not_verified"]
            self._result.details.update(answer["done"]["details"])


def _launch_kernels(options: EnvironmentOptions, probes: _Probes, result: GateResult) -> None:
    """One kernel of torch and one of sgl_kernel on every GPU; a program that a GPU ended is started again for the rest."""
    if options.kernels == "none":
        result.not_verified.append("kernels: kernels is none")
        return
    try:
        gpus = _gpu_host.gpus()
    except _gpu_host.HostError as error:
        result.checks.append(Check("GPUs of nvidia-smi", False, "answers", str(error)))
        return
    reason = _no_launch(options, len(gpus), result.details) if options.kernels == "auto" else ""
    if reason:
        result.not_verified.append(f"kernels: {reason}")
        return
    first = 0
    while True:
        before = len(result.checks)
        request = {"first": first, "gpus": gpus, "room_mib": _ROOM_MIB}
        progress = probes.run(kernel_probe, request, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_LAUNCH_BLOCKING="1")
        begun = [step for step in progress.steps if step.startswith(kernel_probe.GPU_STEP)]
        if not begun or all(check.passed for check in result.checks[before:]):
            return
        if probes.out_of_time():
            result.not_verified.append(f"everything after the step '{progress.place}'")
            return
        first += len(begun)


def _no_launch(options: EnvironmentOptions, gpus: int, details: Dict[str, Any]) -> str:
    """Why this service launches no kernels; empty where it does, or where that cannot be told."""
    if details.get("cuda") == "":
        return f"torch {details['torch']} is a build without CUDA"
    if options.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return "CUDA_VISIBLE_DEVICES shows the service no GPU"
    return "" if gpus or details.get("gpus") else "neither nvidia-smi nor torch shows a GPU"


def _last_words(output: List[str]) -> str:
    """The end of what was printed; of a stack from faulthandler the innermost frames, which come first there."""
    lines = [line.strip() for line in output if "<frozen " not in line and '"<ddtree.fleet>"' not in line]
    stacks = [number for number, line in enumerate(lines) if line.endswith("(most recent call first):")]
    if stacks:
        lines = lines[max(stacks[-1] - 3, 0) : stacks[-1] + 6]
    return "last output: " + " | ".join(lines[-9:]) if lines else "it printed nothing"


def _require_interpreter(environment: str) -> None:
    if not os.path.isdir(environment):
        raise GateError(f"{environment} is no directory: there is no environment to look at")
    if not os.path.lexists(os.path.join(environment, "bin", "python")):
        raise GateError(f"{environment}/bin/python does not exist: {environment} is no Python environment")


def _environment(given: Dict[str, str], folder: str) -> Dict[str, str]:
    """What systemd would give a unit, the service's own variables, and private places for every cache."""
    environment = {**_BASE_ENVIRONMENT, **given, "PYTHONDONTWRITEBYTECODE": "1"}
    for name in _CACHE_VARIABLES:
        environment[name] = folder
    return environment


@contextmanager
def _private_folder() -> Iterator[str]:
    try:
        folder = tempfile.mkdtemp(prefix="sglang_smoke_")
    except OSError as error:
        raise GateError(f"no folder for the gate's caches can be made in {tempfile.gettempdir()}: {error}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _mount_point(dest: str, bind: bool) -> Iterator[None]:
    """A directory at ``dest`` to mount on. One that was made for this is gone afterwards."""
    if not bind or os.path.isdir(dest):
        yield
        return
    if os.path.islink(dest):
        raise GateError(
            f"{dest} is a symlink to {os.readlink(dest)}, which is no directory; activate a release or remove the link"
        )
    if os.path.lexists(dest):
        raise GateError(f"{dest} exists and is no directory; move it away or set another dest")
    try:
        os.mkdir(dest, 0o755)
    except OSError as error:
        raise GateError(f"{dest} cannot be made as a mount point for the gate: {error.strerror}") from None
    try:
        yield
    finally:
        try:
            os.rmdir(dest)
        except OSError:
            # Somebody has put something there meanwhile: theirs to keep.
            pass
