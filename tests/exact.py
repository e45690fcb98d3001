"""Exact distributions of randomised code: run it once per path through its random choices, with
fractions.

`ExactRandom` plays the part of `SeededRandom`, so the rules under test are the real ones. Feed
them object arrays of Fraction (`fractions`), and they stay exact throughout.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, TypeVar

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import Purpose

Outcome = TypeVar("Outcome", bound=Hashable)


class ExactRandom:
    """One path through the tree of random choices.

    `path` says which branch to take at the first choices; from there on it is always branch 0.
    With `once` a decision (position, purpose, draw) that is asked for twice is an error: with a
    seeded chance both answers would come from one random number.

    Shares of a whole are counted in integers: millions are looked at, and fractions are slow.
    """

    def __init__(self, path: tuple[int, ...] = (), once: bool = True) -> None:
        self.taken: list[int] = []
        self.widths: list[int] = []
        self._counted = self._whole = 1
        self._path = path
        self._once = once
        self.decided: list[tuple[int, Purpose, int]] = []

    @property
    def probability(self) -> Fraction:
        """Of the path so far."""
        return Fraction(self._counted, self._whole)

    def bernoulli(
        self, numerator: Any, denominator: Any, position: int, purpose: Purpose, draw: int = 0
    ) -> bool:
        self._decide(position, purpose, draw)
        if denominator <= 0 or numerator >= denominator:
            return bool(numerator > 0)
        if numerator <= 0:
            return False
        (yes, whole), _ = in_parts([numerator, denominator])
        return self._branch([yes, whole - yes], whole) == 0

    def categorical(self, weights: Array, position: int, purpose: Purpose, draw: int = 0) -> int:
        self._decide(position, purpose, draw)
        parts, of_one = in_parts(weights)
        whole = sum(parts)
        if whole <= 0 or min(parts) < 0:
            raise InvalidArgument("weights", f"not a positive measure (sum {whole}/{of_one})")
        support = [index for index, part in enumerate(parts) if part]
        return support[self._branch([parts[index] for index in support], whole)]

    def categoricals(
        self, weights: Array, position: int, purpose: Purpose, draws: range
    ) -> list[int]:
        return [self.categorical(weights, position, purpose, draw) for draw in draws]

    def gumbel_categorical(self, weights: Array, position: int, purpose: Purpose) -> int:
        return self.categorical(weights, position, purpose)

    def _decide(self, position: int, purpose: Purpose, draw: int) -> None:
        decision = (position, purpose, draw)
        assert isinstance(purpose, Purpose), f"{purpose} is no purpose"
        assert not (self._once and decision in self.decided), f"one number used twice: {decision}"
        self.decided.append(decision)

    def _branch(self, shares: Sequence[int], whole: int) -> int:
        depth = len(self.taken)
        branch = self._path[depth] if depth < len(self._path) else 0
        self.taken.append(branch)
        self.widths.append(len(shares))
        self._counted *= shares[branch]
        self._whole *= whole
        return branch


def in_parts(numbers: Iterable[Any]) -> tuple[list[int], int]:
    """Numbers as multiples of the largest part of one that all of them are multiples of; and how
    many of these parts make one."""
    exact = [each if type(each) in (Fraction, int) else Fraction(each) for each in numbers]
    of_one = lcm(*(each.denominator for each in exact))
    return [each.numerator * (of_one // each.denominator) for each in exact], of_one


def outcome_probs(
    run: Callable[[ExactRandom], Outcome], once: bool = True
) -> dict[Outcome, Fraction]:
    """The exact probability of every outcome of `run`, by enumerating all its paths."""
    probs: defaultdict[Outcome, Fraction] = defaultdict(Fraction)
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        rng = ExactRandom(path, once)
        probs[run(rng)] += rng.probability
        for depth in range(len(path), len(rng.taken)):
            before = tuple(rng.taken[:depth])
            paths += [(*before, branch) for branch in range(1, rng.widths[depth])]
    assert sum(probs.values()) == 1
    return dict(probs)


def output_probs(run: Callable[[ExactRandom], int], vocabulary: int) -> list[Fraction]:
    """The exact distribution [V] of the token that `run` returns."""
    probs = outcome_probs(run)
    assert all(0 <= token < vocabulary for token in probs)
    return [probs.get(token, Fraction(0)) for token in range(vocabulary)]


def fractions(weights: Sequence[int]) -> Array:
    """The distribution, an object array of Fraction, that is proportional to `weights`."""
    return np.array([Fraction(weight, sum(weights)) for weight in weights], dtype=object)


def random_probs(source: random.Random, vocabulary: int = 4) -> Array:
    """A random distribution of fractions in which zeros and ties are common."""
    while True:
        weights = [source.randint(0, 6) for _ in range(vocabulary)]
        if any(weights):
            return fractions(weights)


def probs_pairs(seed: int, count: int) -> list[tuple[Array, Array]]:
    """Pairs (target distribution, draft distribution), never equal."""
    source = random.Random(seed)
    pairs: list[tuple[Array, Array]] = []
    while len(pairs) < count:
        target, draft = random_probs(source), random_probs(source)
        if (target != draft).any():
            pairs.append((target, draft))
    return pairs
