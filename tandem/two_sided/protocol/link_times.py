"""The times of messages on one link, from the frames that are sent anyway: a latency, and what a
byte adds in each direction.

An exchange is a frame and its answer, timed by one clock without the time that the other end says
it held it: so only the sum of both latencies can be known. Exchanges of different sizes tell
latency and bytes apart, by least squares without negative terms. Delays of busy machines are noise
too, so that a bandwidth must be proven before it is believed; until then all is latency. Pure;
durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

RECENT = 50
"""Exchanges that tell, of an answer's hundreds."""
SURE = 16.0
"""By how much a bandwidth must explain the times better than chance would: the F statistic of each
term."""
LEAST_EXCHANGES = 6
"""A bandwidth needs more than so many."""
FOLLOW = 0.25
"""What the newest exchange counts in an average of what was missed by, which the latency includes:
the last few follow a link that changes."""
_ROUNDING = 1e-9
_LATENCY, _UP, _DOWN = range(3)
_BYTE_TERMS = ((_UP,), (_DOWN,), (_UP, _DOWN))


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """`latency_s`: of both ways together. `up_s`, `down_s`: seconds that a byte adds each way."""

    latency_s: float
    up_s: float
    down_s: float

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


class LinkEstimate:
    """Follows the link of one session. `times`: None before the first exchange."""

    def __init__(self) -> None:
        self.times: LinkTimes | None = None
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=RECENT)
        self._seconds: deque[float] = deque(maxlen=RECENT)
        # The times as the recent exchanges have them: [3], seconds and seconds a byte.
        self._fitted: NDArray[np.float64] = np.zeros(3)
        self._missed_s = 0.0

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None:
        """Record a frame of `up_bytes` that was answered by one of `down_bytes` after `elapsed_s`,
        of which the other end held it for `held_s` by its own clock. More held than elapsed counts
        as no time on the link: clocks tick, hosts sleep."""
        row = (1.0, float(up_bytes), float(down_bytes))
        seconds = max(0.0, elapsed_s - held_s)
        if self.times is not None:
            missed_s = seconds - float(self._fitted @ row)
            self._missed_s += FOLLOW * (missed_s - self._missed_s)
        self._rows.append(row)
        self._seconds.append(seconds)
        self._fitted = proven(np.array(self._rows), np.array(self._seconds))
        latency_s, up_s, down_s = self._fitted.tolist()
        self.times = LinkTimes(max(0.0, latency_s + self._missed_s), up_s, down_s)


def proven(rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times that explain `seconds` [n] of exchanges `rows` [n, 3] (one, bytes up, bytes
    down): latency alone, unless one bandwidth or both do so much better that chance can be ruled
    out."""
    best, alone = _solved(rows, seconds, (_LATENCY,))
    least = alone
    if len(rows) <= LEAST_EXCHANGES or alone <= _ROUNDING * float(seconds @ seconds):
        return best
    for terms in _BYTE_TERMS:
        solution, loss = _solved(rows, seconds, (_LATENCY, *terms))
        freedom = max(len(rows) - 1 - len(terms), 1)
        limit = alone / (1 + SURE * len(terms) / freedom)
        if (solution >= 0).all() and loss < min(limit, least):
            best = solution
            least = loss
    return best


def _solved(
    rows: NDArray[np.float64], seconds: NDArray[np.float64], terms: tuple[int, ...]
) -> tuple[NDArray[np.float64], float]:
    """Return all three terms, 0 for those that are not among `terms`, and the sum of squares that
    they leave: infinite where these exchanges cannot tell the terms apart."""
    solution = np.zeros(3)
    found, _, rank, _ = np.linalg.lstsq(rows[:, terms], seconds)
    if rank < len(terms):
        return solution, inf
    solution[list(terms)] = found
    return solution, float(((seconds - rows @ solution) ** 2).sum())
