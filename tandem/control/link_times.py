"""The times of messages on one session's link, from the session's own frames: a latency, and what a
byte adds in each direction.

An exchange is a frame and its answer, timed by one clock without what the other end says it held
it. Pings and frames of other sizes tell latency and bytes apart. Where they do not yet, both share
what was seen, so that the times of sizes like those seen are right in any case. Invariant: nothing
is negative; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig

_RIDGE = 1e-4
"""Weight of what was believed before, relative to the exchanges: it decides only what they leave
open."""
_SEVERAL = 3
"""Exchanges in a row that show that a link has changed; fewer had to wait for something."""


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`latency_s`: of both ways together. `up_s`, `down_s`: seconds that a byte adds each way."""

    latency_s: float
    up_s: float = 0.0
    down_s: float = 0.0

    def exchange_s(self, up_bytes: float, down_bytes: float) -> float:
        """Return the seconds of a frame of `up_bytes` and an answer of `down_bytes`."""
        return self.latency_s + self.up_s * up_bytes + self.down_s * down_bytes


@dataclass(frozen=True, slots=True)
class _Exchange:
    """`believed_s`: how much of its `seconds` counts."""

    up_bytes: int
    down_bytes: int
    seconds: float
    believed_s: float


class LinkEstimate:
    """Follows the link of one session. `times`: None before the first exchange."""

    def __init__(self, config: ControllerConfig = DEFAULT_CONFIG) -> None:
        self.times: LinkTimes | None = None
        self._config = config
        self._exchanges = deque[_Exchange](maxlen=2 * config.sentence_tokens)

    def exchanged(self, up_bytes: int, down_bytes: int, seconds: float) -> None:
        """Record an exchange that took `seconds` on the link. Of one that took much longer than
        expected, a part is believed; several in a row show that the link has changed."""
        seconds = max(0.0, seconds)
        believed_s = seconds
        if self.times is not None and len(self._exchanges) >= self._config.few_tokens:
            expected_s = max(self.times.exchange_s(up_bytes, down_bytes), TINY)
            believed_s = min(seconds, self._config.far * expected_s)
        self._exchanges.append(_Exchange(up_bytes, down_bytes, seconds, believed_s))
        self._forget_before_change()
        self.times = self._fitted()

    def _forget_before_change(self) -> None:
        """Drop what was before the last exchanges, if all of these took much longer than expected,
        or all much shorter."""
        times = self.times
        if times is None or len(self._exchanges) <= _SEVERAL:
            return
        last = list(self._exchanges)[-_SEVERAL:]
        ratios = [
            each.seconds / max(times.exchange_s(each.up_bytes, each.down_bytes), TINY)
            for each in last
        ]
        if min(ratios) > self._config.jump or max(ratios) < 1 / self._config.jump:
            self._exchanges.clear()
            self._exchanges.extend(replace(each, believed_s=each.seconds) for each in last)

    def _fitted(self) -> LinkTimes:
        """Return the least-squares solution without negative terms; older exchanges weigh less.
        What the exchanges leave open stays as it was, shared evenly by latency and bytes."""
        exchanges = self._exchanges
        scale = max(1, *(max(each.up_bytes, each.down_bytes) for each in exchanges))
        rows = np.array(
            [(1.0, each.up_bytes / scale, each.down_bytes / scale) for each in exchanges]
        )
        seconds = np.array([each.believed_s for each in exchanges])
        weights = np.array([self._config.keep**age for age in range(len(seconds))][::-1])
        before = self.times or LinkTimes(0.0)
        prior = np.array([before.latency_s, before.up_s * scale, before.down_s * scale])
        terms = [0, 1, 2]
        solution = _solved(rows, seconds, weights, prior, terms)
        while float(solution.min()) < 0:
            terms.remove(int(solution.argmin()))
            solution = _solved(rows, seconds, weights, prior, terms)
        latency_s, up_s, down_s = (float(term) for term in solution)
        return LinkTimes(latency_s, up_s / scale, down_s / scale)


def _solved(
    rows: NDArray[np.float64],
    seconds: NDArray[np.float64],
    weights: NDArray[np.float64],
    prior: NDArray[np.float64],
    terms: list[int],
) -> NDArray[np.float64]:
    """Return all three terms, 0 for those that are not among `terms`."""
    solution = np.zeros(len(prior))
    if not terms:
        return solution
    chosen = rows[:, terms]
    ridge = _RIDGE * float(weights.sum())
    square = (chosen * weights[:, None]).T @ chosen + ridge * np.eye(len(terms))
    product = chosen.T @ (weights * seconds) + ridge * prior[terms]
    solution[terms] = np.linalg.solve(square, product)
    return solution
