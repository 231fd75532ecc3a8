# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API key, read from its file on the host; whatever is returned passes the Redactor."""

from __future__ import annotations

import json
import re

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError

_YAML_LINE = re.compile(r"""^\s*["']?api[-_]key["']?\s*:\s+(?P<value>.*?)\s*$""")


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
