# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor

RECORDED = Path(__file__).resolve().parents[3] / "recorded"


def test_nothing_of_the_key_is_left_in_server_info() -> None:
    info = json.loads((RECORDED / "dflash_accepted" / "server_info.json").read_text())
    assert "SECRET123" in json.dumps(info)
    cleaned = Redactor().clean(info)
    assert "SECRET123" not in json.dumps(cleaned)
    assert cleaned["api_key"] == "REDACTED"
    assert cleaned["internal_states"][0]["api_key"] == "REDACTED"
    assert cleaned["admin_api_key"] is None
    assert cleaned["speculative_algorithm"] == "DFLASH"


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(api_key='K\"1', port=1)",
        'ServerArgs(api_key="K\\"1", port=1)',
        '{"error": "K\\"1 is wrong"}',
        "Authorization: Bearer K%221",
        "GET /x?key=K%221",
    ],
)
def test_a_known_key_is_found_in_every_spelling(text: str) -> None:
    cleaned = Redactor(['K"1']).text(text)
    assert "REDACTED" in cleaned
    assert "1" not in cleaned.replace("port=1", "")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("ServerArgs(api_key='abc', admin_api_key=None)", "ServerArgs(api_key=REDACTED, admin_api_key=None)"),
        ("launch --api-key abc --port 1", "launch --api-key REDACTED --port 1"),
        ('{"api-key": "abc", "a": 1}', '{"api-key": REDACTED, "a": 1}'),
        ("sent 'Bearer abc'", "sent 'Bearer REDACTED'"),
        ("launch --admin-api-key=abc --db-password x", "launch --admin-api-key=REDACTED --db-password REDACTED"),
        ("run --hf-token=abc", "run --hf-token=REDACTED"),
        ("run --tokenizer-path /m", "run --tokenizer-path /m"),
        ("curl -H Authorization: Bearer a.b-c http://x", "curl -H Authorization: Bearer REDACTED http://x"),
        ("authorization: Basic abc", "authorization: Basic REDACTED"),
        ("env API_KEY=abc run", "env API_KEY=REDACTED run"),
        ("OPENAI_API_KEY='a b' HF_TOKEN=abc run", "OPENAI_API_KEY=REDACTED HF_TOKEN=REDACTED run"),
        ("GET /x?api_key=abc HTTP/1.1", "GET /x?api_key=REDACTED HTTP/1.1"),
        ("API_KEY: abc", "API_KEY: REDACTED"),
        ("api_key='cut here", "api_key=REDACTED"),
        ('api_key="a\\"b", port=1', "api_key=REDACTED, port=1"),
        ("MONKEY=abc", "MONKEY=abc"),
        ("proxy http://me:a.b-c@proxy:80/x", "proxy http://me:REDACTED@proxy:80/x"),
        ("git+https://oauth2:abc@h/r.git@main", "git+https://oauth2:REDACTED@h/r.git@main"),
        ("http://h:80/a@b ssh://git@h:22/r", "http://h:80/a@b ssh://git@h:22/r"),
        ("tokens: 8, key frames: 9", "tokens: 8, key frames: 9"),
    ],
)
def test_an_unknown_key_is_found_by_its_place(text: str, cleaned: str) -> None:
    assert Redactor().text(text) == cleaned


def test_text_is_cut_after_it_was_redacted() -> None:
    redactor = Redactor(["CANARY-KEY"])
    for limit in range(1, 40):
        assert "CANARY" not in redactor.bounded("0123456789 CANARY-KEY 0123456789", limit)
    assert redactor.bounded("x" * 10, 10) == "x" * 10
    assert redactor.bounded("x" * 11, 10) == "x" * 9 + "…"
