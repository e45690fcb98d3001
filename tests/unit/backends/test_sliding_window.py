"""A draft model with a short context reads the end of a longer text, and is the same model."""

from __future__ import annotations

import random

import numpy as np

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.backends.sliding_window import (
    SlidingWindowEngine,
    window_start,
)
from tandem.testing.scripted import ScriptedEngine, scripted_probs

VOCABULARY = 23
CONTEXT = 26
SPARE = 5
LONG = 150


def draft_engine() -> ScriptedEngine:
    """Its logits depend on all tokens of its session."""
    probs = scripted_probs(3, VOCABULARY, order=200)
    return ScriptedEngine(VOCABULARY, probs, context_length=CONTEXT)


def fed(session: Session, token_ids: tuple[int, ...], keep: int = 1) -> ForwardRequest:
    return ForwardRequest(session, token_ids, keep)


def after(tokens: list[int] | tuple[int, ...]) -> Logits:
    """What the draft model says after these tokens, in a session of their own."""
    engine = draft_engine()
    (logits,) = engine.forward([fed(engine.open(len(tokens)), tuple(tokens))])
    first: Logits = logits[0]
    return first


def expected(tokens: list[int], ahead: int = 0) -> Logits:
    """`ahead`: how many tokens longer the text is that decides where reading begins."""
    window = CONTEXT - SPARE
    return after(tokens[window_start(len(tokens) + ahead, window) :])


def some_tokens(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def test_of_a_longer_text_the_logits_are_those_of_its_end() -> None:
    engine = SlidingWindowEngine(draft_engine())
    session = engine.open(LONG, SPARE)
    tokens = some_tokens(LONG)
    for length in range(1, LONG + 1):
        (logits,) = engine.forward([fed(session, (tokens[length - 1],))])
        np.testing.assert_array_equal(logits[0], expected(tokens[:length]))
