# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the programs of the environment gate share; it is sent to the release's interpreter before them.

They answer ``{"started": name}`` before each step, so that a crash or a hang can be named; ``{"check": {...}}`` after
it; ``{"done": {...}}`` at the end.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
import traceback
import types
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

Found = Dict[str, Any]
Step = Iterator[Tuple[str, Callable[[], Optional[Found]]]]

SHORT = 200
_MISSING = object()


class Report:
    """What the steps find besides their checks."""

    def __init__(self) -> None:
        self.remarks: List[str] = []
        self.not_verified: List[str] = []
        self.details: Dict[str, Any] = {}

    def remark(self, text: str) -> None:
        if text not in self.remarks and len(self.remarks) < 50:
            self.remarks.append(text)


class Missing(Exception):
    """A dotted name of which a module or an attribute does not exist; the message says which one."""

    def __init__(self, text: str, name: str, known: Iterable[str]) -> None:
        super().__init__(text)
        self.name = name
        self.known = list(known)


def run_steps(request: Dict[str, Any], answers: int, steps: Iterable[Callable[[Dict[str, Any], Report], Step]]) -> None:
    """Take the steps one after the other, answer what each found, and end this process."""
    os.set_inheritable(answers, False)
    _die_first()
    faulthandler.enable()
    faulthandler.dump_traceback_later(request["stacks_after"], exit=False)
    report = Report()
    _keep_warnings(report)
    with os.fdopen(answers, "w", encoding="utf-8") as stream:

        def say(answer: Dict[str, Any]) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        for step in steps:
            for name, call in step(request, report):
                say({"started": name})
                found = call()
                if found is not None:
                    say({"check": {"name": name, **found}})
        say({"done": {"remarks": report.remarks, "not_verified": report.not_verified, "details": report.details}})
    sys.stdout.flush()
    # Not a normal exit: libraries that crash or hang while the interpreter is torn down prove nothing about serving.
    os._exit(0)


def _die_first() -> None:
    """Where memory runs out, the kernel ends this probe and not the server that runs beside it."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass


def _keep_warnings(report: Report) -> None:
    def keep(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        report.remark(f"{category.__name__}: {short(str(message))} ({filename}:{lineno})")

    warnings.showwarning = keep


def resolve(dotted: str) -> Any:
    """The object that ``dotted`` names, whose modules are imported on the way.

    Raises Missing for a module or an attribute that does not exist, and whatever an import raises.
    """
    first, *rest = dotted.split(".")
    found, place = _module(first, ""), first
    for name in rest:
        value = getattr(found, name, _MISSING)
        if value is _MISSING and hasattr(found, "__path__"):
            value = _module(f"{place}.{name}", place, found)
        elif value is _MISSING:
            kind = "module" if isinstance(found, types.ModuleType) else type(found).__name__
            raise Missing(f"{kind} {place} has no attribute {name}", name, dir(found))
        found, place = value, f"{place}.{name}"
    return found


def _module(dotted: str, parent: str, package: Any = None) -> Any:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name != dotted:
            raise
        import pkgutil

        name = dotted.rpartition(".")[2]
        inside = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", None))}
        if package is None:
            raise Missing(f"there is no module {dotted}", name, inside) from None
        known = inside | set(dir(package))
        raise Missing(f"module {parent} has no attribute and no submodule {name}", name, known) from None


def result(passed: bool, expected: str, found: str, hint: str = "") -> Found:
    return {"passed": passed, "expected": expected, "found": found, "hint": "" if passed else hint}


def failed(expected: str, found: str, hint: str = "") -> Found:
    return result(False, expected, found, hint)


def short(text: str, limit: int = SHORT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_text(error: BaseException, limit: int = 300) -> str:
    """The error and what caused it: a torch ABI mismatch hides behind an ImportError about an architecture."""
    texts: List[str] = []
    seen: List[BaseException] = []
    current: Optional[BaseException] = error
    while current is not None and current not in seen and len(texts) < 3:
        seen.append(current)
        message = re.sub(r"\s*\n\s*", "; ", str(current).strip())
        texts.append(short(f"{type(current).__name__}: {message}", limit))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return " <- ".join(texts)


def raised_at(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    return f"raised at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
