"""Which texts a process has told of, in 16 bytes each: a million of them are no burden."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from tandem.index.owners import Collection

_GONE = -1


class KnownTexts:
    """Collection and number of chunks of texts, by the first number of each."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._chunks = array("i")
        self._places = array("i")
        self._collections: list[Collection] = []
        self._place_of: dict[Collection, int] = {}

    def add(self, first: int, collection: Collection, chunks: int) -> None:
        """Add a text; `first` is above those of all before."""
        assert not self._firsts or first > self._firsts[-1], (first, self._firsts[-1])
        if collection not in self._place_of:
            self._place_of[collection] = len(self._collections)
            self._collections.append(collection)
        self._firsts.append(first)
        self._chunks.append(chunks)
        self._places.append(self._place_of[collection])

    def pop(self, first: int) -> tuple[Collection, int] | None:
        """Forget a text; return collection and chunks, None where it is not known."""
        place = bisect_left(self._firsts, first)
        if place == len(self._firsts) or self._firsts[place] != first:
            return None
        chunks = self._chunks[place]
        if chunks == _GONE:
            return None
        self._chunks[place] = _GONE
        return self._collections[self._places[place]], chunks
