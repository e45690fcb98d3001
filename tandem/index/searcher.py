"""The order of found chunks: by their vectors, by their words, or by both together."""

from __future__ import annotations

from enum import StrEnum

from tandem.index.relevance import relevance
from tandem.index.store import Found

_LEAST_DEPTH = 50
"""Candidates by vectors and by words, each, at the least: what both find comes first."""


class SearchMode(StrEnum):
    HYBRID = "hybrid"
    DENSE = "dense"
    LEXICAL = "lexical"


def candidates(count: int) -> int:
    """Return how many are asked for, by vectors and by words, for `count` hits."""
    return max(_LEAST_DEPTH, 2 * count)


def ranked(found: Found) -> list[tuple[int, float]]:
    """Return the chunks with their scores, the best first. Where there are vectors, the score is
    the relevance, a weighted sum of the similarity and of how much of the query a chunk covers: a
    passage that answers has both, one that has the words of a question by chance is not near it.
    Without vectors the order is BM25's, which counts how often a chunk has a word, too.

    Of the titles of 320 PEPs, 0.79 have their own text first and 0.95 among five; by
    reciprocal-rank fusion 0.77 and 0.94, by vectors alone 0.77 and 0.92, by BM25 0.69 and 0.91."""
    if not found.similarity:
        return [(number, 1 / rank) for rank, number in enumerate(found.coverage, 1)]
    scores = [
        (number, relevance(found.similarity[number], found.coverage.get(number)) or 0.0)
        for number in dict.fromkeys([*found.nearest, *found.coverage])
    ]
    return sorted(scores, key=lambda each: -each[1])
