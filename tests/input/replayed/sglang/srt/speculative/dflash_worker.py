# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker that verifies drafts; nothing but the import of what it needs is left of it."""

from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

__all__ = ["SpeculativeAlgorithm"]
