"""A draft model with a short context reads the end of a longer text, and is the same model."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.backends.sliding_window import (
    SlidingWindowEngine,
    WindowedSession,
    has_sliding_window,
    window_start,
)
from tandem.core.errors import InvalidArgument
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


def test_half_of_the_window_is_left_at_least() -> None:
    for window in (8, 9, 19):
        for length in range(200):
            start = window_start(length, window)
            assert 0 <= start <= length
            assert length - start <= window
            assert start == 0 or length - start > window - window // 2 - 1
            assert (start == 0) == (length <= window)


def test_a_text_that_fits_is_the_engine_s_own_session() -> None:
    inner = draft_engine()
    engine = SlidingWindowEngine(inner)
    session = engine.open(CONTEXT)
    assert not isinstance(session, WindowedSession)
    tokens = tuple(some_tokens(CONTEXT))
    (logits,) = engine.forward([fed(session, tokens)])
    np.testing.assert_array_equal(logits[0], after(tokens))
    session.close()
    assert engine.sessions_open == inner.sessions_open == 0


def test_of_a_longer_text_the_logits_are_those_of_its_end() -> None:
    engine = SlidingWindowEngine(draft_engine())
    session = engine.open(LONG, SPARE)
    tokens = some_tokens(LONG)
    for length in range(1, LONG + 1):
        (logits,) = engine.forward([fed(session, (tokens[length - 1],))])
        np.testing.assert_array_equal(logits[0], expected(tokens[:length]))


def test_any_way_to_the_same_text_gives_the_same_logits() -> None:
    """Prompts in chunks, rejected drafts, forks, beside a session that fits."""
    choices = random.Random(7)
    engine = SlidingWindowEngine(draft_engine())
    session = engine.open_for("owner", LONG, SPARE)
    other = engine.open(CONTEXT)
    tokens: list[int] = []
    for step in range(300):
        if tokens and choices.random() < 0.3:
            kept = choices.randrange(max(0, len(tokens) - 12), len(tokens))
            session.rollback(kept)
            del tokens[kept:]
        count = min(choices.choice([1, 1, 2, 3, 40]), LONG - len(tokens))
        if count == 0:
            session.rollback(3)
            del tokens[3:]
            continue
        new = some_tokens(count, seed=step)
        other.rollback(0)
        ours, theirs = engine.forward([fed(session, tuple(new)), fed(other, (1, 2))])
        tokens += new
        np.testing.assert_array_equal(ours[0], expected(tokens))
        np.testing.assert_array_equal(theirs[0], after((1, 2)))
        assert session.length == len(tokens)
        if choices.random() < 0.3 and len(tokens) < LONG - 2:
            forked = choices.randint(0, len(tokens))
            fork = engine.fork(session, forked, len(tokens) + 2)
            (logits,) = engine.forward([fed(fork, (4, 5))])
            np.testing.assert_array_equal(logits[0], expected([*tokens[:forked], 4, 5]))
            fork.close()
    session.close()
    other.close()
    assert engine.sessions_open == 0
    assert engine.kv_bytes_in_use == 0


def test_trees_grow_on_the_end_and_their_paths_stay() -> None:
    engine = SlidingWindowEngine(draft_engine())
    session = engine.open(LONG, SPARE)
    tokens = some_tokens(60)
    engine.forward([fed(session, tuple(tokens), 0)])
    for _ in range(20):
        roots = ForwardRequest(session, (1, 2), 2, parents=(-1, -1))
        (logits,) = engine.forward([roots])
        for row, node in zip(logits, (1, 2), strict=True):
            np.testing.assert_array_equal(row, expected([*tokens, node], SPARE - 1))
        leaves = ForwardRequest(session, (3, 4), 2, parents=(1, 2), extends_tree=True)
        (logits,) = engine.forward([leaves])
        np.testing.assert_array_equal(logits[1], expected([*tokens, 2, 3, 4], SPARE - 3))
        assert session.tree == (-1, -1, 1, 2)
        session.keep_path((1, 2))
        tokens += [2, 3]
        assert session.length == len(tokens)
        (logits,) = engine.forward([fed(session, (5,))])
        tokens.append(5)
        np.testing.assert_array_equal(logits[0], expected(tokens))


def test_what_it_cannot_do_is_refused_by_name() -> None:
    engine = SlidingWindowEngine(draft_engine())
    session = engine.open(LONG)
    with pytest.raises(InvalidArgument, match="logits_to_keep"):
        engine.forward([fed(session, tuple(some_tokens(LONG)), LONG)])
    with pytest.raises(InvalidArgument, match="capacity"):
        engine.open(LONG, CONTEXT // 2)
    assert not has_sliding_window(engine, CONTEXT // 2)
    assert has_sliding_window(engine, SPARE)
    assert not has_sliding_window(draft_engine())
    session.close()
    with pytest.raises(InvalidArgument, match="session"):
        engine.forward([fed(session, (1,))])
