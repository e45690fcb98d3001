"""Dense and lexical search over the chunks of a store, joined by reciprocal-rank fusion (Cormack,
Clarke and Büttcher, SIGIR 2009).

Each collection has vectors of its own, and a search reads those that its tenant may find: chunks of
others are never candidates, so they can take no place among the best.

Thread-safe. faiss is imported only when there are vectors to search.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tandem.core.errors import TandemError
from tandem.index.owners import OPERATOR, Collection
from tandem.index.records import Hit, Vectors
from tandem.index.store import IndexStore, StoredChunk

if TYPE_CHECKING:
    from tandem.index.dense import DenseIndex

Key = TypeVar("Key", bound=Hashable)

RANK_CONSTANT = 2
"""The paper has 60, for many deep rankings; with two, that lets a chunk that is 20th in both beat
the first of one. Share of PEPs found by title among five hits, on the quarter the value was chosen
with (159 queries) and another: 60: 0.969, 0.962; 2: 0.981, 0.962; vectors: 0.975, 0.943; words:
0.937, 0.950."""

_LEAST_DEPTH = 50
"""Candidates that each ranking gives at the least, so that fusion has something to join."""


class SearchMode(StrEnum):
    HYBRID = "hybrid"
    DENSE = "dense"
    LEXICAL = "lexical"


class RankingOutdated(TandemError):
    """The store has changed since `follow`."""


class Searcher:
    """Vectors here, words and texts in the store; `dimension` 0 is lexical only."""

    def __init__(self, store: IndexStore, dimension: int, folder: Path | None = None) -> None:
        """Prepare to search a store. `folder` keeps the indexes of many vectors from one start to
        the next; None: they are built at each start."""
        self._store = store
        self._dimension = dimension
        self._folder = folder
        self._loaded = False
        self._dense: dict[Collection, DenseIndex] = {}
        self._chunks: dict[Collection, int] = {}

    def __len__(self) -> int:
        return sum(self._chunks.copy().values())

    def visible(self, tenant: str) -> int:
        """Return the number of chunks that `tenant` may find."""
        chunks = self._chunks.copy().items()
        return sum(count for collection, count in chunks if collection.visible_to(tenant))

    @property
    def dense_kind(self) -> str:
        """`ivf` as soon as one collection has so many chunks."""
        if not self._dimension:
            return "none"
        kinds = {dense.kind for dense in self._dense.copy().values()}
        return "ivf" if "ivf" in kinds else "flat"

    def follow(self) -> None:
        """Take in what changed in the store. One caller at a time."""
        for change in self._store.changes():
            collection = change.collection
            if self._dimension:
                if (dense := self._dense.get(collection)) is None:
                    dense = self._dense[collection] = self._dense_index(collection)
                dense.add(change.numbers, change.vectors)
                dense.remove(change.gone)
            chunks = self._chunks.get(collection, 0) + len(change.numbers) - len(change.gone)
            self._chunks[collection] = chunks
        if not self._loaded:
            self._loaded = True
            for dense in self._dense.values():
                dense.settle()
            self._delete_other_folders()

    def search(
        self,
        query: str,
        vector: Vectors | None,
        count: int,
        mode: SearchMode,
        tenant: str = OPERATOR,
    ) -> list[Hit]:
        """Return at most `count` chunks that `tenant` may find, best first. `vector` is the
        query's; DENSE needs one. Raises RankingOutdated when a chunk was removed, or replaced by
        one that is not ranked yet."""
        depth = candidates(count)
        dense = list[int]()
        covered = dict[int, float]()
        searched = self._dense.copy().items()
        visible = [index for collection, index in searched if collection.visible_to(tenant)]
        if mode is not SearchMode.LEXICAL and vector is not None:
            dense = _nearest(visible, vector, depth)
        if mode is not SearchMode.DENSE:
            covered = dict(self._store.rank(query, depth, tenant))
        fused = reciprocal_rank_fusion([dense, list(covered)])
        chunks = self._first_chunks([number for number, _ in fused], count)
        similarities = dict[int, float]()
        if vector is not None:
            for index in visible:
                similarities |= index.similarities(chunks, vector)
        dense_rank = {number: rank for rank, number in enumerate(dense, 1)}
        lexical_rank = {number: rank for rank, number in enumerate(covered, 1)}
        return [
            Hit(
                **asdict(chunks[number]),
                score=score,
                similarity=similarities.get(number),
                dense_rank=dense_rank.get(number),
                lexical_rank=lexical_rank.get(number),
                coverage=covered.get(number),
            )
            for number, score in fused
            if number in chunks
        ]

    def wait_until_built(self) -> None:
        for dense in self._dense.copy().values():
            dense.wait_until_built()

    def close(self) -> None:
        for dense in self._dense.copy().values():
            dense.close()

    def _dense_index(self, collection: Collection) -> DenseIndex:
        from tandem.index.dense import DenseIndex

        return DenseIndex(self._dimension, self._folder_of(collection), loading=not self._loaded)

    def _folder_of(self, collection: Collection) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.sha256(collection.name.encode()).hexdigest()
        return self._folder / (digest[:32] if collection.name else "operator")

    def _delete_other_folders(self) -> None:
        """Delete the vectors of collections that have no text any more."""
        if self._folder is None or not self._folder.exists():
            return
        known = {self._folder_of(collection) for collection in self._dense}
        for path in self._folder.iterdir():
            if path not in known:
                shutil.rmtree(path, ignore_errors=True)

    def _first_chunks(self, numbers: list[int], count: int) -> dict[int, StoredChunk]:
        """Return the first `count` of these."""
        chunks = self._store.chunks(numbers[:count])
        if len(chunks) < len(numbers[:count]):
            raise RankingOutdated("a chunk is gone")
        return chunks


def candidates(count: int) -> int:
    """Return how many each ranking gives for `count` hits."""
    return max(_LEAST_DEPTH, 2 * count)


def _nearest(visible: Iterable[DenseIndex], vector: Vectors, count: int) -> list[int]:
    """Return the nearest vectors of all collections; inner products are comparable between them."""
    hits = [one for index in visible for one in index.search(vector, count)]
    return [number for number, _ in sorted(hits, key=lambda one: -one[1])[:count]]


def reciprocal_rank_fusion(
    rankings: Iterable[Sequence[Key]], rank_constant: float = RANK_CONSTANT
) -> list[tuple[Key, float]]:
    """Return the keys with score Σ 1 / (rank_constant + rank), best first; ranks start at 1. Equal
    scores keep the order in which the keys were first seen, so the result is deterministic."""
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (rank_constant + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
