# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What both gates hand back, and the error for what is wrong before a gate can judge anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, message, table_message


class GateError(Exception):
    """A wrong parameter, a missing file, a missing permission: one sentence for the user."""


@dataclass
class GateResult:
    """``remarks`` never fail a gate; ``journal`` is the unit's log, only where it explains a failure.

    ``changed`` is true when figures were recorded, or would have been in check mode.
    """

    subject: str
    checks: List[Check] = field(default_factory=list)
    figures: Dict[str, Any] = field(default_factory=dict)
    not_verified: List[str] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    journal: List[str] = field(default_factory=list)
    details: Dict[str, Any] = field(default_factory=dict)
    changed: bool = False


def failure_message(
    gate: str,
    subject: str,
    checks: Sequence[Check],
    journal: Sequence[str] = (),
    not_verified: Sequence[str] = (),
) -> str:
    """The one message of a gate that failed, with the unit's last words where there are any.

    What the environment gate found are interpreters' errors, too long for a table.
    """
    lines = [(table_message if gate == "server" else message)(gate, subject, checks)]
    if not_verified:
        lines += ["not verified:", *(f"  {what}" for what in not_verified)]
    if journal:
        lines += ["last lines of its journal:", *(f"  {line}" for line in journal)]
    return "\n".join(lines)
