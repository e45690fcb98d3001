"""Lossless sparse payloads, exactly: the distribution of the recovered token for all M and R."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from tandem.core.acceptance import accepts, residual, sample_draft
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource, SeededRandom
from tandem.core.sparse_payload import (
    SparsePayload,
    TailExhausted,
    draw_from_sparse_payload,
    finish_with_full_distribution,
    make_sparse_payload,
    make_top_k_payload,
)
from tests.exact import ExactRandom, fractions, outcome_probs, output_probs, probs_pairs

V = 4
Recovery = Callable[[Array, Array, RandomSource], int]
Finish = Callable[[SparsePayload, Array, Array, TailExhausted, RandomSource, int], int]


def draw_afresh(
    answer: SparsePayload,
    target: Array,
    draft: Array,
    need: TailExhausted,
    rng: RandomSource,
    position: int,
) -> int:
    """The tempting wrong ending: forget the draw that ran out and start a new one."""
    return rng.categorical(residual(target, draft), position, Purpose.RECOVER, need.draw)


def recovered(
    target: Array, draft: Array, top: int, tail_draws: int, finish: Finish, rng: RandomSource
) -> int:
    answer = make_sparse_payload(target, top, tail_draws, rng, 0)
    token = draw_from_sparse_payload(answer, draft, rng, 0)
    if isinstance(token, TailExhausted):
        return finish(answer, target, draft, token, rng, 0)
    return token


def biased_pairs(top: int, tail_draws: int, finish: Finish) -> Iterator[bool]:
    """Yield for each of 20 pairs of distributions whether the recovered token has another
    distribution than norm(max(0, P - Q))."""
    for target, draft in probs_pairs(seed=3, count=20):
        rest = np.maximum(target - draft, 0)
        probs = output_probs(partial(recovered, target, draft, top, tail_draws, finish), V)
        yield probs != list(rest / rest.sum())


@pytest.mark.parametrize("top", [0, 1, 2, 4])
@pytest.mark.parametrize("tail_draws", [0, 1, 2])
def test_recovered_token_has_the_residual_distribution(top: int, tail_draws: int) -> None:
    assert not any(biased_pairs(top, tail_draws, finish_with_full_distribution))


# With no head, or with no tail, there is nothing to be biased for.
@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("tail_draws", [0, 1, 2])
def test_drawing_afresh_at_once_would_be_biased(top: int, tail_draws: int) -> None:
    assert any(biased_pairs(top, tail_draws, draw_afresh))


def split_round(target: Array, draft: Array, recovery: Recovery, rng: RandomSource) -> int:
    token = sample_draft(draft, rng, 0)
    sent_up = (token, draft[token])  # all the cloud learns of the draft distribution
    if accepts(target, *sent_up, rng, 0):
        return token
    return recovery(target, draft, rng)


def from_full_distribution(target: Array, draft: Array, rng: RandomSource) -> int:
    return rng.categorical(residual(target, draft), 0, Purpose.RECOVER)


def from_sparse_payload(top: int, tail_draws: int) -> Recovery:
    return lambda target, draft, rng: recovered(
        target, draft, top, tail_draws, finish_with_full_distribution, rng
    )


@pytest.mark.parametrize(
    "recovery",
    [from_full_distribution, *(from_sparse_payload(*sizes) for sizes in [(0, 1), (1, 2), (2, 1)])],
    ids=["full", "M=0,R=1", "M=1,R=2", "M=2,R=1"],
)
def test_the_whole_split_rule_gives_the_target_distribution(recovery: Recovery) -> None:
    for target, draft in probs_pairs(seed=4, count=30):
        probs = output_probs(partial(split_round, target, draft, recovery), V)
        assert probs == list(target), f"draft distribution {draft}"


def trip_probability(target: Array, draft: Array, top: int, tail_draws: int) -> Fraction:
    def run(rng: RandomSource) -> bool:
        answer = make_sparse_payload(target, top, tail_draws, rng, 0)
        return isinstance(draw_from_sparse_payload(answer, draft, rng, 0), TailExhausted)

    return outcome_probs(run).get(True, Fraction(0))


def test_more_tail_draws_make_the_extra_trip_rarer() -> None:
    target, draft = fractions([1, 3, 3, 3]), fractions([0, 2, 2, 3])
    trips = [trip_probability(target, draft, 1, draws) for draws in range(4)]
    assert trips == sorted(trips, reverse=True)
    assert trips[0] > trips[3] > 0


def test_a_truncated_target_distribution_has_no_tail() -> None:
    target, draft = fractions([3, 0, 1, 0]), fractions([1, 1, 1, 1])
    answer = make_sparse_payload(target, 2, 2, SeededRandom(0), 0)
    assert (answer.ids.tolist(), answer.tail_mass, len(answer.tail_ids)) == ([0, 2], 0, 0)
    assert trip_probability(target, draft, 2, 2) == 0


def test_a_distribution_equal_to_the_draft_still_yields_a_token() -> None:
    probs = np.array([0.5, 0.25, 0.25, 0.0], dtype=np.float32)
    for top in (0, 2, 4):
        for seed in range(20):
            rng = SeededRandom(seed)
            token = recovered(probs, probs, top, 1, finish_with_full_distribution, rng)
            assert token in (0, 1, 2)


def test_full_distribution_without_a_tail_is_rejected() -> None:
    probs = np.array([0.5, 0.5, 0.0, 0.0])
    answer = answer_with(ids=np.array([0, 1]), probs=np.array([0.4, 0.4]), tail_mass=0.2)
    with pytest.raises(InvalidArgument, match=r"^target_probs: "):
        finish_with_full_distribution(answer, probs, probs, TailExhausted(1), SeededRandom(0), 0)


def answer_with(**changes: Any) -> SparsePayload:
    fields: dict[str, Any] = {
        "ids": np.array([1, 3]),
        "probs": np.array([0.5, 0.25]),
        "tail_mass": 0.25,
        "tail_ids": np.array([2]),
        "tail_probs": np.array([0.125]),
    }
    return SparsePayload(**(fields | changes))


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("ids", {"ids": np.array([3, 1])}),
        ("ids", {"ids": np.array([1, 1])}),
        ("ids", {"ids": np.array([0, 3, 1]), "probs": np.array([0.25, 0.25, 0.25])}),
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
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        answer_with(**changes).validate(V)


def test_validate_accepts_an_honest_answer() -> None:
    answer_with().validate(V)


class Summed(np.ndarray[Any, Any]):
    """Counts how often it is summed up whole."""

    times = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **others: Any) -> Any:
        Summed.times += method == "reduceat" and len(inputs[0]) == len(self)
        plain = [one.view(np.ndarray) if isinstance(one, Summed) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **others)


def test_many_tail_draws_sum_the_whole_distribution_once() -> None:
    """256 draws used to take 45 times as long: each summed the whole distribution up."""
    probs = np.random.default_rng(0).dirichlet(np.full(5_000, 0.1)).astype(np.float32)
    rng = SeededRandom(1)
    rng.categoricals(probs.view(Summed), 3, Purpose.TAIL, range(256))
    assert Summed.times == 1
    payload = make_sparse_payload(probs, 64, 8, rng, 3)
    tail = probs.copy()
    tail[payload.ids] = 0
    alone = [rng.categorical(tail, 3, Purpose.TAIL, draw) for draw in range(8)]
    assert payload.tail_ids.tolist() == alone


def test_a_top_k_payload_has_a_head_and_no_tail() -> None:
    probs = np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32)
    payload = make_top_k_payload(probs, 2)
    assert payload.ids.tolist() == [1, 3]
    assert payload.probs.tolist() == pytest.approx([0.4, 0.3])
    assert payload.tail_mass == 0
    assert len(payload.tail_ids) == len(payload.tail_probs) == 0


def test_every_decision_of_a_recovered_token_has_a_number_of_its_own_in_order() -> None:
    """Head or not, then the tail token: twice; then the edge draws from the tail itself, keeps it
    or not, and starts afresh. Pinned: a seed's text depends on them."""
    target, draft = fractions([2, 3, 3]), fractions([3, 2, 3])
    tail = np.array([2, 2])
    payload = SparsePayload(np.array([1]), target[[1]], target[[0, 2]].sum(), tail, target[tail])
    rng = ExactRandom((1, 1, 1, 1))
    need = draw_from_sparse_payload(payload, draft, rng, 7)
    assert need == TailExhausted(5)
    assert rng.decided == [(7, Purpose.RECOVER, draw) for draw in range(5)]
    rng = ExactRandom((1,))
    assert isinstance(need, TailExhausted)
    assert finish_with_full_distribution(payload, target, draft, need, rng, 7) == 1
    assert rng.decided == [(7, Purpose.RECOVER, draw) for draw in (5, 6, 7)]
    rng = ExactRandom()
    assert draw_from_sparse_payload(payload, draft, rng, 7) == 1
    assert rng.decided == [(7, Purpose.RECOVER, 0), (7, Purpose.RECOVER, 1)]
