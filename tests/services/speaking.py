"""Scripted models that say what a test wants said, word by word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.testing.scripted import ScriptedEngine
from tandem.text.tokenizer import TextTokenizer

SURE = 0.98


def speaking(
    tokenizer: TextTokenizer, prompt_tokens: int, text: str
) -> tuple[ScriptedEngine, ScriptedEngine]:
    """A draft and a target that answer a prompt of so many tokens with the text, marks included,
    and end."""
    ends = sorted(tokenizer.eos_token_ids)
    script = [*tokenizer.mark_ids(text), *ends]
    size = tokenizer.vocabulary_size

    def probs(context: tuple[int, ...]) -> NDArray[np.float64]:
        place = min(max(0, len(context) - prompt_tokens), len(script) - 1)
        likely = np.full(size, (1 - SURE) / (size - 1))
        likely[script[place]] = SURE
        return likely

    def engine() -> ScriptedEngine:
        ids = tokenizer.eos_token_ids
        return ScriptedEngine(size, probs, context_length=2048, eos_token_ids=ids)

    return engine(), engine()
