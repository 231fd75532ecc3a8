# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.speed import figures
from ansible_collections.ddtree.fleet.tests.unit.replayed import generation


def test_acceptance_is_weighted_and_short_replies_do_not_count() -> None:
    found = figures([generation("dflash_accepted"), generation("plain", "generate_short", number=1)])
    assert found["accept_length"] == 8.0
    assert found["accept_rate"] == 0.982
    assert [made["completion_tokens"] for made in found["generations"]] == [64, 1]
    assert figures([])["accept_length"] is None


def test_one_slow_first_request_does_not_decide_the_speed_alone() -> None:
    made = [
        dataclasses.replace(generation("plain", number=number), seconds=seconds, kind=kind, first_token_seconds=first)
        for number, (kind, seconds, first) in enumerate(
            [
                ("generate", 60.0, None),
                ("generate", 1.0, None),
                ("stream", 2.0, 0.1),
                ("stream", 1.0, 0.3),
                ("stream", 1.0, 0.2),
            ]
        )
    ]
    found = figures(made)
    assert found["tokens_per_second"] == 64.0
    assert found["time_to_first_token_seconds"] == 0.2
    assert found["tokens_per_second_concurrent"] is None


def test_what_ran_at_the_same_time_is_counted_together() -> None:
    made = [
        dataclasses.replace(generation("plain", number=number), kind="concurrent", started=started, seconds=2.0)
        for number, started in enumerate([10.0, 10.0, 10.5])
    ]
    assert figures(made)["tokens_per_second_concurrent"] == pytest.approx(3 * 64 / 2.5, abs=0.001)
