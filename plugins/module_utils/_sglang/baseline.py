# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speeds that were recorded on this host, and what they are worth for the server that runs now.

A file holds one entry a configuration: what has to be equal for two figures to be comparable. What may never differ
silently, such as CUDA graphs, is not part of it, so that its loss shows as a loss of speed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils import _gpu_host
from ansible_collections.ddtree.fleet.plugins.module_utils._files import open_regular
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import write_atomically
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

NONE, RECORD, COMPARE = "none", "record", "compare"
FORMAT = 1
LARGEST = 4 << 20
# A first token that comes this much later is within what any host shows from one minute to the next.
FIRST_TOKEN_GRACE = 0.05
_SERVER = ("model_path", "device", "tp_size", "ep_size", "pp_size", "dp_size", "quantization", "kv_cache_dtype")
_SPECULATIVE = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
    "speculative_dflash_draft_window_size",
    "speculative_draft_window_size",
    "speculative_ddtree_budget",
    "speculative_ddtree_topk_cap",
)
_HIGHER_IS_BETTER = ("tokens_per_second", "tokens_per_second_concurrent", "accept_length")
_FIRST_TOKEN = "time_to_first_token_seconds"
FIGURES = (*_HIGHER_IS_BETTER, _FIRST_TOKEN, "accept_rate")


@dataclass(frozen=True)
class Entry:
    """``configuration`` says what was measured, ``figures`` what was seen, ``recorded`` when (epoch seconds)."""

    configuration: Dict[str, Any]
    figures: Dict[str, Optional[float]]
    recorded: float
    version: str


def hardware() -> str:
    """What computes on this host, such as ``8x NVIDIA B300``, or its processors where it has no GPUs."""
    try:
        names = Counter(row["name"] for row in _gpu_host.query("gpu", ("name",)))
    except _gpu_host.HostError as error:
        raise GateError(f"a baseline needs to know this host's GPUs: {error}") from None
    if names:
        return ", ".join(f"{count}x {name}" for name, count in sorted(names.items()))
    return f"{os.cpu_count()}x {_processor()}"


def workload(prompts: Sequence[str], max_new_tokens: int, concurrent: int) -> Dict[str, Any]:
    """What is asked of the server while its speed is measured."""
    digest = hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:16]
    return {"prompts": digest, "max_new_tokens": max_new_tokens, "concurrent": concurrent}


def configuration(info: Dict[str, Any], machine: str, work: Dict[str, Any]) -> Dict[str, Any]:
    """What makes figures comparable, from ``server_info``; without speculation its other settings mean nothing."""
    known = {name: info.get(name) for name in _SERVER}
    speculative = {name: info[name] for name in _SPECULATIVE if info.get(name) is not None}
    if not info.get(_SPECULATIVE[0]):
        speculative = {}
    return {**known, "speculative": speculative, "hardware": machine, **work}


class BaselineFile:
    """The entries of one file. Reading a file that is not there gives none; a damaged one raises GateError."""

    def __init__(self, path: str) -> None:
        self.path = path
        folder = os.path.dirname(path)
        if not os.path.isabs(path) or not os.path.isdir(folder):
            raise GateError(f"baseline_file {path} must be an absolute path in a folder that exists")
        self._folder = folder
        self.entries = self._read()

    def find(self, wanted: Dict[str, Any]) -> Optional[Entry]:
        return next((entry for entry in self.entries if entry.configuration == wanted), None)

    def plain(self, wanted: Dict[str, Any]) -> Optional[Entry]:
        """The same server's plain decoding."""
        return self.find({**wanted, "speculative": {}})

    def put(self, entry: Entry, write: bool) -> None:
        """Take the place of the entry of the same configuration; ``write`` is false in check mode."""
        with self._alone():
            others = [other for other in self._read() if other.configuration != entry.configuration]
            self.entries = [*others, entry]
            if write:
                content = {"format": FORMAT, "entries": [vars(kept) for kept in self.entries]}
                self._write(json.dumps(content, indent=1, sort_keys=True) + "\n")

    def check_writable(self) -> None:
        """Said before anything is measured, not afterwards."""
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise GateError(f"baseline_file {self.path} cannot be written: no permission in {self._folder}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two instances of one host may record at the same time."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, content: str) -> None:
        try:
            write_atomically(self.path, content)
            # Whatever the umask is: other gates and people read it, and it holds no secret.
            os.chmod(self.path, 0o644)
        except OSError as error:
            raise GateError(f"baseline_file {self.path} cannot be written: {error.strerror or error}") from None

    def _read(self) -> List[Entry]:
        try:
            with open_regular(self.path) as file:
                data = file.read(LARGEST + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise GateError(f"baseline_file {self.path} cannot be read: {error.strerror or error}") from None
        try:
            if len(data) > LARGEST:
                raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
            return _entries(json.loads(data))
        except ValueError as error:
            raise GateError(
                f"baseline_file {self.path} is damaged ({error}); move it away and record anew with baseline=record"
            ) from None


def compared(figures: Dict[str, Any], entry: Optional[Entry], tolerance: float) -> List[Check]:
    """Each figure against the recorded one; it may be worse by the share ``tolerance``."""
    if entry is None:
        hint = "let a server that is known to be good pass the gate with baseline=record first"
        return [Check("baseline", False, "figures of this configuration", "none recorded on this host", hint)]
    checks = []
    for name in (*_HIGHER_IS_BETTER, _FIRST_TOKEN):
        recorded, found = entry.figures.get(name), figures.get(name)
        if recorded is None:
            continue
        if name == _FIRST_TOKEN:
            limit = max(recorded * (1 + tolerance), recorded + FIRST_TOKEN_GRACE)
            passed = found is not None and found <= limit
            expected = f"at most {limit:.3f} ({recorded:.3f} recorded)"
        else:
            limit = recorded * (1 - tolerance)
            passed = found is not None and found >= limit
            expected = f"at least {limit:.2f} ({recorded:.2f} recorded)"
        hint = "" if passed else "worse than this host was; find out why, or record anew if it is meant to be so"
        checks.append(Check(f"baseline {name}", passed, expected, "none" if found is None else found, hint))
    return checks


def speedup(figures: Dict[str, Any], plain: Optional[Entry]) -> Optional[float]:
    """Tokens per second in multiples of the recorded plain decoding."""
    recorded = plain.figures.get("tokens_per_second") if plain else None
    found = figures.get("tokens_per_second")
    return round(found / recorded, 3) if recorded and found is not None else None


def _entries(content: Any) -> List[Entry]:
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("entries"), list):
        raise ValueError(f"it is no object with format {FORMAT} and entries")
    return [_entry(number, item) for number, item in enumerate(content["entries"], 1)]


def _entry(number: int, item: Any) -> Entry:
    if not isinstance(item, dict) or sorted(item) != ["configuration", "figures", "recorded", "version"]:
        raise ValueError(f"entry {number} lacks configuration, figures, recorded or version")
    figures = item["figures"]
    numbers = [*figures.values(), item["recorded"]] if isinstance(figures, dict) else [figures]
    if not isinstance(item["configuration"], dict) or not all(map(_is_number_or_none, numbers)):
        raise ValueError(f"the configuration of entry {number} is no object, or its figures are no numbers")
    return Entry(item["configuration"], figures, item["recorded"], str(item["version"]))


def _is_number_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration, IndexError):
        return "processors"
