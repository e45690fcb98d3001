"""The nearest of stored vectors, by FAISS's indexes: all are compared while they are few
(`IndexFlatIP`), beyond `FLAT_LIMIT` an inverted file with product quantization (`IndexIVFPQ`)
proposes candidates, which the caller compares exactly.

The database is the only truth. An index holds keys, each of a chunk's number and the checksum of
its vector, so what it lacks and what it has too much is seen by comparing keys: after a crash, a
restored copy or a lost file, opening adds and removes the difference. An inverted file is trained
in the background and kept in a folder, under a name that has its checksum and that of its keys;
search stays exact until it is there. Thread-safe.
"""

from __future__ import annotations

import hashlib
import math
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from tandem.index.folder import make_private, new_private_file
from tandem.index.records import Vectors
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Keys = NDArray[np.int64]
"""A chunk's number in the upper half, its vector's checksum in the lower: none is ever another
vector's."""

FLAT_LIMIT = 20_000
"""Vectors that are all compared: some 5 ms with 384 numbers each, and 30 MB of memory."""
PROBED_SHARE = 24
"""One cell of so many is looked into: finds 0.97 of the true ten nearest of a million."""
SAVED_AFTER_S = 30.0
"""A deleted vector's code leaves the disk after so long at the latest."""
RETRIED_AFTER_S = 60.0
"""After a build that failed, as for want of memory."""
BLOCK = 32_768
"""Vectors that are read at a time."""
_CHECKSUM_BITS = 32
_PER_CELL = 64
"""Vectors that each cell is trained with."""
_PER_CODE = 128
"""Vectors that each of a code's 256 values is trained with."""
_NUMBERS_PER_CODE = 8
_RETRAINED_AT = 4
"""Trained again at so many times the vectors, or so small a share of them."""
_SEED = 12
_library: Any = faiss
"""Its stubs do not know what its Python layer takes."""


def keys_of(rows: NDArray[np.int64]) -> Keys:
    """Return the keys of chunks, each row (number, CRC-32 of its vector)."""
    return (rows[:, 0] << _CHECKSUM_BITS) | rows[:, 1]


def numbers_of(keys: Keys) -> NDArray[np.int64]:
    return keys >> _CHECKSUM_BITS


class StoredVectors(Protocol):
    """The vectors of one collection, as a database has them."""

    def keys(self) -> Keys:
        """Return the keys of all that are stored now, in order."""

    def rows(self, keys: Keys) -> Vectors:
        """Return the vectors (len(keys), dimension) of these, which are in order; zeros for one
        that is not there any more."""


class VectorIndex:
    """The vectors of one collection; `close` waits for a build under way."""

    def __init__(
        self, stored: StoredVectors, dimension: int, folder: Path | None = None, name: str = ""
    ) -> None:
        """Open the index and bring it up to date.

        Args:
            stored: what the database has.
            dimension: the length of a vector.
            folder: where an inverted file is kept from one start to the next; None: nowhere.
            name: of the collection; the file has its hash."""
        self.dimension = dimension
        self._stored = stored
        self._folder = folder
        self._name = _file_name(name)
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._index = self._read()
        wanted = stored.keys()
        self._unsaved = _align(self._index, wanted, stored)
        self._start_work()

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def kind(self) -> Literal["flat", "ivf"]:
        return "ivf" if _is_inverted(self._index) else "flat"

    def search(self, query: Vectors, count: int) -> list[int]:
        """Return the chunks nearest to `query` (dimension,) by inner product: at most `count`, the
        nearest first, where all are compared; else some hundred, `count` of which are the nearest
        once they are compared exactly."""
        # Of this thread alone. More are of no use to one query, and on a busy machine they wait for
        # each other: 15 ms in place of 0.3.
        _library.omp_set_num_threads(1)
        with self._lock:
            if self.kind == "ivf":
                count = max(256, 8 * count)
            count = min(count, self._index.ntotal)
            if count < 1:
                return []
            _, (keys,) = self._index.search(query[None, :], count)
        numbers: list[int] = numbers_of(keys[keys >= 0]).tolist()
        return numbers

    def change(self, added: Keys, vectors: Vectors, gone: Keys) -> None:
        """Take in what a commit has changed: `vectors` (len(added), dimension) of new keys."""
        with self._lock:
            if len(added):
                self._index.add_with_ids(np.ascontiguousarray(vectors), added)
            if len(gone):
                self._index.remove_ids(_library.IDSelectorBatch(gone))
            self._unsaved = True
            self._start_work()
            if self._is_due():
                self._wake.set()

    def wait_until_built(self) -> None:
        """Return when no build is due or under way."""
        while self._is_due() and (worker := self._worker) is not None and worker.is_alive():
            worker.join(0.05)

    def close(self) -> None:
        """Wait for a build under way, and keep the index."""
        self._closing.set()
        self._wake.set()
        if (worker := self._worker) is not None:
            worker.join()
        self._save()

    def _is_due(self) -> bool:
        """Return whether an index of another kind or with other cells is to be built."""
        count = int(self._index.ntotal)
        if not _is_inverted(self._index):
            return count > FLAT_LIMIT
        trained_for = self._index.nlist**2 / 4
        few = count <= FLAT_LIMIT / 2
        return few or not trained_for / _RETRAINED_AT <= count <= trained_for * _RETRAINED_AT

    def _start_work(self) -> None:
        inverted = _is_inverted(self._index)
        idle = self._worker is None and not self._closing.is_set()
        if idle and (self._is_due() or (inverted and self._unsaved)):
            self._worker = threading.Thread(target=self._work, name="vector-index", daemon=True)
            self._worker.start()

    def _work(self) -> None:
        """Build what is due, and save what has changed after a while, until there is neither."""
        while True:
            with self._lock:
                self._wake.clear()
                due = self._is_due()
                if self._closing.is_set() or not (due or self._unsaved):
                    self._worker = None
                    return
            try:
                if due:
                    self._build()
                elif self._wake.wait(SAVED_AFTER_S):
                    continue
                self._save()
            except Exception:  # search stays as it is
                log.exception("vector index not built")
                self._closing.wait(RETRIED_AFTER_S)

    def _build(self) -> None:
        keys = self._stored.keys()
        index = _flat(self.dimension)
        if len(keys) > FLAT_LIMIT:
            index = _trained(self._stored, keys, self.dimension)
        _align(index, keys, self._stored)
        with self._lock:
            _align(index, _keys_in(self._index), self._stored)
            self._index = index
            self._unsaved = True
        log.info("vector index built", vectors=len(keys), kind=self.kind)

    def _save(self) -> None:
        """Write the index to its file, unless it is a flat one, which is read from the database
        as soon. A failure costs time at the next start, no result: what the file has of deleted
        vectors leaves the disk nevertheless, and the next save tries again."""
        if self._folder is None:
            self._unsaved = False
            return
        with self._lock:
            if not self._unsaved:
                return
            self._unsaved = False
            raw = _library.serialize_index(self._index) if _is_inverted(self._index) else None
            keys = _keys_in(self._index)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_private(self._folder, 0o700)
            kept = None
            if raw is not None:
                kept = self._folder / f"{self._name}-{_digest(keys)}-{_digest(raw)}.faiss"
                new = kept.with_suffix(".new")
                new_private_file(new)
                raw.tofile(new)
                new.replace(kept)
            for path in self._files():
                if path != kept:
                    path.unlink()
        except OSError as error:
            log.warning("vector index not kept", folder=str(self._folder), reason=str(error))
            self._unsaved = True
            for path in self._files():
                with suppress(OSError):
                    path.unlink()

    def _read(self) -> Any:
        """Return the index that the folder has, whole and of this dimension, else an empty one."""
        for path in self._files():
            try:
                raw = np.fromfile(path, np.uint8)
                if path.stem.endswith(f"-{_digest(raw)}"):
                    index = _library.deserialize_index(raw)
                    if index.d == self.dimension and _is_inverted(index):
                        return index
            except (OSError, RuntimeError) as error:  # RuntimeError: of FAISS
                log.warning("vector index not read", path=str(path), reason=str(error))
        return _flat(self.dimension)

    def _files(self) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob(f"{self._name}-*.*"))


def is_stale(folder: Path, name: str, stored: StoredVectors) -> bool:
    """Return whether a folder has an index of the collection of this name with other keys than
    those that are stored."""
    kept = [*folder.glob(f"{_file_name(name)}-*.*")]
    if not kept:
        return False
    whole = f"{_file_name(name)}-{_digest(stored.keys())}-"
    return not all(path.name.startswith(whole) for path in kept)


def _digest(values: NDArray[Any]) -> str:
    return f"{zlib.crc32(values.data):08x}"


def _file_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _flat(dimension: int) -> Any:
    return _library.IndexIDMap(_library.IndexFlatIP(dimension))


def _is_inverted(index: Any) -> bool:
    return isinstance(index, _library.IndexIVFPQ)


def _trained(stored: StoredVectors, keys: Keys, dimension: int) -> Any:
    """Return an empty inverted file for vectors like those of `keys`."""
    cells = int(2 * math.sqrt(len(keys)))
    quantizer = _library.IndexFlatIP(dimension)
    numbers = next(n for n in range(_NUMBERS_PER_CODE, 0, -1) if dimension % n == 0)
    index = _library.IndexIVFPQ(
        quantizer, dimension, cells, dimension // numbers, 8, _library.METRIC_INNER_PRODUCT
    )
    index.nprobe = max(8, cells // PROBED_SHARE)
    index.cp.seed = index.pq.cp.seed = _SEED
    index.cp.max_points_per_centroid = _PER_CELL
    index.pq.cp.max_points_per_centroid = _PER_CODE
    # Fewer than FAISS likes, which it would say.
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
    count = max(_PER_CELL * cells, _PER_CODE * index.pq.ksub)
    if count < len(keys):
        chosen = np.random.default_rng(_SEED).choice(len(keys), count, replace=False)
        keys = keys[np.sort(chosen)]
    index.train(stored.rows(keys))
    return index


def _keys_in(index: Any) -> Keys:
    if not _is_inverted(index):
        keys: Keys = _library.vector_to_array(index.id_map)
        return np.sort(keys)
    lists = index.invlists
    parts = [
        _library.rev_swig_ptr(lists.get_ids(cell), lists.list_size(cell)).copy()
        for cell in range(index.nlist)
        if lists.list_size(cell)
    ]
    return np.sort(np.concatenate([np.empty(0, np.int64), *parts]))


def _align(index: Any, wanted: Keys, stored: StoredVectors) -> bool:
    """Make the index have these keys and no others; return whether it had not."""
    held = _keys_in(index)
    extra = np.setdiff1d(held, wanted, assume_unique=True)
    missing = np.setdiff1d(wanted, held, assume_unique=True)
    if len(extra):
        index.remove_ids(_library.IDSelectorBatch(extra))
    for begin in range(0, len(missing), BLOCK):
        block = missing[begin : begin + BLOCK]
        index.add_with_ids(stored.rows(block), block)
    return bool(len(extra) or len(missing))
