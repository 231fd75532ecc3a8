# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.secrets import Redactor, read_api_key

RECORDED = Path(__file__).resolve().parents[5] / "tests" / "recorded"


@pytest.mark.parametrize(
    "text",
    [
        "KEY-1\n",
        "# the key\nKEY-1",
        "api-key: KEY-1\n",
        "---\nlog-level: info\napi-key:   KEY-1  # ours\n",
        "api_key: 'KEY-1'\n",
        'api-key: "KEY-1"  # ours\nport: 1\n',
    ],
)
def test_the_key_is_read_from_both_forms(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    assert read_api_key(str(path)) == "KEY-1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "holds 0 lines and none reads 'api-key: KEY'"),
        (b"SECRETA\nSECRETB\n", "holds 2 lines and none reads 'api-key: KEY'"),
        (b"api-key: ''\n", "the key is empty"),
        (b"api-key: SECRET A\n", "no HTTP header can carry"),
    ],
)
def test_a_bad_key_file_is_one_clear_error_without_its_content(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GateError) as raised:
        read_api_key(str(path))
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "SECRET" not in str(raised.value)


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
        ("tokens: 8, key frames: 9", "tokens: 8, key frames: 9"),
    ],
)
def test_an_unknown_key_is_found_by_its_place(text: str, cleaned: str) -> None:
    assert Redactor().text(text) == cleaned
