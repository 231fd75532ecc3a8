# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts with real systemd and sshd: systemd-nspawn containers, each in its own network namespace."""

from __future__ import annotations
