"""What a new source of drafts needs: a proposer, and a place among the others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.predicted_text import PredictedText
from tandem.specdec.proposers import LEAST_REACHED, NO_TEXTS, AnswerTexts, DraftSource, Proposed

VOCABULARY = 100


@dataclass(frozen=True)
class LastWord:
    """Proposes that the last token comes again; is its own source, after a prompt that ends with
    it."""

    token_id: int
    chance: float = 0.9
    vocabulary_size: int = VOCABULARY

    def begin(self) -> LastWord:
        return self

    def propose(self) -> tuple[Proposed, ...]:
        return (Proposed(self.token_id, DraftSource.MEMORY, chance=self.chance),)

    def after(self, token_id: int) -> LastWord:
        return LastWord(token_id, self.chance)

    commit = after


def row(texts: AnswerTexts, most: int, rate: float = 0.0) -> list[int]:
    return [draft.token_id for draft in texts.after((), rate).row(most)]


def test_a_source_proposes_after_what_is_committed() -> None:
    texts = AnswerTexts(LastWord(7))
    assert row(texts, 3) == [7, 7, 7]
    texts.commit((1, 2))
    assert row(texts, 3) == [2, 2, 2]


def test_the_first_that_is_sure_enough_speaks_and_the_others_follow() -> None:
    predicted = PredictedText((4, 5), VOCABULARY)
    assert row(AnswerTexts(predicted, LastWord(7)), 4) == [4, 5, 5, 5]
    assert row(AnswerTexts(LastWord(7), predicted), 4) == [7] * 4
    assert row(AnswerTexts(None, LastWord(7, chance=0.4), predicted), 4) == [4, 5]


@pytest.mark.parametrize("chance", [0.6, 0.8, 0.9])
def test_a_row_ends_where_it_is_unlikely_that_all_of_it_stands(chance: float) -> None:
    drafts = row(AnswerTexts(LastWord(7, chance)), 64)
    assert chance ** len(drafts) >= LEAST_REACHED > chance ** (len(drafts) + 1)


def test_who_is_less_sure_than_the_draft_model_leaves_the_word_to_it() -> None:
    texts = AnswerTexts(LastWord(7, chance=0.6))
    assert row(texts, 1, rate=0.7) == []
    assert row(texts, 1, rate=0.5) == [7]
    (draft,) = texts.after((), 0.7).however_sure().row(1)
    assert draft.token_id == 7


def test_drafts_in_flight_count_by_the_chance_that_somebody_gave_them() -> None:
    texts = AnswerTexts(LastWord(7))
    assert len(texts.after((7, 7), 0.0).row(64)) == len(row(texts, 64)) - 2
    assert texts.after((3, 4), 0.0).proposed is None, "each as often right as not"
    assert texts.count((7,), 0.0, 3) == 3


def test_without_a_source_nothing_is_proposed() -> None:
    texts = AnswerTexts(None, None)
    assert not texts.on
    assert texts.after((1, 2), 0.5) == NO_TEXTS
    assert texts.count((), 0.5, 8) == 0


def test_what_is_drafted_teaches_a_source_nothing() -> None:
    """Tasks on other threads go on from the same place."""
    texts = NgramTexts((1, 2, 3, 1, 2), VOCABULARY)
    before = len(texts.own), texts.hit_rates.chance(3, 1.0)
    drafting = AnswerTexts(texts)
    drafting.after((3, 9, 4), 0.0).row(8)
    assert (len(texts.own), texts.hit_rates.chance(3, 1.0)) == before
    drafting.commit((3, 9))
    assert len(texts.own) == before[0] + 2
    assert texts.hit_rates.chance(3, 1.0) != before[1]
