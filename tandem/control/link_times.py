"""The times of messages on one link, from the frames that are sent anyway: a latency, and what a
byte adds in each direction.

An exchange is a frame and its answer, timed by one clock without the time that the other end says
it held it: so only the sum of both latencies can be known. Exchanges of different sizes tell
latency and bytes apart, by least squares without negative terms, in which old exchanges count less
and less. How soon what they say is believed is a `LinkBelief`: a session that has just begun has a
few frames to choose its next round by, an answer on two sides hundreds, with all the noise of busy
machines. Pure; durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.core.errors import InvalidArgument

_RIDGE = 1e-4
"""Weight of what was believed before, relative to the exchanges: it decides only what they leave
open."""
_SEVERAL = 3
"""Exchanges in a row that show that a link has changed; fewer had to wait for something."""
_ROUNDING = 1e-9
_LATENCY, _UP, _DOWN = range(3)
_BYTE_TERMS = ((_UP,), (_DOWN,), (_UP, _DOWN))


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`latency_s`: of both ways together. `up_s`, `down_s`: seconds that a byte adds each way."""

    latency_s: float
    up_s: float = 0.0
    down_s: float = 0.0

    def exchange_s(self, up_bytes: float, down_bytes: float) -> float:
        """Return the seconds of a frame of `up_bytes` and an answer of `down_bytes`."""
        return self.latency_s + self.up_s * up_bytes + self.down_s * down_bytes

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
class LinkBelief:
    """How soon what exchanges say is believed.

    `keep`: what an exchange counts beside the one after it, from 0 to 1.

    `sure`: by how much a bandwidth must explain the times better than chance would (the F statistic
    of each term) before it is believed; until then all is latency. 0: bandwidths are believed at
    once, and what the exchanges leave open is shared evenly by latency and bytes, so that the times
    of sizes like those seen are right in any case.

    `least_exchanges`: a bandwidth needs more than so many, recent ones.

    `follow`: what the newest exchange counts in an average of what was missed by, which the latency
    includes. 0: there is none.

    `far`: of an exchange that took more times as long as expected, no more is believed, once there
    were `few` exchanges. `jump`: several in a row that took so many times as long, or as short,
    show that the link has changed, and what was before is forgotten."""

    keep: float
    sure: float = 0.0
    least_exchanges: int = 0
    follow: float = 0.0
    far: float = inf
    few: int = 0
    jump: float = inf


def rounds_belief(config: ControllerConfig = DEFAULT_CONFIG) -> LinkBelief:
    """Return what a session believes that sends a frame a round: two sizes tell a bandwidth, some
    thirty exchanges decide, and three slow ones are another link."""
    return LinkBelief(
        keep=config.keep,
        far=config.far,
        few=config.few_tokens,
        jump=config.jump,
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    up_bytes: int
    down_bytes: int
    seconds: float


class LinkEstimate:
    """Follows the link of one session. `times`: None before the first exchange."""

    def __init__(self, belief: LinkBelief | None = None) -> None:
        """Start with nothing measured. `belief` is that of rounds by default."""
        self.times: LinkTimes | None = None
        self._belief = belief or rounds_belief()
        self._sums = _Sums(self._belief.keep)
        self._last = deque[_Exchange](maxlen=_SEVERAL)
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
        believed_s = self._believed_s(exchange)
        if self.times is not None:
            missed_s = believed_s - float(_row(exchange) @ self._fitted)
            self._missed_s += self._belief.follow * (missed_s - self._missed_s)
        self._sums.add(exchange, believed_s)
        self._last.append(exchange)
        self._forget_before_change()
        self._fitted = self._sums.fitted(self._belief, self._fitted)
        latency_s, up_s, down_s = (float(term) for term in self._fitted)
        self.times = LinkTimes(max(0.0, latency_s + self._missed_s), up_s, down_s)

    def _believed_s(self, exchange: _Exchange) -> float:
        """Return how much of its time counts."""
        if self.times is None or self._sums.count < self._belief.few:
            return exchange.seconds
        return min(exchange.seconds, self._belief.far * self._expected_s(exchange, self.times))

    def _expected_s(self, exchange: _Exchange, times: LinkTimes) -> float:
        return max(times.exchange_s(exchange.up_bytes, exchange.down_bytes), TINY)

    def _forget_before_change(self) -> None:
        """Forget what was before the last exchanges, if all of these took much longer than
        expected, or all much shorter."""
        times = self.times
        if times is None or self._sums.count <= _SEVERAL:
            return
        ratios = [each.seconds / self._expected_s(each, times) for each in self._last]
        if min(ratios) > self._belief.jump or max(ratios) < 1 / self._belief.jump:
            self._sums = _Sums(self._belief.keep)
            self._missed_s = 0.0
            for each in self._last:
                self._sums.add(each, each.seconds)


def _row(exchange: _Exchange) -> NDArray[np.float64]:
    return np.array([1.0, exchange.up_bytes, exchange.down_bytes])


class _Sums:
    """The sums of products that a least-squares fit needs."""

    def __init__(self, keep: float) -> None:
        self.count = 0
        self._keep = keep
        self._square: NDArray[np.float64] = np.zeros((3, 3))
        self._product: NDArray[np.float64] = np.zeros(3)
        self._energy = 0.0

    def add(self, exchange: _Exchange, seconds: float) -> None:
        row = _row(exchange)
        self.count += 1
        self._square = self._keep * self._square + row[:, None] * row
        self._product = self._keep * self._product + seconds * row
        self._energy = self._keep * self._energy + seconds * seconds

    def fitted(self, belief: LinkBelief, before: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return latency and what a byte adds each way: [3], none of them negative. What exchanges
        leave open stays as it was `before`."""
        # Bytes in units of those that are usual, so that no term is small by its unit.
        usual = max(1.0, float(np.sqrt(self._square.diagonal()[1:].max() / self._square[0, 0])))
        unit = np.array([1.0, 1 / usual, 1 / usual])
        equations = _Equations(
            self._square * (unit[:, None] * unit), self._product * unit, self._energy
        )
        fitted = equations.proven(belief) if belief.sure else equations.shared(before / unit)
        in_bytes: NDArray[np.float64] = fitted * unit
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

    def shared(self, before: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the solution that is nearest to `before` in what is left open."""
        terms = [_LATENCY, _UP, _DOWN]
        solution = self._solved(terms, before, ridge=(1.0, 1.0, 1.0))
        while float(solution.min()) < 0:
            terms.remove(int(solution.argmin()))
            solution = self._solved(terms, before, ridge=(1.0, 1.0, 1.0))
        return solution

    def proven(self, belief: LinkBelief) -> NDArray[np.float64]:
        """Return latency alone, unless one bandwidth or both explain the times so much better that
        chance can be ruled out."""
        best = self._solved([_LATENCY], np.zeros(3), ridge=(0.0, 1.0, 1.0))
        alone = chosen_loss = self._loss(best)
        if self.weight <= belief.least_exchanges or alone <= _ROUNDING * self.energy:
            return best
        for terms in _BYTE_TERMS:
            solution = self._solved([_LATENCY, *terms], np.zeros(3), ridge=(0.0, 1.0, 1.0))
            freedom = max(self.weight - 1 - len(terms), _ROUNDING)
            limit = alone / (1 + belief.sure * len(terms) / freedom)
            loss = self._loss(solution)
            if (solution >= 0).all() and loss < min(limit, chosen_loss):
                best = solution
                chosen_loss = loss
        return best

    def _solved(
        self, terms: list[int], before: NDArray[np.float64], ridge: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return all three terms, 0 for those that are not among `terms`."""
        solution = np.zeros(3)
        if not terms:
            return solution
        # Once a round in each session, of three numbers: indexing by lists costs more than solving.
        whole = len(terms) == len(solution)
        kept = _RIDGE * self.weight * np.array(ridge)
        square, product = self.square.copy(), self.product + kept * before
        square.flat[:: len(solution) + 1] += kept
        if not whole:
            square, product = square[np.ix_(terms, terms)], product[terms]
        solution[terms] = np.linalg.solve(square, product)
        return solution

    def _loss(self, solution: NDArray[np.float64]) -> float:
        """Return the sum of squares that a solution leaves."""
        explained = float(solution @ self.square @ solution - 2 * solution @ self.product)
        return max(0.0, self.energy + explained)
