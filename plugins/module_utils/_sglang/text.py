# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells text from what a broken model, kernel or weight makes: nothing, or the same over and over."""

from __future__ import annotations

from collections import Counter
from typing import Any, Sequence, Tuple

# Greedy text of a sound model may repeat whole sentences; nothing sound repeats so few tokens so long.
LONGEST_CYCLE = 4
CYCLES = 8
SHARE = 0.9
# A text without spaces is judged by its characters, where short cycles are less odd.
JUDGED_LETTERS = 32


def degenerate(text: str, token_ids: Sequence[int] = ()) -> str:
    """Why this is no real text: empty, or one token, character, word or short cycle over and over. Else empty."""
    if len(token_ids) >= 4:
        token, times = Counter(token_ids).most_common(1)[0]
        if times == len(token_ids) or (len(token_ids) >= 16 and times >= SHARE * len(token_ids)):
            return f"token {token} makes up {times} of {len(token_ids)} tokens"
    letters = "".join(text.split())
    if not letters:
        return "empty text"
    if len(letters) >= 4 and len(set(letters)) == 1:
        return f"{letters[0]!r} {len(letters)} times and nothing else"
    words = text.split()
    if len(words) >= 8 and len(set(words)) == 1:
        return f"the word {words[0][:40]!r} {len(words)} times and nothing else"
    for what, items in (("tokens", token_ids), ("words", words), ("characters", letters)):
        length = _cycle(items) if what != "characters" or len(items) >= JUDGED_LETTERS else 0
        if length:
            return f"the same {length} {what} over and over: {' '.join(str(item) for item in items[-length:])}"
    return ""


def _cycle(items: Sequence[Any]) -> int:
    """The length of the one short cycle that nearly all of ``items`` belong to; 0 for none."""
    for length in range(2, LONGEST_CYCLE + 1):
        if len(items) >= CYCLES * length:
            windows = Counter(_rotated(items[place : place + length]) for place in range(len(items) - length + 1))
            window, times = windows.most_common(1)[0]
            if len(set(window)) > 1 and times >= SHARE * sum(windows.values()):
                return length
    return 0


def _rotated(window: Sequence[Any]) -> Tuple[Any, ...]:
    """The same for all windows on one cycle, wherever they begin."""
    return min(tuple(window[start:]) + tuple(window[:start]) for start in range(len(window)))
