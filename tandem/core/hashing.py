"""Counter-based 64-bit integer hashing: the one source of every random number and prefix hash.

Invariant: integer arithmetic modulo 2^64 only, so every machine computes the same bits. The mixer
is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014). Not cryptographic: it must never guard a secret."""

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Purpose(IntEnum):
    """Purpose of a random number. The values enter the hash: never renumber them."""

    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3
    TARGET = 4
    """A token drawn from the target distribution: bonus tokens and those the cloud decodes
    alone."""
    TAIL = 5
    """Tail tokens that go with a sparse payload."""
    GUMBEL = 6
    COIN = 7
    LINK = 8
    PLACE = 9
    """Which side aggregates, where that is left to chance."""
    LINK_LOSS = 10


def mix(word: int) -> int:
    """Scramble one 64-bit word; a bijection on [0, 2^64)."""
    word &= MASK
    word = ((word ^ (word >> 30)) * _FIRST) & MASK
    word = ((word ^ (word >> 27)) * _SECOND) & MASK
    return word ^ (word >> 31)


def hash_words(*words: int) -> int:
    """Hash a sequence of integers (each taken modulo 2^64) in order to one 64-bit word."""
    key = 0
    for word in words:
        key = mix(key + GOLDEN + mix(int(word)))  # int: numpy integers overflow
    return key


def hash_ids(key: int, ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Return 64-bit words [n] for `ids` [n] under `key`: element i is mix(key + (id +
    1)·GOLDEN)."""
    words: NDArray[np.uint64] = ids.astype(np.uint64)
    words *= np.uint64(GOLDEN)
    words += np.uint64((key + GOLDEN) & MASK)
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= np.uint64(_FIRST)
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= np.uint64(_SECOND)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def unit(word: int) -> float:
    """Map a 64-bit word to (0, 1), never 0 nor 1: 52 bits, the midpoints of 2^52 equal cells."""
    return ((word >> 12) + 0.5) * 2.0**-52
