# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that one run found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, failures, message

WARNINGS_SHOWN = 50
NAMES_IN_MESSAGE = 10


@dataclass
class Verdict:
    """All that one run found."""

    checks: List[Check] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    inventory: Optional[Dict[str, Any]] = None
    drift: Optional[List[Dict[str, str]]] = None
    versions: Optional[Dict[str, Optional[str]]] = None
    native: Optional[Dict[str, Any]] = None

    def result(self) -> Dict[str, Any]:
        result: Dict[str, Any] = {
            "checks": [check.result() for check in self.checks],
            "failed_checks": len(failures(self.checks)),
        }
        if self.inventory is not None:
            result["inventory"] = self.inventory
        if self.drift is not None:
            result["drift"] = self.drift
        if self.versions is not None:
            result["versions"] = self.versions
        if self.native is not None:
            result["native"] = self.native
        return result

    def shown_warnings(self) -> List[str]:
        """The warnings up to a number that people still read."""
        more = len(self.warnings) - WARNINGS_SHOWN
        return self.warnings[:WARNINGS_SHOWN] + ([f"and {more} warnings more"] if more > 0 else [])

    def message(self, root: str) -> str:
        """Empty when everything passed."""
        return message("patches", root, self.checks) if failures(self.checks) else ""
