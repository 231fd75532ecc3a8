# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The truth about speculation, from the counters of each /generate reply.

An accept length above 1 proves nothing: 64 tokens in 63 verify steps read 1.016 with not one draft accepted.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import (
    JUDGED_TOKENS,
    Generation,
    grouped,
    rounded,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

ABSENT, ANY, REQUIRED = "absent", "any", "required"


def speculation_checks(
    made: Sequence[Generation],
    mode: str,
    min_accept_length: Optional[float],
    min_accept_rate: Optional[float],
    label: str = "",
) -> List[Check]:
    """What each reply's own counters say. ``mode`` is required, absent or any; ``label`` goes before the names."""
    judged = [found for found in made if found.judged]
    ran = [found for found in judged if found.verify_count]
    if mode == ABSENT:
        return _absent_checks(made, label)
    if mode == ANY and not ran and min_accept_length is None and min_accept_rate is None:
        return []
    if not judged:
        longest = max((found.completion_tokens for found in made), default=0)
        hint = "raise max_new_tokens or give prompts that ask for more"
        expected = f"a reply of {JUDGED_TOKENS} tokens or more to judge"
        return [Check(f"{label}speculation", False, expected, f"{longest} at most", hint)]
    checks: List[Check] = []
    silent = [found for found in judged if not found.verify_count]
    if mode == REQUIRED or silent:
        checks.append(_ran_check(silent, judged, label))
    if ran and mode == REQUIRED:
        checks.append(_accepted_check(ran, label))
    return checks + _threshold_checks(ran, min_accept_length, min_accept_rate, label)


def _absent_checks(made: Sequence[Generation], label: str) -> List[Check]:
    ran = [found for found in made if found.verify_count]
    found = f"it ran in {_of(ran, made)}" if ran else "absent"
    return [Check(f"{label}speculation", not ran, "absent from every reply", found)] if made else []


def _ran_check(silent: Sequence[Generation], judged: Sequence[Generation], label: str) -> Check:
    hint = "the server answers without it: a silent fallback, or it was started without a speculative algorithm"
    found = f"it did not run in {_of(silent, judged)}" if silent else f"{len(judged)} of {len(judged)} replies"
    expected = "spec_verify_ct above 0 in every reply"
    return Check(f"{label}speculation ran", not silent, expected, found, hint if silent else "")


def _accepted_check(ran: Sequence[Generation], label: str) -> Check:
    none = [found for found in ran if not found.accepted_drafts]
    if not none:
        total = sum(found.accepted_drafts or 0 for found in ran)
        proposed = sum(found.proposed_drafts or 0 for found in ran)
        return Check(f"{label}accepted drafts", True, "above 0 in every reply", f"{total} of {proposed}")
    return Check(
        f"{label}accepted drafts",
        False,
        "above 0 in every reply",
        grouped({found.number: f"{found.accepted_drafts or 0} of {found.proposed_drafts}" for found in none}),
        f"accept length reads {rounded(none[0].accept_length)}, which proves nothing; "
        "drafter and model do not belong together, or the drafter's config is read differently than it was trained",
    )


def _threshold_checks(
    ran: Sequence[Generation], min_accept_length: Optional[float], min_accept_rate: Optional[float], label: str
) -> List[Check]:
    thresholds: List[Tuple[str, Optional[float], Callable[[Generation], Optional[float]]]] = [
        ("accept length", min_accept_length, lambda found: found.accept_length),
        ("accept rate", min_accept_rate, lambda found: found.accept_rate),
    ]
    checks = []
    for name, least, value_of in thresholds:
        if least is not None and ran:
            low = [found for found in ran if (value_of(found) or 0.0) < least]
            values = grouped({found.number: str(rounded(value_of(found))) for found in low or ran})
            checks.append(Check(f"{label}{name}", not low, f"{least} or more in every reply", values))
    return checks


def _of(some: Sequence[Generation], every: Sequence[Generation]) -> str:
    return f"{len(some)} of {len(every)} replies"
