# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The patch set of an environment: declared files, what each must hold, and how they differ from a baseline.

The form of everything that is declared is judged before anything is read. A new kind of check is one function beside those
above ``KINDS`` and its line there; a new baseline is one function beside ``_compare_with_record`` and its line in ``BASELINES``.
"""

from __future__ import annotations

import glob
import os
import posixpath
import re
import stat
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._record import (
    Distribution,
    RecordError,
    find_distribution,
    own_version,
    same_version,
    show_name,
    take_inventory,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._syntax import InterpreterError, Mark, Syntax, read_syntax
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, failures, message

WARNINGS_SHOWN = 50
NAMES_IN_MESSAGE = 10


class PatchError(Exception):
    """A request that cannot be carried out as it stands; the message names the thing and the way out."""


class Environment(NamedTuple):
    root: str
    site: str
    interpreter: str


class Source(NamedTuple):
    """What a check may look at: one file of the environment. ``syntax`` is there for kinds that ask for it."""

    text: str
    syntax: Optional[Syntax]


def _literal(source: Source, wanted: str) -> List[int]:
    places = []
    start = source.text.find(wanted)
    while start >= 0:
        places.append(start)
        start = source.text.find(wanted, start + len(wanted))
    return _line_numbers(source.text, places)


def _regex(source: Source, wanted: str) -> List[int]:
    return _line_numbers(source.text, [match.start() for match in re.finditer(wanted, source.text, re.MULTILINE)])


def _defines(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.defines if source.syntax else [], wanted)


def _calls(source: Source, wanted: str) -> List[int]:
    return _named(source.syntax.calls if source.syntax else [], wanted)


def _line_numbers(text: str, places: Iterable[int]) -> List[int]:
    """The lines of ascending places in a text."""
    lines, line, counted = [], 1, 0
    for place in places:
        line += text.count("\n", counted, place)
        counted = place
        lines.append(line)
    return lines


def _named(found: Iterable[Mark], wanted: str) -> List[int]:
    """A dotted name must match fully, a plain one matches the last part."""
    return sorted(line for name, line in found if wanted == (name if "." in wanted else name.rpartition(".")[2]))


def _malformed_regex(wanted: str) -> str:
    try:
        re.compile(wanted, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{wanted!r} is no regular expression: {error}"
    return ""


def _malformed_name(wanted: str) -> str:
    return (
        ""
        if all(part.isidentifier() for part in wanted.split("."))
        else f"{wanted!r} is no name such as f, x.f or Class.method"
    )


class Kind(NamedTuple):
    """One kind of check.

    ``find`` gives the line of every occurrence of the wanted text in a file, ``malformed`` what is wrong with a wanted text.
    """

    find: Callable[[Source, str], List[int]]
    malformed: Callable[[str], str] = lambda wanted: ""
    needs_syntax: bool = False


KINDS: Dict[str, Kind] = {
    "literal": Kind(_literal),
    "regex": Kind(_regex, _malformed_regex),
    "defines": Kind(_defines, _malformed_name, needs_syntax=True),
    "calls": Kind(_calls, _malformed_name, needs_syntax=True),
}

COUNTS = ("count", "min", "max")
KEYS = ("file", *KINDS, *COUNTS, "name", "hint")


class Rule(NamedTuple):
    """One declared check: how often the wanted text must be found in a file (``most`` None: without bound)."""

    file: str
    kind: str
    wanted: str
    least: int
    most: Optional[int]
    name: str
    hint: str

    def expected(self) -> str:
        if self.most is None:
            return f"at least {self.least}"
        if self.least == self.most:
            return f"exactly {self.most}"
        return f"{self.least} to {self.most}" if self.least else f"at most {self.most}"


class Baseline(NamedTuple):
    """What the environment is compared with; ``version`` is the package version it should be, where that is declared."""

    kind: str
    distribution: str
    version: Optional[str] = None


@dataclass
class Verdict:
    """All that one run found."""

    checks: List[Check] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    inventory: Optional[Dict[str, Any]] = None
    versions: Optional[Dict[str, Optional[str]]] = None

    def result(self) -> Dict[str, Any]:
        result: Dict[str, Any] = {
            "checks": [check.result() for check in self.checks],
            "failed_checks": len(failures(self.checks)),
        }
        if self.inventory is not None:
            result["inventory"] = self.inventory
        if self.versions is not None:
            result["versions"] = self.versions
        return result

    def shown_warnings(self) -> List[str]:
        """The warnings up to a number that people still read."""
        more = len(self.warnings) - WARNINGS_SHOWN
        return self.warnings[:WARNINGS_SHOWN] + ([f"and {more} warnings more"] if more > 0 else [])

    def message(self, root: str) -> str:
        """Empty when everything passed."""
        return message("patches", root, self.checks) if failures(self.checks) else ""


def parse_files(files: Sequence[str]) -> List[str]:
    """The declared files, each once; raises PatchError naming a malformed one by its index."""
    parsed: Dict[str, None] = {}
    for index, path in enumerate(files):
        problem = _malformed_path(path)
        if problem:
            raise PatchError(f"files[{index}] ({path}): {problem}")
        parsed[posixpath.normpath(path)] = None
    return list(parsed)


def parse_rules(checks: Sequence[Mapping[str, Any]]) -> List[Rule]:
    """The declared checks; raises PatchError naming a malformed one by its index and file."""
    rules = []
    for index, check in enumerate(checks):
        given = {key: value for key, value in check.items() if value is not None}
        try:
            rules.append(_parse_rule(given))
        except ValueError as error:
            raise PatchError(f"checks[{index}] ({given.get('file', 'no file')}): {error}") from error
    return rules


def _parse_rule(given: Mapping[str, Any]) -> Rule:
    unknown = sorted(str(key) for key in given if key not in KEYS)
    if unknown:
        raise ValueError(f"unknown key {', '.join(unknown)}; known are {', '.join(KEYS)}")
    problem = _malformed_path(str(given.get("file", "")))
    if problem:
        raise ValueError(f"file: {problem}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"exactly one of {', '.join(KINDS)} is needed, given: {', '.join(kinds) or 'none'}")
    kind = kinds[0]
    if not isinstance(given[kind], (str, int, float)):
        raise ValueError(f"{kind}: {given[kind]!r} is no text")
    wanted = str(given[kind])
    problem = KINDS[kind].malformed(wanted) if wanted else "the text to look for is empty"
    if problem:
        raise ValueError(f"{kind}: {problem}")
    least, most = _parse_counts(given)
    shown = wanted if len(wanted) <= 60 else wanted[:57] + "..."
    name = str(given.get("name") or f"{kind} {shown!r}")
    return Rule(posixpath.normpath(str(given["file"])), kind, wanted, least, most, name, str(given.get("hint", "")))


def _parse_counts(given: Mapping[str, Any]) -> Tuple[int, Optional[int]]:
    counts = {key: _parse_count(key, given[key]) for key in COUNTS if key in given}
    if "count" in counts:
        if len(counts) > 1:
            raise ValueError("count is exact, so min and max cannot stand beside it")
        return counts["count"], counts["count"]
    most = counts.get("max")
    least = counts.get("min", 0 if most == 0 else 1)
    if most is not None and least > most:
        raise ValueError(f"min {least} is more than max {most}")
    return least, most


def _parse_count(key: str, value: Any) -> int:
    # A templated number arrives as text, and True is an int in Python.
    if isinstance(value, bool) or not re.fullmatch(r"\s*\d+\s*", str(value)):
        raise ValueError(f"{key}: {value!r} is no number from 0 up")
    return int(value)


def _malformed_path(path: str) -> str:
    if not path or posixpath.normpath(path) == ".":
        return "a path relative to site-packages is needed"
    if path.startswith("/"):
        return "an absolute path; it must be relative to site-packages"
    if ".." in path.split("/"):
        return "climbs out with '..'; it must be relative to site-packages"
    return "holds a NUL character" if "\0" in path else ""


def find_environment(root: str, site_packages: Optional[str] = None, interpreter: Optional[str] = None) -> Environment:
    """Where an environment keeps its packages and its interpreter; both overrides may be relative to ``root``."""
    if not os.path.isdir(root):
        raise PatchError(f"root {root}: " + ("not a directory" if os.path.lexists(root) else "no such directory"))
    if site_packages:
        sites = [os.path.join(root, site_packages)]
        if not os.path.isdir(sites[0]):
            raise PatchError(f"site_packages {sites[0]}: no such directory")
    else:
        pattern = os.path.join(glob.escape(root), "lib", "python3.*", "site-packages")
        sites = sorted(path for path in glob.glob(pattern) if os.path.isdir(path))
        if not sites:
            raise PatchError(
                f"root {root} has no lib/python3.*/site-packages; name an environment there, or its packages in site_packages"
            )
        if len(sites) > 1:
            raise PatchError(
                f"root {root} has more than one lib/python3.*/site-packages: {', '.join(sites)}; choose one with site_packages"
            )
    return Environment(root, sites[0], os.path.join(root, interpreter or os.path.join("bin", "python")))


def assert_patches(
    environment: Environment,
    files: Sequence[str],
    rules: Sequence[Rule],
    compile_files: bool,
    baseline: Optional[Baseline],
) -> Verdict:
    """Look at everything that is declared, in one go. Raises PatchError for what cannot be looked at for want of permission."""
    if not (files or rules or baseline):
        raise PatchError("nothing to assert: give files, checks or baseline")
    verdict = Verdict()
    absent = _check_present(environment, files, verdict)
    compiled = [file for file in files if compile_files and file.endswith(".py")]
    parsed = [rule.file for rule in rules if KINDS[rule.kind].needs_syntax]
    syntax, problem = _read_syntax(
        environment, [file for file in dict.fromkeys(compiled + parsed) if file not in absent]
    )
    if problem:
        hint = "repair the environment's interpreter, or name one that can run here with interpreter"
        verdict.checks.append(Check("interpreter", False, "it runs", problem, hint, environment.interpreter))
    _check_compiles(compiled, syntax, verdict)
    _check_rules(environment, rules, syntax, problem, verdict)
    if baseline:
        BASELINES[baseline.kind](environment, baseline, files, verdict)
    return verdict


def _check_present(environment: Environment, files: Sequence[str], verdict: Verdict) -> Set[str]:
    absent = set()
    for file in files:
        problem = _why_unreadable(os.path.join(environment.site, file))
        if problem:
            absent.add(file)
        hint = f"files are relative to {environment.site}" if problem else ""
        verdict.checks.append(
            Check("declared file", not problem, "a readable file", problem or "a readable file", hint, show_name(file))
        )
    return absent


def _why_unreadable(path: str) -> str:
    """Empty for a regular file that can be read, or a link to one."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return "a dangling link" if os.path.islink(path) else str(error.strerror)
    if not stat.S_ISREG(mode):
        return "a directory" if stat.S_ISDIR(mode) else "no regular file"
    return "" if os.access(path, os.R_OK) else "permission denied"


def _read_syntax(environment: Environment, files: Sequence[str]) -> Tuple[Dict[str, Syntax], str]:
    """The syntax by file, and why there is none. Files that are not there are left out."""
    paths = {file: os.path.join(environment.site, file) for file in files}
    readable = [file for file, path in paths.items() if not _why_unreadable(path)]
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
    texts: Dict[str, str] = {}
    for rule in rules:
        kind, path = KINDS[rule.kind], os.path.join(environment.site, rule.file)
        problem = _why_unreadable(path)
        if not problem and kind.needs_syntax:
            if no_syntax:
                problem = "nothing was looked at, since the interpreter does not run"
            elif syntax[rule.file].error:
                problem = f"a file that does not compile: {syntax[rule.file].error}"
        if problem:
            verdict.checks.append(Check(rule.name, False, rule.expected(), problem, rule.hint, show_name(rule.file)))
            continue
        if rule.file not in texts:
            texts[rule.file] = _read_text(path)
        lines = kind.find(Source(texts[rule.file], syntax.get(rule.file)), rule.wanted)
        passed = rule.least <= len(lines) and (rule.most is None or len(lines) <= rule.most)
        found = (
            str(len(lines))
            if passed or len(lines) < 2
            else f"{len(lines)} in lines {', '.join(map(str, lines[:NAMES_IN_MESSAGE]))}"
        )
        hint = "" if passed else rule.hint
        verdict.checks.append(
            Check(rule.name, passed, rule.expected(), found, hint, show_name(rule.file), lines[0] if lines else 0)
        )


def _read_text(path: str) -> str:
    """The text of a file whatever its encoding and line ends, so that a wanted text of several lines matches in all."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise PatchError(f"{show_name(path)}: {error.strerror}") from error


def _compare_with_record(environment: Environment, baseline: Baseline, files: Sequence[str], verdict: Verdict) -> None:
    """Hold the distribution's files against its RECORD: all that differ must be declared, all that are declared must differ."""
    try:
        distribution = find_distribution(environment.site, baseline.distribution)
        if distribution.is_editable():
            raise RecordError(
                f"{distribution.dist_info} of an editable install", "its files are elsewhere; install the wheel"
            )
        if not _check_version(environment, distribution, baseline, verdict):
            return
        inventory = take_inventory(environment.root, environment.site, distribution)
    except RecordError as error:
        name = f"baseline record of {baseline.distribution}"
        verdict.checks.append(Check(name, False, f"one RECORD in {environment.site}", error.found, error.hint))
        return
    except OSError as error:
        raise PatchError(f"{show_name(str(error.filename))}: {error.strerror}") from error
    declared = set(files)
    verdict.inventory = inventory.result()
    _check_names(
        verdict,
        "undeclared",
        "no undeclared file that differs from RECORD",
        [file for file in sorted(inventory.modified + inventory.added) if file not in declared],
        "declare in files what belongs to the patch set, restore or remove the rest",
    )
    _check_names(
        verdict,
        "unmodified",
        "every declared file to differ from RECORD",
        [file for file in files if file in inventory.equal],
        "these are the wheel's own: the patch is not applied",
    )
    _check_names(
        verdict,
        "missing",
        "every file of RECORD to be there",
        [file for file in inventory.missing if file not in declared],
        "reinstall the distribution and apply the patch set again",
    )
    known = set(inventory.modified) | set(inventory.missing) | set(inventory.added) | inventory.equal
    verdict.warnings += [
        f"{show_name(file)} is declared, but RECORD of {distribution.dist_info} has nothing to compare it with"
        for file in files
        if file not in known
    ]


def _check_names(verdict: Verdict, name: str, expected: str, names: Sequence[str], hint: str) -> None:
    shown = ", ".join(show_name(one) for one in names[:NAMES_IN_MESSAGE])
    if len(names) > NAMES_IN_MESSAGE:
        shown += f" and {len(names) - NAMES_IN_MESSAGE} more"
    verdict.checks.append(
        Check(name, not names, expected, f"{len(names)}: {shown}" if names else "0", hint if names else "")
    )


def _check_version(environment: Environment, distribution: Distribution, baseline: Baseline, verdict: Verdict) -> bool:
    """Whether RECORD speaks of the version that stands there; one check says so, and whether it is the declared version."""
    own = own_version(environment.site, distribution)
    verdict.versions = {"dist_info": distribution.version, "package": own}
    consistent = own is None or same_version(own, distribution.version)
    wanted = baseline.version
    if wanted and own is None:
        verdict.warnings.append(
            f"{distribution.name} states no __version__ as a plain text, so only {distribution.dist_info} tells its version"
        )
    if not consistent:
        found = f"dist-info says {distribution.version}, __version__ says {own}"
        hint = "the package directory was copied over another version; RECORD is no baseline here, install the wheel of the version that is meant"
        verdict.checks.append(
            Check(
                "version", False, f"{wanted} in both" if wanted else "one version", found, hint, distribution.dist_info
            )
        )
    elif wanted:
        found = own or distribution.version
        verdict.checks.append(Check("version", same_version(found, wanted), wanted, found, "", distribution.dist_info))
    return consistent


BASELINES: Dict[str, Callable[[Environment, Baseline, Sequence[str], Verdict], None]] = {"record": _compare_with_record}
