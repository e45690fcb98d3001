"""Distributions against a slow, plainly written reference, with ties, zeros and every
truncation."""

from math import exp, inf, log, nan

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import (
    SamplingParams,
    batch_probs_from_logits,
    check_probs,
    confidence,
    log_partition,
    most_likely,
    probs_from_logits,
)


def reference_probs(logits: np.ndarray, sampling: SamplingParams) -> list[float]:
    """Sort, truncate and normalise with Python floats."""
    order = sorted(range(len(logits)), key=lambda token: (-float(logits[token]), token))
    probs = [0.0] * len(logits)
    if sampling.temperature == 0:
        probs[order[0]] = 1.0
        return probs
    highest = float(logits[order[0]])
    kept = order[: sampling.top_k] if sampling.top_k else order
    weights = [exp((float(logits[token]) - highest) / sampling.temperature) for token in kept]
    needed = sampling.top_p * sum(weights)
    reached = 0.0
    for token, weight in zip(kept, weights, strict=True):
        if sampling.top_p < 1 and reached >= needed:
            break
        probs[token] = weight
        reached += weight
    return [weight / reached for weight in probs]


def random_logits(source: np.random.Generator, vocabulary_size: int) -> np.ndarray:
    logits = source.normal(scale=source.uniform(0.1, 6), size=vocabulary_size)
    if source.random() < 0.5:
        logits = np.round(logits)  # many ties
    logits[source.random(vocabulary_size) < source.choice([0, 0.3])] = -inf
    logits[source.integers(vocabulary_size)] = 1.0
    return logits.astype(np.float32)


@pytest.mark.parametrize("seed", range(40))
def test_distribution_agrees_with_the_reference(seed: int) -> None:
    source = np.random.default_rng(seed)
    for vocabulary_size in (1, 4, 37, 500):
        logits = random_logits(source, vocabulary_size)
        for sampling in (
            SamplingParams(temperature=float(source.choice([0, 0.3, 1, 2.5]))),
            SamplingParams(top_k=int(source.integers(1, vocabulary_size + 1))),
            SamplingParams(top_p=float(source.uniform(0.01, 1))),
            SamplingParams(
                0.7, int(source.integers(1, vocabulary_size + 1)), float(source.random())
            ),
        ):
            probs = probs_from_logits(logits, sampling)
            expected = reference_probs(logits, sampling)
            assert probs.dtype == np.float32
            check_probs(probs, vocabulary_size, "probs")
            np.testing.assert_allclose(probs, expected, rtol=2e-5, atol=1e-12)
            if sampling.temperature >= 0.7:  # colder distributions underflow sooner in float32
                assert ((probs > 0) == (np.array(expected) > 0)).all()


@pytest.mark.parametrize(
    ("sampling", "support"),
    [
        (SamplingParams(), [0, 1, 2, 3]),
        (SamplingParams(temperature=0), [0]),
        (SamplingParams(top_k=1), [0]),
        (SamplingParams(top_k=3), [0, 1, 2]),
        (SamplingParams(top_k=4), [0, 1, 2, 3]),
        (SamplingParams(top_p=1e-9), [0]),
        (SamplingParams(top_p=0.5), [0, 1]),
        (SamplingParams(top_p=0.51), [0, 1, 2]),
        (SamplingParams(top_k=2, top_p=0.5), [0]),
        (SamplingParams(top_k=2, top_p=0.51), [0, 1]),
    ],
)
def test_ties_go_to_lower_ids(sampling: SamplingParams, support: list[int]) -> None:
    probs = probs_from_logits(np.zeros(4, dtype=np.float32), sampling)
    expected = [1 / len(support) if token in support else 0 for token in range(4)]
    np.testing.assert_allclose(probs, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-30, 1e30, 1e300])
def test_extreme_temperatures_give_their_limits(temperature: float) -> None:
    logits = np.array([1.0, 3.0, -inf, 3.0], dtype=np.float32)
    probs = probs_from_logits(logits, SamplingParams(temperature))
    expected = [0, 0.5, 0, 0.5] if temperature < 1 else [1 / 3, 1 / 3, 0, 1 / 3]
    np.testing.assert_allclose(probs, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("temperature", SamplingParams(temperature=-0.1)),
        ("temperature", SamplingParams(temperature=nan)),
        ("temperature", SamplingParams(temperature=inf)),
        ("top_k", SamplingParams(top_k=-1)),
        ("top_k", SamplingParams(top_k=5)),
        ("top_p", SamplingParams(top_p=0.0)),
        ("top_p", SamplingParams(top_p=-0.5)),
        ("top_p", SamplingParams(top_p=1.0001)),
        ("top_p", SamplingParams(top_p=nan)),
    ],
)
def test_bad_sampling_is_rejected_by_name(field: str, sampling: SamplingParams) -> None:
    for attempt in (
        lambda: sampling.validate(4),
        lambda: probs_from_logits(np.zeros(4, np.float32), sampling),
    ):
        with pytest.raises(InvalidArgument, match=rf"^{field}: "):
            attempt()


@pytest.mark.parametrize(
    "logits",
    [
        [nan, 0.0],
        [0.0, nan],
        [-inf, -inf],
        [inf, 0.0],
        [-inf, nan],
        [],
        [[0.0]],
        [1e300, 0.0],
    ],
)
@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(0), SamplingParams(1, 1, 0.5)]
)
def test_logits_without_a_distribution_are_rejected(
    logits: list[float], sampling: SamplingParams
) -> None:
    with pytest.raises(InvalidArgument, match=r"^logits: "):
        probs_from_logits(np.array(logits), sampling)


def test_distributions_of_many_rows_are_the_distributions_of_each_row() -> None:
    source = np.random.default_rng(1)
    logits = source.normal(size=(5, 300)).astype(np.float32)
    for sampling in (SamplingParams(), SamplingParams(0), SamplingParams(0.8, 20, 0.9)):
        distributions = batch_probs_from_logits(logits, sampling)
        rows = [probs_from_logits(row, sampling) for row in logits]
        np.testing.assert_array_equal(distributions, np.array(rows))
        assert distributions.dtype == np.float32
    assert batch_probs_from_logits(logits[:0], SamplingParams()).shape == (0, 300)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(top_k=3), SamplingParams(top_p=0.6), SamplingParams(1, 9, 0.8)]
)
def test_truncating_the_draft_costs_at_most_its_mass_of_acceptance(
    sampling: SamplingParams,
) -> None:
    """TSLT: |change of acceptance| <= truncated mass, when truncation precedes sampling."""
    source = np.random.default_rng(2)
    for _ in range(200):
        target = probs_from_logits(
            source.normal(scale=2, size=20).astype(np.float32), SamplingParams()
        )
        logits = source.normal(scale=2, size=20).astype(np.float32)
        draft, truncated = (
            probs_from_logits(logits, SamplingParams()),
            probs_from_logits(logits, sampling),
        )
        lost = draft[truncated == 0].sum()
        change = np.minimum(target, truncated).sum() - np.minimum(target, draft).sum()
        assert abs(change) <= lost + 1e-6


@pytest.mark.parametrize(
    "probs",
    [
        [0.5, 0.5],
        [0.5, 0.5, 0.1],
        [0.75, 0.75, -0.5],
        [1.0005, 0.0, 0.0],
        [1.5, -0.5, 0.0],
        [nan, 0.5, 0.5],
        [inf, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [inf, -inf, 1.0],
        [[1.0, 0.0, 0.0]],
    ],
)
def test_check_distribution_rejects_what_is_no_distribution(probs: list[float]) -> None:
    with pytest.raises(InvalidArgument, match=r"^draft_probs: "):
        check_probs(np.array(probs), 3, "draft_probs")


def test_check_distribution_tolerates_rounding() -> None:
    check_probs(np.array([0.3333, 0.3333, 0.3333]), 3, "probs")


@pytest.mark.parametrize(
    ("count", "ids"), [(-1, []), (0, []), (1, [1]), (2, [0, 1]), (3, [0, 1, 3]), (9, [0, 1, 3])]
)
def test_most_likely_ids_ascend_and_skip_zeros(count: int, ids: list[int]) -> None:
    probs = np.array([0.25, 0.5, 0.0, 0.25])
    assert most_likely(probs, count).tolist() == ids
    assert probs.tolist() == [0.25, 0.5, 0.0, 0.25]


@pytest.mark.parametrize("count", [1, 5, 64, 700, 4096])
@pytest.mark.parametrize("flatness", [0.01, 0.1, 1.0, 100.0])
def test_most_likely_ids_of_flat_and_peaked_distributions(count: int, flatness: float) -> None:
    weights = np.random.default_rng(count).gamma(flatness, size=4096).astype(np.float32)
    probs = np.round(weights / weights.sum(), 4)  # with many ties
    in_order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    expected = sorted(token for token in in_order[:count] if probs[token] > 0)
    assert most_likely(probs, count).tolist() == expected


def test_the_mass_of_logits_at_a_temperature() -> None:
    """Three of 2.0 and one of -inf at temperature 0.5: log(3) + 4."""
    logits = np.array([2.0, 2.0, -np.inf, 2.0], dtype=np.float32)
    assert log_partition(logits, 0.5) == pytest.approx(np.log(3) + 4)
    assert log_partition(logits, 2.0) == pytest.approx(np.log(3) + 1)
    assert log_partition(np.full(3, -np.inf, np.float32), 1.0) == -np.inf
    uneven = np.array([1.0, 3.0], dtype=np.float32)
    assert log_partition(uneven, 0.5) == pytest.approx(np.log(np.exp(2) + np.exp(6)))


@pytest.mark.parametrize(
    ("sampling", "cuts"),
    [
        (SamplingParams(temperature=0.5, top_k=3), False),
        (SamplingParams(top_p=0.99), True),
        (SamplingParams(min_p=0.01), True),
        (SamplingParams(typical_p=0.99), True),
        (SamplingParams(min_p=1.0, typical_p=0.5), True),
    ],
)
def test_which_cuts_take_every_probability(sampling: SamplingParams, cuts: bool) -> None:
    assert sampling.cuts_by_probs is cuts


@pytest.mark.parametrize("seed", range(12))
def test_typical_tokens_are_those_of_the_definition(seed: int) -> None:
    """Also after other cuts, which leave weights that do not sum to 1. Ties go to lower ids."""
    source = np.random.default_rng(seed)
    logits = np.round(source.normal(scale=1.5, size=60), 1).astype(np.float32)
    for typical_p in (0.2, 0.6, 0.95):
        kept = probs_from_logits(logits, SamplingParams(1.0, top_k=40))
        probs = {token: float(kept[token]) for token in np.flatnonzero(kept)}
        entropy = -sum(each * log(each) for each in probs.values())
        order = sorted(
            probs, key=lambda token: (round(abs(-log(probs[token]) - entropy), 5), token)
        )
        expected, reached = [], 0.0
        for token in order:
            if reached >= typical_p:
                break
            expected.append(token)
            reached += probs[token]
        found = probs_from_logits(logits, SamplingParams(1.0, top_k=40, typical_p=typical_p))
        assert np.flatnonzero(found).tolist() == sorted(expected)


@pytest.mark.parametrize("logits", [[1.0, nan], [inf, 1.0]])
def test_logits_without_a_mass_are_rejected(logits: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="logits"):
        log_partition(np.array(logits, dtype=np.float32), 1.0)


def test_confidence_is_the_largest_probability_at_the_temperature_that_calibrates_it() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.25], dtype=np.float32))
    before = logits.copy()
    assert confidence(logits) == pytest.approx(0.5)
    assert confidence(logits, 0.5) == pytest.approx(4 / 6)
    assert confidence(logits, 2.0) == pytest.approx(2**0.5 / (2**0.5 + 2))
    assert (logits == before).all()
    assert np.isnan(confidence(np.full(3, -inf, np.float32)))
