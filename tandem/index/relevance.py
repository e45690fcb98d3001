"""How relevant found chunks are to their query: R(d, query) of answers from documents, where a
document weighs exp R of the sum over all documents of both sides.

    R = RELEVANCE_SCALE · (COSINE_SHARE · cosine + (1 - COSINE_SHARE) · coverage)

`cosine` is that of the chunk's vector and the query's, at least 0; `coverage` the share of the
query's words that the chunk has, rare ones weighing more (BM25 with k1 = 0, divided by the most
there can be; `lexical.coverage`). Both mean the same in every collection, as scores of a search do
not, so that documents of two sides can be compared; and R is within 0…RELEVANCE_SCALE. Without an
embedding model R is RELEVANCE_SCALE · coverage.

A cosine alone says too little: chunks of one subject have similar ones, whether they answer the
question or not, and would share the weight nearly evenly. Which of them has the words of the
question tells them apart.

Invariant: down a fused ranking R never rises. Where a later chunk would have more than those before
it, all of them get their mean (isotonic regression): their order is evidence too, of the whole
ranking, and neither number knows better than the other.
"""

from __future__ import annotations

from collections.abc import Sequence

COSINE_SHARE = 0.5
"""Of the two kinds of evidence."""
RELEVANCE_SCALE = 10.0
"""What the whole range counts in the exponent of a document's weight."""


def relevance(cosine: float | None, coverage: float | None) -> float | None:
    """Return the relevance of a chunk by itself; None where a search tells neither. `cosine` None:
    there is no embedding model; `coverage` None: it shares no word with the query, or none that
    tells chunks apart."""
    if cosine is None:
        return None if coverage is None else RELEVANCE_SCALE * coverage
    words = 0.0 if coverage is None else coverage
    return RELEVANCE_SCALE * (COSINE_SHARE * max(0.0, cosine) + (1 - COSINE_SHARE) * words)


def falling(relevances: Sequence[float]) -> list[float]:
    """Return the nearest values, by least squares, none of which is larger than one before it."""
    means: list[float] = []
    counts: list[int] = []
    for value in relevances:
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-1] > means[-2]:
            mean, count = means.pop(), counts.pop()
            joined = count + counts[-1]
            means[-1] += (mean - means[-1]) * count / joined
            counts[-1] = joined
    return [mean for mean, count in zip(means, counts, strict=True) for _ in range(count)]
