"""The largest entries of a law, and the argmax of a mixture certified from them (DESIGN §3.6).

Invariant: a token is named only if no law that fits both lists could make another one the argmax;
ties go to the lower id, as everywhere. No arithmetic here leaves the number type of its input.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.aggregation import Weights
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array, most_likely

_MASS_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class TopList:
    """ids [M] ascending with their probs [M]; `tail_mass`: of all other tokens together, none of
    which has more than the least of `probs`."""

    ids: NDArray[np.integer[Any]]
    probs: Array
    tail_mass: Any

    @property
    def tail_bound(self) -> Any:
        """The most that any token outside the list can have."""
        return min(self.tail_mass, self.probs.min()) if self.tail_mass > 0 else 0 * self.tail_mass

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first field that no honest peer would send."""
        if self.ids.ndim != 1 or self.ids.shape != self.probs.shape or not len(self.ids):
            raise InvalidArgument("ids", f"{self.ids.shape} beside {self.probs.shape} numbers")
        if self.ids[0] < 0 or self.ids[-1] >= vocabulary_size or (np.diff(self.ids) <= 0).any():
            raise InvalidArgument("ids", f"not ascending in [0, {vocabulary_size})")
        if not (self.probs.min() >= 0 and self.probs.max() <= 1):  # False for NaN as well
            raise InvalidArgument("probabilities", "outside [0, 1]")
        mass = float(self.probs.sum()) + float(self.tail_mass)
        if not (self.tail_mass >= 0 and abs(mass - 1) <= _MASS_TOLERANCE):
            raise InvalidArgument("tail_mass", f"{self.tail_mass}: the whole is {mass}, not 1")


def top_list(law: Array, count: int) -> TopList:
    """The list of the `count` largest entries of `law` [V]; ties stay by lower id."""
    ids = most_likely(law, count)
    if len(ids) == np.count_nonzero(law):
        return TopList(ids, law[ids], 0 * law[0])
    kept = law[ids]
    # What is left, counted itself: one minus the kept would be rounding where little is left.
    rest = np.delete(law, ids).sum()
    return TopList(ids, kept, rest)


def whole_list(law: Array) -> TopList:
    """All of a law."""
    return top_list(law, len(law))


def certified_argmax(device: TopList, cloud: TopList, weights: Weights) -> int | None:
    """The argmax of the mixture, or None if the lists leave more than one token possible."""
    ids = np.union1d(device.ids, cloud.ids)
    low_device, high_device = _bounds(device, ids)
    low_cloud, high_cloud = _bounds(cloud, ids)
    low = weights.device * low_device + weights.cloud * low_cloud
    high = weights.device * high_device + weights.cloud * high_cloud
    best = int(low.argmax())  # the first: the lowest id among equals
    elsewhere = weights.device * device.tail_bound + weights.cloud * cloud.tail_bound
    rivals = (high > low[best]) | ((high == low[best]) & (ids < ids[best]))
    rivals[best] = False
    outside = bool(elsewhere >= low[best]) and elsewhere > 0
    return None if outside or rivals.any() else int(ids[best])


def _bounds(known: TopList, ids: NDArray[Any]) -> tuple[Array, Array]:
    """The least and the most that each of `ids` can have."""
    low = np.zeros(len(ids), dtype=known.probs.dtype)
    high = np.full(len(ids), known.tail_bound, dtype=known.probs.dtype)
    at = np.searchsorted(ids, known.ids)
    low[at] = high[at] = known.probs
    return low, high
