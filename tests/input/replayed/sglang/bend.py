# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How this release misbehaves: the file bend.json beside this one. Another content of it makes another release."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import List, Optional

PATH = Path(__file__).with_name("bend.json")


@dataclass(frozen=True)
class Bend:
    """An empty file is a release that serves well."""

    replay: List[str] = field(default_factory=list)  # further flags of replay_server.py, which lists them
    stop_seconds: float = 0.0  # from SIGTERM to the end
    ignore_sigterm: bool = False
    gpu_seconds: Optional[float] = None  # GPU memory is held while the server lives and for so long after it
    # A scheduler that holds the GPU leaves the server's process group and ignores SIGTERM, as one that drains does.
    stubborn_scheduler: bool = False


def read() -> Bend:
    """The bend of this release; an unknown name in it is an error at start."""
    return Bend(**json.loads(PATH.read_text(encoding="utf-8")))
