"""The times of messages on one link, from the frames that are sent anyway: a latency, and what a
byte adds in each direction.

An exchange is a frame and its answer, timed by one clock without the time that the other end says
it held it: so only the sum of both latencies can be known. Exchanges of different sizes tell
latency and bytes apart, by least squares without negative terms, in which old exchanges count less
and less. Delays of busy machines are noise too, so that a bandwidth must be proven before it is
believed; until then all is latency. Pure; durations in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument

KEEP = 0.98
"""What an exchange counts beside the one after it: of an answer's hundreds some 50 tell."""
SURE = 16.0
"""By how much a bandwidth must explain the times better than chance would: the F statistic of each
term."""
LEAST_EXCHANGES = 6
"""A bandwidth needs more than so many, recent ones."""
FOLLOW = 0.25
"""What the newest exchange counts in an average of what was missed by, which the latency includes:
the last few follow a link that changes."""
_RIDGE = 1e-4
"""Weight of zero for each bandwidth, relative to the exchanges: it decides only what they leave
open."""
_ROUNDING = 1e-9
_LATENCY, _UP, _DOWN = range(3)
_BYTE_TERMS = ((_UP,), (_DOWN,), (_UP, _DOWN))


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`latency_s`: of both ways together. `up_s`, `down_s`: seconds that a byte adds each way."""

    latency_s: float
    up_s: float = 0.0
    down_s: float = 0.0

    def to_cloud_s(self, size_bytes: float) -> float:
        """Return the seconds of one message up, with half of the latency."""
        return self.latency_s / 2 + self.up_s * size_bytes

    def to_device_s(self, size_bytes: float) -> float:
        """Return the seconds of one message down, with the other half."""
        return self.latency_s / 2 + self.down_s * size_bytes

    @property
    def up_bytes_per_s(self) -> float:
        """The bandwidth up; infinite while no exchange showed a limit."""
        return 1 / self.up_s if self.up_s > 0 else inf

    @property
    def down_bytes_per_s(self) -> float:
        """The bandwidth down; likewise."""
        return 1 / self.down_s if self.down_s > 0 else inf


@dataclass(frozen=True, slots=True)
class _Exchange:
    up_bytes: int
    down_bytes: int
    seconds: float


class LinkEstimate:
    """Follows the link of one session. `times`: None before the first exchange."""

    def __init__(self) -> None:
        self.times: LinkTimes | None = None
        self._sums = _Sums()
        # The times as the sums have them: [3], seconds and seconds a byte.
        self._fitted: NDArray[np.float64] = np.zeros(3)
        self._missed_s = 0.0

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None:
        """Record a frame of `up_bytes` that was answered by one of `down_bytes` after `elapsed_s`,
        of which the other end held it for `held_s` by its own clock. More held than elapsed counts
        as no time on the link: clocks tick, hosts sleep.

        Raises:
            InvalidArgument: this cannot have been measured; names the field."""
        for name, size in (("up_bytes", up_bytes), ("down_bytes", down_bytes)):
            if size < 0:
                raise InvalidArgument(name, f"{size} bytes")
        for name, span_s in (("elapsed_s", elapsed_s), ("held_s", held_s)):
            if not (isfinite(span_s) and span_s >= 0):
                raise InvalidArgument(name, f"{span_s} is not a duration")
        exchange = _Exchange(up_bytes, down_bytes, max(0.0, elapsed_s - held_s))
        if self.times is not None:
            missed_s = exchange.seconds - float(_row(exchange) @ self._fitted)
            self._missed_s += FOLLOW * (missed_s - self._missed_s)
        self._sums.add(exchange)
        self._fitted = self._sums.fitted()
        latency_s, up_s, down_s = (float(term) for term in self._fitted)
        self.times = LinkTimes(max(0.0, latency_s + self._missed_s), up_s, down_s)


def _row(exchange: _Exchange) -> NDArray[np.float64]:
    return np.array([1.0, exchange.up_bytes, exchange.down_bytes])


class _Sums:
    """The sums of products that a least-squares fit needs."""

    def __init__(self) -> None:
        self._square: NDArray[np.float64] = np.zeros((3, 3))
        self._product: NDArray[np.float64] = np.zeros(3)
        self._energy = 0.0

    def add(self, exchange: _Exchange) -> None:
        row = _row(exchange)
        seconds = exchange.seconds
        self._square = KEEP * self._square + row[:, None] * row
        self._product = KEEP * self._product + seconds * row
        self._energy = KEEP * self._energy + seconds * seconds

    def fitted(self) -> NDArray[np.float64]:
        """Return latency and what a byte adds each way: [3], none of them negative."""
        # Bytes in units of those that are usual, so that no term is small by its unit.
        usual = max(1.0, float(np.sqrt(self._square.diagonal()[1:].max() / self._square[0, 0])))
        unit = np.array([1.0, 1 / usual, 1 / usual])
        equations = _Equations(
            self._square * (unit[:, None] * unit), self._product * unit, self._energy
        )
        in_bytes: NDArray[np.float64] = equations.proven() * unit
        return in_bytes


@dataclass(frozen=True, slots=True)
class _Equations:
    """Of a weighted least-squares fit: `square` [3, 3], `product` [3], and the weighted sum of the
    squares of what is fitted."""

    square: NDArray[np.float64]
    product: NDArray[np.float64]
    energy: float

    @property
    def weight(self) -> float:
        """Exchanges that are not forgotten."""
        return float(self.square[0, 0])

    def proven(self) -> NDArray[np.float64]:
        """Return latency alone, unless one bandwidth or both explain the times so much better that
        chance can be ruled out."""
        best = self._solved(())
        alone = chosen_loss = self._loss(best)
        if self.weight <= LEAST_EXCHANGES or alone <= _ROUNDING * self.energy:
            return best
        for terms in _BYTE_TERMS:
            solution = self._solved(terms)
            freedom = max(self.weight - 1 - len(terms), _ROUNDING)
            limit = alone / (1 + SURE * len(terms) / freedom)
            loss = self._loss(solution)
            if (solution >= 0).all() and loss < min(limit, chosen_loss):
                best = solution
                chosen_loss = loss
        return best

    def _solved(self, byte_terms: tuple[int, ...]) -> NDArray[np.float64]:
        """Return all three terms, 0 for a bandwidth that is not among `byte_terms`."""
        terms = [_LATENCY, *byte_terms]
        square = self.square[np.ix_(terms, terms)]
        kept = _RIDGE * self.weight * np.array([0.0, 1.0, 1.0])[terms]
        solution = np.zeros(3)
        solution[terms] = np.linalg.solve(square + np.diag(kept), self.product[terms])
        return solution

    def _loss(self, solution: NDArray[np.float64]) -> float:
        """Return the sum of squares that a solution leaves."""
        explained = float(solution @ self.square @ solution - 2 * solution @ self.product)
        return max(0.0, self.energy + explained)
