# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps secrets out of everything that leaves a host.

SGLang prints its key in clear in /server_info and in its start-up log, and any process may have one in its command line.
Text is redacted before it is cut: half a key is still one, and no longer recognised.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterable, Set
from urllib.parse import quote

REDACTED = "REDACTED"
_SECRET_FIELD = re.compile(r"(^|_)(api_key|password|secret)$")
# A quoted value may lack its end, where somebody else has cut the text.
_QUOTED = r"""'(?:\\.|[^'\\\n])*'?|"(?:\\.|[^"\\\n])*"?"""
_IN_TEXT = (
    re.compile(r"""(?P<before>\b(?:[Bb]earer|[Aa]uthorization:\s*[Bb]asic)\s+)[^\s'",]+"""),
    # --api-key KEY, --hf-token=KEY, --db-password KEY
    re.compile(rf"""(?P<before>--(?:[a-z]+-)*(?:key|token|password|secret)(?:-[a-z]+)*(?:=|\s+))(?:{_QUOTED}|\S+)"""),
    # api_key='KEY', "api-key": "KEY", API_KEY=KEY
    re.compile(
        r"""(?P<before>api[-_]key["']?\s*[=:]\s*)"""
        rf"""(?!None\b|null\b)(?:{_QUOTED}|[^\s,)}}'"]+)""",
        re.IGNORECASE,
    ),
    # https://user:KEY@host
    re.compile(r"""(?P<before>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@'"]*:)[^\s/@'"]+(?=@)"""),
    # HF_TOKEN=KEY
    re.compile(rf"""(?P<before>(?<![A-Za-z0-9])(?:KEY|TOKEN|PASSWORD|SECRET)=)(?:{_QUOTED}|[^\s,)}}'"]+)"""),
)


class Redactor:
    """Replaces known secrets by value (also as JSON, repr and URLs spell them), and others by where they stand."""

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

    def bounded(self, text: str, limit: int) -> str:
        """The first ``limit`` characters of ``text`` without secrets."""
        text = self.text(text)
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def _field(self, key: Any, item: Any) -> Any:
        if isinstance(key, str) and _SECRET_FIELD.search(key) and isinstance(item, str) and item:
            return REDACTED
        return self.clean(item)
