"""Aggregation of two sides, exactly: the output distribution is the mixture for every pair and
weight."""

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import coupled_token
from tandem.core.probs import Array
from tandem.core.randomness import Purpose, RandomSource, SeededRandom
from tandem.two_sided.protocol import mixture as aggregation
from tandem.two_sided.protocol.mixture import (
    Side,
    SideDraft,
    Weights,
    aggregate,
    coupled_side,
    document_weights,
    local_probs,
    log_mass,
    mixture,
    side_weights,
)
from tests.chi_squared import assert_fits
from tests.exact import fractions, outcome_probs, probs_pairs

V = 4


def cases(seed: int, count: int) -> list[tuple[Array, Array, Weights]]:
    source = random.Random(seed)
    shares = [Fraction(source.randint(0, 6), 6) for _ in range(count)]
    return [
        (device, cloud, Weights(share, 1 - share))
        for (device, cloud), share in zip(probs_pairs(seed, count), shares, strict=True)
    ]


def aggregated_probs(device_probs: Array, cloud_probs: Array, weights: Weights) -> list[Fraction]:
    def token(rng: RandomSource) -> int:
        drafted = rng.categorical(device_probs, 0, Purpose.DRAFT, Side.DEVICE)
        device = SideDraft(drafted, device_probs)
        drafted = rng.categorical(cloud_probs, 0, Purpose.DRAFT, Side.CLOUD)
        cloud = SideDraft(drafted, cloud_probs)
        return aggregate(device, cloud, weights=weights, rng=rng, position=0).token_id

    probs = outcome_probs(token)
    return [probs.get(token, Fraction(0)) for token in range(V)]


def test_the_token_s_distribution_is_the_mixture() -> None:
    for device, cloud, weights in cases(seed=1, count=60):
        assert aggregated_probs(device, cloud, weights) == list(mixture(device, cloud, weights))


def test_a_side_s_own_weight_as_printed_gives_another_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redrawn: Any = aggregation._redrawn

    def as_printed(side: Side, draft: SideDraft, *, other_weight: Any, **rest: Any) -> int:
        token: int = redrawn(side, draft, other_weight=1 - other_weight, **rest)
        return token

    monkeypatch.setattr(aggregation, "_redrawn", as_printed)
    wrong = [
        aggregated_probs(device, cloud, weights) != list(mixture(device, cloud, weights))
        for device, cloud, weights in cases(seed=2, count=30)
        if weights.device not in (0, Fraction(1, 2), 1)
    ]
    assert sum(wrong) > 0.9 * len(wrong)


@pytest.mark.parametrize("share", [0, 1])
def test_a_side_without_weight_counts_nothing(share: int) -> None:
    device, cloud = fractions([1, 0, 2, 0]), fractions([0, 3, 0, 1])
    weights = Weights(Fraction(share), Fraction(1 - share))
    assert aggregated_probs(device, cloud, weights) == list(device if share else cloud)


def test_the_coupled_token_s_distribution_is_the_mixture() -> None:
    """However the two sides' tokens depend on each other: here they are drawn by one number."""
    for device, cloud, weights in cases(seed=4, count=40):

        def run(rng: RandomSource, device: Array = device, cloud: Array = cloud) -> int:
            tokens = {
                Side.DEVICE: rng.categorical(device, 0, Purpose.DRAFT),
                Side.CLOUD: rng.categorical(cloud, 0, Purpose.TARGET),
            }
            return tokens[coupled_side(weights, rng, 0)]  # noqa: B023

        probs = outcome_probs(run)
        found = [probs.get(token, Fraction(0)) for token in range(V)]
        assert found == list(mixture(device, cloud, weights))


def test_gumbel_coupling_agrees_more_often_and_keeps_the_mixture() -> None:
    device = np.array([0.5, 0.2, 0.2, 0.1], dtype=np.float32)
    cloud = np.array([0.3, 0.4, 0.2, 0.1], dtype=np.float32)
    weights, count = Weights(0.3, 0.7), 4000
    tokens, agreed = [], 0
    for position in range(count):
        drafts = {
            Side.DEVICE: coupled_token(device, 9, position),
            Side.CLOUD: coupled_token(cloud, 9, position),
        }
        tokens.append(drafts[coupled_side(weights, SeededRandom(9), position)])
        agreed += drafts[Side.DEVICE] == drafts[Side.CLOUD]
    assert_fits(np.bincount(tokens, minlength=V), mixture(device, cloud, weights))
    distance = 0.2
    assert agreed / count > (1 - distance) / (1 + distance) - 0.03
    assert agreed / count > float((device * cloud).sum()) + 0.2


def test_relevance_becomes_weights_without_overflow() -> None:
    assert log_mass([0.0, 0.0]) == pytest.approx(math.log(2))
    assert log_mass([1000.0, 1000.0]) == pytest.approx(1000 + math.log(2))
    assert log_mass([]) == log_mass([-math.inf]) == log_mass([-math.inf] * 2) == -math.inf
    assert log_mass([-math.inf, 2.0]) == pytest.approx(2.0)
    assert list(document_weights([800.0, 800.0])) == [0.5, 0.5]
    weights = side_weights(1000.0, 1000.0 + math.log(3))
    assert weights.device == pytest.approx(0.25)
    assert weights.device + weights.cloud == 1
    assert side_weights(-math.inf, 3.0) == Weights(0.0, 1.0)


def test_both_sides_together_are_all_documents_together() -> None:
    """Splitting documents over two sides changes nothing (DRAGON eq. 2 and 4)."""
    distributions = np.random.default_rng(5).dirichlet(np.ones(6), size=5)
    scores = [0.3, -1.2, 2.0, 0.0, 1.1]
    together = local_probs(distributions, document_weights(scores))
    device = local_probs(distributions[:2], document_weights(scores[:2]))
    cloud = local_probs(distributions[2:], document_weights(scores[2:]))
    weights = side_weights(log_mass(scores[:2]), log_mass(scores[2:]))
    assert np.allclose(mixture(device, cloud, weights), together)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: log_mass([float("nan")]), "relevances"),
        (lambda: log_mass([float("inf")]), "relevances"),
        (lambda: document_weights([]), "relevances"),
        (lambda: side_weights(-math.inf, -math.inf), "log_mass"),
    ],
)
def test_bad_input_names_its_field(call: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert caught.value.field == field


def test_the_weights_of_each_side_by_its_name() -> None:
    weights = Weights(device=0.25, cloud=0.75)
    assert [weights[side] for side in Side] == [0.25, 0.75]
    assert [side.other for side in Side] == [Side.CLOUD, Side.DEVICE]


def test_documents_count_by_the_exponential_of_their_relevance() -> None:
    scores = [math.log(1), math.log(3), -math.inf]
    assert document_weights(scores).tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert log_mass(scores) == pytest.approx(math.log(4))
    with pytest.raises(InvalidArgument, match="relevances: name no document"):
        document_weights([-math.inf, -math.inf])
