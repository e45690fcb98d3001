"""Several candidates per position: the target law exactly, and never fewer accepted than of one."""

import random
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, sample_draft
from tandem.core.chance import Chance, SeededChance
from tandem.core.laws import Array
from tandem.core.noise import coupled_candidates, coupled_token
from tandem.core.tree_acceptance import choose_candidate, draw_candidates
from tests.chi_squared import assert_fits
from tests.exact import ExactChance, fractions, law_pairs, outcome_law, output_law, random_law

CHOICES = [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True), (4, False)]


def one_position(
    chance: Chance, target: Array, draft: Array, count: int, replacement: bool
) -> tuple[int | None, int]:
    candidates = draw_candidates(draft, count, chance, 0, 10, replacement)
    return choose_candidate(target, candidates, draft, chance, 0, replacement)


@pytest.mark.parametrize(("count", "replacement"), CHOICES)
def test_the_output_law_is_the_targets(count: int, replacement: bool) -> None:
    for target, draft in law_pairs(seed=11, count=25 if count < 3 else 8):
        law = outcome_law(
            partial(one_position, target=target, draft=draft, count=count, replacement=replacement)
        )
        tokens = [Fraction(0)] * 4
        for (_, token), mass in law.items():
            tokens[token] += mass
        assert tokens == target.tolist()


def accepted_mass(target: Array, draft: Array, count: int, replacement: bool) -> Fraction:
    law = outcome_law(
        partial(one_position, target=target, draft=draft, count=count, replacement=replacement)
    )
    return sum((mass for (index, _), mass in law.items() if index is not None), Fraction(0))


def test_more_candidates_accept_more_and_without_replacement_most() -> None:
    gained = 0
    for target, draft in law_pairs(seed=12, count=40):
        one = accepted_mass(target, draft, 1, False)
        with_, without = (accepted_mass(target, draft, 2, r) for r in (True, False))
        assert one == sum(map(min, target, draft))
        assert one <= with_ <= without
        gained += with_ < without
    assert gained > 20


def test_equal_laws_accept_the_first_candidate() -> None:
    law = fractions([1, 2, 0, 3])
    for replacement in (True, False):
        assert accepted_mass(law, law, 2, replacement) == 1


def test_judging_by_the_whole_draft_law_after_a_refusal_is_biased() -> None:
    """Without replacement the second candidate comes from another law than the first."""

    def careless(chance: ExactChance, target: Array, draft: Array) -> int:
        candidates = draw_candidates(draft, 2, chance, 0, 10, with_replacement=False)
        return choose_candidate(target, candidates, draft, chance, 0, with_replacement=True)[1]

    wrong = [
        output_law(partial(careless, target=target, draft=draft), 4) != target.tolist()
        for target, draft in law_pairs(seed=13, count=20)
    ]
    assert sum(wrong) > 10


def test_one_candidate_is_a_chain_s_draft() -> None:
    """Bit for bit: the same random numbers, the same comparison, the same residual."""
    source = np.random.default_rng(4)
    for seed in range(300):
        chance = SeededChance(seed)
        target, draft = source.dirichlet(np.ones(6), 2).astype(np.float32)
        token = sample_draft(draft, chance, seed)
        assert draw_candidates(draft, 1, chance, seed, 0, with_replacement=False) == [token]
        chosen = choose_candidate(target, [token], draft, chance, seed, with_replacement=False)
        if accepts(target, token, draft[token], chance, seed):
            assert chosen == (0, token)
        else:
            assert chosen == (None, recover(target, draft, chance, seed))


def test_candidates_without_replacement_are_distinct_and_end_with_the_support() -> None:
    source = random.Random(6)
    for seed in range(200):
        law = random_law(source, 5)
        support = {token for token, mass in enumerate(law) if mass}
        chance = SeededChance(seed)
        drawn = draw_candidates(law, 5, chance, 1, 0, with_replacement=False)
        assert len(drawn) == len(support)
        assert set(drawn) == support
        assert len(draw_candidates(law, 5, chance, 1, 0, with_replacement=True)) == 5


@pytest.mark.parametrize("replacement", [True, False])
def test_a_one_hot_target_is_followed_whatever_the_law(replacement: bool) -> None:
    """Greedy decoding: any draft law will do, a candidate stands iff it is the target's token."""
    target = np.eye(4, dtype=np.float32)[2]
    for draft in (fractions([1, 1, 1, 1]), fractions([1, 0, 0, 1]), fractions([0, 0, 1, 0])):
        law = draft.astype(np.float32)
        for candidates in ([2], [0, 2], [3, 0], [0, 3]):
            found = choose_candidate(target, candidates, law, SeededChance(1), 0, replacement)
            assert found == (candidates.index(2) if 2 in candidates else None, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_float_laws_give_the_target_too(count: int) -> None:
    """Seeded: what rounding does to a residual of a residual stays unseen."""
    source = np.random.default_rng(2)
    target, draft = source.dirichlet(np.full(5, 0.7), 2).astype(np.float32)
    counts = np.zeros(5)
    for seed in range(4000):
        counts[one_position(SeededChance(seed), target, draft, count, False)[1]] += 1
    assert_fits(counts, (4000 * target.astype(float)).tolist())


def test_coupled_candidates_begin_with_the_coupled_token() -> None:
    source = np.random.default_rng(9)
    for seed in range(200):
        law = source.dirichlet(np.full(30, 0.2)).astype(np.float32)
        law[source.integers(0, 30, 5)] = 0
        found = coupled_candidates(law, seed, 7, 4)
        assert found[0] == coupled_token(law, seed, 7)
        assert len(set(found)) == len(found)
        without = law.copy()
        without[found[0]] = 0
        assert found[1] == coupled_token(without, seed, 7)
    one_hot = np.eye(9, dtype=np.float32)[4]
    assert coupled_candidates(one_hot, 1, 2, 3) == [4]
