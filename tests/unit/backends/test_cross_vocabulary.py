"""A draft engine in its target's vocabulary; the Engine contract itself is in test_contract."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.backends.cross_vocabulary.engine import TranslatedEngine
from tandem.backends.interface import Engine, ForwardCancelled, ForwardRequest, Session
from tandem.core.errors import InvalidArgument
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.text.translation import Translation
from tandem.text.vocabulary import Vocabulary, intersect
from tests.unit.backends.reference_models import VOCABULARY

LETTERS = 40
CONTEXT = 640
BOS = 41
ORDER = 400  # tokens that the draft's distribution depends on: all there are


def translated_engine(context: int = CONTEXT) -> TranslatedEngine:
    """The draft knows 40 letters. Of the target's tokens most are one letter, in another order; the
    last 11 are words of two to four."""
    draft = Vocabulary(
        BOS + 1, {i: bytes([i]) for i in range(LETTERS)}, specials={BOS: "<s>"}, bos=BOS
    )
    words = {200 + i: bytes((i + k) % LETTERS for k in range(2 + i % 3)) for i in range(11)}
    letters = {i: bytes([(i * 7) % LETTERS]) for i in range(200)}
    target = Vocabulary(VOCABULARY, letters | words)
    shared = intersect(draft, target)
    inner = ScriptedEngine(
        draft.size, scripted_probs(3, draft.size, order=ORDER), context_length=context
    )
    return TranslatedEngine(
        inner,
        Translation(draft, target, shared, starts_with_bos=True),
        vocabulary_hash="target",
        eos_token_ids=frozenset({5}),
    )


def spelt(engine: TranslatedEngine, token_ids: Sequence[int]) -> tuple[int, ...]:
    first, *later = token_ids
    ids = engine.translation.first(first)
    for token in later:
        ids += engine.translation.draft_ids(token)
    return ids


def expected(engine: TranslatedEngine, draft_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """The restricted logits of the draft model after its own tokens."""
    shared = engine.translation.intersection
    probs = np.asarray(scripted_probs(3, shared.draft_size, order=ORDER)(draft_ids))
    row = np.full(shared.target_size, -np.inf, dtype=np.float32)
    row[shared.target_ids] = np.log(probs[shared.draft_ids]).astype(np.float32)
    return row


def feed(
    engine: Engine, session: Session, token_ids: Sequence[int], logits_to_keep: int = 1
) -> Any:
    (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), logits_to_keep)])
    return logits


def test_every_wanted_row_is_the_draft_s_after_that_token() -> None:
    engine = translated_engine()
    session = engine.open(30)
    text = [3, 202, 9, 205, 4, 201]
    rows = feed(engine, session, text, logits_to_keep=6)
    for count, row in enumerate(rows, start=1):
        assert np.array_equal(row, expected(engine, spelt(engine, text[:count])))
    session.rollback(3)
    assert np.array_equal(
        feed(engine, session, [202])[0], expected(engine, spelt(engine, [3, 202, 9, 202]))
    )
    session.rollback(0)
    assert np.array_equal(feed(engine, session, [8])[0], expected(engine, spelt(engine, [8])))


def latest(engine: TranslatedEngine, token_ids: Sequence[int], row: NDArray[np.float32]) -> int:
    """How many of the latest tokens the draft had seen for `row`."""
    for count in range(len(token_ids), 0, -1):
        if np.array_equal(row, expected(engine, spelt(engine, token_ids[-count:]))):
            return count
    raise AssertionError("no suffix of the text gives these logits")


def test_a_prompt_longer_than_the_draft_s_context_is_read_from_where_it_fits() -> None:
    engine = translated_engine(context=100)
    session = engine.open(100)
    row = feed(engine, session, [202] * 60)[0]
    assert 10 <= latest(engine, [202] * 60, row) <= 25
    assert session.length == 60
    child = engine.fork(session, 55, 100)
    early = engine.fork(session, 10, 100)
    assert latest(engine, [202] * 55 + [9], feed(engine, child, [9])[0]) == 8
    assert latest(engine, [202] * 10 + [9], feed(engine, early, [9])[0]) == 11


def test_more_wanted_at_once_than_there_is_room_for_is_refused() -> None:
    engine = translated_engine(context=100)
    session = engine.open(100)
    with pytest.raises(InvalidArgument, match="exceed the remaining capacity"):
        feed(engine, session, [202] * 60, logits_to_keep=60)
    assert session.length == 0
    assert latest(engine, [7], feed(engine, session, [7])[0]) == 1


def test_a_cancelled_pass_that_had_to_forget_loses_nothing() -> None:
    engine = translated_engine(context=100)
    session = engine.open(100)
    feed(engine, session, [202] * 5)
    with pytest.raises(ForwardCancelled):
        engine.forward([ForwardRequest(session, (202,) * 60, 1)], lambda: True)
    assert session.length == 5
    assert latest(engine, [202] * 5 + [7], feed(engine, session, [7])[0]) == 6
