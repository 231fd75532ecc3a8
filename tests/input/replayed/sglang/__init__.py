# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for a patched SGLang 0.5.11 where a test needs a release that starts in half a second and fails as it is told."""

__version__ = "0.5.11"
