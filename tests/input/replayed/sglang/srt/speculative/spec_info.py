# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of speculative algorithms."""

from __future__ import annotations

from enum import Enum
from typing import Optional


class SpeculativeAlgorithm(Enum):
    """DDTREE is DFLASH with a tree of drafts, so it is both."""

    NONE = "NONE"
    DFLASH = "DFLASH"
    DDTREE = "DDTREE"

    @classmethod
    def from_string(cls, name: Optional[str]) -> SpeculativeAlgorithm:
        return cls[(name or "NONE").upper()]

    def is_dflash(self) -> bool:
        return self in (SpeculativeAlgorithm.DFLASH, SpeculativeAlgorithm.DDTREE)

    def is_ddtree(self) -> bool:
        return self is SpeculativeAlgorithm.DDTREE
