# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server answered, and whether it is an answer at all. Pure functions over recorded or live replies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Pattern, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.text import degenerate
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

# The kinds of replies that hold a generation: alone, alone as a stream, and beside others.
GENERATE, STREAM, CONCURRENT = "generate", "stream", "concurrent"
SERVER_INFO, CHAT, COUNTERS = "server_info", "chat", "counters"
# Shorter replies say nothing about acceptance or speed.
JUDGED_TOKENS = 8
_CONTENT_TYPES = {STREAM: "text/event-stream", COUNTERS: "text/plain"}
# 0.5.11 and before, 0.5.23 and later.
_ACCEPTED = ("spec_accepted_drafts", "spec_num_correct_drafts")
_PROPOSED = ("spec_proposed_drafts", "spec_num_proposed_drafts")


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. ``status`` is None when none came whole, and ``error`` says why.

    ``started`` and ``seconds`` are the client's own clock. ``lines`` are what was kept of a text, ``json`` of a stream
    is its last event.
    """

    kind: str
    status: Optional[int]
    content_type: str
    json: Any
    excerpt: str
    error: str
    seconds: float
    number: int = 0
    started: float = 0.0
    first_token_seconds: Optional[float] = None
    lines: Sequence[str] = ()

    @property
    def fault(self) -> str:
        """Why this is not a reply with status 200 and the content type of its kind; empty when it is."""
        if self.status is None or self.error:
            return self.error
        if self.status != 200:
            return f"HTTP {self.status}: {self.excerpt}"
        if not self.content_type.startswith(_CONTENT_TYPES.get(self.kind, "application/json")):
            return f"content type {self.content_type or 'missing'}: {self.excerpt}"
        return ""


@dataclass(frozen=True)
class Generation:
    """What one /generate reply says. Counts are None where the reply has none."""

    number: int
    kind: str
    text: str
    token_ids: Sequence[int]
    completion_tokens: int
    started: float
    seconds: float
    first_token_seconds: Optional[float]
    verify_count: Optional[int]
    accepted_drafts: Optional[int]
    proposed_drafts: Optional[int]
    accept_length: Optional[float]
    accept_rate: Optional[float]

    @property
    def judged(self) -> bool:
        return self.completion_tokens >= JUDGED_TOKENS

    @property
    def tokens_per_second(self) -> Optional[float]:
        return ratio(self.completion_tokens, self.seconds)

    def figures(self) -> Dict[str, Any]:
        return {
            "kind": self.kind,
            "completion_tokens": self.completion_tokens,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": rounded(self.tokens_per_second),
            "verify_count": self.verify_count,
            "accepted_drafts": self.accepted_drafts,
            "proposed_drafts": self.proposed_drafts,
            "accept_length": rounded(self.accept_length),
            "accept_rate": rounded(self.accept_rate),
        }


@dataclass(frozen=True)
class ExpectedText:
    """A prompt, and what its text at temperature 0 must hold."""

    prompt: str
    pattern: Pattern[str]


def expected_texts(items: Sequence[Dict[str, str]]) -> List[ExpectedText]:
    """The module's ``expected_texts``; raises GateError for what is no regular expression."""
    return [
        ExpectedText(item["prompt"], regular_expression(f"expected_texts[{index}].matches", item["matches"]))
        for index, item in enumerate(items)
    ]


def regular_expression(place: str, text: str) -> Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise GateError(f"{place} {text!r} is no regular expression: {error}") from None


def generation(reply: Reply) -> Optional[Generation]:
    """The generation in a reply without fault; None where the JSON is not one."""
    if not isinstance(reply.json, dict) or not isinstance(reply.json.get("meta_info"), dict):
        return None
    meta = reply.json["meta_info"]
    ids = reply.json.get("output_ids")
    tokens = _number(meta, "completion_tokens")
    verify = _number(meta, "spec_verify_ct")
    accepted, proposed = _number(meta, *_ACCEPTED), _number(meta, *_PROPOSED)
    length, rate = _number(meta, "spec_accept_length"), _number(meta, "spec_accept_rate")
    return Generation(
        number=reply.number,
        kind=reply.kind,
        text=str(reply.json.get("text") or ""),
        token_ids=ids if isinstance(ids, list) else (),
        completion_tokens=int(tokens or 0),
        started=reply.started,
        seconds=reply.seconds,
        first_token_seconds=reply.first_token_seconds,
        verify_count=None if verify is None else int(verify),
        accepted_drafts=None if accepted is None else int(accepted),
        proposed_drafts=None if proposed is None else int(proposed),
        accept_length=length if length is not None else ratio(tokens, verify),
        accept_rate=rate if rate is not None else ratio(accepted, proposed),
    )


def generations(replies: Sequence[Reply]) -> List[Generation]:
    """All that were answered without fault."""
    made = [generation(reply) for reply in replies if not reply.fault]
    return [found for found in made if found is not None]


def answer_checks(replies: Sequence[Reply], asked: int, label: str = "") -> List[Check]:
    """All generations were answered, and none of them is degenerate. ``label`` goes before the names of the checks."""
    faults = {reply.number: reply.fault for reply in replies if reply.fault}
    missing = asked - len(replies)
    found = f"{len(replies)} replies" if not faults else f"{len(faults)} of {len(replies)} replies failed"
    said = grouped(faults)
    complete = not faults and missing <= 0
    checks = [
        Check(
            f"{label}generations answered",
            complete,
            f"{asked} replies with status 200, none broken",
            f"{found}: {said}" if said else found,
        )
    ]
    sound = [reply for reply in replies if not reply.fault]
    broken: Dict[int, str] = {}
    for reply in sound:
        made = generation(reply)
        if made is None:
            broken[reply.number] = f"no text and meta_info, but {reply.excerpt[:100]}"
        elif degenerate(made.text, made.token_ids):
            broken[reply.number] = degenerate(made.text, made.token_ids)
    if sound:
        hint = "the model, its weights or a kernel is wrong; speed and acceptance of such text prove nothing"
        expected = "text, not the same over and over"
        name = f"{label}generated text"
        checks.append(Check(name, not broken, expected, grouped(broken) or "text", hint if broken else ""))
    return checks


def repetition_check(made: Sequence[Generation]) -> List[Check]:
    """The first prompt was sent twice with temperature 0: the same text comes twice.

    Only deterministic inference promises that. Without it, the prefix cache and the batch decide which kernels run.
    """
    pair = [found for found in made if found.number in (0, 1)]
    if len(pair) < 2:
        return []
    same = pair[0].text == pair[1].text
    found = "the same text" if same else f"{pair[0].text[:60]!r} and {pair[1].text[:60]!r}"
    return [Check("same prompt twice", same, "the same text at temperature 0", found)]


def expected_text_checks(made: Sequence[Generation], expected: Dict[int, ExpectedText]) -> List[Check]:
    """What the replies of these numbers say; a reply that did not come has failed in ``answer_checks`` already."""
    checks = []
    for found in made:
        wanted = expected.get(found.number)
        if wanted is not None:
            holds = wanted.pattern.search(found.text) is not None
            name = f"text after {wanted.prompt[:40]!r}"
            checks.append(Check(name, holds, f"text that matches {wanted.pattern.pattern!r}", repr(found.text[:100])))
    return checks


def chat_check(reply: Reply) -> Check:
    """A chat completion answers with text in content or reasoning_content."""
    expected = "text in content or reasoning_content"
    if reply.fault:
        return Check("chat completion", False, expected, reply.fault)
    try:
        message = reply.json["choices"][0]["message"]
        parts = [str(message.get(name) or "") for name in ("content", "reasoning_content")]
    except (KeyError, IndexError, TypeError, AttributeError):
        return Check("chat completion", False, expected, f"no choices[0].message: {reply.excerpt[:100]}")
    reasons = [degenerate(part) for part in parts]
    broken = next((reason for part, reason in zip(parts, reasons) if part and reason), "" if any(parts) else reasons[0])
    return Check("chat completion", not broken, expected, broken or "text")


def ratio(part: Optional[float], whole: Optional[float]) -> Optional[float]:
    return part / whole if part is not None and whole else None


def rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 3)


def grouped(said: Dict[int, str]) -> str:
    """What replies (numbered from 0) have to say, the same words once: ``reply 1, 2: no answer; reply 4: HTTP 500``."""
    numbers: Dict[str, List[int]] = {}
    for number, words in said.items():
        numbers.setdefault(words, []).append(number + 1)
    return "; ".join(f"reply {', '.join(map(str, those))}: {words}" for words, those in numbers.items())


def _number(source: Dict[str, Any], *names: str) -> Optional[float]:
    for name in names:
        value = source.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None
