# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.secrets import read_api_key


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
