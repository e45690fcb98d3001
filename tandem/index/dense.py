"""Nearest vectors by inner product: exact while they are few, then by cells and codes in files.

Up to `flat_limit` vectors FAISS compares all of them. Above, an inverted file with product
quantization (`cell_index`) is trained in the background and takes over when it is ready; until then
search stays exact. What comes later is compared exactly too, until the cells take it in, which is
when there is a sixteenth more, or so much that they are trained anew. Not a graph (HNSW): its links
take as much memory again as the vectors, it is built in hours rather than minutes for a million,
and what is deleted stays in it. Thread-safe.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np

from tandem.index.cell_index import CellIndex, remove_files
from tandem.index.cell_quantizer import Numbers, Vectors, recall
from tandem.telemetry.logging import get_logger

__all__ = ["DenseIndex", "Numbers", "Vectors", "recall"]

log = get_logger(__name__)

FLAT_LIMIT = 20_000
TARGET_RECALL = 0.98
TAIL_SHARE = 16
"""The cells take in what came since once it is more than one in so many of what they have, and
more than `flat_limit`."""
ERASING_EVERY_S = 30.0
"""Codes of deleted vectors are written anew at most so often; the vectors go at once."""
RETRY_S = 60.0
"""After a build that failed, as for want of room."""


class DenseIndex:
    """Unit vectors by number. `close` waits for a build under way."""

    def __init__(
        self,
        dimension: int,
        folder: Path | None = None,
        *,
        flat_limit: int | None = None,
        target_recall: float = TARGET_RECALL,
        loading: bool = False,
    ) -> None:
        """Open the index, with the cells that `folder` already holds.

        Args:
            folder: where the cells are kept from one start to the next; None: a temporary folder,
                made when it is needed.
            flat_limit: the number of vectors up to which search is exact; None: FLAT_LIMIT.
            loading: whether what is stored is still being added, until `settle`."""
        self.dimension = dimension
        self._folder = folder
        self._temporary: Path | None = None
        self._flat_limit = FLAT_LIMIT if flat_limit is None else flat_limit
        self._target_recall = target_recall
        self._lock = threading.Lock()
        self._tail: Any = _flat(dimension)
        self._cells = None if folder is None else CellIndex.open(folder, dimension)
        self._loading = loading
        self._builder: threading.Thread | None = None
        self._erased_s = self._failed_s = -float("inf")
        self._hurry = threading.Event()
        self._closed = False

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    @property
    def kind(self) -> Literal["flat", "ivf"]:
        return "flat" if self._cells is None else "ivf"

    def add(self, numbers: Numbers, vectors: Vectors) -> None:
        """Add vectors. `numbers` must be new; `vectors` is (len(numbers), dimension), float32."""
        assert vectors.shape == (len(numbers), self.dimension), vectors.shape
        if not len(numbers):
            return
        with self._lock:
            if self._loading and self._cells is not None:
                new = ~self._cells.revive(numbers, vectors)
                numbers, vectors = numbers[new], vectors[new]
            self._tail.add_with_ids(np.ascontiguousarray(vectors), numbers)
            self._start_build_if_due()

    def remove(self, numbers: Numbers) -> None:
        """Forget these; all must be there."""
        if not len(numbers):
            return
        with self._lock:
            if self._cells is not None:
                numbers = numbers[~self._cells.forget(numbers)]
            if len(numbers):
                self._tail.remove_ids(numbers)
            self._start_build_if_due()

    def settle(self) -> None:
        """Record that everything stored has been added, and delete whatever else the folder
        holds."""
        with self._lock:
            self._loading = False
            if self._cells is not None:
                self._cells.erase_dead()
            elif self._folder is not None and self._folder.exists():
                remove_files(self._folder)
            self._start_build_if_due()

    def search(self, query: Vectors, count: int) -> list[tuple[int, float]]:
        """Return at most `count` nearest to `query` (dimension,), as (number, inner product)."""
        hits: list[tuple[int, float]] = []
        with self._lock:
            if count < 1:
                return []
            if self._tail.ntotal:
                scores, numbers = self._tail.search(query[None, :], min(count, self._tail.ntotal))
                pairs = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
                hits += [(number, score) for number, score in pairs if number >= 0]
            if self._cells is not None:
                hits += self._cells.search(query, count)
        return sorted(hits, key=lambda hit: -hit[1])[:count]

    def similarities(self, numbers: Iterable[int], query: Vectors) -> dict[int, float]:
        """Return the inner product of `query` (dimension,) with each of these vectors that the
        index has."""
        wanted = list(numbers)
        with self._lock:
            rows = {} if self._cells is None else self._cells.vectors(wanted)
            for number in wanted:
                if number not in rows and (row := _row(self._tail, number)) is not None:
                    rows[number] = row
        return {number: float(row @ query) for number, row in rows.items()}

    def wait_until_built(self) -> None:
        """Return when nothing is left to build; what waits for its time is done at once."""
        while (builder := self._builder) is not None and builder.is_alive():
            self._hurry.set()
            builder.join(0.1)
        self._hurry.clear()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.wait_until_built()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _count(self) -> int:
        return int(self._tail.ntotal) + (0 if self._cells is None else len(self._cells))

    def _start_build_if_due(self) -> None:
        building = self._builder is not None and self._builder.is_alive()
        if self._has_long_tail():
            self._hurry.set()
        retried = time.monotonic() >= self._failed_s + RETRY_S
        if self._is_due() and retried and not building and not self._closed:
            self._builder = threading.Thread(target=self._build, name="dense-build", daemon=True)
            self._builder.start()

    def _is_due(self) -> bool:
        return not self._loading and (self._has_long_tail() or self._has_codes_to_erase())

    def _has_long_tail(self) -> bool:
        share = 0 if self._cells is None else len(self._cells) // TAIL_SHARE
        return int(self._tail.ntotal) > max(self._flat_limit, share)

    def _has_codes_to_erase(self) -> bool:
        return self._cells is not None and self._cells.erasable > 0

    def _build(self) -> None:
        """Build until nothing is due."""
        try:
            while True:
                with self._lock:
                    if not self._is_due():
                        return
                    only_erases = not self._has_long_tail()
                    pause_s = self._erased_s + ERASING_EVERY_S - time.monotonic()
                if only_erases and pause_s > 0:
                    self._hurry.wait(pause_s)
                self._hurry.clear()
                self._renew()
                self._erased_s = time.monotonic()
        except Exception:  # search stays exact, only slower
            self._failed_s = time.monotonic()
            log.exception("dense index not built")

    def _renew(self) -> None:
        """Let cells take in what is in the tail, and then take over, with what changed
        meanwhile."""
        with self._lock:
            cells = self._cells
            numbers, rows = _contents(self._tail)
            few = self._count() <= self._flat_limit // 2
            if cells is not None and few:
                self._dissolve(cells)
                return
        folder = self._own_folder()
        if cells is None:
            built = CellIndex.built(folder, numbers, rows, self._target_recall)
            renewal = None
        else:
            renewal = cells.renewed(numbers, rows, self._target_recall)
        with self._lock:
            left = _numbers(self._tail)
            wanted = np.isin(numbers, left)
            if cells is None:
                built.forget(numbers[~wanted])
                self._cells = built
            else:
                assert renewal is not None
                self._cells = built = cells.take_over(renewal, wanted)
            later = np.flatnonzero(~np.isin(left, numbers))
            tail = _flat(self.dimension)
            if len(later):
                tail.add_with_ids(self._tail.index.reconstruct_batch(later), left[later])
            self._tail = tail
            log.info(
                "dense index built", vectors=len(built), cells=built.cells, probed=built.probed
            )

    def _dissolve(self, cells: CellIndex) -> None:
        """Compare all vectors again, as so few are left."""
        numbers, rows = cells.living()
        if len(numbers):
            self._tail.add_with_ids(rows, numbers)
        self._cells = None
        remove_files(self._own_folder())

    def _own_folder(self) -> Path:
        if self._folder is not None:
            return self._folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="tandem-vectors-"))
        return self._temporary


def _flat(dimension: int) -> Any:
    return faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))


def _numbers(flat: Any) -> Numbers:
    numbers: Numbers = faiss.vector_to_array(flat.id_map)
    return numbers


def _contents(flat: Any) -> tuple[Numbers, Vectors]:
    """Return numbers and vectors of a flat index, as copies."""
    numbers = _numbers(flat)
    if not len(numbers):
        return numbers, np.empty((0, flat.d), np.float32)
    rows: Vectors = flat.index.reconstruct_n(0, len(numbers))
    return numbers, rows


def _row(flat: Any, number: int) -> Vectors | None:
    try:
        row: Vectors = flat.reconstruct(number)
    except RuntimeError:  # FAISS has it not
        return None
    return row
