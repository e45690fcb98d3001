"""Laws with few entries as bytes: the ids by their gaps, bit-packed, then the probabilities.

Invariant: as in codecs: `sparse_wire_law(law)` is what the other end reconstructs, bit for bit, and
sending it again changes nothing. Layout: one byte with the width of a gap in bits; the gaps (each
id minus the one before it, minus one) in that many bits each, least significant first, padded with
zeros to a byte; the values as `law_to_bytes` writes them. The count of entries follows from the
number of bytes. Must not import asyncio, grpc, torch or time.
"""

import numpy as np
from numpy.typing import NDArray

from tandem.core.codecs import (
    Precision,
    law_from_bytes,
    law_to_bytes,
    survives_float16,
    wire_law,
)
from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array

_WIDEST_GAP = 32
_VALUE_BYTES: dict[Precision, int] = {"float32": 4, "float16": 2}


def sparse_law_to_bytes(law: Array, precision: Precision) -> bytes:
    """Encode the positive entries of a law [V]; float16 drops those it cannot hold."""
    ids = np.flatnonzero(law)
    if precision == "float16":
        ids = ids[survives_float16(law[ids])]
    gaps = np.diff(ids, prepend=-1) - 1
    width = int(gaps.max()).bit_length()
    bits = (gaps[:, None] >> np.arange(width)) & 1
    packed = np.packbits(bits.astype(np.uint8), bitorder="little")
    return bytes([width]) + packed.tobytes() + law_to_bytes(law[ids], precision)


def sparse_law_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> NDArray[np.float32]:
    """Decode a law [V]; raises InvalidArgument(field) if it is not one."""
    size = _VALUE_BYTES[precision]
    width = raw[0] if raw else 0
    count = (len(raw) - 1) * 8 // (width + 8 * size)
    packed_end = 1 + (count * width + 7) // 8
    if width > _WIDEST_GAP or count < 1 or packed_end + count * size != len(raw):
        raise InvalidArgument(field, f"{len(raw)} bytes are no sparse law")
    if count > vocabulary_size:
        raise InvalidArgument(field, f"{count} entries in a vocabulary of {vocabulary_size}")
    ids = _ids(raw[1:packed_end], count, width)
    if ids[-1] >= vocabulary_size:
        raise InvalidArgument(field, f"id {ids[-1]} is not in [0, {vocabulary_size})")
    probs = law_from_bytes(raw[packed_end:], count, precision, field)
    if not probs.min() > 0:
        raise InvalidArgument(field, "has an entry of probability zero")
    law = np.zeros(vocabulary_size, dtype=np.float32)
    law[ids] = probs
    return law


def sparse_wire_law(law: Array, precision: Precision) -> NDArray[np.float32]:
    """The law [V] the other end reconstructs from sparse_law_to_bytes(law, precision): the positive
    entries as a law of their own goes over the wire, without the ids' way there and back."""
    ids = np.flatnonzero(law)
    if precision == "float16":
        ids = ids[survives_float16(law[ids])]
    received = np.zeros(len(law), dtype=np.float32)
    received[ids] = wire_law(law[ids], precision)
    return received


def _ids(packed: bytes, count: int, width: int) -> NDArray[np.int64]:
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
    columns = bits[: count * width].reshape(count, width).astype(np.int64)
    gaps = columns @ (np.int64(1) << np.arange(width, dtype=np.int64))
    ids: NDArray[np.int64] = np.cumsum(gaps + 1) - 1
    return ids
