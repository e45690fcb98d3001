"""Dense and lexical search over the chunks of a store, joined by reciprocal-rank fusion (Cormack,
Clarke and Büttcher, SIGIR 2009).

Thread-safe. faiss is imported only when there are vectors to search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from tandem.core.errors import TandemError
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
    """Vectors in memory, words and texts in the store; `dimension` 0 is lexical only."""

    def __init__(self, store: IndexStore, dimension: int) -> None:
        self._store = store
        self._dense = _dense_index(dimension) if dimension else None
        self._chunks = 0

    def __len__(self) -> int:
        return self._chunks

    @property
    def dense_kind(self) -> str:
        return "none" if self._dense is None else self._dense.kind

    def follow(self) -> None:
        """Take in what changed in the store. One caller at a time."""
        for change in self._store.changes():
            if self._dense is not None:
                self._dense.add(change.numbers, change.vectors)
                self._dense.remove(change.gone)
            self._chunks += len(change.numbers) - len(change.gone)

    def search(self, query: str, vector: Vectors | None, count: int, mode: SearchMode) -> list[Hit]:
        """At most `count` chunks, best first. `vector` is the query's; DENSE needs one. Raises
        RankingOutdated when a chunk was removed, or replaced by one that is not ranked yet."""
        depth = max(_LEAST_DEPTH, 2 * count)
        dense, covered = list[int](), dict[int, float]()
        if mode is not SearchMode.LEXICAL and self._dense is not None and vector is not None:
            dense = [number for number, _ in self._dense.search(vector, depth)]
        if mode is not SearchMode.DENSE:
            covered = dict(self._store.rank(query, depth))
        fused = reciprocal_rank_fusion([dense, list(covered)])
        chunks = self._first_chunks([number for number, _ in fused], count)
        similarities = {}
        if self._dense is not None and vector is not None:
            similarities = self._dense.similarities(chunks, vector)
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
        if self._dense is not None:
            self._dense.wait_until_built()

    def close(self) -> None:
        if self._dense is not None:
            self._dense.close()

    def _first_chunks(self, numbers: list[int], count: int) -> dict[int, StoredChunk]:
        """The first `count` of these."""
        found = self._store.chunks(numbers[:count])
        if len(found) < len(numbers[:count]):
            raise RankingOutdated("a chunk is gone")
        return found


def _dense_index(dimension: int) -> DenseIndex:
    from tandem.index.dense import DenseIndex

    return DenseIndex(dimension)


def reciprocal_rank_fusion(
    rankings: Iterable[Sequence[Key]], rank_constant: float = RANK_CONSTANT
) -> list[tuple[Key, float]]:
    """Keys with score Σ 1 / (rank_constant + rank), best first; ranks start at 1. Equal scores keep
    the order in which the keys were first seen, so the outcome is determined."""
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (rank_constant + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
