# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API key: read from its file on the host, and kept out of everything that leaves it.

SGLang prints its key in clear in /server_info and in its start-up log: whatever is returned passes the Redactor.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterable, Set
from urllib.parse import quote

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError

REDACTED = "REDACTED"
_YAML_LINE = re.compile(r"""^\s*["']?api[-_]key["']?\s*:\s+(?P<value>.*?)\s*$""")
_SECRET_FIELD = re.compile(r"(^|_)(api_key|password|secret)$")
_IN_TEXT = (
    re.compile(
        r"""(?P<before>["']?\b(?:admin[-_])?api[-_]key["']?\s*[=:]\s*)"""
        r"""(?!None\b|null\b)(?:'[^']*'|"[^"]*"|[^\s,)}'"]+)"""
    ),
    re.compile(r"""(?P<before>--(?:admin-)?api-key\s+)\S+"""),
    re.compile(r"""(?P<before>\bBearer\s+)[^\s'",]+"""),
)


def read_api_key(path: str) -> str:
    """The key in ``path``: the bare key, or the YAML line ``api-key: KEY``. Errors never quote the content."""
    try:
        with open(path, encoding="utf-8") as stream:
            lines = [line.strip() for line in stream.read(65536).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise GateError(f"api_key_file {path} cannot be read: {reason}") from None
    lines = [line for line in lines if line and not line.startswith("#") and line not in ("---", "...")]
    values = [found.group("value") for found in map(_YAML_LINE.match, lines) if found]
    if values:
        key = _yaml_scalar(values[-1])
    elif len(lines) == 1:
        key = lines[0]
    else:
        raise GateError(
            f"api_key_file {path} holds {len(lines)} lines and none reads 'api-key: KEY'; "
            "give the bare key alone, or that YAML line"
        )
    if not key or not re.fullmatch(r"[\x21-\x7e]+", key):
        raise GateError(f"api_key_file {path}: the key is empty or holds characters that no HTTP header can carry")
    return key


def _yaml_scalar(text: str) -> str:
    if text.startswith("'"):
        return text[1 : text.rfind("'")].replace("''", "'") if text.rfind("'") > 0 else text
    if text.startswith('"'):
        try:
            return str(json.JSONDecoder().raw_decode(text)[0])
        except ValueError:
            return text
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


class Redactor:
    """Replaces known secrets by value (also as JSON, repr and URLs spell them) and secret fields by name."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings: Set[str] = set()
        for secret in secrets:
            if secret:
                spellings |= {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")}
        self._spellings = sorted(spellings, key=len, reverse=True)

    def clean(self, value: Any) -> Any:
        """``value`` (made of what JSON knows) without secrets."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.clean(key): self._field(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        return value

    def text(self, text: str) -> str:
        for spelling in self._spellings:
            text = text.replace(spelling, REDACTED)
        for pattern in _IN_TEXT:
            text = pattern.sub(rf"\g<before>{REDACTED}", text)
        return text

    def _field(self, key: Any, item: Any) -> Any:
        if isinstance(key, str) and _SECRET_FIELD.search(key) and isinstance(item, str) and item:
            return REDACTED
        return self.clean(item)
