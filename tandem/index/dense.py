"""Nearest vectors by inner product: exact while they are few, then by cells, built meanwhile.

Up to `flat_limit` vectors FAISS compares all of them. Above, an inverted file (IVF) is trained in
the background and takes over when it is ready; until then search stays exact. IVF, not a graph
(HNSW): it is built in seconds, takes additions and real removals, and the cells it looks into can
be chosen by measured recall, which is done whenever it is built. Thread-safe.
"""

import math
import threading
from collections.abc import Iterable
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]

FLAT_LIMIT = 20_000
TARGET_RECALL = 0.98
CALIBRATION_QUERIES = 256
CALIBRATION_COUNT = 10
_REBUILD_GROWTH = 2.0
_SEED = 12


class DenseIndex:
    """Unit vectors by number. `close` waits for a build under way."""

    def __init__(
        self, dimension: int, flat_limit: int = FLAT_LIMIT, target_recall: float = TARGET_RECALL
    ) -> None:
        self.dimension = dimension
        self._flat_limit = flat_limit
        self._target_recall = target_recall
        self._lock = threading.Lock()
        self._rows: dict[int, Vectors] = {}
        self._index: Any = _flat(dimension)
        self._built_for = 0  # vectors that the cells were trained for; 0 while flat
        self._builder: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def kind(self) -> Literal["flat", "ivf"]:
        return "ivf" if self._built_for else "flat"

    def add(self, numbers: Numbers, vectors: Vectors) -> None:
        """Add vectors. `numbers` must be new; `vectors` is (len(numbers), dimension), float32, and
        is kept."""
        assert vectors.shape == (len(numbers), self.dimension), vectors.shape
        if not len(numbers):
            return
        with self._lock:
            self._rows.update(zip(numbers.tolist(), vectors, strict=True))
            self._index.add_with_ids(np.ascontiguousarray(vectors), numbers)
            self._start_build_if_due()

    def remove(self, numbers: Numbers) -> None:
        """Forget these; all must be there."""
        if not len(numbers):
            return
        with self._lock:
            for number in numbers.tolist():
                del self._rows[number]
            self._index.remove_ids(numbers)

    def search(self, query: Vectors, count: int) -> list[tuple[int, float]]:
        """Return at most `count` nearest to `query` (dimension,), as (number, inner product)."""
        with self._lock:
            if not self._rows or count < 1:
                return []
            scores, numbers = self._index.search(query[None, :], min(count, len(self._rows)))
        hits = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return [(number, score) for number, score in hits if number >= 0]

    def similarities(self, numbers: Iterable[int], query: Vectors) -> dict[int, float]:
        """Inner products of `query` (dimension,) with those of these vectors that there are."""
        with self._lock:
            rows = {number: self._rows.get(number) for number in numbers}
        return {number: float(row @ query) for number, row in rows.items() if row is not None}

    def wait_until_built(self) -> None:
        if (builder := self._builder) is not None:
            builder.join()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.wait_until_built()

    def _start_build_if_due(self) -> None:
        count = len(self._rows)
        building = self._builder is not None and self._builder.is_alive()
        grown = count > self._flat_limit and count >= _REBUILD_GROWTH * self._built_for
        if grown and not building and not self._closed:
            self._builder = threading.Thread(target=self._build, name="dense-build", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        """Train on what is there, then catch up with what changed meanwhile, and take over."""
        try:
            with self._lock:
                rows = dict(self._rows)
            numbers = np.fromiter(rows, np.int64, len(rows))
            built = _inverted_file(numbers, np.stack(list(rows.values())), self._target_recall)
            with self._lock:
                _catch_up(built, rows, self._rows)
                self._index = built
                self._built_for = len(rows)
            log.info("dense index built", vectors=len(rows), cells=built.nlist, probed=built.nprobe)
        except Exception:  # search stays exact, only slower
            log.exception("dense index not built")


def _flat(dimension: int) -> Any:
    return faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))


def _inverted_file(numbers: Numbers, vectors: Vectors, target_recall: float) -> Any:
    dimension = vectors.shape[1]
    cells = max(1, min(int(2 * math.sqrt(len(vectors))), len(vectors) // 39))
    index: Any = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(dimension), dimension, cells, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = _SEED
    index.cp.max_points_per_centroid = 64
    index.train(vectors)
    index.add_with_ids(vectors, numbers)
    index.nprobe = _cells_to_probe(index, numbers, vectors, target_recall)
    return index


def _cells_to_probe(index: Any, numbers: Numbers, vectors: Vectors, target_recall: float) -> int:
    """Return the fewest cells, in steps of a half, that find the share `target_recall` of the true
    ten. Asked with the middle of two stored vectors: like a real query, it is no stored vector, and
    it lies where cells meet, which is the hard case."""
    source = np.random.default_rng(_SEED)
    pairs = source.integers(len(vectors), size=(2, CALIBRATION_QUERIES))
    queries = vectors[pairs[0]] + vectors[pairs[1]]
    faiss.normalize_L2(queries)
    exact: Any = _flat(vectors.shape[1])
    exact.add_with_ids(vectors, numbers)
    _, truth = exact.search(queries, CALIBRATION_COUNT)
    probed = 1
    while probed < index.nlist:
        index.nprobe = probed
        _, hits = index.search(queries, CALIBRATION_COUNT)
        if recall(hits, truth) >= target_recall:
            break
        probed = min(index.nlist, probed + max(1, probed // 2))
    return probed


def recall(hits: Numbers, truth: Numbers) -> float:
    """Share of the true neighbours that were found, over all rows."""
    return sum(len(np.intersect1d(a, b)) for a, b in zip(hits, truth, strict=True)) / truth.size


def _catch_up(index: Any, built: dict[int, Vectors], now: dict[int, Vectors]) -> None:
    gone = np.array([number for number in built if number not in now], dtype=np.int64)
    if len(gone):
        index.remove_ids(gone)
    new = [number for number in now if number not in built]
    if new:
        rows = np.stack([now[number] for number in new])
        index.add_with_ids(rows, np.array(new, dtype=np.int64))
