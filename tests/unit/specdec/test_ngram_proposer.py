"""What is proposed from earlier texts, how far, and when not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.core.ngram_index import LONGEST_MATCH
from tandem.specdec.ngram_proposer import HitRates, NgramTexts
from tandem.specdec.predicted_text import PredictedText
from tandem.specdec.proposers import (
    LEAST_CHANCE,
    NO_TEXTS,
    SUREST_MODEL,
    AnswerTexts,
    DraftSource,
    TextDrafts,
)
from tandem.specdec.text_memory import TextMemory

VOCABULARY = 1000
MODEL_RATE = 0.5


def words(count: int, seed: int = 1) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.randrange(VOCABULARY) for _ in range(count))


def memory_of(*texts: Sequence[int]) -> TextMemory:
    memory = TextMemory(quota=100_000)
    for text in texts:
        memory.learn(text, ())
    return memory


def recalled(
    texts: Sequence[Sequence[int]], prompt: Sequence[int], hit_rates: HitRates | None = None
) -> TextDrafts:
    source = NgramTexts(prompt, VOCABULARY, memory_of(*texts).index, hit_rates)
    return TextDrafts((source.begin(),), VOCABULARY).surer_than(MODEL_RATE)


def proposals(texts: TextDrafts, most: int = 300) -> list[int]:
    """What is drafted from here on, until nothing is sure enough."""
    found = list[int]()
    while len(found) < most and (draft := texts.proposed) is not None:
        assert draft.source is DraftSource.MEMORY
        assert texts.probs(draft.token_id).argmax() == draft.token_id
        found.append(draft.token_id)
        texts = texts.after(draft.token_id)
    return found


OLD = words(300)


def test_what_followed_an_earlier_text_s_longest_match_is_proposed() -> None:
    other = (*words(5, 2), *OLD[47:50], 1, 2, 3)  # shares three tokens only
    found = proposals(recalled([OLD, other], (*words(9, 3), *OLD[20:50])))
    assert found == [*OLD[50 : 50 + len(found)]]
    assert len(found) >= 10


def test_the_first_token_of_the_vocabulary_is_proposed_as_any_other() -> None:
    old = (*OLD[:50], 0, *OLD[50:])
    assert proposals(recalled([old], OLD[20:50]))[:3] == [0, *OLD[50:52]]


def test_the_longer_the_match_the_longer_the_drafts() -> None:
    lengths = [
        len(proposals(recalled([OLD], (*words(9, 3), *OLD[50 - matched : 50]))))
        for matched in (2, 5, 8, 32)
    ]
    assert lengths[0] == 0
    assert lengths == sorted(lengths)
    assert 1 <= lengths[1] < lengths[2] < lengths[3]


def test_several_places_vote() -> None:
    texts = [(*OLD[:20], 7, 8, 9), (*OLD[:20], 7, 8, 9), (*OLD[:20], 5, 6)]
    draft = recalled(texts, OLD[:20]).proposed
    assert draft is not None
    assert draft.token_id == 7
    alone = recalled(texts[:1], OLD[:20]).proposed
    assert alone is not None
    assert draft.chance == pytest.approx(alone.chance * 2 / 3)
    divided = [(*OLD[:20], follower, 1) for follower in (5, 6, 7)]
    assert recalled(divided, OLD[:20]).proposed is None, "nobody knows"


def test_a_tree_may_follow_all_that_went_on_from_a_place() -> None:
    texts = [(*OLD[:20], 7, 8, 9), (*OLD[:20], 7, 8, 9), (*OLD[:20], 5, 6)]
    more, less = recalled(texts, OLD[:20]).branches
    assert (more.token_id, less.token_id) == (7, 5)
    assert more.chance == pytest.approx(2 * less.chance)
    divided = recalled([(*OLD[:20], follower, 1) for follower in (5, 6, 7)], OLD[:20])
    assert [draft.token_id for draft in divided.branches] == [7, 6, 5], "the newest first"
    (one,) = divided.after(6).branches
    assert one.token_id == 1
    assert recalled([OLD], words(20, 5)).branches == ()
    assert divided.surer_than(1.0).branches == divided.branches, "together they are sure"


def test_the_prompt_and_the_answer_so_far_are_remembered_too() -> None:
    prompt = (*OLD[:60], *words(9, 2), *OLD[:10])
    assert proposals(recalled([], prompt))[:3] == [*OLD[10:13]]
    answer = (*OLD[100:120], 3, 2, 1, *OLD[100:112])
    texts = recalled([], words(9, 3)).commit(*answer)
    assert proposals(texts)[:4] == [*OLD[112:116]]


def test_where_an_answer_departs_the_next_match_is_found_anew() -> None:
    texts = recalled([OLD], OLD[:40]).commit(999)
    assert texts.proposed is None
    texts = texts.commit(*OLD[41:49])
    assert proposals(texts)[:3] == [*OLD[49:52]]


def test_drafts_that_nobody_confirmed_are_trusted_less_and_less() -> None:
    hit_rates = HitRates()
    for _ in range(200):
        hit_rates.add(LONGEST_MATCH, 1.0, True)
    short = recalled([OLD], OLD[38:44])
    assert 1 <= len(proposals(short)) < 20
    sure = recalled([OLD], OLD[:44], hit_rates)
    assert len(proposals(sure)) == len(OLD) - 44, "all that there is"


def test_a_memory_that_is_often_wrong_falls_silent_and_comes_back() -> None:
    """By what the answers say where it had something to say, drafted or not."""
    hit_rates = HitRates()
    assert recalled([OLD], OLD[:20], hit_rates).proposed is not None
    for begin in range(30):
        text = recalled([OLD], OLD[begin : begin + 20], hit_rates)
        text.commit(999 - begin)
    assert recalled([OLD], OLD[:20], hit_rates).proposed is None
    for begin in range(100):
        text = recalled([OLD], OLD[begin : begin + 20], hit_rates)
        text.commit(*OLD[begin + 20 : begin + 21])
    assert recalled([OLD], OLD[:20], hit_rates).proposed is not None


def test_a_better_draft_model_is_asked_in_its_place() -> None:
    texts = recalled([OLD], OLD[42:48])
    draft = texts.proposed
    assert draft is not None
    assert LEAST_CHANCE <= draft.chance < SUREST_MODEL
    assert texts.surer_than(0.9).proposed is None
    assert texts.surer_than(0.0).proposed == draft
    sure = recalled([OLD], OLD[:60])
    assert sure.surer_than(1.0).proposed is not None, "a long match is sure enough for any"


def test_a_prediction_comes_first() -> None:
    texts = AnswerTexts(
        PredictedText((1, 2, 3), VOCABULARY),
        NgramTexts(OLD[:30], VOCABULARY, memory_of(OLD).index),
    )
    first = texts.after((), MODEL_RATE).proposed
    assert first is not None
    assert (first.token_id, first.source) == (1, DraftSource.PREDICTION)
    texts.commit((OLD[30],))  # not what was predicted
    second = texts.after((), MODEL_RATE).proposed
    assert second is not None
    assert (second.token_id, second.source) == (OLD[31], DraftSource.MEMORY)


def test_drafts_in_flight_are_followed_once() -> None:
    """Also where some of them are discarded."""
    texts = AnswerTexts(None, NgramTexts(OLD[:30], VOCABULARY, memory_of(OLD).index))
    for flight in (OLD[30:33], OLD[30:35], (OLD[30], 5), (), OLD[30:31]):
        fresh = AnswerTexts(None, NgramTexts(OLD[:30], VOCABULARY, memory_of(OLD).index))
        here, there = texts.after(flight, MODEL_RATE), fresh.after(flight, MODEL_RATE)
        assert proposals(here) == proposals(there), flight
    assert texts.count(OLD[30:31], MODEL_RATE, 6) == 6
    assert texts.count(OLD[30:31], MODEL_RATE, 2) == 2
    assert not AnswerTexts(None, None).on
    assert AnswerTexts(None, None).after((1, 2), MODEL_RATE) == NO_TEXTS


def test_what_is_proposed_does_not_depend_on_what_was_drafted() -> None:
    """By the text alone: another path to it gives the same."""
    hit_rates = HitRates()
    step = recalled([OLD], OLD[:30], hit_rates)
    for token_id in OLD[30:40]:
        step = step.commit(token_id)
    whole = recalled([OLD], OLD[:40])
    assert proposals(step, 5) == proposals(whole, 5)
