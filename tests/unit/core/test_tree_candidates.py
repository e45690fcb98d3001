"""Several candidates per position: the target distribution exactly, and never fewer accepted than
of one."""

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from tandem.core.acceptance import (
    accepted_candidate,
    draw_candidates,
    recover,
)
from tandem.core.gumbel import coupled_candidates, coupled_token
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource, SeededRandom
from tests.chi_squared import assert_fits
from tests.exact import (
    ExactRandom,
    fractions,
    outcome_probs,
    output_probs,
    probs_pairs,
    random_probs,
)

CHOICES = [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True), (4, False)]


def choose_candidate(
    target: Array,
    candidates: Sequence[int],
    draft: Array,
    rng: RandomSource,
    position: int,
    with_replacement: bool,
) -> tuple[int | None, int]:
    """(index, token) of the accepted candidate, or (None, the recovered token)."""
    rest = (target, candidates, draft, rng, position, with_replacement)
    index = accepted_candidate(*rest)
    return index, recover(*rest) if index is None else candidates[index]


def one_position(
    rng: RandomSource, target: Array, draft: Array, count: int, replacement: bool
) -> tuple[int | None, int]:
    candidates = draw_candidates(draft, count, rng, 0, 10, replacement)
    return choose_candidate(target, candidates, draft, rng, 0, replacement)


@pytest.mark.parametrize(("count", "replacement"), CHOICES)
def test_the_output_distribution_is_the_targets(count: int, replacement: bool) -> None:
    for target, draft in probs_pairs(seed=11, count=25 if count < 3 else 8):
        probs = outcome_probs(
            partial(one_position, target=target, draft=draft, count=count, replacement=replacement)
        )
        tokens = [Fraction(0)] * 4
        for (_, token), mass in probs.items():
            tokens[token] += mass
        assert tokens == target.tolist()


def accepted_mass(target: Array, draft: Array, count: int, replacement: bool) -> Fraction:
    probs = outcome_probs(
        partial(one_position, target=target, draft=draft, count=count, replacement=replacement)
    )
    return sum((mass for (index, _), mass in probs.items() if index is not None), Fraction(0))


def test_more_candidates_accept_more_and_without_replacement_most() -> None:
    gained = 0
    for target, draft in probs_pairs(seed=12, count=40):
        one = accepted_mass(target, draft, 1, False)
        with_, without = (accepted_mass(target, draft, 2, r) for r in (True, False))
        assert one == sum(map(min, target, draft))
        assert one <= with_ <= without
        gained += with_ < without
    assert gained > 20


def test_judging_by_the_whole_draft_distribution_after_a_rejection_is_biased() -> None:
    """Without replacement the second candidate comes from another distribution than the first."""

    def careless(rng: ExactRandom, target: Array, draft: Array) -> int:
        candidates = draw_candidates(draft, 2, rng, 0, 10, with_replacement=False)
        return choose_candidate(target, candidates, draft, rng, 0, with_replacement=True)[1]

    wrong = [
        output_probs(partial(careless, target=target, draft=draft), 4) != target.tolist()
        for target, draft in probs_pairs(seed=13, count=20)
    ]
    assert sum(wrong) > 10


def test_candidates_without_replacement_are_distinct_and_end_with_the_support() -> None:
    source = random.Random(6)
    for seed in range(200):
        probs = random_probs(source, 5)
        support = {token for token, mass in enumerate(probs) if mass}
        rng = SeededRandom(seed)
        drawn = draw_candidates(probs, 5, rng, 1, 0, with_replacement=False)
        assert len(drawn) == len(support)
        assert set(drawn) == support
        assert len(draw_candidates(probs, 5, rng, 1, 0, with_replacement=True)) == 5


@pytest.mark.parametrize("replacement", [True, False])
def test_a_one_hot_target_is_followed_whatever_the_distribution(replacement: bool) -> None:
    """Greedy decoding: any draft distribution will do, a candidate is accepted iff it is the
    target's token."""
    target = np.eye(4, dtype=np.float32)[2]
    for draft in (fractions([1, 1, 1, 1]), fractions([1, 0, 0, 1]), fractions([0, 0, 1, 0])):
        probs = draft.astype(np.float32)
        for candidates in ([2], [0, 2], [3, 0], [0, 3]):
            found = choose_candidate(target, candidates, probs, SeededRandom(1), 0, replacement)
            assert found == (candidates.index(2) if 2 in candidates else None, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_float_distributions_give_the_target_too(count: int) -> None:
    """Seeded: what rounding does to a residual of a residual stays unseen."""
    source = np.random.default_rng(2)
    target, draft = source.dirichlet(np.full(5, 0.7), 2).astype(np.float32)
    counts = np.zeros(5)
    for seed in range(2500):
        counts[one_position(SeededRandom(seed), target, draft, count, False)[1]] += 1
    assert_fits(counts, (2500 * target.astype(float)).tolist())


def test_coupled_candidates_begin_with_the_coupled_token() -> None:
    source = np.random.default_rng(9)
    for seed in range(200):
        probs = source.dirichlet(np.full(30, 0.2)).astype(np.float32)
        probs[source.integers(0, 30, 5)] = 0
        found = coupled_candidates(probs, seed, 7, 4)
        assert found[0] == coupled_token(probs, seed, 7)
        assert len(set(found)) == len(found)
        without = probs.copy()
        without[found[0]] = 0
        assert found[1] == coupled_token(without, seed, 7)
    one_hot = np.eye(9, dtype=np.float32)[4]
    assert coupled_candidates(one_hot, 1, 2, 3) == [4]
