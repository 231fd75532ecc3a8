# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What streams take, where a test has nothing of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.tests.unit.hosts import many_files, one_large_file


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    return many_files(tmp_path / "src")


@pytest.fixture(name="large")
def large_fixture(tmp_path: Path) -> Path:
    return one_large_file(tmp_path / "large")
