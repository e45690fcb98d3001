"""Distributions that are computed as far as they are asked for: the same tokens, less work."""

import numpy as np
import pytest

from tandem.core import distribution as distribution_module
from tandem.core.blocks import block_maxima, largest
from tandem.core.distribution import (
    KnownDistribution,
    LogitsDistribution,
)
from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import gumbel
from tandem.core.probs import Array, SamplingParams, keep_largest, probs_from_logits

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=1e-30),
    SamplingParams(temperature=3.0, top_k=40),
    SamplingParams(top_k=5000),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=2.0, top_k=100, top_p=0.9),
    SamplingParams(temperature=0),
]


def logits_of(size: int, seed: int) -> Array:
    """Peaked, rounded so that there are ties, with some tokens forbidden."""
    source = np.random.default_rng(seed)
    logits = (source.gumbel(size=size) * 2).round(1).astype(np.float32)
    logits[source.integers(size, size=size // 10)] = -np.inf
    logits[source.integers(size)] = 3.0
    return logits


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("size", [7, 3000, 70_001])
def test_tokens_of_logits_are_those_of_their_probabilities(
    size: int, sampling: SamplingParams
) -> None:
    if sampling.top_k > size:
        sampling = SamplingParams(sampling.temperature, top_k=size)
    for position in range(10):
        logits = logits_of(size, position)
        known = KnownDistribution(probs_from_logits(logits, sampling))
        lazy = LogitsDistribution(logits, sampling)
        token = known.coupled_token(4, position)
        assert lazy.coupled_token(4, position) == token
        found, expected = (each.coupled_candidates(4, position, 5) for each in (lazy, known))
        found = found[: len(expected)]  # float32 probabilities end where logits do not
        assert [one for one, _ in found] == [one for one, _ in expected]
        gaps, expected_gaps = (np.diff([score for _, score in each]) for each in (found, expected))
        np.testing.assert_allclose(gaps, expected_gaps, atol=1e-4)
        assert (lazy.probs == known.probs).all()


def test_a_token_of_logits_is_their_argmax_with_all_the_noise() -> None:
    sampling = SamplingParams(temperature=0.7)
    for position in range(5):
        logits = logits_of(151_936, position)
        scores = logits.astype(np.float64) / 0.7 + gumbel(9, position, np.arange(len(logits)))
        assert LogitsDistribution(logits, sampling).coupled_token(9, position) == scores.argmax()


def test_greedy_rows_are_an_argmax_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CoupledNoise", "probs_from_logits", "block_maxima"):
        monkeypatch.delattr(distribution_module, name)
    logits = np.array([0.0, 2.0, -np.inf, 2.0], dtype=np.float32)
    greedy = LogitsDistribution(logits, SamplingParams(temperature=0))
    assert greedy.coupled_token(1, 2) == 1  # a tie goes to the lower id
    assert greedy.coupled_candidates(1, 2, 3) == [(1, 0.0)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("size", [5, 4000])
def test_logits_that_are_no_numbers_are_refused(
    size: int, value: float, temperature: float
) -> None:
    logits = np.zeros(size, dtype=np.float32)
    logits[2] = value
    sampling = SamplingParams(temperature)
    for bad in (logits, np.full(size, -np.inf, dtype=np.float32)):
        with pytest.raises(InvalidArgument, match=r"^logits: "):
            LogitsDistribution(bad, sampling).coupled_token(1, 2)
    with pytest.raises(InvalidArgument, match=r"^top_k: "):
        LogitsDistribution(np.zeros(4), SamplingParams(top_k=5)).coupled_token(1, 2)


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 65_536, 65_537, 140_000])
def test_block_maxima_and_the_largest_values(size: int) -> None:
    values = logits_of(size, size)
    maxima = block_maxima(values)
    slow = [values[start::1024][:64].max() for start in range(min(size, 1024))]
    assert (maxima[: len(slow)] == slow).all()
    assert maxima.max() == values.max()
    assert maxima.dtype == values.dtype
    for count in {1, min(size, 100), max(1, size // 2), size}:
        kept = values.astype(np.float64)
        if count < size:
            keep_largest(kept, count, np.nan)
        assert (largest(values, maxima, count) == np.flatnonzero(~np.isnan(kept))).all()
