# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker that verifies drafts; the line that it logs at start is left of it."""

from __future__ import annotations

import argparse


def started(server_args: argparse.Namespace) -> str:
    window = server_args.speculative_dflash_draft_window_size
    return (
        "Initialized DFLASH draft runner. attention_backend=None, model=Replayed, block_size=8, "
        f"draft_window_size={window}, compact_cache={window is not None}"
    )
