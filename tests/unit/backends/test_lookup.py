"""Drafts without a model: what is found, and that texts stay the target's."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.backends.factory import load_model
from tandem.backends.interface import ForwardCancelled, ForwardRequest
from tandem.backends.lookup import (
    GUESS_WEIGHT,
    SURE_MATCH,
    LookupEngine,
    LookupSession,
)
from tandem.backends.model_source import ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder


def engine_of(vocabulary_size: int) -> LookupEngine:
    return LookupEngine(vocabulary_size, vocabulary_hash="")


def probs_after(context: tuple[int, ...], vocabulary_size: int) -> NDArray[np.float32]:
    """The distribution that a session drafts from after a context of its own."""
    engine = engine_of(vocabulary_size)
    session = engine.open(64)
    (logits,) = engine.forward([ForwardRequest(session, context, 1)])
    probs: NDArray[np.float32] = np.exp(logits[0])
    return probs


@pytest.mark.parametrize(
    ("context", "follower", "matched"),
    [
        ((7,), None, 0),
        ((1, 2, 3), None, 0),
        ((5, 5), 5, 1),
        ((1, 2, 9, 2), 9, 1),
        ((1, 2, 3, 1, 2), 3, 2),
        ((4, 1, 2, 3, 8, 1, 2, 5, 4, 1, 2), 3, 3),  # the longest end, not the latest
        ((1, 2, 3, 1, 2, 4, 1, 2), 4, 2),  # the latest of equally long ones
        ((6,) * 40, 6, 32),
        ((1, 2, 1), 2, 1),  # an end at the very start has nothing before it
    ],
)
def test_the_follower_of_the_longest_repeated_end(
    context: tuple[int, ...], follower: int | None, matched: int
) -> None:
    probs = probs_after(context, 10)
    sure = follower is not None and matched >= SURE_MATCH
    assert probs.max() == np.float32(1.0 if sure else GUESS_WEIGHT)
    if follower is not None:
        assert probs.argmax() == follower


def test_only_the_tokenizer_is_read_and_it_is_no_target() -> None:
    folder = str(demo_folder("demo-target"))
    loaded = load_model(ModelChoice(folder, engine="lookup", drafts=True))
    target = load_model(ModelChoice(folder, drafts=True))
    assert isinstance(loaded.engine, LookupEngine)
    assert loaded.engine.vocabulary_hash == target.engine.vocabulary_hash
    assert loaded.engine.vocabulary_size == target.engine.vocabulary_size
    assert loaded.engine.eos_token_ids == target.engine.eos_token_ids
    assert loaded.content_hash() != target.content_hash()
    with pytest.raises(InvalidArgument, match="engine: 'lookup' drafts; choose another engine"):
        load_model(ModelChoice(folder, engine="lookup"))


def test_a_session_looks_up_in_its_own_text_as_it_is() -> None:
    """Also after a rollback, in a fork, and along the branches of a tree."""
    engine = engine_of(10)
    session = engine.open(60, spare=8)

    def after(*token_ids: int, of: LookupSession = session) -> list[int]:
        (rows,) = engine.forward([ForwardRequest(of, token_ids, len(token_ids))])
        return [int(row.argmax()) if np.isneginf(row).sum() == 9 else -1 for row in rows]

    assert after(1, 2, 3, 4, 9) == [-1] * 5
    assert after(1, 2, 3) == [-1, 3, 4]
    fork = engine.fork(session, 7, 20)
    assert after(3, 4, of=fork) == [4, 9]
    session.rollback(6)
    assert after(2, 5) == [3, -1]
    session.rollback(6)
    tree = ForwardRequest(session, (2, 7, 3), 3, parents=(-1, -1, 0))
    (rows,) = engine.forward([tree])
    assert [int(row.argmax()) for row in rows[[0, 2]]] == [3, 4]
    assert session.length == 6
    session.keep_path((0, 2))
    assert after(4) == [9]
    session.close()
    fork.close()
    assert engine.sessions_open == 0


def test_a_cancelled_pass_leaves_every_text_as_it_was() -> None:
    engine = engine_of(10)
    sessions = [engine.open(9) for _ in range(2)]
    answers = iter([False, True])
    with pytest.raises(ForwardCancelled):
        engine.forward(
            [ForwardRequest(each, (1, 2), 1) for each in sessions], lambda: next(answers)
        )
    assert [session.length for session in sessions] == [0, 0]
