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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterator, List

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import environment_probe
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
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "TVM_FFI_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "NUMBA_CACHE_DIR",
    "MPLCONFIGDIR",
    "HF_HOME",
)
_BASE_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True)
class EnvironmentOptions:
    """The environment gate's parameters, as the module documents them."""

    dest: str
    release: str
    distribution: str
    version: str
    requirements: bool
    requirements_ignore: List[str]
    imports: List[str]
    probes: List[Dict[str, Any]]
    command_line: List[str]
    environment: Dict[str, str]
    timeout: int


def run(options: EnvironmentOptions) -> GateResult:
    result = GateResult(subject=options.release or options.dest)
    interpreter = os.path.join(options.dest, "bin", "python")
    bind = bool(options.release) and os.path.realpath(options.release) != os.path.realpath(options.dest)
    _require_interpreter(options.release if bind else options.dest)
    progress = _Progress(result)
    request = {key: value for key, value in asdict(options).items() if key not in ("environment", "timeout", "release")}
    request["stacks_after"] = max(options.timeout - 3, 1)
    argv = [interpreter, "-B"]
    with cleaning_up_on_signals(), _mount_point(options.dest, bind), _private_folder() as folder:
        if bind:
            argv = [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "--",
                "sh",
                "-c",
                _MOUNT,
                "sh",
                options.release,
                options.dest,
            ] + argv
        outcome = run_program(
            argv,
            environment_probe,
            request,
            _environment(options.environment, folder),
            options.timeout,
            progress.answer,
        )
    unshare_failed = bool(outcome.output) and outcome.output[-1].startswith("unshare:")
    if bind and not progress.started and (outcome.returncode == MOUNT_FAILED or unshare_failed):
        raise GateError(
            f"{options.release} cannot be mounted over {options.dest} for the gate: "
            f"{' '.join(outcome.output[-2:]) or outcome.ending()}; "
            "this needs root and the right to make a mount namespace"
        )
    _judge_ending(result, progress, outcome)
    result.figures["seconds"] = round(outcome.seconds, 1)
    result.figures["memory_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return result


class _Progress:
    """The probe's answers so far."""

    def __init__(self, result: GateResult) -> None:
        self._result = result
        self.started = ""
        self.done = False

    def answer(self, answer: Dict[str, Any]) -> None:
        if "started" in answer:
            self.started = answer["started"]
        elif "check" in answer:
            self._result.checks.append(Check(**answer["check"]))
        elif "done" in answer:
            self.done = True
            self._result.remarks += answer["done"]["remarks"]
            self._result.not_verified += answer["done"]["not_verified"]
            self._result.details.update(answer["done"]["details"])


def _judge_ending(result: GateResult, progress: _Progress, outcome: Outcome) -> None:
    """A probe that did not reach its end is one failed check, named after the step that it was in."""
    if progress.done:
        return
    result.checks.append(
        Check(
            name=progress.started or "interpreter",
            passed=False,
            expected="ends by itself" if progress.started else "starts",
            found=outcome.ending(),
            hint=_last_words(outcome.output),
        )
    )
    result.not_verified.append(f"everything after the step '{progress.started or 'interpreter'}'")


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
    folder = tempfile.mkdtemp(prefix="sglang_smoke_")
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
