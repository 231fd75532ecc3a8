# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import replies
from ansible_collections.ddtree.fleet.tests.unit.replayed import generation, recorded


def test_the_recorded_model_that_knows_one_token_is_degenerate_though_it_accepts() -> None:
    checks = replies.answer_checks([recorded("dflash_accepted")], 1)
    assert [check.passed for check in checks] == [True, False]
    assert checks[1].found == "reply 1: token 0 makes up 64 of 64 tokens"


def test_recorded_readable_text_passes() -> None:
    assert all(check.passed for check in replies.answer_checks([recorded("plain")], 1))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"status": None, "error": "no answer in time"}, "1 of 1 replies failed: reply 1: no answer in time"),
        ({"status": 500, "excerpt": "boom"}, "1 of 1 replies failed: reply 1: HTTP 500: boom"),
        (
            {"content_type": "text/html", "excerpt": "<html>"},
            "1 of 1 replies failed: reply 1: content type text/html: <html>",
        ),
        ({"content_type": ""}, "1 of 1 replies failed: reply 1: content type missing: "),
        (
            {"error": "the reply is not JSON, though its content type says so"},
            "1 of 1 replies failed: reply 1: the reply is not JSON",
        ),
    ],
)
def test_faulty_answers_are_named(changes: Dict[str, Any], found: str) -> None:
    reply = dataclasses.replace(recorded("plain"), **changes)
    check = replies.answer_checks([reply], 1)[0]
    assert not check.passed
    assert str(check.found).startswith(found)


def test_equal_faults_are_said_once() -> None:
    faulty = [dataclasses.replace(recorded("plain", number=number), status=500, excerpt="boom") for number in (0, 1)]
    assert replies.answer_checks(faulty, 2)[0].found == "2 of 2 replies failed: reply 1, 2: HTTP 500: boom"


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
