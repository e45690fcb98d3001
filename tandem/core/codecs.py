"""Distributions, and hidden states, as little-endian bytes.

Invariant: `wire_probs(probs)` is what the other end reconstructs, bit for bit, and sending it again
changes nothing. A draft is drawn from the wire distribution, never from the distribution before
encoding, so both ends judge it by the same numbers. Single entries (`entries_to_bytes`) are no
distribution: what was rounded down of them stays with the sender, who draws from it too."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, check_probs

Precision = Literal["float32", "float16"]

_FLOAT32 = np.dtype("<f4")
_FLOAT16 = np.dtype("<f2")
# The smallest normal float16. Smaller numbers are dropped: converting subnormals is slow, and they
# are too coarse to survive a second encoding.
SMALLEST_FLOAT16 = np.float32(2.0**-14)
SURE_FLOAT16 = 2.0**-13
"""Times the largest entry of a distribution: what is at least as likely survives float16, however
it is rounded before."""
_WIDEST_GAP = 32
_VALUE_BYTES: dict[Precision, int] = {"float32": 4, "float16": 2}


def probs_to_bytes(probs: Array, precision: Precision) -> bytes:
    """Encode a distribution [V] in 4·V or 2·V bytes. float32 carries the distribution itself.
    float16 carries it relative to its largest entry, which keeps the whole range of float16 for
    flat distributions over large vocabularies; entries below 2^-14 of the largest become zero (a
    truncation before sampling, hence lossless for the output)."""
    if precision == "float32":
        return probs.astype(_FLOAT32).tobytes()
    weights = probs.astype(np.float32)
    weights /= weights.max()
    np.putmask(weights, weights < SMALLEST_FLOAT16, 0)
    return weights.astype(_FLOAT16).tobytes()


def survives_float16(probs: Array) -> NDArray[np.bool_]:
    """Return a mask of the entries of a distribution [V], or of its positive entries, that float16
    does not drop."""
    weights = probs.astype(np.float32)
    kept: NDArray[np.bool_] = weights / weights.max() >= SMALLEST_FLOAT16
    return kept


def probs_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> NDArray[np.float32]:
    """Decode a distribution [V]; raises InvalidArgument(field) if it is not one."""
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    if len(raw) != vocabulary_size * dtype.itemsize:
        why = f"{len(raw)} bytes for {vocabulary_size} values of {precision}"
        raise InvalidArgument(field, why)
    probs = np.frombuffer(raw, dtype=dtype).astype(np.float32)
    if precision == "float16":
        if not (probs.min() >= 0 and probs.max() == 1):  # False for NaN as well
            raise InvalidArgument(field, "weights are not in [0, 1] with maximum 1")
        probs /= probs.sum()
    check_probs(probs, vocabulary_size, field)
    return probs


def wire_probs(probs: Array, precision: Precision) -> NDArray[np.float32]:
    """Return the distribution [V] that the other end reconstructs from `probs_to_bytes`."""
    return probs_from_bytes(probs_to_bytes(probs, precision), len(probs), precision, "probs")


def sparse_probs_to_bytes(distribution: Array, precision: Precision) -> bytes:
    """Encode the positive entries of a distribution [V]; float16 drops those it cannot hold."""
    ids = np.flatnonzero(distribution)
    if precision == "float16":
        ids = ids[survives_float16(distribution[ids])]
    return _ids_to_bytes(ids) + probs_to_bytes(distribution[ids], precision)


def sparse_probs_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> NDArray[np.float32]:
    """Decode a distribution [V]; raises InvalidArgument(field) if it is not one."""
    ids, values = _ids_from_bytes(raw, vocabulary_size, precision, field)
    probs = probs_from_bytes(values, len(ids), precision, field)
    if not probs.min() > 0:
        raise InvalidArgument(field, "has an entry of probability zero")
    distribution = np.zeros(vocabulary_size, dtype=np.float32)
    distribution[ids] = probs
    return distribution


def sparse_wire_probs(distribution: Array, precision: Precision) -> NDArray[np.float32]:
    """Return the distribution [V] that the other end reconstructs from `sparse_probs_to_bytes`: its
    positive entries travel as a distribution of their own."""
    ids = np.flatnonzero(distribution)
    if precision == "float16":
        ids = ids[survives_float16(distribution[ids])]
    received = np.zeros(len(distribution), dtype=np.float32)
    received[ids] = wire_probs(distribution[ids], precision)
    return received


def rounded_down(probs: Array, precision: Precision) -> Array:
    """Return the largest numbers that `precision` holds and that are not above those of `probs`
    [M], as float64 or, of a table of other numbers, as such numbers. float16 makes what is below
    2^-24 zero."""
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    rounded = probs.astype(dtype)
    above = (rounded.astype(np.float64) > probs).astype(bool)
    rounded[above] = np.nextafter(rounded[above], dtype.type(0))
    if probs.dtype != object:
        return rounded.astype(np.float64)
    kind = type(probs[0])
    return np.array([kind(number) for number in rounded.tolist()], dtype=object)


def entries_to_bytes(ids: NDArray[np.integer[Any]], probs: Array, precision: Precision) -> bytes:
    """Encode probabilities [M] of ascending token ids [M], which `precision` must hold. They need
    not sum to 1."""
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    return _ids_to_bytes(ids) + probs.astype(dtype).tobytes()


def entries_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Decode token ids [M] with their probabilities [M], each in (0, 1]; raises
    InvalidArgument(field) for anything else. At least one entry."""
    ids, values = _ids_from_bytes(raw, vocabulary_size, precision, field)
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    probs = np.frombuffer(values, dtype=dtype).astype(np.float64)
    if not ((probs > 0) & (probs <= 1)).all():  # False for NaN as well
        raise InvalidArgument(field, "has entries outside (0, 1]")
    return ids, probs


def _ids_to_bytes(ids: NDArray[np.integer[Any]]) -> bytes:
    """Encode ascending ids as the gaps between them, all in as many bits as the widest takes."""
    gaps = np.diff(ids, prepend=-1) - 1
    width = int(gaps.max()).bit_length()
    bits = (gaps[:, None] >> np.arange(width)) & 1
    packed = np.packbits(bits.astype(np.uint8), bitorder="little")
    return bytes([width]) + packed.tobytes()


def _ids_from_bytes(
    raw: bytes, vocabulary_size: int, precision: Precision, field: str
) -> tuple[NDArray[np.int64], bytes]:
    """Return the ids, and the bytes after them: as many values of that precision."""
    size = _VALUE_BYTES[precision]
    width = raw[0] if raw else 0
    count = (len(raw) - 1) * 8 // (width + 8 * size)
    packed_end = 1 + (count * width + 7) // 8
    if width > _WIDEST_GAP or count < 1 or packed_end + count * size != len(raw):
        raise InvalidArgument(field, f"{len(raw)} bytes are not a sparse distribution")
    if count > vocabulary_size:
        raise InvalidArgument(field, f"{count} entries in a vocabulary of {vocabulary_size}")
    ids = _ids(raw[1:packed_end], count, width)
    if ids[-1] >= vocabulary_size:
        raise InvalidArgument(field, f"id {ids[-1]} is not in [0, {vocabulary_size})")
    return ids, raw[packed_end:]


def hidden_to_bytes(states: Array, precision: Precision) -> bytes:
    """Encode hidden states [n, size], one after another; float16 keeps 11 bits of each number, and
    its largest number in the place of larger ones."""
    if precision == "float32":
        return states.astype(_FLOAT32).tobytes()
    largest = np.finfo(np.float16).max
    return np.clip(states, -largest, largest).astype(_FLOAT16).tobytes()


def hidden_from_bytes(
    raw: bytes, hidden_size: int, precision: Precision, field: str
) -> NDArray[np.float32]:
    """Decode hidden states [n, hidden_size]; raises InvalidArgument(field) if there are none."""
    row_bytes = hidden_size * _VALUE_BYTES[precision]
    if not row_bytes or not raw or len(raw) % row_bytes:
        raise InvalidArgument(field, f"{len(raw)} bytes for states of {hidden_size} numbers")
    dtype = _FLOAT32 if precision == "float32" else _FLOAT16
    return np.frombuffer(raw, dtype=dtype).astype(np.float32).reshape(-1, hidden_size)


def _ids(packed: bytes, count: int, width: int) -> NDArray[np.int64]:
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
    columns = bits[: count * width].reshape(count, width).astype(np.int64)
    gaps = columns @ (np.int64(1) << np.arange(width, dtype=np.int64))
    ids: NDArray[np.int64] = np.cumsum(gaps + 1) - 1
    return ids
