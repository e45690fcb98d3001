"""Search of passages that are not kept, as documents are searched by default: by embeddings in
FAISS and by words, both fused. For experiments; services search a `document_index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tandem.index.embedding import AUTO, Embedder, load_embedder
from tandem.index.lexical import LexicalIndex
from tandem.index.searcher import candidates, reciprocal_rank_fusion

if TYPE_CHECKING:
    from tandem.index.dense import DenseIndex


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """A passage by its place in what was given. `score` orders those of one search; `similarity` is
    the inner product with the query, None without an embedding model; `coverage`: the share of the
    query's words that it has, None where it was not found by words."""

    place: int
    score: float
    similarity: float | None
    coverage: float | None


class PassageSearch:
    """Passages in memory; `close` it."""

    def __init__(self, passages: Sequence[str], embedder: Embedder | None) -> None:
        """Index the passages, by words alone if `embedder` is None."""
        self._embedder = embedder
        self._words = LexicalIndex()
        self._words.change(enumerate(passages), ())
        self._dense: DenseIndex | None = None
        if embedder is not None:
            from tandem.index.dense import DenseIndex

            self._dense = DenseIndex(embedder.dimension)
            self._dense.add(np.arange(len(passages)), embedder.embed(passages))

    def search(self, query: str, count: int) -> list[RankedPassage]:
        """Return at most `count` passages, best first."""
        depth = candidates(count)
        covered = dict(self._words.rank(query, depth))
        nearest: list[int] = []
        similarity_of: dict[int, float] = {}
        if self._embedder is not None and self._dense is not None:
            (vector,) = self._embedder.embed_questions([query])
            nearest = [place for place, _ in self._dense.search(vector, depth)]
            similarity_of = self._dense.similarities({*nearest, *covered}, vector)
        return [
            RankedPassage(place, score, similarity_of.get(place), covered.get(place))
            for place, score in reciprocal_rank_fusion([nearest, list(covered)])[:count]
        ]

    def close(self) -> None:
        self._words.close()
        if self._dense is not None:
            self._dense.close()


def open_passages(
    passages: Sequence[str], embedding: str = AUTO, threads: int = 1
) -> PassageSearch:
    """Return the search that documents have by default, over these passages; `embedding` is as in
    `load_embedder`."""
    return PassageSearch(passages, load_embedder(embedding, threads=threads))
