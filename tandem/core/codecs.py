"""Laws as little-endian bytes.

Invariant: `wire_law(law)` is what the other end reconstructs, bit for bit, and sending it again
changes nothing. A draft is drawn from the wire law, never from the law before encoding, so both
ends judge it by the same numbers. Must not import asyncio, grpc, torch or time.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array, check_law

Precision = Literal["float32", "float16"]

_FLOAT32 = np.dtype("<f4")
_FLOAT16 = np.dtype("<f2")
# The smallest normal float16. Smaller numbers are dropped: converting subnormals is slow, and they
# are too coarse to survive a second encoding.
_SMALLEST_FLOAT16 = np.float32(2.0**-14)


def law_to_bytes(law: Array, precision: Precision) -> bytes:
    """Encode a law [V] in 4·V or 2·V bytes.

    float32 carries the law itself. float16 carries it relative to its largest entry, which keeps
    the whole range of float16 for flat laws over large vocabularies; entries below 2^-14 of the
    largest become zero (a truncation before sampling, hence lossless for the output).
    """
    if precision == "float32":
        return law.astype(_FLOAT32).tobytes()
    weights = law.astype(np.float32)
    weights /= weights.max()
    np.putmask(weights, weights < _SMALLEST_FLOAT16, 0)
    return weights.astype(_FLOAT16).tobytes()


def survives_float16(law: Array) -> NDArray[np.bool_]:
    """Which entries of a law [V], or of all its positive entries, are not dropped by float16."""
    weights = law.astype(np.float32)
    kept: NDArray[np.bool_] = weights / weights.max() >= _SMALLEST_FLOAT16
    return kept


def law_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> NDArray[np.float32]:
    """Decode a law [V]; raises InvalidArgument(field) if it is not one."""
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    if len(raw) != vocabulary_size * dtype.itemsize:
        raise InvalidArgument(
            field, f"{len(raw)} bytes for {vocabulary_size} values of {precision}"
        )
    law = np.frombuffer(raw, dtype=dtype).astype(np.float32)
    if precision == "float16":
        if not (law.min() >= 0 and law.max() == 1):  # False for NaN as well
            raise InvalidArgument(field, "weights are not in [0, 1] with maximum 1")
        law /= law.sum()
    check_law(law, vocabulary_size, field)
    return law


def wire_law(law: Array, precision: Precision) -> NDArray[np.float32]:
    """The law [V] the other end reconstructs from law_to_bytes(law, precision)."""
    return law_from_bytes(law_to_bytes(law, precision), len(law), precision, "law")
