"""Where in the caller's prediction an answer is, and what is proposed from there."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tandem.core.errors import InvalidArgument
from tandem.specdec.predicted_text import SURE_MATCH, PredictedText, PredictionProposer

VOCABULARY = 1000
OLD = tuple(range(100, 140))


def aligned(predicted: Sequence[int], answer: Sequence[int] = ()) -> PredictionProposer:
    return followed(PredictedText(predicted, VOCABULARY).begin(), answer)


def followed(
    proposer: PredictionProposer, token_ids: Sequence[int], confirmed: bool = True
) -> PredictionProposer:
    for token_id in token_ids:
        proposer = proposer.commit(token_id) if confirmed else proposer.after(token_id)
    return proposer


def proposals(proposer: PredictionProposer, most: int = 100) -> list[int]:
    """What is drafted from here on, until nothing is proposed or it must be confirmed first."""
    found = list[int]()
    while len(found) < most and (proposed := proposer.propose()):
        found.append(proposed[0].token_id)
        if proposed[0].is_last:
            break
        proposer = proposer.after(found[-1])
    return found


def test_an_answer_is_expected_to_begin_as_the_prediction_does() -> None:
    assert proposals(aligned(OLD)) == [*OLD]
    assert proposals(aligned(OLD, OLD[:7])) == [*OLD[7:]]
    assert proposals(aligned(OLD, OLD)) == []
    assert proposals(aligned(())) == []


@pytest.mark.parametrize(
    ("edited", "place"),
    [
        ((*OLD[:10], 5, 6, *OLD[11:14]), 14),
        ((*OLD[:10], 5, 6, 7, 8, 9, *OLD[10:13]), 13),
        ((*OLD[:10], *OLD[20:23]), 23),
        ((1, 2, 3, *OLD[:3]), 3),
    ],
    ids=["replaced", "inserted", "deleted", "preceded"],
)
def test_after_an_edit_it_finds_its_place_again(edited: Sequence[int], place: int) -> None:
    assert proposals(aligned(OLD, edited)) == [*OLD[place:]]


def test_a_short_match_is_tried_with_few_drafts_and_a_confirmed_one_with_all() -> None:
    left = aligned(OLD, (*OLD[:10], 5))
    assert proposals(left) == [], "the answer is elsewhere"
    one = followed(left, OLD[12:13])
    assert proposals(one) == [*OLD[13:17]]
    two = followed(one, OLD[13:14])
    assert proposals(two) == [*OLD[14:17]], "until it is sure, the first match's few are all"
    assert proposals(followed(two, OLD[14:15])) == [*OLD[15:]]


def test_drafts_that_nobody_confirmed_lift_no_limit() -> None:
    one = aligned(OLD, (*OLD[:10], 5, OLD[12]))
    assert proposals(followed(one, OLD[13:17], confirmed=False)) == []


def test_of_equal_matches_the_nearest_after_the_place_that_was_left_counts() -> None:
    line = (1, 2, 3, 4)
    predicted = (*line, 50, *line, 51, *line, 52, *line, 53)
    answer = (*line, 50, *line, 99, *line)
    assert proposals(aligned(predicted, answer))[0] == 52
    behind = (*predicted, 98, *line[:3])
    assert proposals(aligned(predicted, behind))[:2] == [4, 53], "none is ahead: the nearest before"


def test_wrong_guesses_do_not_move_the_place_that_was_left() -> None:
    """Single tokens of an inserted part recur far down; what follows it is still found near."""
    predicted = (*OLD[:10], *OLD[10:20], 7, 8, 9, *OLD[:10], *OLD[10:20])
    answer = (*OLD[:10], 7, 60, 8, 61, 9, 62, *OLD[10:13])
    assert aligned(predicted, answer).place == 13


def test_a_long_text_is_followed_through_many_edits() -> None:
    source = random.Random(1)
    predicted = [source.randrange(VOCABULARY) for _ in range(4000)]
    answer = list[int]()
    for begin in range(0, 4000, 50):
        answer += [*predicted[begin : begin + 45], source.randrange(VOCABULARY)]
    proposer, right = aligned(predicted), 0
    for token_id in answer:
        right += [each.token_id for each in proposer.propose()] == [token_id]
        proposer = proposer.commit(token_id)
    assert right / len(answer) > 0.94


def test_a_token_that_is_everywhere_costs_a_bounded_search() -> None:
    """Its places are looked at near the one that was left only."""
    predicted = (*OLD, *(3,) * 5000, *OLD)
    proposer = aligned(predicted, (*OLD, 4, 3, 3, 3))
    assert proposer.matched == SURE_MATCH
    assert proposer.place is not None
    assert proposer.place < len(OLD) + 10


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^prediction: \[1\] = 1000 is not in"):
        PredictedText((1, VOCABULARY), VOCABULARY)
