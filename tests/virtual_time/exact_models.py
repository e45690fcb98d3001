"""Chance and models for whole answers in fractions, and what the target's distribution of answers
is."""

from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tandem.core.probs import Array, SamplingParams
from tandem.core.randomness import Purpose
from tandem.testing.simulation.simulated_drafts import ProbsOf
from tests.exact import ExactRandom, fractions, in_parts
from tests.virtual_time.cases import ModelPair, TokenIds


class NumberPerDecision:
    """Chance with one number in (0, 1) per (position, purpose, draw), as a seeded one has.

    A decision taken again sees the same number, also where other distributions are at stake then.
    The number is known as an interval, which every decision narrows; few are taken again, so the
    first one's interval is found when it is asked for.
    """

    def __init__(self, rng: ExactRandom) -> None:
        self._rng = rng
        self._first: dict[tuple[int, Purpose, int], tuple[Array, int]] = {}
        self._known: dict[tuple[int, Purpose, int], tuple[Fraction, Fraction]] = {}

    def bernoulli(
        self, numerator: Any, denominator: Any, position: int, purpose: Purpose, draw: int = 0
    ) -> bool:
        if denominator <= 0 or numerator >= denominator:
            return bool(numerator > 0)
        (yes, whole), _ = in_parts([max(numerator, 0), denominator])
        weights = np.array([yes, whole - yes], dtype=object)
        return self.categorical(weights, position, purpose, draw) == 0

    def categorical(self, weights: Array, position: int, purpose: Purpose, draw: int = 0) -> int:
        decision = (position, purpose, draw)
        if decision in self._first:
            return self._cell(cells_of(weights), decision)
        index = self._rng.categorical(weights, *decision)
        self._first[decision] = weights, index
        return index

    def categoricals(
        self, weights: Array, position: int, purpose: Purpose, draws: range
    ) -> list[int]:
        return [self.categorical(weights, position, purpose, draw) for draw in draws]

    def gumbel_categorical(self, weights: Array, position: int, purpose: Purpose) -> int:
        """One number for all, as good a coupling as any."""
        return self.categorical(weights, position, purpose)

    def known(self) -> list[tuple[tuple[int, Purpose, int], tuple[Fraction, Fraction]]]:
        """What is known of every number that was asked for."""
        for decision, (weights, index) in self._first.items():
            self._known.setdefault(decision, cells_of(weights)[index])
        return sorted(self._known.items())

    def _cell(
        self, asked: list[tuple[Fraction, Fraction]], decision: tuple[int, Purpose, int]
    ) -> int:
        """Which of the cells the number lies in, as far as it is known."""
        if decision not in self._known:
            weights, index = self._first[decision]
            self._known[decision] = cells_of(weights)[index]
        low, high = self._known[decision]
        cells = [(max(low, start), min(high, end)) for start, end in asked]
        widths = [max(Fraction(0), end - start) for start, end in cells]
        index = self._rng.categorical(np.array(widths, dtype=object), *decision)
        self._known[decision] = cells[index]
        return index


def cells_of(weights: Array) -> list[tuple[Fraction, Fraction]]:
    """The parts of [0, 1] that belong to weights, in their order."""
    bounds = [Fraction(0), *accumulate(map(Fraction, weights))]
    return list(pairwise(bound / bounds[-1] for bound in bounds))


def pair_of(draft: dict[int, list[int]], target: dict[int, list[int]]) -> ModelPair:
    """Models whose distribution depends on the last token; weights add up to powers of two, so that
    no probability is rounded where it becomes a float."""

    def probs_of(weights: dict[int, list[int]]) -> ProbsOf:
        distributions = {last: fractions(row) for last, row in weights.items()}
        return lambda context: distributions[context[-1]]

    return ModelPair(len(target), probs_of(draft), probs_of(target), SamplingParams())


MODELS = pair_of(
    draft={0: [1, 2, 5], 1: [4, 4, 0], 2: [1, 1, 14]},
    target={0: [4, 3, 1], 1: [2, 2, 4], 2: [8, 5, 3]},
)


def exact_payload_probs(
    max_tokens: int, ends: frozenset[int], models: ModelPair | None = None
) -> dict[TokenIds, Fraction]:
    probs: dict[TokenIds, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        probs = {
            longer: mass * probability
            for answer, mass in probs.items()
            for longer, probability in continuations(answer, ends, models or MODELS)
        }
    return probs


def continuations(
    answer: TokenIds, ends: frozenset[int], models: ModelPair
) -> list[tuple[TokenIds, Fraction]]:
    if answer and answer[-1] in ends:
        return [(answer, Fraction(1))]
    next_probs = models.target_probs((1, 2, *answer))
    return [((*answer, token), mass) for token, mass in enumerate(next_probs) if mass]
