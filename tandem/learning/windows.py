"""The parts of texts that are trained on and judged: a training step sees few tokens, so that it
ends soon. Pure; `chance` is a random number in the open interval (0, 1)."""

from __future__ import annotations

from tandem.backends.adaptation import JudgedText

LEAST_CONTEXT = 32
"""Tokens at the start of a part that has lost its beginning: nothing is asked for there."""
NEWER_FIRST = 0.5
"""Exponent: at 1 every text is as likely as any other, below that the newer ones are likelier."""


def judged_part(text: JudgedText, most_tokens: int) -> JudgedText:
    """Return the first tokens of the answer with as much of the prompt, at most `most_tokens`
    together: the same part each time."""
    start = max(0, text.first - most_tokens // 2)
    return _part(text, start, most_tokens)


def drawn_part(text: JudgedText, most_tokens: int, chance: float) -> JudgedText:
    """Return at most `most_tokens` of a text, of which some are the target's, from anywhere in
    it."""
    first = max(0, text.first - most_tokens // 2)
    last = max(first, len(text) - most_tokens)
    # Beyond both ends: else the beginning and the end would be in few parts.
    beyond = most_tokens // 2
    start = first - beyond + int(chance * (last - first + 2 * beyond + 1))
    return _part(text, min(max(start, first), last), most_tokens)


def drawn_index(count: int, chance: float) -> int:
    """Return the index of one of `count` texts, which are in the order of their age."""
    return min(count - 1, int(count * chance**NEWER_FIRST))


def _part(text: JudgedText, start: int, most_tokens: int) -> JudgedText:
    end = min(len(text), start + most_tokens)
    return text.part(start, end, context=LEAST_CONTEXT if start else 1)
