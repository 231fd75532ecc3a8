# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges what a server answered. Pure functions over recorded or live replies: no HTTP, no systemd.

The truth about speculation stands in the ``meta_info`` of each /generate reply. An accept length above 1 proves
nothing: 64 tokens in 63 verify steps read 1.016 with not one draft accepted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

# Shorter replies say nothing about acceptance.
JUDGED_TOKENS = 8
# 0.5.11 and before, 0.5.23 and later.
_ACCEPTED = ("spec_accepted_drafts", "spec_num_correct_drafts")
_PROPOSED = ("spec_proposed_drafts", "spec_num_proposed_drafts")

ABSENT, ANY, REQUIRED = "absent", "any", "required"


@dataclass(frozen=True)
class Reply:
    """One HTTP reply. ``status`` is None when none came, and ``error`` says why."""

    kind: str
    status: Optional[int]
    content_type: str
    json: Any
    excerpt: str
    error: str
    seconds: float
    number: int = 0

    @property
    def fault(self) -> str:
        """Why this is not a JSON reply with status 200; empty when it is."""
        if self.status is None or self.error:
            return self.error
        if self.status != 200:
            return f"HTTP {self.status}: {self.excerpt}"
        if not self.content_type.startswith("application/json"):
            return f"content type {self.content_type or 'missing'}: {self.excerpt}"
        return ""


@dataclass(frozen=True)
class Generation:
    """What one /generate reply says. Counts are None where the reply has none."""

    number: int
    text: str
    token_ids: Sequence[int]
    completion_tokens: int
    seconds: float
    verify_count: Optional[int]
    accepted_drafts: Optional[int]
    proposed_drafts: Optional[int]
    accept_length: Optional[float]
    accept_rate: Optional[float]

    @property
    def judged(self) -> bool:
        return self.completion_tokens >= JUDGED_TOKENS

    def figures(self) -> Dict[str, Any]:
        return {
            "completion_tokens": self.completion_tokens,
            "seconds": round(self.seconds, 4),
            "tokens_per_second": _rounded(_ratio(self.completion_tokens, self.seconds)),
            "verify_count": self.verify_count,
            "accepted_drafts": self.accepted_drafts,
            "proposed_drafts": self.proposed_drafts,
            "accept_length": _rounded(self.accept_length),
            "accept_rate": _rounded(self.accept_rate),
        }


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
        text=str(reply.json.get("text") or ""),
        token_ids=ids if isinstance(ids, list) else (),
        completion_tokens=int(tokens or 0),
        seconds=float(_number(meta, "e2e_latency") or reply.seconds),
        verify_count=None if verify is None else int(verify),
        accepted_drafts=None if accepted is None else int(accepted),
        proposed_drafts=None if proposed is None else int(proposed),
        accept_length=length if length is not None else _ratio(tokens, verify),
        accept_rate=rate if rate is not None else _ratio(accepted, proposed),
    )


def answer_checks(replies: Sequence[Reply], asked: int) -> List[Check]:
    """All generations were answered with JSON, and none of them is degenerate."""
    faults = {reply.number: reply.fault for reply in replies if reply.fault}
    found = _grouped(faults) or f"{len(replies)} replies"
    complete = not faults and len(replies) >= asked
    checks = [Check("generations answered", complete, f"{asked} JSON replies with status 200", found)]
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
        expected = "text, not one token over and over"
        checks.append(Check("generated text", not broken, expected, _grouped(broken) or "text", hint if broken else ""))
    return checks


def repetition_check(generations: Sequence[Generation]) -> List[Check]:
    """The first prompt was sent twice with temperature 0: the same text comes twice.

    Only deterministic inference promises that. Without it, the prefix cache and the batch decide which kernels run.
    """
    pair = [made for made in generations if made.number in (0, 1)]
    if len(pair) < 2:
        return []
    same = pair[0].text == pair[1].text
    found = "the same text" if same else f"{pair[0].text[:60]!r} and {pair[1].text[:60]!r}"
    return [Check("same prompt twice", same, "the same text at temperature 0", found)]


def speculation_checks(
    generations: Sequence[Generation], mode: str, min_accept_length: Optional[float], min_accept_rate: Optional[float]
) -> List[Check]:
    """What each reply's own counters say. ``mode`` is required, absent or any."""
    judged = [made for made in generations if made.judged]
    checks: List[Check] = []
    if mode == ABSENT:
        ran = [made for made in generations if made.verify_count]
        found = f"it ran in {_of(ran, generations)}" if ran else "absent"
        return [Check("speculation", not ran, "absent from every reply", found)] if generations else []
    if (
        mode == ANY
        and not any(made.verify_count for made in judged)
        and min_accept_length is None
        and min_accept_rate is None
    ):
        return []
    if not judged:
        longest = max((made.completion_tokens for made in generations), default=0)
        hint = "raise max_new_tokens or give prompts that ask for more"
        return [
            Check(
                "speculation", False, f"a reply of {JUDGED_TOKENS} tokens or more to judge", f"{longest} at most", hint
            )
        ]
    silent = [made for made in judged if not made.verify_count]
    if mode == REQUIRED or silent:
        hint = "the server answers without it: a silent fallback, or it was started without a speculative algorithm"
        found = f"it did not run in {_of(silent, judged)}" if silent else f"{len(judged)} of {len(judged)} replies"
        checks.append(
            Check("speculation ran", not silent, "spec_verify_ct above 0 in every reply", found, hint if silent else "")
        )
    ran = [made for made in judged if made.verify_count]
    none = [made for made in ran if not made.accepted_drafts]
    if ran and mode == REQUIRED:
        checks.append(_accepted_check(ran, none))
    for name, least, value_of in (
        ("accept length", min_accept_length, lambda made: made.accept_length),
        ("accept rate", min_accept_rate, lambda made: made.accept_rate),
    ):
        if least is not None and ran:
            low = [made for made in ran if (value_of(made) or 0.0) < least]
            values = _grouped({made.number: str(_rounded(value_of(made))) for made in low or ran})
            checks.append(Check(name, not low, f"{least} or more in every reply", values))
    return checks


def _accepted_check(ran: Sequence[Generation], none: Sequence[Generation]) -> Check:
    if not none:
        total, proposed = sum(made.accepted_drafts or 0 for made in ran), sum(made.proposed_drafts or 0 for made in ran)
        return Check("accepted drafts", True, "above 0 in every reply", f"{total} of {proposed}")
    values = _grouped({made.number: f"{made.accepted_drafts or 0} of {made.proposed_drafts}" for made in none})
    return Check(
        "accepted drafts",
        False,
        "above 0 in every reply",
        values,
        f"accept length reads {_rounded(none[0].accept_length)}, which proves nothing; "
        "drafter and model do not belong together, or the drafter's config is read differently than it was trained",
    )


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
    reasons = [degenerate(part, ()) for part in parts]
    broken = next((reason for part, reason in zip(parts, reasons) if part and reason), "" if any(parts) else reasons[0])
    return Check("chat completion", not broken, expected, broken or "text")


def degenerate(text: str, token_ids: Sequence[int]) -> str:
    """Why this is no real text: empty, or one token, character or word over and over. Empty when it looks real."""
    if len(token_ids) >= 4:
        token, times = Counter(token_ids).most_common(1)[0]
        if times == len(token_ids) or (len(token_ids) >= 16 and times >= 0.9 * len(token_ids)):
            return f"token {token} makes up {times} of {len(token_ids)} tokens"
    letters = "".join(text.split())
    if not letters:
        return "empty text"
    if len(letters) >= 4 and len(set(letters)) == 1:
        return f"{letters[0]!r} {len(letters)} times and nothing else"
    words = text.split()
    if len(words) >= 8 and len(set(words)) == 1:
        return f"the word {words[0][:40]!r} {len(words)} times and nothing else"
    return ""


def figures(generations: Sequence[Generation]) -> Dict[str, Any]:
    """Means over all judged replies (weighted by their tokens, steps and drafts), and each reply's own."""
    judged = [made for made in generations if made.judged]
    steps = sum(made.verify_count or 0 for made in judged)
    tokens = sum(made.completion_tokens for made in judged)
    drafts = sum(made.proposed_drafts or 0 for made in judged)
    return {
        "accept_length": _rounded(_ratio(tokens, steps)),
        "accept_rate": _rounded(_ratio(sum(made.accepted_drafts or 0 for made in judged), drafts)),
        "tokens_per_second": _rounded(_ratio(tokens, sum(made.seconds for made in judged))),
        "generations": [made.figures() for made in generations],
    }


def _number(source: Dict[str, Any], *names: str) -> Optional[float]:
    for name in names:
        value = source.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None


def _ratio(part: Optional[float], whole: Optional[float]) -> Optional[float]:
    return part / whole if part is not None and whole else None


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, 3)


def _grouped(said: Dict[int, str]) -> str:
    """What replies (numbered from 0) have to say, the same words once: ``reply 1, 2: no answer; reply 4: HTTP 500``."""
    numbers: Dict[str, List[int]] = {}
    for number, words in said.items():
        numbers.setdefault(words, []).append(number + 1)
    return "; ".join(f"reply {', '.join(map(str, those))}: {words}" for words, those in numbers.items())


def _of(some: Sequence[Generation], every: Sequence[Generation]) -> str:
    return f"{len(some)} of {len(every)} replies"
