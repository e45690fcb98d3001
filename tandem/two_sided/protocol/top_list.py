"""The largest entries of a distribution, and the argmax of a mixture certified from them. A token
is named only if no other can be the argmax; ties go to the lower id, as everywhere. The bounds use
the very arithmetic of `mixture`, so what is certified is its argmax bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, most_likely

_MASS_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class TopList:
    """ids [M] ascending with their probs [M]; of all other tokens none has more than `tail_bound`,
    and together they have `tail_mass`."""

    ids: NDArray[np.integer[Any]]
    probs: Array
    tail_mass: Any
    tail_bound: Any


def top_list(probs: Array, count: int, also: NDArray[np.integer[Any]] | None = None) -> TopList:
    """Return the `count` largest entries of `probs` [V], ties by lower id, and those of the ids
    `also`."""
    ids = most_likely(probs, count)
    bound = probs[ids].min()
    if also is not None:
        ids = np.union1d(ids, also)
    rest = probs.copy()
    rest[ids] = 0
    # Added up itself: one minus the listed would be mere rounding where little is left.
    tail_mass = rest.sum()
    return TopList(ids, probs[ids], tail_mass, min(tail_mass, bound))


def received_list(ids: Array, probs: Array, tail_mass: float, vocabulary_size: int) -> TopList:
    """Return a list of `count` largest entries as it came from a peer. Raises InvalidArgument
    naming the first field that no honest peer would send."""
    if ids.ndim != 1 or ids.shape != probs.shape or not len(ids):
        raise InvalidArgument("ids", f"{ids.shape} beside {probs.shape} numbers")
    if ids[0] < 0 or ids[-1] >= vocabulary_size or (np.diff(ids) <= 0).any():
        raise InvalidArgument("ids", f"not ascending in [0, {vocabulary_size})")
    if not (probs.min() >= 0 and probs.max() <= 1):  # False for NaN as well
        raise InvalidArgument("probabilities", "outside [0, 1]")
    mass = float(probs.sum(dtype=np.float64)) + tail_mass
    if not (tail_mass >= 0 and abs(mass - 1) <= _MASS_TOLERANCE):
        raise InvalidArgument("tail_mass", f"{tail_mass}: the whole is {mass}, not 1")
    rest = np.float32(tail_mass)
    return TopList(ids, probs, rest, min(rest, probs.min()))


def certified_argmax(lists: Sequence[TopList], shares: Sequence[Any]) -> int | None:
    """Return the argmax of the mixture of the listed distributions, one a side, or None if the
    lists leave more than one token possible."""

    def mixed(numbers: Sequence[Any]) -> Any:
        return sum(share * number for share, number in zip(shares, numbers, strict=True))

    ids = reduce(np.union1d, [known.ids for known in lists])
    bounds = [_bounds(known, ids) for known in lists]
    low: Array = mixed([least for least, _ in bounds])
    high: Array = mixed([most for _, most in bounds])
    best = int(low.argmax())  # the first: the lowest id among equals
    runners_up = (high > low[best]) | ((high == low[best]) & (ids < ids[best]))
    runners_up[best] = False
    elsewhere = mixed([known.tail_bound for known in lists])
    if runners_up.any() or (elsewhere > 0 and elsewhere >= low[best]):
        return None
    return int(ids[best])


def _bounds(known: TopList, ids: NDArray[Any]) -> tuple[Array, Array]:
    """Return the least and the most that each of `ids` can have."""
    low = np.zeros(len(ids), dtype=known.probs.dtype)
    high = np.full(len(ids), known.tail_bound, dtype=known.probs.dtype)
    at = np.searchsorted(ids, known.ids)
    low[at] = high[at] = known.probs
    return low, high
