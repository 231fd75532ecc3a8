# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import replies
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Generation, Reply

RECORDED = Path(__file__).resolve().parents[5] / "tests" / "recorded"


def recorded(folder: str, name: str = "generate", number: int = 0, **changes: Any) -> Reply:
    body = json.loads((RECORDED / folder / f"{name}.json").read_text())
    body.update(changes)
    kind = "generate" if name.startswith("generate") else name
    return Reply(kind, 200, "application/json", body, json.dumps(body)[:300], "", 0.5, number)


def generation(folder: str, name: str = "generate", number: int = 0, **meta: Any) -> Generation:
    reply = recorded(folder, name, number)
    reply.json["meta_info"].update(meta)
    made = replies.generation(reply)
    assert made is not None
    return made


def speculation(made: List[Generation], mode: str = "required", **least: Any) -> Dict[str, Any]:
    checks = replies.speculation_checks(made, mode, least.get("length"), least.get("rate"))
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


@pytest.mark.parametrize(
    ("text", "ids", "reason"),
    [
        ("", [0] * 64, "token 0 makes up 64 of 64 tokens"),
        ("a" + "!" * 63, [5] + [0] * 63, "token 0 makes up 63 of 64 tokens"),
        ("", [], "empty text"),
        (" \n", [1, 2], "empty text"),
        ("!!!!", [], "'!' 4 times and nothing else"),
        ("ok " * 8, [], "the word 'ok' 8 times and nothing else"),
        (".", [7], ""),
        ("Paris is the capital.", [1, 2, 3, 4, 5], ""),
    ],
)
def test_degenerate_text_is_told_from_text(text: str, ids: List[int], reason: str) -> None:
    assert replies.degenerate(text, ids) == reason


def test_the_recorded_model_that_knows_one_token_is_degenerate_though_it_accepts() -> None:
    checks = replies.answer_checks([recorded("dflash_accepted")], 1)
    assert [check.passed for check in checks] == [True, False]
    assert checks[1].found == "reply 1: token 0 makes up 64 of 64 tokens"


def test_recorded_readable_text_passes() -> None:
    assert all(check.passed for check in replies.answer_checks([recorded("plain")], 1))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"status": None, "error": "no answer in time"}, "reply 1: no answer in time"),
        ({"status": 500, "excerpt": "boom"}, "reply 1: HTTP 500: boom"),
        ({"content_type": "text/html", "excerpt": "<html>"}, "reply 1: content type text/html: <html>"),
        ({"content_type": ""}, "reply 1: content type missing: "),
        ({"error": "the reply is not JSON, though its content type says so"}, "reply 1: the reply is not JSON"),
    ],
)
def test_faulty_answers_are_named(changes: Dict[str, Any], found: str) -> None:
    reply = dataclasses.replace(recorded("plain"), **changes)
    check = replies.answer_checks([reply], 1)[0]
    assert not check.passed
    assert str(check.found).startswith(found)


def test_equal_faults_are_said_once() -> None:
    faulty = [dataclasses.replace(recorded("plain", number=number), status=500, excerpt="boom") for number in (0, 1)]
    assert replies.answer_checks(faulty, 2)[0].found == "reply 1, 2: HTTP 500: boom"


def test_json_that_is_no_generation_fails() -> None:
    reply = dataclasses.replace(recorded("plain"), json=[1], excerpt="[1]")
    assert replies.answer_checks([reply], 1)[1].found == "reply 1: no text and meta_info, but [1]"


def test_missing_replies_fail() -> None:
    assert replies.answer_checks([recorded("plain")], 2)[0].found == "1 replies"


def test_the_same_prompt_must_give_the_same_text() -> None:
    first, second = generation("plain", number=0), generation("plain", number=1)
    assert replies.repetition_check([first, second])[0].passed
    changed = dataclasses.replace(second, text="other")
    assert not replies.repetition_check([first, changed])[0].passed
    assert replies.repetition_check([first]) == []


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"content": "Hello there.", "reasoning_content": None}, "text"),
        ({"content": None, "reasoning_content": "Let me think."}, "text"),
        ({"content": None, "reasoning_content": None}, "empty text"),
        ({"content": "!!!!!!", "reasoning_content": "Let me think."}, "'!' 6 times and nothing else"),
    ],
)
def test_chat_text_is_looked_for_in_both_places(message: Dict[str, Any], found: str) -> None:
    check = replies.chat_check(recorded("plain", "chat", choices=[{"message": message}]))
    assert (check.passed, check.found) == (found == "text", found)


def test_chat_faults_are_named() -> None:
    assert "HTTP 400" in str(replies.chat_check(dataclasses.replace(recorded("plain", "chat"), status=400)).found)
    assert "no choices[0].message" in str(replies.chat_check(recorded("plain", "chat", choices=[])).found)


def test_figures_are_weighted_means() -> None:
    figures = replies.figures([generation("dflash_accepted"), generation("plain", "generate_short", number=1)])
    assert figures["accept_length"] == 8.0
    assert figures["accept_rate"] == 0.982
    assert figures["tokens_per_second"] == pytest.approx(64 / 0.10384820900003433, abs=0.01)
    assert [made["completion_tokens"] for made in figures["generations"]] == [64, 1]
    assert replies.figures([])["accept_length"] is None
