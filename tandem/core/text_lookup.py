"""Prompt lookup: what followed the longest repeated end of a text follows again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_MATCH = 16
"""Longest repeated end looked for, in tokens; a longer one is no surer."""
SURE_MATCH = 2
"""A shorter repeated end is a guess."""


def find_follower(context: Sequence[int] | NDArray[np.int64]) -> tuple[int | None, int]:
    """Return what followed the longest repeated end of `context`, the latest of several, and how
    long that end is (0…`MAX_MATCH`)."""
    tokens = np.asarray(context, dtype=np.int64)
    if len(tokens) < 2:
        return None, 0
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # where an earlier occurrence may end
    if not len(ends):
        return None, 0
    matched = 1
    while matched < MAX_MATCH:
        longer = ends[ends >= matched]
        longer = longer[tokens[longer - matched] == tokens[-1 - matched]]
        if not len(longer):
            break
        ends = longer
        matched += 1
    return int(tokens[ends[-1] + 1]), matched


class GrowingText:
    """A text that only grows, as an array; looking something up copies none of it."""

    def __init__(self) -> None:
        self._tokens = np.zeros(256, dtype=np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, token_ids: Sequence[int]) -> None:
        end = self._length + len(token_ids)
        self._make_room(end)
        self._tokens[self._length : end] = token_ids
        self._length = end

    def followers(self, most: int) -> tuple[int, ...]:
        """Return what surely follows, one token after the other, `most` at most; the text stays as
        it is."""
        self._make_room(self._length + most)
        tokens: list[int] = []
        while len(tokens) < most:
            end = self._length + len(tokens)
            follower, matched = find_follower(self._tokens[:end])
            if follower is None or matched < SURE_MATCH:
                break
            tokens.append(follower)
            self._tokens[end] = follower
        return tuple(tokens)

    def _make_room(self, length: int) -> None:
        if length > len(self._tokens):
            larger = np.zeros(max(length, 2 * len(self._tokens)), dtype=np.int64)
            larger[: self._length] = self._tokens[: self._length]
            self._tokens = larger
