# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in the release's own interpreter, sent there by program.py: looks at the environment and answers what it found.

A new kind of check is one more step in ``STEPS``; what the steps answer is in probe_report.py.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import re
import sys
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.probe_command_line import command_line_step
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.probe_report import (
    Found,
    Missing,
    Report,
    Step,
    error_text,
    failed,
    raised_at,
    resolve,
    result,
    run_steps,
    short,
)


def main(request: Dict[str, Any], answers: int) -> None:
    run_steps(request, answers, STEPS)


def version_step(request: Dict[str, Any], report: Report) -> Step:
    if request["distribution"]:
        yield "version", lambda: _version(request["distribution"], request["version"], request["dest"], report)


def _version(distribution: str, expected: str, dest: str, report: Report) -> Optional[Found]:
    """The version that runs is the package's own ``__version__``; metadata that says otherwise is a remark."""
    try:
        declared = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return failed(
            f"{distribution} {expected}".strip(),
            f"no distribution {distribution} is installed",
            "is dest the right environment?",
        )
    running, place = declared, ""
    try:
        package = importlib.import_module(distribution.replace("-", "_"))
        running, place = str(getattr(package, "__version__", declared)), str(getattr(package, "__file__", "") or "")
    except BaseException as error:
        report.remark(f"{distribution} {declared} cannot be imported to ask its version: {error_text(error)}")
    report.details["version"], report.details["distribution_version"] = running, declared
    if running != declared:
        report.remark(
            f"{distribution}: its metadata says {declared}, its code says {running}: "
            "the package was copied over another version"
        )
    if place and not os.path.abspath(place).startswith(os.path.join(dest, "")):
        report.remark(f"{distribution} is imported from {place}, outside {dest}")
    if not expected:
        return None
    return result(running == expected, f"{distribution} {expected}", f"{distribution} {running}")


def requirements_step(request: Dict[str, Any], report: Report) -> Step:
    if request["distribution"] and request["requirements"]:
        yield "requirements", lambda: _requirements(request["distribution"], request["requirements_ignore"], report)


def _requirements(distribution: str, ignored: List[str], report: Report) -> Found:
    """Every requirement that applies here is installed; another version than the declared one is only a remark."""
    expected = f"all that {distribution} requires is installed"
    try:
        declared = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return failed(expected, f"no distribution {distribution} is installed")
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        report.not_verified.append(
            "requirements with markers and versions of requirements: the release has no packaging module"
        )
        names = [re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0] for text in declared if ";" not in text]
        wanted: List[Tuple[str, Any]] = [(name, None) for name in names]
    else:
        wanted = []
        for text in declared:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                report.remark(f"{distribution} declares a requirement that cannot be read: {short(text)}")
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append((requirement.name, requirement.specifier))
    skipped = {_normal(name) for name in ignored}
    missing = []
    for name, specifier in wanted:
        if _normal(name) in skipped:
            continue
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if specifier is not None and not specifier.contains(installed, prereleases=True):
            report.remark(f"{distribution} asks for {name}{specifier}, {installed} is installed")
    report.details["requirements"] = len(wanted)
    if not missing:
        return result(True, expected, f"{len(wanted)} requirements")
    hint = "a lazily imported one breaks the launch; install it where the environment is built, or ignore it by name"
    return failed(expected, "missing: " + ", ".join(sorted(missing, key=str.lower)), hint)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports_step(request: Dict[str, Any], report: Report) -> Step:
    for name in request["imports"]:
        yield f"import {name}", partial(_import, name)


def _import(name: str) -> Found:
    try:
        importlib.import_module(name)
    except BaseException as error:
        return failed("imports", error_text(error), raised_at(error))
    return result(True, "imports", "imported")


def symbols_step(request: Dict[str, Any], report: Report) -> Step:
    for name in request["symbols"]:
        yield f"symbol {name}", partial(_symbol, name)


def _symbol(name: str) -> Found:
    """The dotted name leads to something; None is what packages leave where their own optional import failed."""
    try:
        value = resolve(name)
    except Missing as missing:
        return failed("exists", str(missing), _nearest(missing))
    except BaseException as error:
        return failed("exists", error_text(error), raised_at(error))
    hint = "an optional import of that package failed; import what it imports to see why"
    return result(value is not None, "exists", "is None" if value is None else "there", hint)


def _nearest(missing: Missing) -> str:
    near = difflib.get_close_matches(missing.name, missing.known, n=3)
    return f"nearest to {missing.name}: {', '.join(near)}" if near else f"nothing is near to {missing.name}"


def probes_step(request: Dict[str, Any], report: Report) -> Step:
    for probe in request["probes"]:
        yield f"probe {_spelled(probe)}", partial(_probe, probe)


def _spelled(probe: Dict[str, Any]) -> str:
    """The probe as a user would write it in Python."""
    if probe.get("expression"):
        return short(probe["expression"])
    words = [repr(value) for value in probe.get("args") or []]
    words += [f"{name}={value!r}" for name, value in (probe.get("kwargs") or {}).items()]
    return short(f"{probe['call']}({', '.join(words)})")


def _probe(probe: Dict[str, Any]) -> Found:
    """Takes the value of the expression or the call and holds it against what it must be."""
    wanted, pattern = probe.get("equals"), probe.get("matches")
    expected = "a true value" if wanted is None else short(repr(wanted))
    if pattern is not None:
        expected = f"matches {short(pattern)}" if wanted is None else f"{expected} and matches {short(pattern)}"
    try:
        value = _value(probe)
        found = short(repr(value))
        passed = _equals(value, wanted) if wanted is not None else pattern is not None or bool(value)
        passed = passed and (pattern is None or re.search(pattern, str(value)) is not None)
    except Missing as missing:
        return failed(expected, str(missing), _nearest(missing))
    except BaseException as error:
        return failed(expected, error_text(error), raised_at(error))
    return result(passed, expected, found)


def _value(probe: Dict[str, Any]) -> Any:
    names: Dict[str, Any] = {}
    for module in probe.get("imports") or []:
        importlib.import_module(module)
        names[module.partition(".")[0]] = sys.modules[module.partition(".")[0]]
    if probe.get("expression"):
        return eval(probe["expression"], names)
    return resolve(probe["call"])(*(probe.get("args") or []), **(probe.get("kwargs") or {}))


def _equals(value: Any, wanted: Any) -> bool:
    """Equal as JSON is: a tuple is a list, and true is not 1."""
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted
    return bool(value == wanted)


def facts_step(request: Dict[str, Any], report: Report) -> Step:
    yield "facts", partial(_facts, request["kernels"] != "none", report)


def _facts(with_torch: bool, report: Report) -> None:
    """What the gate asks without a check. A torch that is missing or broken is told by the checks that need it."""
    report.details["python"] = ".".join(map(str, sys.version_info[:3]))
    if with_torch:
        try:
            torch = importlib.import_module("torch")
            report.details.update(
                torch=str(torch.__version__), cuda=torch.version.cuda or "", gpus=torch.cuda.device_count()
            )
        except BaseException as error:
            report.remark(f"torch cannot be asked for GPUs: {error_text(error)}")


# Cheap ones first: the reasons that they give explain the failures of the later ones.
STEPS: Tuple[Callable[[Dict[str, Any], Report], Step], ...] = (
    version_step,
    requirements_step,
    imports_step,
    symbols_step,
    probes_step,
    command_line_step,
    facts_step,
)
