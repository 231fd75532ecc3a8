# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a server generated, by the clock of the client that asked."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import (
    CONCURRENT,
    GENERATE,
    STREAM,
    Generation,
    ratio,
    rounded,
)


def figures(made: Sequence[Generation]) -> Dict[str, Any]:
    """Acceptance over all judged replies (weighted by their steps and drafts), speeds, and each reply's own.

    ``tokens_per_second`` and ``time_to_first_token_seconds`` are medians over requests that ran alone, so that the
    first one after a start, which compiles kernels, does not decide. ``tokens_per_second_concurrent`` is what all that
    ran at the same time got together.
    """
    judged = [found for found in made if found.judged]
    alone = [found for found in judged if found.kind in (GENERATE, STREAM)]
    together = [found for found in judged if found.kind == CONCURRENT]
    tokens = sum(found.completion_tokens for found in judged)
    return {
        "accept_length": rounded(ratio(tokens, sum(found.verify_count or 0 for found in judged))),
        "accept_rate": rounded(
            ratio(
                sum(found.accepted_drafts or 0 for found in judged), sum(found.proposed_drafts or 0 for found in judged)
            )
        ),
        "tokens_per_second": rounded(_median([found.tokens_per_second for found in alone])),
        "tokens_per_second_concurrent": rounded(_together(together)),
        "time_to_first_token_seconds": _precise(_median([found.first_token_seconds for found in made])),
        "generations": [found.figures() for found in made],
    }


def _median(values: Sequence[Optional[float]]) -> Optional[float]:
    known: List[float] = [value for value in values if value is not None]
    return median(known) if known else None


def _together(made: Sequence[Generation]) -> Optional[float]:
    if not made:
        return None
    wall = max(found.started + found.seconds for found in made) - min(found.started for found in made)
    return ratio(sum(found.completion_tokens for found in made), wall)


def _precise(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 5)
