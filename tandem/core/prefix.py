"""Rolling 64-bit hash of the committed tokens, by which edge and cloud notice that they disagree.

Invariant: extending by a sequence equals extending by its parts in order. A mismatch is a fault to
report and resynchronise from, never text. Not cryptographic: it finds bugs, not forgeries. Must not
import asyncio, grpc, torch or time.
"""

from collections.abc import Iterable

from tandem.core.hashing import GOLDEN, mix

PrefixHash = int
"""In [0, 2^64)."""

EMPTY_PREFIX: PrefixHash = GOLDEN


def extend_prefix(prefix: PrefixHash, token_ids: Iterable[int]) -> PrefixHash:
    """The hash of the prefix with `token_ids` appended. Order, length and every id count."""
    for token in token_ids:
        prefix = mix(prefix + (int(token) + 1) * GOLDEN)  # int: numpy integers overflow
    return prefix
