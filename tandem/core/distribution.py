"""A next-token distribution that is computed only as far as it is asked for.

Invariant: `coupled_token` follows the distribution that `probs` gives, up to the rounding of its
float32 entries, and the same logits give the same token wherever they are.

A runner-up is a token that may come in the place of a draft; pre-drafting starts from it. Nothing
drawn or accepted depends on the runners-up: a wrong guess costs time only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.core.blocks import block_maxima, largest
from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import CoupledNoise, Floats, Ids, best_of, best_of_probs, coupled_token
from tandem.core.probs import Array, SamplingParams, most_likely, probs_from_logits

Candidates = list[tuple[int, float]]
"""Token ids with log distribution + noise, up to a common constant; best first."""

RunnersUp = tuple[tuple[int, float], ...]
"""Token ids with weights; the draft token's own weight would be 1, and none is larger."""


class Distribution(Protocol):
    """The next-token distribution at one position."""

    @property
    def probs(self) -> Array:
        """All of it [V], as by `probs_from_logits`."""

    def coupled_token(self, seed: int, position: int) -> int:
        """Return the token that Gumbel noise takes; at temperature 0 the most likely one."""

    def coupled_candidates(self, seed: int, position: int, count: int) -> Candidates:
        """Return the `count` best tokens of log distribution + noise, fewer where there are
        fewer."""


class LogitsDistribution:
    """The distribution of `logits` [V] in this machine's memory, after `sampling`. Its methods
    raise as `probs_from_logits`."""

    def __init__(self, logits: Array, sampling: SamplingParams) -> None:
        self._logits = logits
        self._sampling = sampling
        self._probs: NDArray[np.float32] | None = None

    @property
    def probs(self) -> NDArray[np.float32]:
        if self._probs is None:
            self._probs = probs_from_logits(self._logits, self._sampling)
        return self._probs

    def coupled_token(self, seed: int, position: int) -> int:
        if self._sampling.greedy:
            return most_likely_token(self._logits)
        return self.coupled_candidates(seed, position, 1)[0][0]

    def coupled_candidates(self, seed: int, position: int, count: int) -> Candidates:
        logits = self._logits
        sampling = self._sampling
        sampling.validate(len(logits))
        if sampling.greedy:
            return [(most_likely_token(logits), 0.0)]
        if sampling.cuts_by_probs:
            return _pairs(*best_of_probs(self.probs, seed, position, count))
        noise = CoupledNoise(seed, position)
        maxima = block_maxima(logits)
        weights = LogWeights(float(maxima.max()), sampling.temperature)
        if 0 < sampling.top_k < len(logits):
            ids = largest(logits, maxima, sampling.top_k)
            return _pairs(*best_of(ids, noise.added_to(weights(logits[ids]), ids), count))
        return _pairs(*noise.best(logits, maxima, weights, count))


@dataclass(frozen=True, slots=True, eq=False)
class KnownDistribution:
    """A distribution whose probabilities [V] are all known, as those off the wire."""

    probs: Array

    def coupled_token(self, seed: int, position: int) -> int:
        return coupled_token(self.probs, seed, position)

    def coupled_candidates(self, seed: int, position: int, count: int) -> Candidates:
        return _pairs(*best_of_probs(self.probs, seed, position, count))


class LogWeights:
    """Logits as logarithms of weights, where the `highest` logit has weight 1. Raises
    InvalidArgument("logits") if that is not finite."""

    def __init__(self, highest: float, temperature: float) -> None:
        if not math.isfinite(highest):  # a maximum passes NaN on
            raise InvalidArgument("logits", f"maximum is {highest}")
        self._highest = highest
        self._temperature = temperature

    def __call__(self, logits: Array) -> Floats:
        weights: Floats = logits.astype(np.float64)
        weights -= self._highest
        with np.errstate(over="ignore"):  # towards temperature 0 all others are without weight
            weights /= self._temperature
        return weights


def most_likely_token(logits: Array) -> int:
    """Return the greedy choice among `logits` [V]; ties go to the lower id."""
    token = int(logits.argmax())
    if not math.isfinite(highest := float(logits[token])):  # argmax finds NaN first
        raise InvalidArgument("logits", f"maximum is {highest}")
    return token


def distribution_of(target: Array | Distribution) -> Distribution:
    """Return `target`; probabilities [V] are wrapped in a KnownDistribution."""
    return KnownDistribution(target) if isinstance(target, np.ndarray) else target


def known_probs(target: Array | Distribution) -> Array:
    """Return the probabilities [V] of `target`."""
    return target if isinstance(target, np.ndarray) else target.probs


def likely_runners_up(probs: Array, token_id: int, count: int) -> RunnersUp:
    """Return the `count` likeliest tokens of `probs` [V] other than `token_id`."""
    others = [int(other) for other in most_likely(probs, count + 1) if other != token_id]
    best = sorted(others, key=lambda other: -float(probs[other]))[:count]
    draft_prob = float(probs[token_id])
    return tuple((other, _weight(float(probs[other]), draft_prob)) for other in best)


def gumbel_runners_up(
    probs: Array | Distribution, token_id: int, seed: int, position: int, count: int
) -> RunnersUp:
    """Return the `count` best tokens of log distribution + noise other than `token_id`: the Gumbel
    coupling rule takes the first of them if the target thinks less of the draft token."""
    candidates = distribution_of(probs).coupled_candidates(seed, position, count + 1)
    draft_score = dict(candidates).get(token_id, -math.inf)
    others = [(other, score) for other, score in candidates if other != token_id][:count]
    return tuple((other, math.exp(min(0.0, score - draft_score))) for other, score in others)


def _weight(prob: float, draft_prob: float) -> float:
    return min(1.0, prob / draft_prob) if draft_prob > 0 else 1.0


def _pairs(ids: Ids, sums: Floats) -> Candidates:
    return list(zip(ids.tolist(), sums.tolist(), strict=True))
