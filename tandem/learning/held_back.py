"""Which texts are trained on, and which only judge what was learned. Pure.

Invariant: texts that begin alike are on the same side: an answer to a question that was asked
before must not judge what was learned from the first answer."""

from __future__ import annotations

import hashlib

from tandem.backends.adaptation import JudgedText

HELD_BACK_OF = 5
"""One of so many prompts is held back."""


def is_held_back(text: JudgedText) -> bool:
    """Return whether a text is never trained on."""
    prompt = text.token_ids[: text.first].astype("<u4").tobytes()
    return hashlib.sha256(prompt).digest()[0] % HELD_BACK_OF == 0
