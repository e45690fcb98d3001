"""Drafts without a model: what is found, and that texts stay the target's."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.backends.lookup import GUESS_WEIGHT, LookupEngine, lookup_probs
from tandem.backends.lookup_first import LookupFirstEngine
from tandem.backends.model_source import ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.core.text_lookup import find_follower
from tandem.demo import demo_folder
from tandem.testing.scripted import ScriptedEngine, scripted_probs


@pytest.mark.parametrize(
    ("context", "follower", "matched"),
    [
        ((), None, 0),
        ((7,), None, 0),
        ((1, 2, 3), None, 0),
        ((5, 5), 5, 1),
        ((1, 2, 9, 2), 9, 1),
        ((1, 2, 3, 1, 2), 3, 2),
        ((4, 1, 2, 3, 8, 1, 2, 5, 4, 1, 2), 3, 3),  # the longest end, not the latest
        ((1, 2, 3, 1, 2, 4, 1, 2), 4, 2),  # the latest of equally long ones
        ((6,) * 40, 6, 16),
        ((1, 2, 1), 2, 1),  # an end at the very start has nothing before it
    ],
)
def test_the_follower_of_the_longest_repeated_end(
    context: tuple[int, ...], follower: int | None, matched: int
) -> None:
    assert find_follower(context) == (follower, matched)


def test_a_sure_match_is_one_hot_and_a_guess_is_not() -> None:
    sure = lookup_probs((1, 2, 3, 1, 2), 10)
    assert sure[3] == 1.0
    assert sure.sum() == 1.0
    for context in ((), (5,), (1, 2, 3), (1, 9, 2, 9)):
        guess = lookup_probs(context, 10)
        assert guess.sum() == pytest.approx(1.0)
        assert guess.max() == np.float32(GUESS_WEIGHT)
    assert lookup_probs((1, 9, 2, 9), 10).argmax() == 2


def test_a_vocabulary_smaller_than_the_guesses() -> None:
    assert lookup_probs((), 1).tolist() == [1.0]
    assert lookup_probs((0,), 2).sum() == pytest.approx(1.0)


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


class Counted(ScriptedEngine):
    """One that remembers what its passes were fed."""

    def __init__(self) -> None:
        super().__init__(50, scripted_probs(3, 50))
        self.fed: list[tuple[int, ...]] = []

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.fed += [request.token_ids for request in batch]
        return super().forward(batch, cancelled)


def test_the_model_is_asked_only_for_what_the_text_does_not_tell() -> None:
    model = Counted()
    engine = LookupFirstEngine(model)
    session = engine.open(60)

    def after(*token_ids: int) -> list[int]:
        return [
            int(row.argmax()) if np.isneginf(row).any() else -1
            for row in engine.forward([ForwardRequest(session, token_ids, len(token_ids))])[0]
        ]

    assert after(1, 2, 3, 4, 9) == [-1] * 5
    assert after(1, 2) == [-1] * 2
    assert after(3) == [4]
    assert after(4) == [9]
    assert model.fed == [(1, 2, 3, 4, 9), (1, 2)]
    assert session.length == 9
    assert after(5) == [-1]
    assert model.fed[2:] == [(3, 4, 5)]  # with what was owed
    session.rollback(9)
    assert after(9, 1) == [1, 2]
    session.rollback(8)
    assert after(7) == [-1]
    assert model.fed[3:] == [(7,)]
    session.close()
    assert engine.sessions_open == model.sessions_open == 0


def test_a_long_text_is_fed_when_it_comes() -> None:
    """Owed at length it would hold up who shares the pass that pays."""
    model = Counted()
    engine = LookupFirstEngine(model)
    session = engine.open(60)
    text = (1, 2, 3, 4, 5, 6, 7, 8, 9) * 2
    (rows,) = engine.forward([ForwardRequest(session, text, 1)])
    assert rows.argmax() == 1
    assert model.fed == [text]
    session.close()
