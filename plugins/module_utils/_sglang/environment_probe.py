# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in the release's own interpreter, sent there by program.py: looks at the environment and answers what it found.

Answers: ``{"started": name}`` before each step, so that a crash or a hang can be named; ``{"check": {...}}`` after it;
``{"done": {...}}`` at the end. A new kind of check is one more step in ``STEPS``.
"""

from __future__ import annotations

import argparse
import difflib
import faulthandler
import importlib
import importlib.metadata
import json
import os
import re
import sys
import traceback
import warnings
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Tuple

Found = Dict[str, Any]

SHORT = 200
PARSER_MODULE = "sglang.srt.server_args"


class Report:
    """What the steps find besides their checks."""

    def __init__(self) -> None:
        self.remarks: List[str] = []
        self.not_verified: List[str] = []
        self.details: Dict[str, Any] = {}

    def remark(self, text: str) -> None:
        if text not in self.remarks and len(self.remarks) < 50:
            self.remarks.append(text)


def main(request: Dict[str, Any], answers: int) -> None:
    os.set_inheritable(answers, False)
    faulthandler.enable()
    faulthandler.dump_traceback_later(request["stacks_after"], exit=False)
    report = Report()
    _keep_warnings(report)
    with os.fdopen(answers, "w", encoding="utf-8") as stream:

        def say(answer: Dict[str, Any]) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        for name, step in _steps(request, report):
            say({"started": name})
            found = step()
            if found is not None:
                say({"check": {"name": name, **found}})
        report.details["python"] = ".".join(map(str, sys.version_info[:3]))
        say({"done": {"remarks": report.remarks, "not_verified": report.not_verified, "details": report.details}})
    sys.stdout.flush()
    # Not a normal exit: libraries that crash or hang while the interpreter is torn down prove nothing about serving.
    os._exit(0)


def _steps(request: Dict[str, Any], report: Report) -> Iterator[Tuple[str, Callable[[], Optional[Found]]]]:
    for name, step in STEPS:
        yield from ((f"{name}{suffix}", call) for suffix, call in step(request, report))


def _keep_warnings(report: Report) -> None:
    def keep(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        report.remark(f"{category.__name__}: {_short(str(message))} ({filename}:{lineno})")

    warnings.showwarning = keep


Step = Iterator[Tuple[str, Callable[[], Optional[Found]]]]


def version_step(request: Dict[str, Any], report: Report) -> Step:
    if request["distribution"]:
        yield "version", lambda: _version(request["distribution"], request["version"], request["dest"], report)


def _version(distribution: str, expected: str, dest: str, report: Report) -> Optional[Found]:
    """The version that runs is the package's own ``__version__``; metadata that says otherwise is a remark."""
    try:
        declared = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return _failed(
            f"{distribution} {expected}".strip(),
            f"no distribution {distribution} is installed",
            "is dest the right environment?",
        )
    running, place = declared, ""
    try:
        package = importlib.import_module(distribution.replace("-", "_"))
        running, place = str(getattr(package, "__version__", declared)), str(getattr(package, "__file__", "") or "")
    except BaseException as error:
        report.remark(f"{distribution} {declared} cannot be imported to ask its version: {_error(error)}")
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
    return _result(running == expected, f"{distribution} {expected}", f"{distribution} {running}")


def requirements_step(request: Dict[str, Any], report: Report) -> Step:
    if request["distribution"] and request["requirements"]:
        yield "requirements", lambda: _requirements(request["distribution"], request["requirements_ignore"], report)


def _requirements(distribution: str, ignored: List[str], report: Report) -> Found:
    """Every requirement that applies here is installed; another version than the declared one is only a remark."""
    expected = f"all that {distribution} requires is installed"
    try:
        declared = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return _failed(expected, f"no distribution {distribution} is installed")
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
                report.remark(f"{distribution} declares a requirement that cannot be read: {_short(text)}")
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
        return _result(True, expected, f"{len(wanted)} requirements")
    hint = "a lazily imported one breaks the launch; install it where the environment is built, or ignore it by name"
    return _failed(expected, "missing: " + ", ".join(sorted(missing, key=str.lower)), hint)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports_step(request: Dict[str, Any], report: Report) -> Step:
    for name in request["imports"]:
        yield f" {name}", partial(_import, name)


def _import(name: str) -> Found:
    try:
        importlib.import_module(name)
    except BaseException as error:
        return _failed("imports", _error(error), _place(error))
    return _result(True, "imports", "imported")


def probes_step(request: Dict[str, Any], report: Report) -> Step:
    for probe in request["probes"]:
        yield f" {_short(probe['expression'])}", partial(_probe, probe)


def _probe(probe: Dict[str, Any]) -> Found:
    """Evaluates the expression with the modules imported; without a value to equal, the result only has to be true."""
    wanted = probe.get("equals")
    expected = "a true value" if wanted is None else _short(repr(wanted))
    names: Dict[str, Any] = {}
    try:
        for module in probe.get("imports") or []:
            importlib.import_module(module)
            names[module.partition(".")[0]] = sys.modules[module.partition(".")[0]]
        value = eval(probe["expression"], names)
        found = _short(repr(value))
        if isinstance(value, tuple):
            value = list(value)
        if wanted is None:
            passed = bool(value)
        elif isinstance(wanted, bool) or isinstance(value, bool):
            passed = value is wanted
        else:
            passed = bool(value == wanted)
    except BaseException as error:
        return _failed(expected, _error(error), _place(error))
    return _result(passed, expected, found)


class _Refused(Exception):
    """What argparse would have printed before it ended the program."""


class _Parser(argparse.ArgumentParser):
    """Raises where argparse ends the program."""

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        raise _Refused(message or "an argument ends the server instead of starting it")


def command_line_step(request: Dict[str, Any], report: Report) -> Step:
    if request["command_line"]:
        yield "command line", lambda: _command_line(request["command_line"], report)


def _command_line(arguments: List[str], report: Report) -> Found:
    expected = "accepted by this build's own parser"
    try:
        server_args = importlib.import_module(PARSER_MODULE).ServerArgs
        parser = _Parser(prog="sglang")
        server_args.add_cli_args(parser)
    except BaseException as error:
        return _failed(expected, f"the parser cannot be built: {_error(error)}", _place(error))
    arguments, configs = _without_config(arguments)
    if configs:
        report.not_verified.append(
            f"arguments in --config {', '.join(configs)}: the file is the service's own and was not read"
        )
        for action in parser._actions:
            action.required = False
    try:
        parsed = vars(parser.parse_args(arguments))
    except _Refused as refused:
        return _failed(expected, _short(str(refused), 400), _nearest(str(refused), parser))
    except BaseException as error:
        return _failed(expected, _error(error))
    defaults = {action.dest: action.default for action in parser._actions}
    report.details["server_arguments"] = {
        name: _plain(value) for name, value in parsed.items() if value != defaults.get(name) and name in defaults
    }
    return _result(True, expected, f"{len(report.details['server_arguments'])} settings differ from the defaults")


def _without_config(arguments: List[str]) -> Tuple[List[str], List[str]]:
    kept: List[str] = []
    files: List[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--config":
            files.append(next(rest, "(no file named)"))
        elif argument.startswith("--config="):
            files.append(argument.partition("=")[2])
        else:
            kept.append(argument)
    return kept, files


def _nearest(message: str, parser: argparse.ArgumentParser) -> str:
    if not message.startswith("unrecognized arguments"):
        return "an unpatched build lacks the patched choices and types" if "invalid choice" in message else ""
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    hints = []
    for word in message.partition(":")[2].split():
        if word.startswith("--"):
            near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
            hints.append(f"nearest to {word.partition('=')[0]}: {near[0]}" if near else f"nothing is near to {word}")
    return "; ".join(hints + ["a flag of the patch set that is unknown means an unpatched build"])


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else _short(repr(value))


def _result(passed: bool, expected: str, found: str, hint: str = "") -> Found:
    return {"passed": passed, "expected": expected, "found": found, "hint": "" if passed else hint}


def _failed(expected: str, found: str, hint: str = "") -> Found:
    return _result(False, expected, found, hint)


def _short(text: str, limit: int = SHORT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _error(error: BaseException) -> str:
    """The error and what caused it: a torch ABI mismatch hides behind an ImportError about an architecture."""
    texts: List[str] = []
    seen: List[BaseException] = []
    current: Optional[BaseException] = error
    while current is not None and current not in seen and len(texts) < 3:
        seen.append(current)
        texts.append(_short(f"{type(current).__name__}: {current}", 300))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return " <- ".join(texts)


def _place(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    return f"raised at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


# Cheap ones first: the reasons that they give explain the failures of the later ones.
STEPS: Tuple[Tuple[str, Callable[[Dict[str, Any], Report], Step]], ...] = (
    ("", version_step),
    ("", requirements_step),
    ("import", imports_step),
    ("probe", probes_step),
    ("", command_line_step),
)
