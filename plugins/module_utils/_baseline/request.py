# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules are told of an environment and its baseline. The documentation of it is in ``doc_fragments/environment.py``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.comparison import BASELINES, check_baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import (
    FAIL,
    LEVELS,
    PATTERNS,
    POLICIES,
    Baseline,
)

ARGUMENTS: Dict[str, Any] = {
    "root": {"type": "path", "required": True},
    "site_packages": {"type": "path"},
    "interpreter": {"type": "path"},
    "baseline": {
        "type": "dict",
        "options": {
            "kind": {"type": "str", "choices": list(BASELINES), "default": "record"},
            "distribution": {"type": "list", "elements": "str", "default": ["sglang"]},
            "path": {"type": "path"},
            "patterns": {"type": "list", "elements": "str", "default": list(PATTERNS)},
        },
        "required_if": [("kind", name, ["path"]) for name, way in BASELINES.items() if way.needs_path],
    },
    "policy": {
        "type": "dict",
        "options": {what: {"type": "str", "choices": list(LEVELS), "default": FAIL} for what in POLICIES},
    },
    "version": {"type": "str"},
}
REQUIRED_BY: Dict[str, List[str]] = {"version": ["baseline"], "policy": ["baseline"]}


def parse_baseline(given: Mapping[str, Any]) -> Optional[Baseline]:
    """The baseline that a module's parameters ask for, if any. Raises PatchError for what cannot be."""
    asked = given["baseline"]
    if not asked:
        return None
    baseline = Baseline(
        asked["kind"],
        asked["distribution"],
        given["version"],
        asked["path"],
        asked["patterns"],
        given["policy"] or {},
    )
    check_baseline(baseline)
    return baseline
