"""BM25 over an inverted index that grows and shrinks (Robertson and Zaragoza, 2009, eq. 3.15).

The libraries looked at (bm25s, rank-bm25) compute their statistics once for a fixed corpus; here
every change counts at once. Invariant: after any sequence of changes, scores are those of an index
built from the present chunks alone. Not thread-safe. Must not import grpc.
"""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

_TERM = re.compile(r"\w+")
_MAX_TERM = 64
"""Letters of a term that count: no word is longer, junk is."""

SATURATION, LENGTH_WEIGHT = 1.2, 0.75
"""k1 and b of the paper, at their customary values."""

_COMPACT_ABOVE = 1024


def terms_of(text: str) -> list[str]:
    """Lower-case words, accents and compatibility forms folded; an identifier also in parts."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c)) if folded != text else text
    terms: list[str] = []
    for match in _TERM.finditer(plain):
        word = match.group()[:_MAX_TERM]
        terms.append(word)
        if "_" in word:
            terms += [part for part in word.split("_") if part and part != word]
    return terms


class LexicalIndex:
    """Chunks by number, found by their words."""

    def __init__(self) -> None:
        self._slot_of: dict[int, int] = {}
        self._number_at = array("q")
        self._length_at = array("q")  # 0 once the chunk was removed
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._frequency: Counter[str] = Counter()  # chunks that hold the term, removed ones not
        self._total_length = 0

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, number: int, text: str) -> None:
        """`number` must be new."""
        counts = Counter(terms_of(text))
        slot = len(self._number_at)
        self._slot_of[number] = slot
        self._number_at.append(number)
        length = counts.total()
        self._length_at.append(length)
        self._total_length += length
        self._frequency.update(counts.keys())
        for term, count in counts.items():
            slots, repeats = self._postings.setdefault(term, (array("q"), array("q")))
            slots.append(slot)
            repeats.append(count)

    def remove(self, number: int, text: str) -> None:
        """`text` is what the chunk was added with."""
        slot = self._slot_of.pop(number)
        self._total_length -= self._length_at[slot]
        self._length_at[slot] = 0
        self._number_at[slot] = -1
        self._frequency.subtract(set(terms_of(text)))
        if len(self._number_at) > 2 * len(self._slot_of) + _COMPACT_ABOVE:
            self._compact()

    def search(self, query: str, count: int) -> list[tuple[int, float]]:
        """At most `count` chunks that share a term with `query`, as (number, score), best first;
        of equal ones the earlier added first."""
        if not self._slot_of or count < 1:
            return []
        lengths = np.array(self._length_at, dtype=np.float64)
        average = max(1.0, self._total_length / len(self._slot_of))
        damping = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths / average)
        scores = np.zeros(len(lengths))
        for term, weight in Counter(terms_of(query)).items():
            self._add_term(scores, damping, term, weight)
        scores[lengths == 0] = 0.0
        best = _largest(scores, count)
        return [(self._number_at[slot], float(scores[slot])) for slot in best]

    def _add_term(
        self, scores: NDArray[np.float64], damping: NDArray[np.float64], term: str, weight: int
    ) -> None:
        frequency = self._frequency[term]
        if frequency <= 0:
            return
        slots, repeats = (np.array(column, dtype=np.int64) for column in self._postings[term])
        # The form with +1 inside, as of Lucene: no common word counts against a chunk.
        rarity = math.log1p((len(self._slot_of) - frequency + 0.5) / (frequency + 0.5))
        scores[slots] += weight * rarity * repeats * (SATURATION + 1) / (repeats + damping[slots])

    def _compact(self) -> None:
        """Forget what was removed."""
        alive = np.array(self._number_at) >= 0
        moved = np.cumsum(alive) - 1
        for term in list(self._postings):
            slots, repeats = (np.array(column) for column in self._postings[term])
            kept = alive[slots]
            if not kept.any():
                del self._postings[term], self._frequency[term]
                continue
            moved_slots = moved[slots[kept]].tolist()
            self._postings[term] = (array("q", moved_slots), array("q", repeats[kept].tolist()))
        self._number_at = array("q", np.array(self._number_at)[alive].tolist())
        self._length_at = array("q", np.array(self._length_at)[alive].tolist())
        self._slot_of = {number: slot for slot, number in enumerate(self._number_at)}


def _largest(scores: NDArray[np.float64], count: int) -> list[int]:
    """Slots of the largest positive scores, the largest first, ties by slot."""
    found = np.flatnonzero(scores > 0)
    if len(found) > count:
        threshold = np.partition(scores[found], -count)[-count]
        found = found[scores[found] >= threshold]
    order = np.lexsort((found, -scores[found]))[:count]
    return [int(slot) for slot in found[order]]
