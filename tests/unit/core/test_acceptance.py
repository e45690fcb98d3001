"""The rejection rule, exactly: its output distribution is the target distribution for every pair of
distributions."""

import random
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, residual, sample_draft
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.specdec.judge import Judge, chain_steps
from tandem.specdec.rules import PayloadRule, Proposal, RejectionRule
from tests.chi_squared import assert_fits
from tests.exact import fractions, outcome_probs, output_probs, probs_pairs, random_probs

V = 4


def speculate(
    target: Array, draft: Array, rng: RandomSource, position: int = 0
) -> tuple[int, bool]:
    token = sample_draft(draft, rng, position)
    if accepts(target, token, draft[token], rng, position):
        return token, True
    return recover(target, (token,), draft, rng, position), False


def test_output_distribution_is_the_target_distribution() -> None:
    for target, draft in probs_pairs(seed=1, count=300):
        outcomes = outcome_probs(partial(speculate, target, draft))
        output = [
            outcomes.get((token, True), 0) + outcomes.get((token, False), 0) for token in range(V)
        ]
        assert output == list(target), f"draft distribution {draft}"
        accepted = sum(outcomes.get((token, True), 0) for token in range(V))
        assert accepted == np.minimum(target, draft).sum()


def test_a_distribution_equal_to_the_target_is_always_accepted() -> None:
    probs = fractions([1, 0, 2, 3])
    assert outcome_probs(lambda rng: speculate(probs, probs, rng)[1]) == {True: 1}


@pytest.mark.parametrize("target_token", range(V))
def test_greedy_target_gives_its_token_for_any_draft(target_token: int) -> None:
    target = fractions([int(token == target_token) for token in range(V)])
    draft = fractions([3, 0, 1, 2])
    probs = outcome_probs(lambda rng: speculate(target, draft, rng))
    assert {token for token, _ in probs} == {target_token}
    assert probs.get((target_token, True), 0) == draft[target_token]


def conditional_distributions(seed: int) -> tuple[list[Array], list[Array]]:
    """Distributions of the first token ([0]) and of the second after each first one ([1 +
    first])."""
    source = random.Random(seed)
    return (
        [random_probs(source, 3) for _ in range(4)],
        [random_probs(source, 3) for _ in range(4)],
    )


def joint_probs(distributions: list[Array]) -> dict[tuple[int, ...], Fraction]:
    joint = {
        (i, j): distributions[0][i] * distributions[1 + i][j] for i in range(3) for j in range(3)
    }
    return {pair: probability for pair, probability in joint.items() if probability}


def two_tokens(
    target: list[Array], draft: list[Array], draft_length: int, rng: RandomSource
) -> tuple[int, ...]:
    """Stop-and-wait rounds with bonus tokens until two tokens are committed."""
    rule = RejectionRule(rng)
    payloads = PayloadRule(rule, rng)
    committed: list[int] = []
    while len(committed) < 2:
        base, drafted = len(committed), list(committed)
        proposals: list[Proposal] = []
        for position in range(base, min(base + draft_length, 2)):
            probs = probs_at(draft, drafted)
            drafted.append(rule.propose(probs, position))
            proposals.append(Proposal((drafted[-1],), draft_probs=probs))
        judge = Judge(base, chain_steps(proposals), rule, payloads, length_limit=2)
        rows = [probs_at(target, drafted[:end]) for end in range(base, len(drafted) + 1)]
        verification = judge.judge(rows.__getitem__)
        committed += verification.token_ids
        if verification.replacement is not None:
            assert isinstance(verification.replacement, int)
            committed.append(verification.replacement)
        elif verification.next_target is not None:
            committed.append(rule.target_token(verification.next_target, len(committed)))
    return tuple(committed)


def probs_at(distributions: list[Array], before: list[int]) -> Array:
    return distributions[0] if not before else distributions[1 + before[0]]


@pytest.mark.parametrize("seed", range(20))
def test_two_tokens_with_a_bonus_have_the_joint_target_distribution(seed: int) -> None:
    target, draft = conditional_distributions(seed)
    assert outcome_probs(lambda rng: two_tokens(target, draft, 1, rng)) == joint_probs(target)


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_of_two_drafts_has_the_joint_target_distribution(seed: int) -> None:
    target, draft = conditional_distributions(seed)
    # once=False: the second position is drafted again after a rejection at the first.
    probs = outcome_probs(lambda rng: two_tokens(target, draft, 2, rng), once=False)
    assert probs == joint_probs(target)


def test_a_position_drafted_again_from_the_same_number_stays_unbiased() -> None:
    target, draft = conditional_distributions(seed=7)
    target = [probs.astype(np.float64) for probs in target]
    draft = [probs.astype(np.float64) for probs in draft]
    counts = Counter(two_tokens(target, draft, 2, SeededRandom(seed)) for seed in range(4000))
    joint = [target[0][i] * target[1 + i][j] for i in range(3) for j in range(3)]
    assert_fits([counts[i, j] for i in range(3) for j in range(3)], joint)


def test_a_truncated_draft_distribution_is_still_lossless() -> None:
    target = fractions([4, 3, 2, 1])
    draft = fractions([1, 1, 0, 0])
    assert output_probs(lambda rng: speculate(target, draft, rng)[0], V) == list(target)


def test_residual_is_the_excess_of_the_target() -> None:
    rest = residual(fractions([3, 1, 0, 0]), fractions([1, 1, 1, 1]))
    assert list(rest) == [Fraction(1, 2), 0, 0, 0]


def test_residual_of_equal_distributions_is_the_target_distribution() -> None:
    probs = np.array([0.25, 0.75], dtype=np.float32)
    assert residual(probs, probs).tolist() == [0.25, 0.75]
    assert recover(probs, (0,), probs, SeededRandom(0), 0) in (0, 1)
