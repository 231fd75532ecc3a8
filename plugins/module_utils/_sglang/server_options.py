# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server gate's parameters, and the requests that follow from them."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any, Dict, List, Optional
from urllib.parse import urlsplit

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import baseline, replies, speculation
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.log import LogExpectation
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import ExpectedText

# Streamed requests, whose first tokens are timed.
STREAMS = 3


@dataclass(frozen=True)
class ServerOptions:
    """The server gate's parameters, as the module documents them; ``api_key`` is the key itself or empty."""

    unit: str
    url: str
    python: str
    ready_timeout: int
    request_timeout: int
    gate_timeout: int
    api_key: str
    ca_file: str
    validate_certs: bool
    behind_proxy: bool
    prompts: List[str]
    expected_texts: List[ExpectedText]
    generations: int
    concurrent: int
    max_new_tokens: int
    speculation: str
    min_accept_length: Optional[float]
    min_accept_rate: Optional[float]
    cuda_graphs: str
    log_expect: List[LogExpectation]
    baseline: str
    baseline_file: str
    baseline_tolerance: float
    model_path: str
    fresh: bool
    check_mode: bool

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def check(self) -> None:
        """Raises GateError for what no server could make right."""
        _check_url(self.url)
        if self.speculation != speculation.ABSENT and self.max_new_tokens < replies.JUDGED_TOKENS:
            raise GateError(
                f"max_new_tokens is {self.max_new_tokens}; "
                f"below {replies.JUDGED_TOKENS} no reply says anything about speculation"
            )
        if not self.prompts:
            raise GateError("prompts is empty; the server gate needs at least one")
        if self.concurrent < 0:
            raise GateError(f"concurrent must be 0 or more, not {self.concurrent}")
        if self.baseline != baseline.NONE and not self.baseline_file:
            raise GateError(f"baseline is {self.baseline}; baseline_file must say where the figures are kept")
        if not 0 <= self.baseline_tolerance < 1:
            raise GateError(f"baseline_tolerance must be 0 or more and below 1, not {self.baseline_tolerance}")
        if self.ca_file:
            _check_certificates(self.ca_file)

    def plan(self) -> Plan:
        return Plan(self)


class Plan:
    """Which prompt goes where: every request that generates has a number of its own, from 0."""

    def __init__(self, options: ServerOptions) -> None:
        prompts = options.prompts
        # The first prompt twice, to see that temperature 0 repeats itself; then each at least once.
        cycled = [prompts[0], *_cycled(prompts, max(options.generations - 1, len(prompts)))]
        expected = [text.prompt for text in options.expected_texts]
        # Prompts that the server has seen: their first tokens are comparable from one run to the next.
        streamed = _cycled(prompts, STREAMS)
        alone = [
            *((replies.GENERATE, prompt) for prompt in (*cycled, *expected)),
            *((replies.STREAM, prompt) for prompt in streamed),
        ]
        self.sequential = [_asked(number, kind, prompt) for number, (kind, prompt) in enumerate(alone)]
        self.concurrent = [
            _asked(len(alone) + number, replies.CONCURRENT, prompt)
            for number, prompt in enumerate(_cycled(prompts, options.concurrent))
        ]
        self.expected: Dict[int, ExpectedText] = {
            len(cycled) + place: text for place, text in enumerate(options.expected_texts)
        }

    @property
    def size(self) -> int:
        return len(self.sequential) + len(self.concurrent)


def _cycled(prompts: List[str], count: int) -> List[str]:
    return [prompts[place % len(prompts)] for place in range(count)]


def _asked(number: int, kind: str, prompt: str) -> Dict[str, Any]:
    return {"number": number, "kind": kind, "prompt": prompt}


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        # A port that is no number raises here.
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise GateError(f"url {url!r} is not of the form http://HOST:PORT, with or without a path")
    if parts.username or parts.query or parts.fragment:
        raise GateError("url must not hold credentials, a query or a fragment; a key belongs in api_key_file")


def _check_certificates(path: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise GateError(f"ca_file {path} holds no certificate in PEM form") from None
    except OSError as error:
        raise GateError(f"ca_file {path} cannot be read: {error.strerror or error}") from None
    if not os.path.isabs(path):
        raise GateError(f"ca_file must be an absolute path, not {path}")
