"""Lossless sparse answers, exactly: the law of the recovered token for all M and R (DESIGN 3.2)."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, residual, sample_draft
from tandem.core.chance import Chance, Purpose, SeededChance
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array
from tandem.core.sparse_answer import (
    NeedFullLaw,
    SparseAnswer,
    draw_from_sparse_answer,
    finish_with_full_law,
    make_sparse_answer,
)
from tests.exact import fractions, law_pairs, outcome_law, output_law

V = 4
Recovery = Callable[[Array, Array, Chance], int]
Finish = Callable[[SparseAnswer, Array, Array, NeedFullLaw, Chance, int], int]


def draw_afresh(
    answer: SparseAnswer,
    target: Array,
    draft: Array,
    need: NeedFullLaw,
    chance: Chance,
    position: int,
) -> int:
    """The tempting wrong ending: forget the draw that ran out and start a new one."""
    return chance.pick(residual(target, draft), position, Purpose.RECOVER, need.draw)


def recovered(
    target: Array, draft: Array, top: int, tail_draws: int, finish: Finish, chance: Chance
) -> int:
    answer = make_sparse_answer(target, top, tail_draws, chance, 0)
    token = draw_from_sparse_answer(answer, draft, chance, 0)
    if isinstance(token, NeedFullLaw):
        return finish(answer, target, draft, token, chance, 0)
    return token


def biased_pairs(top: int, tail_draws: int, finish: Finish) -> int:
    """How many pairs of laws give a recovered token of another law than norm(max(0, P - Q))."""
    biased = 0
    for target, draft in law_pairs(seed=3, count=60):
        rest = np.maximum(target - draft, 0)
        law = output_law(partial(recovered, target, draft, top, tail_draws, finish), V)
        biased += law != list(rest / rest.sum())
    return biased


@pytest.mark.parametrize("top", [0, 1, 2, 4])
@pytest.mark.parametrize("tail_draws", [0, 1, 2])
def test_recovered_token_has_the_residual_law(top: int, tail_draws: int) -> None:
    assert biased_pairs(top, tail_draws, finish_with_full_law) == 0


# With no head, or with no tail, there is nothing to be biased for.
@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("tail_draws", [0, 1, 2])
def test_drawing_afresh_at_once_would_be_biased(top: int, tail_draws: int) -> None:
    assert biased_pairs(top, tail_draws, draw_afresh) > 0


def split_round(target: Array, draft: Array, recovery: Recovery, chance: Chance) -> int:
    token = sample_draft(draft, chance, 0)
    sent_up = (token, draft[token])  # all the cloud learns of the draft law
    if accepts(target, *sent_up, chance, 0):
        return token
    return recovery(target, draft, chance)


def from_full_law(target: Array, draft: Array, chance: Chance) -> int:
    return recover(target, draft, chance, 0)


def from_sparse_answer(top: int, tail_draws: int) -> Recovery:
    return lambda target, draft, chance: recovered(
        target, draft, top, tail_draws, finish_with_full_law, chance
    )


@pytest.mark.parametrize(
    "recovery",
    [from_full_law, *(from_sparse_answer(*sizes) for sizes in [(0, 1), (1, 2), (2, 1)])],
    ids=["full", "M=0,R=1", "M=1,R=2", "M=2,R=1"],
)
def test_the_whole_split_rule_gives_the_target_law(recovery: Recovery) -> None:
    for target, draft in law_pairs(seed=4, count=30):
        law = output_law(partial(split_round, target, draft, recovery), V)
        assert law == list(target), f"draft law {draft}"


def trip_probability(target: Array, draft: Array, top: int, tail_draws: int) -> Fraction:
    def run(chance: Chance) -> bool:
        answer = make_sparse_answer(target, top, tail_draws, chance, 0)
        return isinstance(draw_from_sparse_answer(answer, draft, chance, 0), NeedFullLaw)

    return outcome_law(run).get(True, Fraction(0))


def test_more_tail_draws_make_the_extra_trip_rarer() -> None:
    target, draft = fractions([1, 3, 3, 3]), fractions([0, 2, 2, 3])
    trips = [trip_probability(target, draft, 1, draws) for draws in range(4)]
    assert trips == sorted(trips, reverse=True)
    assert trips[0] > trips[3] > 0


def test_no_tail_token_is_refused_when_the_draft_law_lies_in_the_head() -> None:
    target, draft = fractions([5, 3, 1, 1]), fractions([1, 3, 0, 0])
    assert trip_probability(target, draft, 2, 1) == 0


def test_a_truncated_target_law_has_no_tail() -> None:
    target, draft = fractions([3, 0, 1, 0]), fractions([1, 1, 1, 1])
    answer = make_sparse_answer(target, 2, 2, SeededChance(0), 0)
    assert (answer.ids.tolist(), answer.tail_mass, len(answer.tail_ids)) == ([0, 2], 0, 0)
    assert trip_probability(target, draft, 2, 2) == 0


def test_head_ties_go_to_lower_ids_and_ids_ascend() -> None:
    answer = make_sparse_answer(fractions([1, 2, 1, 1]), 3, 0, SeededChance(0), 0)
    assert answer.ids.tolist() == [0, 1, 2]
    assert answer.tail_mass == Fraction(1, 5)


def test_a_law_equal_to_the_draft_still_yields_a_token() -> None:
    law = np.array([0.5, 0.25, 0.25, 0.0], dtype=np.float32)
    for top in (0, 2, 4):
        for seed in range(20):
            chance = SeededChance(seed)
            token = recovered(law, law, top, 1, finish_with_full_law, chance)
            assert token in (0, 1, 2)


def test_float_answers_of_the_cloud_are_valid() -> None:
    source = np.random.default_rng(5)
    for seed in range(50):
        law = source.dirichlet(np.full(300, 0.05)).astype(np.float32)
        for top, tail_draws in [(0, 3), (8, 2), (300, 4)]:
            make_sparse_answer(law, top, tail_draws, SeededChance(seed), 0).validate(300)


def test_full_law_without_a_tail_is_refused() -> None:
    law = np.array([0.5, 0.5, 0.0, 0.0])
    answer = answer_with(ids=np.array([0, 1]), probs=np.array([0.4, 0.4]), tail_mass=0.2)
    with pytest.raises(InvalidArgument) as caught:
        finish_with_full_law(answer, law, law, NeedFullLaw(1), SeededChance(0), 0)
    assert caught.value.field == "target_probs"


def answer_with(**changes: Any) -> SparseAnswer:
    fields: dict[str, Any] = {
        "ids": np.array([1, 3]),
        "probs": np.array([0.5, 0.25]),
        "tail_mass": 0.25,
        "tail_ids": np.array([2]),
        "tail_probs": np.array([0.125]),
    }
    return SparseAnswer(**(fields | changes))


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("ids", {"ids": np.array([3, 1])}),
        ("ids", {"ids": np.array([1, 1])}),
        ("ids", {"ids": np.array([1, V])}),
        ("ids", {"ids": np.array([-1, 3])}),
        ("probs", {"probs": np.array([0.5])}),
        ("probs", {"probs": np.array([0.5, NAN])}),
        ("probs", {"probs": np.array([0.5, 0.0])}),
        ("probs", {"probs": np.array([0.5, np.inf])}),
        ("probs", {"probs": np.array([0.5, 0.5])}),
        ("tail_mass", {"tail_mass": NAN}),
        ("tail_mass", {"tail_mass": -0.1}),
        ("tail_mass", {"tail_mass": 1.1}),
        ("tail_mass", {"tail_mass": 0.0}),
        ("tail_ids", {"tail_ids": np.array([3])}),
        ("tail_ids", {"tail_ids": np.array([V])}),
        ("tail_probs", {"tail_probs": np.array([0.1, 0.1])}),
        ("tail_probs", {"tail_probs": np.array([NAN])}),
        ("tail_probs", {"tail_probs": np.array([2.0])}),
        (
            "probs",
            {
                "ids": np.array([], int),
                "probs": np.array([]),
                "tail_mass": 0.0,
                "tail_ids": np.array([], int),
                "tail_probs": np.array([]),
            },
        ),
    ],
)
def test_validate_names_the_field(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        answer_with(**changes).validate(V)
    assert caught.value.field == field


def test_validate_accepts_an_honest_answer() -> None:
    answer_with().validate(V)
