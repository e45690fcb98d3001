"""The rejection rule, exactly: its output law is the target law for every pair of laws."""

import random
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from tandem.core.acceptance import accepts, recover, residual, sample_draft, sample_target
from tandem.core.chance import Chance, SeededChance
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array
from tests.chi_squared import assert_fits
from tests.exact import fractions, law_pairs, outcome_law, output_law, random_law

V = 4


def speculate(target: Array, draft: Array, chance: Chance, position: int = 0) -> tuple[int, bool]:
    token = sample_draft(draft, chance, position)
    if accepts(target, token, draft[token], chance, position):
        return token, True
    return recover(target, draft, chance, position), False


def test_output_law_is_the_target_law() -> None:
    for target, draft in law_pairs(seed=1, count=300):
        outcomes = outcome_law(partial(speculate, target, draft))
        output = [
            outcomes.get((token, True), 0) + outcomes.get((token, False), 0) for token in range(V)
        ]
        assert output == list(target), f"draft law {draft}"
        accepted = sum(outcomes.get((token, True), 0) for token in range(V))
        assert accepted == np.minimum(target, draft).sum()


def test_a_law_equal_to_the_target_is_always_accepted() -> None:
    law = fractions([1, 0, 2, 3])
    assert outcome_law(lambda chance: speculate(law, law, chance)[1]) == {True: 1}


@pytest.mark.parametrize("target_token", range(V))
def test_greedy_target_gives_its_token_for_any_draft(target_token: int) -> None:
    target = fractions([int(token == target_token) for token in range(V)])
    draft = fractions([3, 0, 1, 2])
    law = outcome_law(lambda chance: speculate(target, draft, chance))
    assert {token for token, _ in law} == {target_token}
    assert law.get((target_token, True), 0) == draft[target_token]


def conditional_laws(seed: int) -> tuple[list[Array], list[Array]]:
    """Laws of the first token ([0]) and of the second after each first one ([1 + first])."""
    source = random.Random(seed)
    return (
        [random_law(source, 3) for _ in range(4)],
        [random_law(source, 3) for _ in range(4)],
    )


def joint_law(laws: list[Array]) -> dict[tuple[int, ...], Fraction]:
    joint = {(i, j): laws[0][i] * laws[1 + i][j] for i in range(3) for j in range(3)}
    return {pair: probability for pair, probability in joint.items() if probability}


def two_tokens(
    target: list[Array], draft: list[Array], draft_length: int, chance: Chance
) -> tuple[int, ...]:
    """Stop-and-wait rounds with bonus tokens until two tokens are committed."""
    committed: list[int] = []
    while len(committed) < 2:
        base = len(committed)
        drafted: list[int] = []
        for position in range(base, min(base + draft_length, 2)):
            law = law_at(draft, [*committed, *drafted])
            drafted.append(sample_draft(law, chance, position))
        for position, token in enumerate(drafted, base):
            target_law, draft_law = law_at(target, committed), law_at(draft, committed)
            if not accepts(target_law, token, draft_law[token], chance, position):
                committed.append(recover(target_law, draft_law, chance, position))
                break
            committed.append(token)
        else:
            if len(committed) < 2:
                bonus = sample_target(law_at(target, committed), chance, len(committed))
                committed.append(bonus)
    return tuple(committed)


def law_at(laws: list[Array], before: list[int]) -> Array:
    return laws[0] if not before else laws[1 + before[0]]


@pytest.mark.parametrize("seed", range(20))
def test_two_tokens_with_a_bonus_have_the_joint_target_law(seed: int) -> None:
    target, draft = conditional_laws(seed)
    assert outcome_law(lambda chance: two_tokens(target, draft, 1, chance)) == joint_law(target)


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_of_two_drafts_has_the_joint_target_law(seed: int) -> None:
    target, draft = conditional_laws(seed)
    # once=False: the second position is drafted again after a rejection at the first.
    law = outcome_law(lambda chance: two_tokens(target, draft, 2, chance), once=False)
    assert law == joint_law(target)


def test_a_position_drafted_again_from_the_same_number_stays_unbiased() -> None:
    target, draft = conditional_laws(seed=7)
    target = [law.astype(np.float64) for law in target]
    draft = [law.astype(np.float64) for law in draft]
    counts = Counter(two_tokens(target, draft, 2, SeededChance(seed)) for seed in range(6000))
    joint = [target[0][i] * target[1 + i][j] for i in range(3) for j in range(3)]
    assert_fits([counts[i, j] for i in range(3) for j in range(3)], joint)


def test_a_truncated_draft_law_is_still_lossless() -> None:
    target = fractions([4, 3, 2, 1])
    draft = fractions([1, 1, 0, 0])
    assert output_law(lambda chance: speculate(target, draft, chance)[0], V) == list(target)


def test_residual_is_the_excess_of_the_target() -> None:
    rest = residual(fractions([3, 1, 0, 0]), fractions([1, 1, 1, 1]))
    assert list(rest) == [Fraction(1, 2), 0, 0, 0]


def test_residual_of_equal_laws_is_the_target_law() -> None:
    law = np.array([0.25, 0.75], dtype=np.float32)
    assert residual(law, law).tolist() == [0.25, 0.75]
    assert recover(law, law, SeededChance(0), 0) in (0, 1)


def test_residual_refuses_laws_of_different_vocabularies() -> None:
    with pytest.raises(InvalidArgument, match="draft_probs"):
        residual(np.ones(1), np.ones(3) / 3)


@pytest.mark.parametrize("token", [-1, V])
def test_accepts_refuses_tokens_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        accepts(np.full(V, 0.25), token, 0.5, SeededChance(0), 0)
    assert caught.value.field == "token"


@pytest.mark.parametrize("draft_prob", [float("nan"), -0.1, 1.5])
def test_accepts_refuses_what_is_no_probability(draft_prob: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        accepts(np.full(V, 0.25), 0, draft_prob, SeededChance(0), 0)
    assert caught.value.field == "draft_prob"


def test_a_draft_probability_of_zero_divides_nothing() -> None:
    target = np.array([0.0, 1.0])
    assert accepts(target, 1, 0.0, SeededChance(0), 0)
    assert not accepts(target, 0, 0.0, SeededChance(0), 0)
