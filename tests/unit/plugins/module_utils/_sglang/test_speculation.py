# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import replies
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Generation
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.speculation import speculation_checks
from ansible_collections.ddtree.fleet.tests.unit.replayed import generation, recorded


def speculation(made: List[Generation], mode: str = "required", **least: Any) -> Dict[str, Any]:
    checks = speculation_checks(made, mode, least.get("length"), least.get("rate"))
    return {check.name: check for check in checks}


def test_recorded_runs_get_three_different_verdicts() -> None:
    accepted = speculation([generation("dflash_accepted")])
    assert accepted["speculation ran"].passed
    assert accepted["accepted drafts"].passed
    assert accepted["accepted drafts"].found == "55 of 56"

    refused = speculation([generation("dflash_no_acceptance")])
    assert refused["speculation ran"].passed
    assert not refused["accepted drafts"].passed
    assert refused["accepted drafts"].found == "reply 1: 0 of 441"
    assert "accept length reads 1.016, which proves nothing" in refused["accepted drafts"].hint

    plain = speculation([generation("plain")])
    assert not plain["speculation ran"].passed
    assert plain["speculation ran"].found == "it did not run in 1 of 1 replies"
    assert "accepted drafts" not in plain


def test_one_reply_without_speculation_among_many_fails() -> None:
    made = [generation("dflash_accepted", number=0), generation("plain", number=1)]
    assert speculation(made)["speculation ran"].found == "it did not run in 1 of 2 replies"
    assert not speculation(made)["speculation ran"].passed


def test_names_of_later_versions_are_understood() -> None:
    reply = recorded("dflash_accepted")
    meta = reply.json["meta_info"]
    meta["spec_num_correct_drafts"] = meta.pop("spec_accepted_drafts")
    meta["spec_num_proposed_drafts"] = meta.pop("spec_proposed_drafts")
    made = replies.generation(reply)
    assert made is not None
    assert speculation([made])["accepted drafts"].found == "55 of 56"


def test_short_replies_are_not_judged_but_one_must_be() -> None:
    short = generation("plain", "generate_short", number=1)
    assert "speculation ran" in speculation([generation("dflash_accepted"), short])
    assert all(check.passed for check in speculation([generation("dflash_accepted"), short]).values())
    alone = speculation([short])["speculation"]
    assert not alone.passed
    assert alone.expected == "a reply of 8 tokens or more to judge"
    assert alone.found == "1 at most"


@pytest.mark.parametrize(
    ("least", "failed"),
    [({"length": 8.0}, []), ({"length": 8.1}, ["accept length"]), ({"rate": 0.99}, ["accept rate"])],
)
def test_thresholds_hold_for_every_reply(least: Dict[str, float], failed: List[str]) -> None:
    checks = speculation([generation("dflash_accepted")], **least)
    assert [name for name, check in checks.items() if not check.passed] == failed


def test_threshold_is_judged_from_counts_where_the_server_gives_no_ratio() -> None:
    made = generation("dflash_accepted", spec_accept_length=None, spec_accept_rate=None)
    assert made.accept_length == 8.0
    assert made.accept_rate == pytest.approx(55 / 56)


def test_absent_and_any() -> None:
    assert speculation([generation("plain")], "absent")["speculation"].passed
    assert not speculation([generation("dflash_accepted")], "absent")["speculation"].passed
    assert speculation([generation("plain")], "any") == {}
    assert speculation([generation("plain")], "any", length=2.0)["speculation ran"].passed is False
    assert speculation([generation("dflash_no_acceptance")], "any") == {}
