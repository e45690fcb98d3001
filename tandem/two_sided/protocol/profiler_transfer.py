"""What the link between two sides costs: L + g/B each way, from frames that are sent anyway (DRAGON
§5.2 asks ping and iperf3). An exchange is a frame, its answer, both timed by one clock, and the
time that the other end says it held it: so only the sum of both latencies can be known, and only
the sum is needed. Bandwidth shows in how exchanges of different sizes differ.

A slow estimate (all exchanges, old ones forgotten) gives latency and bandwidth; a fast average of
what it missed by follows a link that changes. Durations in seconds, sizes in bytes.
"""

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument

FORGET = 0.98
"""What an exchange counts after the next one: the slow estimate looks back some 50 exchanges."""
FOLLOW = 0.25
"""What the newest exchange counts in the fast average."""
_MEGABYTE = 1e6
_RIDGE_MB2 = 1e-8
"""Keeps the equations solvable where sizes do not differ."""
SURE = 16.0
"""By how much a bandwidth must explain the delays better than chance would (the F statistic of each
term), before it is believed: a busy machine's delays are noise too."""
_LEAST_EXCHANGES = 6
_ROUNDING = 1e-9


class TransferEstimate:
    """The two-way delay of messages of given sizes; nothing is known before the first exchange."""

    def __init__(self) -> None:
        self._square: NDArray[np.float64] = np.zeros((3, 3))
        self._product: NDArray[np.float64] = np.zeros(3)
        self._energy = 0.0
        self._slow: NDArray[np.float64] = np.zeros(3)
        self._missed_s = 0.0
        self.exchanges = 0

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None:
        """A frame of `up_bytes` was answered by one of `down_bytes` after `elapsed_s`, of which the
        other end held it for `held_s` by its own clock. More held than elapsed counts as no delay:
        clocks tick, hosts sleep. Raises InvalidArgument for what cannot have been measured."""
        for field, size in (("up_bytes", up_bytes), ("down_bytes", down_bytes)):
            if size < 0:
                raise InvalidArgument(field, f"{size} bytes")
        for field, span_s in (("elapsed_s", elapsed_s), ("held_s", held_s)):
            if not (isfinite(span_s) and span_s >= 0):
                raise InvalidArgument(field, f"{span_s} is not a duration")
        delay_s = max(0.0, elapsed_s - held_s)
        sizes = np.array([1.0, up_bytes / _MEGABYTE, down_bytes / _MEGABYTE])
        missed_s = delay_s - float(sizes @ self._slow) if self.exchanges else 0.0
        self._missed_s += FOLLOW * (missed_s - self._missed_s)
        self._square = FORGET * self._square + np.outer(sizes, sizes)
        self._product = FORGET * self._product + delay_s * sizes
        self._energy = FORGET * self._energy + delay_s * delay_s
        self._slow = _fitted(self._square, self._product, self._energy)
        self.exchanges += 1

    @property
    def known(self) -> bool:
        return self.exchanges > 0

    @property
    def latency_s(self) -> float:
        """L of both ways together, as of now."""
        return max(0.0, float(self._slow[0]) + self._missed_s)

    @property
    def up_bytes_per_s(self) -> float:
        """B towards the cloud; infinite while no exchange showed a limit."""
        return _MEGABYTE / float(self._slow[1]) if self._slow[1] > 0 else float("inf")

    @property
    def down_bytes_per_s(self) -> float:
        """B towards the device."""
        return _MEGABYTE / float(self._slow[2]) if self._slow[2] > 0 else float("inf")

    def up_s(self, size: float) -> float:
        """A message of `size` bytes to the cloud, with half of the latency."""
        return self.latency_s / 2 + size / self.up_bytes_per_s

    def down_s(self, size: float) -> float:
        """A message of `size` bytes to the device, with the other half."""
        return self.latency_s / 2 + size / self.down_bytes_per_s


def _fitted(square: Any, products: Any, energy: float) -> NDArray[np.float64]:
    """Least squares without negative terms: latency alone, unless one bandwidth or both explain the
    delays so much better that chance can be ruled out."""
    best, chosen_loss = _solved(square, products, energy, (0,))
    alone = chosen_loss
    weight = float(square[0, 0])
    if alone <= _ROUNDING * energy:
        return best
    for terms in ((0, 1), (0, 2), (0, 1, 2)):
        freedom = weight - len(terms)
        found, loss = _solved(square, products, energy, terms)
        limit = alone / (1 + SURE * (len(terms) - 1) / max(freedom, _ROUNDING))
        if weight > _LEAST_EXCHANGES and (found >= 0).all() and loss < min(limit, chosen_loss):
            best, chosen_loss = found, loss
    return best


def _solved(
    square: Any, products: Any, energy: float, terms: tuple[int, ...]
) -> tuple[NDArray[np.float64], float]:
    """All three terms, those not chosen 0, and the sum of squares that is left."""
    chosen = list(terms)
    ridge = np.diag([0.0, _RIDGE_MB2, _RIDGE_MB2])[np.ix_(chosen, chosen)]
    found = np.zeros(3)
    found[chosen] = np.linalg.solve(square[np.ix_(chosen, chosen)] + ridge, products[chosen])
    return found, max(0.0, energy + float(found @ square @ found - 2 * found @ products))
