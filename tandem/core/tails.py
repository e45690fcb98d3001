"""What a truncation to the likeliest tokens would cut off a distribution, without truncating it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.core.probs import Array


@dataclass(frozen=True, slots=True)
class Tail:
    """Of a distribution of which some entries are kept: how many these are, and the `mass` of all
    others (TSLT's σ)."""

    entries: int
    mass: float


def tails_of(probs: Array, sizes: Sequence[int], floor: float = 0.0) -> tuple[Tail, ...]:
    """Return the tail of `probs` [V] for each of `sizes`, numbers of entries to keep; 0 keeps all.
    Entries below `floor` times the largest are never kept."""
    largest = probs.max()
    values = np.sort(probs[(probs > 0) & (probs >= floor * largest)])[::-1]
    kept_mass = np.cumsum(values, dtype=np.float64)
    tails = []
    for size in sizes:
        entries = min(size, len(values)) if size else len(values)
        tails.append(Tail(entries, max(0.0, 1.0 - float(kept_mass[entries - 1]))))
    return tuple(tails)
