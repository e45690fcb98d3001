"""How relevant found chunks are to their query: R(d, query) of answers from documents, where a
document weighs exp R of the sum over all documents of both sides.

    R = COSINE_WEIGHT · cosine + COVERAGE_WEIGHT · coverage - ORIGIN
    R = COVERAGE_ALONE · coverage                                     without an embedding model

`cosine` is that of the chunk's vector and the query's, at least 0; `coverage` the share of the
query's words that the chunk has, rare ones weighing more (`lexical.rank`). Both mean the same in
every collection, as scores of a search do not, so that documents of two sides can be compared.

A cosine alone says too little: chunks of one subject have similar ones, whether they answer the
question or not, and would share the weight nearly evenly. Which of them has the words of the
question tells them apart.

The weights make the share of exp R a probability, as far as it can be one: that a chunk is of the
text which is asked for, among those that were found. They were fitted to the titles of 320 PEPs,
of which the first 1,500 letters are indexed (`tandem bench retriever` does so with more): among
four chunks, those of the PEP have 0.76 of the weight in the mean, and its logarithm is -0.41; by
ten times the cosine alone 0.63 and -0.57. The best weights of each quarter of the titles, among
two or four chunks, were 7.5 to 15 for the cosine (once 30) and 2.5 to 10 for the coverage; between
these little changes.

Invariant: down a fused ranking R never rises. Where a later chunk would have more than those before
it, all of them get their mean (isotonic regression): the ranking is evidence too. By words alone
this raises the logarithm from -0.64 to -0.51; with vectors it changes nothing in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence

COSINE_WEIGHT = 10.0
COVERAGE_WEIGHT = 5.0
ORIGIN = 2.5
"""What makes the chunks of the titles as relevant in the mean as by words alone: one side may have
an embedding model, and the other none."""
COVERAGE_ALONE = 10.0


def relevance(cosine: float | None, coverage: float | None) -> float | None:
    """Return the relevance of a chunk by itself; None where a search tells neither. `cosine` None:
    there is no embedding model; `coverage` None: it shares no word with the query, or none that
    tells chunks apart."""
    if cosine is None:
        return None if coverage is None else COVERAGE_ALONE * coverage
    words = 0.0 if coverage is None else coverage
    return COSINE_WEIGHT * max(0.0, cosine) + COVERAGE_WEIGHT * words - ORIGIN


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
