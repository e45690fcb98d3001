"""Dense and lexical search over the chunks of contents, joined by reciprocal-rank fusion.

Not thread-safe but for the dense index it builds in the background. faiss is imported when there
are vectors to search, so that lexical search does without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tandem.index.documents import Content
from tandem.index.fusion import reciprocal_rank_fusion
from tandem.index.lexical import LexicalIndex

if TYPE_CHECKING:
    from tandem.index.dense import DenseIndex

Vectors = NDArray[np.float32]

_LEAST_DEPTH = 50
"""Candidates that each ranking gives at the least, so that fusion has something to join."""


class SearchMode(StrEnum):
    HYBRID = "hybrid"
    DENSE = "dense"
    LEXICAL = "lexical"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A chunk, and how it was found."""

    content: Content
    chunk: int
    score: float
    similarity: float | None
    dense_rank: int | None
    lexical_rank: int | None


class Searcher:
    """Contents by their hash; `dimension` 0 is lexical only."""

    def __init__(self, dimension: int) -> None:
        self._lexical = LexicalIndex()
        self._dense = _dense_index(dimension) if dimension else None
        self._chunk_at: dict[int, tuple[Content, int]] = {}
        self._first_of: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        """Chunks."""
        return len(self._chunk_at)

    @property
    def dense_kind(self) -> str:
        return "none" if self._dense is None else self._dense.kind

    def change(self, new: Sequence[Content], gone: Sequence[Content]) -> None:
        """Add and remove whole contents."""
        first = self._next
        for content in new:
            self._add(content)
        if self._dense is not None and self._next > first:
            vectors = np.concatenate([content.vectors for content in new])
            self._dense.add(np.arange(first, self._next), vectors)
        for content in gone:
            self._remove(content)

    def search(
        self, query: str, vector: Vectors | None, count: int, mode: SearchMode
    ) -> list[Found]:
        """At most `count` chunks, best first. `vector` is the query's; DENSE needs one."""
        depth = max(_LEAST_DEPTH, 2 * count)
        dense: list[int] = []
        lexical: list[int] = []
        if mode is not SearchMode.LEXICAL and self._dense is not None and vector is not None:
            dense = [number for number, _ in self._dense.search(vector, depth)]
        if mode is not SearchMode.DENSE:
            lexical = [number for number, _ in self._lexical.search(query, depth)]
        fused = reciprocal_rank_fusion([dense, lexical])[:count]
        chunks = [self._chunk_at[number] for number, _ in fused]
        dense_rank = {number: rank for rank, number in enumerate(dense, 1)}
        lexical_rank = {number: rank for rank, number in enumerate(lexical, 1)}
        return [
            Found(
                content,
                chunk,
                score,
                None if vector is None else float(content.vectors[chunk] @ vector),
                dense_rank.get(number),
                lexical_rank.get(number),
            )
            for (number, score), (content, chunk) in zip(fused, chunks, strict=True)
        ]

    def wait_until_built(self) -> None:
        """Until no dense index is being built."""
        if self._dense is not None:
            self._dense.wait_until_built()

    def close(self) -> None:
        if self._dense is not None:
            self._dense.close()

    def _add(self, content: Content) -> None:
        first = self._first_of[content.content_hash] = self._next
        self._next += len(content.spans)
        for chunk in range(len(content.spans)):
            self._chunk_at[first + chunk] = (content, chunk)
            self._lexical.add(first + chunk, content.indexed_chunk(chunk))

    def _remove(self, content: Content) -> None:
        first = self._first_of.pop(content.content_hash)
        for chunk in range(len(content.spans)):
            del self._chunk_at[first + chunk]
            self._lexical.remove(first + chunk, content.indexed_chunk(chunk))
        if self._dense is not None:
            self._dense.remove(np.arange(first, first + len(content.spans)))


def _dense_index(dimension: int) -> DenseIndex:
    from tandem.index.dense import DenseIndex

    return DenseIndex(dimension)
