"""Randomness as an explicit value: every random decision names where and what for it is made.

Invariant: one (position, purpose, draw) decides one thing. `SeededRandom` is a pure function of
(seed, position, purpose, draw): nothing is consumed, so draws that are thrown away (stale drafts,
cancelled work) cannot shift later ones, and edge and cloud may hold the same seed.

Positions are absolute, so a position drafted again after another text sees the same random number.
That is exact as long as nothing committed before it depended on its earlier use."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import coupled_token
from tandem.core.hashing import Purpose as Purpose
from tandem.core.hashing import hash_words, unit
from tandem.core.probs import Array

_BLOCK = 64


class RandomSource(Protocol):
    """The random decisions the rules of `core` need, and no others."""

    def bernoulli(
        self, numerator: Any, denominator: Any, position: int, purpose: Purpose, draw: int = 0
    ) -> bool:
        """Return True with probability min(1, numerator/denominator). A denominator of zero or less
        counts as a ratio of infinity if the numerator is positive, else of zero."""
        ...

    def categorical(self, weights: Array, position: int, purpose: Purpose, draw: int = 0) -> int:
        """Return an index of `weights` [n] with probability weights[i]/sum(weights). Never an index
        of zero weight. Raises InvalidArgument("weights"): all zero, one negative or not finite."""
        ...

    def categoricals(
        self, weights: Array, position: int, purpose: Purpose, draws: range
    ) -> list[int]:
        """Return `categorical` for each of `draws`, at hardly more than the cost of one."""
        ...

    def gumbel_categorical(self, weights: Array, position: int, purpose: Purpose) -> int:
        """Sample like `categorical`, but so that draws from similar weights are mostly equal: their
        common number decides both. Only one of the two may ever be used."""
        ...


@dataclass(frozen=True, slots=True)
class SeededRandom:
    """Randomness from a 64-bit seed; stateless, and the same on every machine."""

    seed: int

    def uniform(self, position: int, purpose: Purpose, draw: int = 0) -> float:
        """Return the number in the open interval (0, 1) that belongs to this decision."""
        return unit(hash_words(self.seed, position, purpose, draw))

    def bernoulli(
        self, numerator: Any, denominator: Any, position: int, purpose: Purpose, draw: int = 0
    ) -> bool:
        if denominator <= 0 or numerator >= denominator:
            return bool(numerator > 0)
        return bool(self.uniform(position, purpose, draw) * float(denominator) < numerator)

    def categorical(self, weights: Array, position: int, purpose: Purpose, draw: int = 0) -> int:
        return self.categoricals(weights, position, purpose, range(draw, draw + 1))[0]

    def categoricals(
        self, weights: Array, position: int, purpose: Purpose, draws: range
    ) -> list[int]:
        # Two levels, since a running sum is slow: first the block, then the index inside it.
        starts = np.arange(0, len(weights), _BLOCK)
        blocks = np.cumsum(np.add.reduceat(weights, starts, dtype=float))
        total = float(blocks[-1]) if len(blocks) else 0.0
        if not 0 < total < np.inf or weights.min() < 0:
            raise InvalidArgument("weights", f"not a positive finite measure (sum {total})")
        drawn: list[int] = []
        for draw in draws:
            block, rest = _find(blocks, self.uniform(position, purpose, draw) * total)
            start = block * _BLOCK
            inside = np.cumsum(weights[start : start + _BLOCK], dtype=float)
            drawn.append(start + _find(inside, rest)[0])
        return drawn

    def gumbel_categorical(self, weights: Array, position: int, purpose: Purpose) -> int:
        """Draw with the noise of `core.gumbel`, which makes both sides' draws equal more often than
        one shared number can."""
        return coupled_token(weights, self.seed, position)


def _find(cumulative: NDArray[np.float64], aim: float) -> tuple[int, float]:
    """Return the cell that `aim` falls into, and how far it is past that cell's start. Never a cell
    of no width, provided the last sum is positive."""
    # side="right" finds the first sum above the aim, which only a cell of some width can reach.
    index = int(cumulative.searchsorted(aim, side="right"))
    if index == len(cumulative):  # rounding took the aim past the end: the last cell of any width
        index = int(cumulative.searchsorted(cumulative[-1], side="left"))
    return index, aim - float(cumulative[index - 1]) if index else aim
