# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.ddtree.fleet.plugins.filter.misspelt import FilterModule, misspelt


def test_a_misspelt_name_is_shown_with_what_it_looks_like() -> None:
    known = ["ddtree_port", "ddtree_canary"]
    assert misspelt(["ddtree_prot", "ddtree_canari", "ddtree_elsewhere"], known) == [
        "ddtree_prot (ddtree_port?)",
        "ddtree_canari (ddtree_canary?)",
        "ddtree_elsewhere",
    ]


def test_the_filter_has_its_name() -> None:
    assert FilterModule().filters() == {"misspelt": misspelt}
