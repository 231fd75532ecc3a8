# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the setting that a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any


def misspelt(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Each name, with the known one that it looks like: ``ddtree_prot (ddtree_port?)``."""
    nearest = ((name, difflib.get_close_matches(name, known, 1, 0.75)) for name in names)
    return [f"{name} ({near[0]}?)" if near else name for name, near in nearest]


class FilterModule:
    """The filter by name."""

    def filters(self) -> dict[str, Any]:
        return {"misspelt": misspelt}
