# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of GPU architectures, and which GPU runs which code.

Source: CUDA's programming guide, compute capabilities and binary compatibility; the nvcc manual on family and architecture
specific features.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FAMILY, EXACT = "f", "a"
EMBEDDED = (53, 62, 72, 87)  # boards whose binaries are promised to run on the same architecture only


class Architecture(NamedTuple):
    """Compute capability times ten, such as 103, and what the code is restricted to: nothing, its family, or itself."""

    number: int
    variant: str = ""

    def __str__(self) -> str:
        return f"sm_{self.number}{self.variant}"


class Image(NamedTuple):
    """One piece of GPU code: finished (SASS), or to be compiled by the driver (PTX)."""

    architecture: Architecture
    ptx: bool

    def __str__(self) -> str:
        mine = self.architecture
        return f"compute_{mine.number}{mine.variant}" if self.ptx else str(mine)

    def runs_on(self, wanted: Architecture) -> bool:
        """Whether a GPU of that architecture takes it. A wanted variant, such as sm_120a, asks for code of just that variant."""
        mine = self.architecture
        if wanted.variant or mine == wanted:
            return mine == wanted
        if mine.variant == EXACT:
            return mine.number == wanted.number
        if self.ptx and mine.variant != FAMILY:
            return mine.number <= wanted.number
        if {mine.number, wanted.number} & set(EMBEDDED):
            return mine.number == wanted.number
        return mine.number // 10 == wanted.number // 10 and mine.number <= wanted.number


def parse_architecture(text: str) -> Architecture:
    """Raises ValueError for what is no name such as sm_90, sm_103a or sm_120f."""
    match = re.fullmatch(r"sm_([1-9][0-9]{1,2})([af]?)", text)
    if not match:
        raise ValueError(f"{text!r} is no architecture such as sm_90, sm_103a or sm_120f")
    return Architecture(int(match.group(1)), match.group(2))
