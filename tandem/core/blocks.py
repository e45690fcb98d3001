"""Token ids in blocks of 64, so that a row of logits is searched by its blocks' maxima.

Invariant: which block an id is in depends on the id alone, never on the size of the vocabulary, so
that models of different sizes agree. The ids of a block lie a stride apart: maxima of
neighbouring blocks are then taken side by side, at the speed of memory."""

import numpy as np
from numpy.typing import NDArray

from tandem.core.probs import Array

BLOCK = 64
STRIDE = 1024
_SPAN = BLOCK * STRIDE
"""Ids of this many in a row make up STRIDE blocks."""

_STEPS = np.arange(BLOCK) * STRIDE


def block_maxima(values: Array) -> Array:
    """Return the largest of `values` [V] in each block [blocks], V > 0. NaN where one of them is
    NaN."""
    spans = len(values) // _SPAN
    rest = values[spans * _SPAN :]
    maxima = np.empty(spans * STRIDE + min(len(rest), STRIDE), values.dtype)
    if spans:
        whole = values[: spans * _SPAN].reshape(spans, BLOCK, STRIDE)
        whole.max(axis=1, out=maxima[: spans * STRIDE].reshape(spans, STRIDE))
    last = maxima[spans * STRIDE :]
    rows = len(rest) // STRIDE
    if rows:
        rest[: rows * STRIDE].reshape(rows, STRIDE).max(axis=0, out=last)
        rest = rest[rows * STRIDE :]
        np.maximum(last[: len(rest)], rest, out=last[: len(rest)])
    else:
        last[:] = rest
    return maxima


def block_ids(blocks: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the ids [n, BLOCK] in `blocks` [n], also such as no vocabulary has."""
    firsts: NDArray[np.intp] = blocks // STRIDE * _SPAN + blocks % STRIDE
    return firsts[:, None] + _STEPS


def block_of(block: int) -> slice:
    """Return the ids of one block, as a slice of a row."""
    start = block // STRIDE * _SPAN + block % STRIDE
    return slice(start, start + _SPAN, STRIDE)


def places(ids: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the block of each of `ids` [n], and the row in it."""
    blocks = ids & (STRIDE - 1)
    blocks += ids // _SPAN * STRIDE
    return blocks, ids // STRIDE % BLOCK


def largest(values: Array, maxima: Array, count: int) -> NDArray[np.intp]:
    """Return the ids, ascending, of the `count` largest of `values` [V], whose `block_maxima` are
    known; ties go to the lower id. Raises ValueError unless 0 < count <= len(values)."""
    if count <= len(maxima):
        # So many blocks have a maximum this large that so many values are.
        border = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
        ids = block_ids((maxima >= border).nonzero()[0]).ravel()
        ids = ids[ids < len(values)]
        ids = np.sort(ids[values[ids] >= border])
    else:
        ids = np.arange(len(values))
    best_first = np.argsort(-values[ids], kind="stable")[:count]
    return np.sort(ids[best_first])
