"""Where the end of a text stood before: one index for every draft that is looked up. Pure.

Texts lie one after another in an array. For each place two or three hash chains, as zlib keeps
them, lead to the places before it that follow the same last n tokens, newest first. Appending a
token takes constant time, and a lookup walks a few steps of a chain, however long the texts are.
What it finds is compared token by token, so that a hash never decides. A token takes 20 to 28 bytes
with two chains.

Invariant: one thread at a time appends; others may look up meanwhile, since a place is linked only
after all that it leads to is there."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.core.hashing import MASK, mix

LONGEST_MATCH = 32
"""Tokens up to which matches are told apart; longer ones are no surer."""
MOST_PLACES = 8
"""Places that are returned for one context, the newest first."""
MOST_STEPS = 96
"""Of a chain, for one lookup: a context that is everywhere costs no more."""
BETWEEN = -1
"""No token; one stands after each text, so that no match reaches into the next."""

_FEWEST_HEADS = 64
_FEW = 48
"""Tokens that are appended one by one; more are sorted at once."""
_MANY = 1024
"""Tokens beyond which those that stay are sorted anew, rather than each taken off."""
_NONE = -1
_FACTORS = [mix(number) | 1 for number in range(LONGEST_MATCH)]

Tokens = Sequence[int]


class NgramIndex:
    """Texts, found by their last tokens."""

    def __init__(self, lengths: Sequence[int] = (3, 6)) -> None:
        """Begin without a token. `lengths`: the tokens n that the chains go by, ascending; the
        first is the shortest match that is found."""
        self.tokens: array[int] = array("i")
        self._chains = tuple(_Chain(length) for length in reversed(lengths))

    def __len__(self) -> int:
        """Return the number of tokens, those between texts included."""
        return len(self.tokens)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.tokens.itemsize * len(self) + sum(chain.size_bytes for chain in self._chains)

    def extend(self, token_ids: Tokens) -> None:
        """Append tokens."""
        if len(token_ids) <= _FEW:
            for token_id in token_ids:
                self.tokens.append(token_id)
                for chain in self._chains:
                    chain.append(self.tokens)
            return
        self.tokens.extend(token_ids if isinstance(token_ids, array) else array("i", token_ids))
        for chain in self._chains:
            chain.extend(self.tokens)

    def end_text(self) -> None:
        """End a text: what is appended next is another one."""
        self.extend((BETWEEN,))

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens. Nobody may look up meanwhile."""
        if len(self) - length > _MANY:
            del self.tokens[length:]
            for chain in self._chains:
                chain.link_anew(self.tokens)
            return
        for chain in self._chains:
            chain.truncate(self.tokens, length)
        del self.tokens[length:]

    def copy(self) -> NgramIndex:
        """Return another index of the same texts."""
        copied = NgramIndex(())
        copied.tokens = self.tokens[:]
        copied._chains = tuple(chain.copy() for chain in self._chains)
        return copied

    def find(self, tail: Tokens) -> tuple[int, list[int]]:
        """Return the length of the longest match of the end of a text (0…LONGEST_MATCH), and where
        it was found: the places of the tokens that followed, newest first, MOST_PLACES at most. It
        is the longest of those that stand in the first MOST_STEPS steps of a chain.

        Args:
            tail: the last LONGEST_MATCH tokens of the text, or all of a shorter one."""
        for chain in self._chains:
            longest, found = chain.length, list[int]()
            for place in chain.places(tail):
                if self.tokens[place] < 0:  # a text ended there
                    continue
                length = self.matched(tail, place)
                if length > longest:
                    longest, found = length, []
                if length == longest:
                    found.append(place)
                    if longest == LONGEST_MATCH and len(found) == MOST_PLACES:
                        break
            if found:
                return longest, found[:MOST_PLACES]
        return 0, []

    def places(self, tail: Tokens) -> set[int]:
        """Return places that follow the last n tokens of `tail`: of each chain the newest
        MOST_STEPS."""
        return {
            place
            for chain in self._chains
            for place in chain.places(tail)
            if self.matched(tail, place) >= chain.length
        }

    def matched(self, tail: Tokens, place: int) -> int:
        """Return how many tokens at the end of `tail` stand before a place."""
        tokens = self.tokens
        longest = min(len(tail), place, LONGEST_MATCH)
        length = 0
        while length < longest and tokens[place - 1 - length] == tail[-1 - length]:
            length += 1
        return length


class _Chain:
    """Leads from the hash of `length` tokens to the newest place after them, and from each place to
    the one before with the same hash."""

    __slots__ = ("_table", "length")

    def __init__(self, length: int) -> None:
        self.length = length
        # Both arrays at once, so that a reader never sees one without the other.
        self._table = _empty(_FEWEST_HEADS), array("i")

    @property
    def size_bytes(self) -> int:
        return sum(each.itemsize * len(each) for each in self._table)

    def copy(self) -> _Chain:
        copied = _Chain(self.length)
        heads, earlier = self._table
        copied._table = heads[:], earlier[:]
        return copied

    def places(self, tail: Tokens) -> Iterator[int]:
        if len(tail) < self.length:
            return
        heads, earlier = self._table
        place = heads[self._head_of(tail, len(tail), len(heads))]
        steps = 0
        while place != _NONE and steps < MOST_STEPS:
            yield place
            place = earlier[place]
            steps += 1

    def append(self, tokens: array[int]) -> None:
        """Link the place of the last token."""
        heads, earlier = self._table
        place = len(earlier)
        if place >= len(heads):
            self._link_all(tokens, 2 * len(heads))
            return
        if place < self.length:
            earlier.append(_NONE)
            return
        head = self._head_of(tokens, place, len(heads))
        earlier.append(heads[head])
        heads[head] = place

    def extend(self, tokens: array[int]) -> None:
        """Link the places of all tokens that are not linked."""
        size = len(self._table[0])
        if len(tokens) > size:
            while len(tokens) > size:
                size *= 2
            self._link_all(tokens, size)
            return
        self._link(*self._table, tokens)

    def link_anew(self, tokens: array[int]) -> None:
        """Forget all places, and link those of all tokens."""
        self._link_all(tokens, len(self._table[0]))

    def _link_all(self, tokens: array[int], size: int) -> None:
        table = _empty(size), array("i")
        self._link(*table, tokens)
        self._table = table

    def _link(self, heads: array[int], earlier: array[int], tokens: array[int]) -> None:
        before = len(earlier)
        first = max(before, self.length)
        earlier.extend([_NONE] * (min(first, len(tokens)) - before))
        count = len(tokens) - first
        if count <= 0:
            return
        places = np.arange(first, len(tokens), dtype=np.int32)
        of_place = self._heads_of(tokens, first, len(heads))
        table = np.frombuffer(heads, dtype=np.int32)
        links = table[of_place]
        order = np.argsort(of_place, kind="stable")
        repeats = of_place[order[1:]] == of_place[order[:-1]]
        links[order[1:][repeats]] = places[order[:-1][repeats]]
        earlier.frombytes(links.tobytes())
        last = np.append(~repeats, True)
        table[of_place[order[last]]] = places[order[last]]

    def truncate(self, tokens: array[int], length: int) -> None:
        heads, earlier = self._table
        for place in range(len(earlier) - 1, length - 1, -1):
            link = earlier.pop()
            if place >= self.length:
                heads[self._head_of(tokens, place, len(heads))] = link

    def _head_of(self, tokens: Tokens, end: int, size: int) -> int:
        """Return where the chain of the tokens before `end` begins, of `size` heads."""
        total = 0
        for back in range(self.length):
            total += (tokens[end - 1 - back] + 2) * _FACTORS[back]
        return ((total & MASK) * size) >> 64

    def _heads_of(self, tokens: array[int], first: int, size: int) -> NDArray[np.int64]:
        """Return the same [n - first] for each place from `first` on."""
        begin = first - self.length
        words = (np.frombuffer(tokens, dtype=np.int32)[begin:].astype(np.int64) + 2).astype(
            np.uint64
        )
        count = len(tokens) - first
        total = np.zeros(count, np.uint64)
        for back in range(self.length):
            at = self.length - 1 - back
            total += words[at : at + count] * np.uint64(_FACTORS[back])
        shift = 64 - (size.bit_length() - 1)
        return (total >> np.uint64(shift)).astype(np.int64)


def _empty(size: int) -> array[int]:
    return array("i", [_NONE]) * size
