# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a task's result gets into a report: named fields of this collection's modules, bounded and without secrets.

Nothing here trusts a result: what a module of another version, a hook or a hostile host returns has any type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.verdict import SERVER_FIELDS
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Check, Gate

SHORT, LONG = 240, 4000
MOST_CHECKS, MOST_STATEMENTS = 400, 40
# What a terminal or a browser acts upon instead of showing it: control characters, and marks that turn text around.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]|[\ud800-\udfff]")
_COLOUR = re.compile("\x1b\\[[0-9;]*[A-Za-z]")
_FIGURES = (
    "accept_length",
    "accept_rate",
    "tokens_per_second",
    "tokens_per_second_concurrent",
    "time_to_first_token_seconds",
    "ready_seconds",
    "speedup",
    "seconds",
)
_VERDICT_TEXTS = ("path", "topology", "fed_by", "compress", "interpreter")
_VERDICT_NUMBERS = ("files_sent", "bytes_sent", "bytes_resumed", "wire_bytes", "mib_per_s", "rounds")
_TREE_NUMBERS = (
    "files",
    "bytes",
    "entries",
    "hashed",
    "hashed_bytes",
    "seconds",
    "source_bytes_read",
    "source_bytes_sent",
    "relay_bytes_sent",
    "rounds",
)
_redactor = Redactor()


def text(value: Any, limit: int = SHORT) -> str:
    """Any value as text of at most ``limit`` characters, without secrets, colours and control characters."""
    return "" if value is None else _clean(str(value), limit)


@functools.lru_cache(maxsize=8192)
def _clean(value: str, limit: int) -> str:
    """Hosts of a fleet say mostly the same."""
    plain = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", value.replace("\r\n", "\n")))
    return _redactor.bounded(plain, limit)


def number(value: Any) -> Optional[float]:
    """A finite number, or the mean of figures that were kept as such; None for everything else."""
    if isinstance(value, Mapping):
        value = value.get("mean", value.get("min"))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1e18 else None


def numbers(found: Any, names: tuple[str, ...]) -> dict[str, float]:
    known = {name: number(mapping(found).get(name)) for name in names}
    return {name: value for name, value in known.items() if value is not None}


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def statements(value: Any) -> tuple[str, ...]:
    """Sentences of a result, each once."""
    return tuple(dict.fromkeys(text(item) for item in sequence(value)[:MOST_STATEMENTS]))


def reason(found: Mapping[str, Any]) -> str:
    """Why a task failed. A loop that failed says only that it did; its items say why."""
    items = [
        item for item in map(mapping, sequence(found.get("results"))) if item.get("failed") or item.get("unreachable")
    ]
    said = [text(item.get("msg"), LONG) for item in items if item.get("msg")]
    return "\n".join(dict.fromkeys(said)) or text(found.get("msg") or found.get("censored"), LONG)


def patches(found: Mapping[str, Any], at: int) -> Gate:
    undeclared = mapping(mapping(found.get("inventory")).get("undeclared"))
    lengths = {name: len(sequence(undeclared.get(name))) for name in ("modified", "added", "missing")}
    remarks = [
        f"{length} {name} files that the patch set does not declare" for name, length in lengths.items() if length
    ]
    native = mapping(found.get("native"))
    return _gate("patches", found, at, remarks=tuple(remarks), not_verified=statements(native.get("not_verified")))


def manifest(found: Mapping[str, Any], at: int) -> Gate:
    """It has no checks of its own: the tree equals its manifest, or differs in so many ways."""
    counts = numbers(
        mapping(found.get("differences")).get("counts"), ("missing", "moved", "changed", "extra", "mode", "link")
    )
    differing = ", ".join(f"{int(value)} {name}" for name, value in counts.items() if value)
    passed = not found.get("failed")
    sizes = numbers(found, ("files", "bytes"))
    seen = f"{text(found.get('digest'), 16)} over {int(sizes.get('files', 0)):,} files" if found.get("digest") else ""
    check = Check("tree equals its manifest", passed, "no difference", differing or seen)
    return Gate("manifest", at, passed, checks=(check,))


def smoke(found: Mapping[str, Any], at: int) -> Gate:
    """The environment gate or the server gate, whichever ran."""
    figures = mapping(found.get("figures"))
    return _gate(
        text(found.get("gate") or "server", 40),
        found,
        at,
        figures=numbers(figures, _FIGURES),
        baseline=numbers(figures.get("baseline"), _FIGURES),
        server={
            name: value
            for name, value in mapping(found.get("server")).items()
            if name in SERVER_FIELDS and isinstance(value, (str, int, float, bool)) and text(value) == str(value)
        },
        not_verified=statements(found.get("not_verified")),
        remarks=statements(found.get("remarks")),
    )


def hardware(found: Mapping[str, Any]) -> dict[str, str]:
    """What computes on a host, as ``gpu_host_info`` saw it."""
    gpus = [mapping(gpu) for gpu in sequence(found.get("gpus"))]
    names = [text(gpu.get("name"), 80) for gpu in gpus]
    return {
        "gpus": ", ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names)),
        "driver": ", ".join(dict.fromkeys(text(gpu.get("driver"), 40) for gpu in gpus)),
    }


def transfer(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one target of a stream."""
    reused = {
        text(how, 40): numbers(counts, ("files", "bytes")) for how, counts in mapping(verdict.get("reused")).items()
    }
    return {
        **{name: text(verdict[name], 80) for name in _VERDICT_TEXTS if verdict.get(name)},
        **numbers(verdict, _VERDICT_NUMBERS),
        "reused": {how: counts for how, counts in reused.items() if counts.get("files")},
        "seconds": numbers(verdict.get("seconds"), tuple(map(str, mapping(verdict.get("seconds"))))),
    }


def stream(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a whole stream: what was read at the source, and who sent how much."""
    tree = mapping(found.get("tree"))
    chains = [[text(host, 80) for host in sequence(chain)] for chain in sequence(tree.get("chains"))]
    return {
        "source": text(tree.get("source"), 80),
        "digest": text(tree.get("digest") or found.get("digest"), 64),
        "targets": [text(host, 80) for host in mapping(found.get("targets"))],
        **numbers(tree, _TREE_NUMBERS),
        "chains": chains,
        "set_aside": [text(host, 80) for host in sequence(tree.get("set_aside"))],
    }


def _gate(name: str, found: Mapping[str, Any], at: int, **more: Any) -> Gate:
    checks = tuple(_check(mapping(check)) for check in sequence(found.get("checks"))[:MOST_CHECKS])
    passed = not found.get("failed") and all(check.passed for check in checks)
    return Gate(name, at, passed, subject=text(found.get("subject"), 120), checks=checks, **more)


def _check(found: Mapping[str, Any]) -> Check:
    place = text(found.get("file"), 160)
    line = number(found.get("line"))
    passed = found.get("passed") is True
    return Check(
        name=text(found.get("name"), 120),
        passed=passed,
        expected=text(found.get("expected")),
        found=text(found.get("found")),
        hint="" if passed else text(found.get("hint")),
        place=f"{place}:{int(line)}" if place and line else place,
    )
