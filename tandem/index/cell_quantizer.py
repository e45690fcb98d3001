"""An inverted file with product-quantized residuals (IVF-PQ), trained and calibrated.

Vectors are told apart by cells and by one byte for each eight of their numbers; the best of what
that finds are compared exactly by the caller, who has the vectors. Pure functions of arrays, which
may lie in mapped files: no more than a block of them is read at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]

CALIBRATION_QUERIES = 256
CALIBRATION_COUNT = 10
BLOCK = 32_768
"""Vectors that are read at a time."""
_PER_CELL = 64
"""Vectors that each cell is trained with."""
_PER_CODE = 128
"""Vectors that each of a code's 256 values is trained with."""
_NUMBERS_PER_CODE = 8
_SEED = 12
_library: Any = faiss
"""Its stubs do not know what its Python layer takes."""


def compared_exactly(count: int) -> int:
    """Return how many of the nearest by their codes are compared exactly to find the `count`
    nearest."""
    return max(256, 8 * count)


def trained(rows: Vectors) -> Any:
    """Return an empty IVF-PQ index by inner product for vectors like `rows` (count, dimension)."""
    count, dimension = rows.shape
    cells = max(1, min(int(2 * math.sqrt(count)), count // 39))
    quantizer = faiss.IndexFlatIP(dimension)
    index: Any = faiss.IndexIVFPQ(
        quantizer, dimension, cells, _codes(dimension), 8, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = _SEED
    index.cp.max_points_per_centroid = _PER_CELL
    index.pq.cp.seed = _SEED
    index.pq.cp.max_points_per_centroid = _PER_CODE
    index.pq.cp.min_points_per_centroid = 1  # few are fewer than FAISS likes, which it would say
    index.train(_sample(rows, max(_PER_CELL * cells, _PER_CODE * index.pq.ksub)))
    return index


def add(index: Any, rows: Vectors, first: int) -> None:
    """Add `rows` under the numbers `first`, `first` + 1, …"""
    for begin, block in blocks(rows):
        numbers = np.arange(first + begin, first + begin + len(block), dtype=np.int64)
        index.add_with_ids(block, numbers)


def nearest_codes(index: Any, queries: Vectors, count: int, probed: int, selector: Any) -> Numbers:
    """Return the numbers (queries, count) of what is nearest by its codes in the `probed` nearest
    cells, of those that `selector` takes; -1 where there are no more."""
    parameters = _library.SearchParametersIVF(nprobe=probed, sel=selector)
    _, numbers = index.search(np.ascontiguousarray(queries), count, params=parameters)
    codes: Numbers = numbers
    return codes


def calibrated(index: Any, rows: Vectors, target_recall: float) -> int:
    """Return the fewest cells, in steps of a half, in which the share `target_recall` of the true
    ten is found. Asked with the middle of two stored vectors: like a real query, it is no stored
    vector, and it lies where cells meet, which is the hard case."""
    source = np.random.default_rng(_SEED)
    pairs = source.integers(len(rows), size=(2, CALIBRATION_QUERIES))
    queries = np.asarray(rows[pairs[0]]) + rows[pairs[1]]
    faiss.normalize_L2(queries)
    truth = exact_neighbours(rows, queries, CALIBRATION_COUNT)
    compared = compared_exactly(CALIBRATION_COUNT)
    probed = 1
    while probed < index.nlist:
        # What is found and a true neighbour stays among the ten once it is compared exactly.
        if recall(nearest_codes(index, queries, compared, probed, None), truth) >= target_recall:
            break
        probed = min(index.nlist, probed + max(1, probed // 2))
    return probed


def exact_neighbours(rows: Vectors, queries: Vectors, count: int) -> Numbers:
    """Return the places of the `count` rows with the largest inner products, for each query."""
    best = np.empty((len(queries), 0), np.float32)
    places = np.empty((len(queries), 0), np.int64)
    for begin, block in blocks(rows):
        products = queries @ block.T
        best = np.concatenate([best, products], axis=1)
        numbers = np.broadcast_to(np.arange(begin, begin + len(block)), products.shape)
        places = np.concatenate([places, numbers], axis=1)
        if best.shape[1] > count:
            kept = np.argpartition(-best, count - 1, axis=1)[:, :count]
            best = np.take_along_axis(best, kept, axis=1)
            places = np.take_along_axis(places, kept, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    nearest: Numbers = np.take_along_axis(places, order, axis=1)
    return nearest


def selecting(alive_bits: NDArray[np.uint8]) -> Any:
    """Return what takes the numbers whose bits are set, also when they are changed later."""
    return _library.IDSelectorBitmap(alive_bits)


def recall(hits: Numbers, truth: Numbers) -> float:
    """Return the share of the true neighbours that were found, over all rows."""
    return sum(len(np.intersect1d(a, b)) for a, b in zip(hits, truth, strict=True)) / truth.size


class Rows(Protocol):
    """Vectors that are read block by block."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Vectors: ...


def blocks(rows: Rows) -> Iterator[tuple[int, Vectors]]:
    """Yield the rows as arrays in memory, with the place of the first of each."""
    for begin in range(0, len(rows), BLOCK):
        yield begin, np.ascontiguousarray(rows[begin : begin + BLOCK])


def _codes(dimension: int) -> int:
    """Return the bytes of a vector: one for each eight numbers, or for each of the most that
    divide it."""
    numbers = next(n for n in range(_NUMBERS_PER_CODE, 0, -1) if dimension % n == 0)
    return dimension // numbers


def _sample(rows: Vectors, count: int) -> Vectors:
    if count >= len(rows):
        return np.ascontiguousarray(rows)
    chosen = np.random.default_rng(_SEED).choice(len(rows), count, replace=False)
    return np.ascontiguousarray(rows[np.sort(chosen)])
