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


def test_a_tree_of_words_is_a_tree_of_letters() -> None:
    engine = translated_engine()
    session = engine.open(30)
    feed(engine, session, [3, 202])
    nodes, parents = (200, 7, 203, 201), (-1, 0, 0, 2)
    (rows,) = engine.forward([ForwardRequest(session, nodes, 4, parents)])
    paths = [(200,), (200, 7), (200, 203), (200, 203, 201)]
    for path, row in zip(paths, rows, strict=True):
        assert np.array_equal(row, expected(engine, spelt(engine, [3, 202, *path])))
    session.keep_path([0, 2])
    assert session.length == 4
    session.rollback(3)
    text = spelt(engine, [3, 202, 200, 6])
    assert np.array_equal(feed(engine, session, [6])[0], expected(engine, text))


def latest(engine: TranslatedEngine, token_ids: Sequence[int], row: NDArray[np.float32]) -> int:
    """How many of the latest tokens the draft had seen for `row`."""
    for count in range(len(token_ids), 0, -1):
        if np.array_equal(row, expected(engine, spelt(engine, token_ids[-count:]))):
            return count
    raise AssertionError("no suffix of the text gives these logits")


def test_a_text_that_outgrows_the_draft_s_session_loses_its_beginning() -> None:
    """202 is four letters: 40 of them do not fit the room of 80 letters. Going back behind what was
    kept makes the beginning known again."""
    engine = translated_engine()
    session = engine.open(40)
    text = [202] * 39
    seen = [latest(engine, text[: end + 1], feed(engine, session, [202])[0]) for end in range(39)]
    assert seen[:19] == list(range(1, 20))
    assert all(9 <= count <= 20 for count in seen[19:])
    assert session.length == 39
    session.rollback(4)
    assert latest(engine, [*text[:4], 6], feed(engine, session, [6])[0]) == 5


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


def test_a_tree_after_a_beginning_was_forgotten() -> None:
    engine = translated_engine()
    session = engine.open(40)
    feed(engine, session, [202] * 19)
    (rows,) = engine.forward([ForwardRequest(session, (202, 203, 9), 3, (-1, -1, 1))])
    assert latest(engine, [202] * 20, rows[0]) >= 5
    assert latest(engine, [*[202] * 19, 203, 9], rows[2]) >= 5
    session.keep_path([1, 2])
    assert session.length == 21
    row = feed(engine, session, [4])[0]
    assert latest(engine, [*[202] * 19, 203, 9, 4], row) >= 5


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


def test_random_histories_see_what_was_kept_of_the_text() -> None:
    """With words in it, and room that runs out: what the draft sees is always the text's end."""
    engine = translated_engine(context=120)
    random = np.random.default_rng(5)
    session, text = engine.open(120), list[int]()
    for _ in range(150):
        if len(text) > 90 or (text and random.random() < 0.3):
            del text[int(random.integers(len(text))) :]
            session.rollback(len(text))
        new = random.choice([3, 9, 202, 205, 208], int(random.integers(1, 12))).tolist()
        text += new
        assert latest(engine, text, feed(engine, session, new)[0]) >= min(len(text), 12)
        assert session.length == len(text)
    session.close()
    assert (engine.kv_bytes_in_use, engine.sessions_open) == (0, 0)
