# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds an environment against all that is declared of it, in one go."""

from __future__ import annotations

import os
from typing import Dict, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.comparison import compare
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._files import show_name
from ansible_collections.ddtree.fleet.plugins.module_utils._native.proof import prove
from ansible_collections.ddtree.fleet.plugins.module_utils._native.request import Request
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import Rule
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import (
    Diff,
    check_diffs,
    gone_files,
    patched_files,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import (
    Environment,
    PatchError,
    why_unreadable,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.kinds import KINDS, Source
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import NAMES_IN_MESSAGE, Verdict
from ansible_collections.ddtree.fleet.plugins.module_utils._syntax import InterpreterError, Syntax, read_syntax
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check


def assert_patches(
    environment: Environment,
    files: Sequence[str],
    rules: Sequence[Rule],
    compile_files: bool,
    baseline: Optional[Baseline],
    diffs: Sequence[Diff] = (),
    native: Optional[Request] = None,
) -> Verdict:
    """Look at everything that is declared, in one go. Raises PatchError for what cannot be looked at for want of permission."""
    if not (files or rules or baseline or diffs or native):
        raise PatchError("nothing to assert: give files, checks, diffs, baseline or native")
    verdict = Verdict()
    absent = _check_present(environment, files, verdict)
    patched = list(dict.fromkeys([*files, *patched_files(diffs)]))
    compiled = [file for file in patched if compile_files and file.endswith(".py")]
    parsed = [rule.file for rule in rules if KINDS[rule.kind].needs_syntax]
    syntax, problem = _read_syntax(
        environment, [file for file in dict.fromkeys(compiled + parsed) if file not in absent]
    )
    if problem:
        hint = "repair the environment's interpreter, or name one that can run here with interpreter"
        verdict.checks.append(Check("interpreter", False, "it runs", problem, hint, environment.interpreter))
    _check_compiles(compiled, syntax, verdict)
    _check_rules(environment, rules, syntax, problem, verdict)
    verdict.checks += check_diffs(environment, diffs)
    if baseline:
        declared = list(dict.fromkeys([*patched, *gone_files(diffs)]))
        compare(environment, baseline, declared, verdict)
    if native:
        proof = prove(environment, native)
        verdict.checks += proof.checks
        verdict.warnings += proof.warnings
        verdict.native = proof.result
    return verdict


def _check_present(environment: Environment, files: Sequence[str], verdict: Verdict) -> Set[str]:
    absent = set()
    for file in files:
        problem = why_unreadable(os.path.join(environment.site, file))
        if problem:
            absent.add(file)
        hint = f"files are relative to {environment.site}" if problem else ""
        verdict.checks.append(
            Check("declared file", not problem, "a readable file", problem or "a readable file", hint, show_name(file))
        )
    return absent


def _read_syntax(environment: Environment, files: Sequence[str]) -> Tuple[Dict[str, Syntax], str]:
    """The syntax by file, and why there is none. Files that are not there are left out."""
    paths = {file: os.path.join(environment.site, file) for file in files}
    readable = [file for file, path in paths.items() if not why_unreadable(path)]
    if not readable:
        return {}, ""
    try:
        found = read_syntax(environment.interpreter, [os.path.abspath(paths[file]) for file in readable])
    except InterpreterError as error:
        return {}, str(error)
    return dict(zip(readable, found)), ""


def _check_compiles(files: Sequence[str], syntax: Mapping[str, Syntax], verdict: Verdict) -> None:
    for file in files:
        if file not in syntax:
            continue  # not there, or no interpreter: a failed check says so already
        one = syntax[file]
        verdict.checks.append(
            Check("compiles", not one.error, "no error", one.error or "no error", "", show_name(file), one.line)
        )
        verdict.warnings += [f"{show_name(file)}:{line}: {text}" for text, line in one.warnings]


def _check_rules(
    environment: Environment, rules: Sequence[Rule], syntax: Mapping[str, Syntax], no_syntax: str, verdict: Verdict
) -> None:
    sources: Dict[str, Source] = {}
    for rule in rules:
        kind, path = KINDS[rule.kind], os.path.join(environment.site, rule.file)
        problem = why_unreadable(path, whole=not kind.whole)
        if not problem and kind.needs_syntax:
            if no_syntax:
                problem = "nothing was looked at, since the interpreter does not run"
            elif syntax[rule.file].error:
                problem = f"a file that does not compile: {syntax[rule.file].error}"
        if problem:
            verdict.checks.append(Check(rule.name, False, rule.expected(), problem, rule.hint, show_name(rule.file)))
            continue
        source = sources.setdefault(rule.file, Source(path, syntax.get(rule.file)))
        try:
            lines = kind.find(source, rule.wanted)
            passed = rule.least <= len(lines) and (rule.most is None or len(lines) <= rule.most)
            found = kind.whole(source) if kind.whole else _counted(lines, passed)
        except OSError as error:
            raise PatchError(f"{show_name(path)}: {error.strerror}") from error
        hint = "" if passed else rule.hint
        verdict.checks.append(
            Check(rule.name, passed, rule.expected(), found, hint, show_name(rule.file), lines[0] if lines else 0)
        )


def _counted(lines: Sequence[int], passed: bool) -> str:
    if passed or len(lines) < 2:
        return str(len(lines))
    return f"{len(lines)} in lines {', '.join(map(str, lines[:NAMES_IN_MESSAGE]))}"
