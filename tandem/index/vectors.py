"""The nearest of stored vectors: FAISS compares them all, in half precision as they are stored. A
hundred thousand of 384 numbers take 4 ms on one core and 77 MB of memory, and need no training.

The database is the only truth; an index is read from it when it is opened. Thread-safe.
"""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from tandem.index.records import Vectors

Numbers = NDArray[np.int64]

_library: Any = faiss
"""Its stubs do not know what its Python layer takes."""


class VectorIndex:
    """The vectors of one collection, by the numbers of their chunks."""

    def __init__(self, dimension: int) -> None:
        codes = _library.IndexScalarQuantizer(
            dimension, _library.ScalarQuantizer.QT_fp16, _library.METRIC_INNER_PRODUCT
        )
        self._index = _library.IndexIDMap(codes)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, query: Vectors, count: int) -> list[int]:
        """Return at most `count` chunks, the nearest to `query` (dimension,) by inner product
        first."""
        # Of this thread alone. More are of no use to one query, and on a busy machine they wait for
        # each other: 15 ms in place of 0.3.
        _library.omp_set_num_threads(1)
        with self._lock:
            if (count := min(count, len(self))) < 1:
                return []
            _, (found,) = self._index.search(query[None, :], count)
        numbers: list[int] = found.tolist()
        return numbers

    def change(self, added: Numbers, vectors: Vectors, gone: Numbers) -> None:
        """Take in new chunks with their `vectors` (len(added), dimension), and forget others."""
        with self._lock:
            if len(added):
                self._index.add_with_ids(np.ascontiguousarray(vectors), added)
            if len(gone):
                self._index.remove_ids(_library.IDSelectorBatch(gone))
