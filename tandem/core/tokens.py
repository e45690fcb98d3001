"""Token ids that come from elsewhere, and committed tokens with the rolling 64-bit hash of every
prefix, by which two ends notice that their texts differ.

Invariant: committed tokens are only appended; extending a hash by a sequence equals extending it by
its parts in order. A mismatch is a fault to report and resynchronise from, never text. The hash is
not cryptographic: it finds bugs, not forgeries. It is a polynomial modulo 2^64 over the mixed ids,
hash · FACTOR + mix(id), so that those of a whole text are one cumulative sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import DataLoss, InvalidArgument
from tandem.core.hashing import GOLDEN, MASK, hash_ids, mix

PrefixHash = int
"""In [0, 2^64)."""

EMPTY_PREFIX: PrefixHash = GOLDEN
_FACTOR = mix(GOLDEN) | 1
_INVERSE = pow(_FACTOR, -1, MASK + 1)
_MANY = 32
"""Tokens from which on arrays are quicker than a loop."""


class TokenSource(StrEnum):
    """Source of a committed token."""

    DRAFT = "draft"
    """The draft model; the target accepted it."""
    TARGET = "target"
    """The target: in place of a rejected draft, after accepted ones, or decoding alone."""
    EDGE = "edge"
    """The draft model with the cloud lost; nobody verified it."""
    DEVICE = "device"
    """Of two sides the device: its draft became the token, and the cloud's did not."""
    CLOUD = "cloud"
    """Of two sides the cloud, likewise."""
    BOTH = "both"
    """Both sides had drafted the token."""
    RECOVERED = "recovered"
    """No side's draft: drawn from what the sides' distributions give together."""
    CLOUD_DRAFT = "cloud_draft"
    """A draft of the cloud's own, by its draft model or looked up; the target accepted it."""


def check_token_ids(ids: Sequence[int] | NDArray[Any], vocabulary_size: int, field: str) -> None:
    """Raise InvalidArgument(field), naming the index, unless all ids are in [0, V). The whole
    vocabulary is allowed: an id is never squeezed into 8 or 16 bits on the way."""
    if len(ids) == 0 or (min(ids) >= 0 and max(ids) < vocabulary_size):
        return
    for index, token in enumerate(ids):
        if not 0 <= token < vocabulary_size:
            raise InvalidArgument(field, f"[{index}] = {token} is not in [0, {vocabulary_size})")


def extend_prefix(prefix: PrefixHash, token_ids: Sequence[int] | NDArray[Any]) -> PrefixHash:
    """Return the hash of the prefix with `token_ids` appended. Order, length and every id count."""
    if len(token_ids) >= _MANY:
        return int(prefix_hashes(token_ids, prefix)[-1])
    return [prefix, *_prefixes_after(prefix, token_ids)][-1]


def _prefixes_after(
    prefix: PrefixHash, token_ids: Sequence[int] | NDArray[Any]
) -> list[PrefixHash]:
    """Return the hashes of a text of hash `prefix` up to each of the tokens that follow it."""
    prefixes: list[PrefixHash] = []
    for token_id in token_ids:
        # int: numpy integers overflow
        prefix = (prefix * _FACTOR + mix((int(token_id) + 1) * GOLDEN)) & MASK
        prefixes.append(prefix)
    return prefixes


def prefix_hashes(
    token_ids: Sequence[int] | NDArray[Any], before: PrefixHash = EMPTY_PREFIX
) -> NDArray[np.uint64]:
    """Return the hashes [n + 1] of a text up to each of its n tokens; the first one is `before`,
    that of what comes before them."""
    words = hash_ids(0, np.asarray(token_ids, dtype=np.int64))
    hashes = np.empty(len(words) + 1, np.uint64)
    hashes[0] = before
    # hash[n] = FACTOR^n · (before + the sum of word[i] / FACTOR^(i + 1)): FACTOR is odd.
    words *= _powers(_INVERSE, len(words))
    np.cumsum(words, out=hashes[1:])
    hashes[1:] += np.uint64(before)
    hashes[1:] *= _powers(_FACTOR, len(words))
    return hashes


_POWERS: dict[int, NDArray[np.uint64]] = {}
"""By factor, as many as the longest text has needed so far: every text needs the same."""


def _powers(factor: int, count: int) -> NDArray[np.uint64]:
    """Return factor^1 … factor^count, modulo 2^64; not to be written to."""
    powers = _POWERS.get(factor)
    if powers is None or len(powers) < count:
        powers = np.full(1 << count.bit_length(), factor, np.uint64)
        np.multiply.accumulate(powers, out=powers)
        _POWERS[factor] = powers
    return powers[:count]


class PrefixMismatch(DataLoss):
    """The two ends differ in the text before a position (DATA_LOSS; resync, never wrong text)."""

    def __init__(self, position: int) -> None:
        super().__init__(f"prefix: the two ends differ before position {position}")
        self.position = position


class _HashAhead:
    """Returns the hash of a growing sequence followed by tokens. It remembers those of the tokens
    that were asked of last, which changes no answer."""

    def __init__(self) -> None:
        self._token_ids: tuple[int, ...] = ()
        self._prefixes: list[PrefixHash] = []

    def __call__(self, prefix: PrefixHash, token_ids: tuple[int, ...]) -> PrefixHash:
        """Return the hash after the sequence of hash `prefix` and `token_ids`, at least one."""
        if self._token_ids[: len(token_ids)] != token_ids:
            known = len(self._token_ids)
            if token_ids[:known] != self._token_ids:
                known = 0
                self._prefixes.clear()
            last = self._prefixes[-1] if known else prefix
            self._prefixes += _prefixes_after(last, token_ids[known:])
            self._token_ids = token_ids
        return self._prefixes[len(token_ids) - 1]

    def past(self, prefix: PrefixHash, token_ids: tuple[int, ...]) -> list[PrefixHash]:
        """Return the hashes after each of these tokens, at least one, which the sequence then
        has."""
        count = len(token_ids)
        if self._token_ids[:count] != token_ids:
            self._token_ids = ()
            self._prefixes.clear()
            return _prefixes_after(prefix, token_ids)
        prefixes = self._prefixes[:count]
        del self._prefixes[:count]
        self._token_ids = self._token_ids[count:]
        return prefixes


class PrefixedTokens:
    """A growing token sequence; `start`: its length when it was made (prompt and resume point);
    `end`: its length now, which is the position of the next token.

    Each token is hashed once: the hashes of what may follow the sequence are kept, and taken over
    when it does."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._token_ids = list(token_ids)
        self._first_prefixes = prefix_hashes(self._token_ids)
        self._prefixes: list[int] = []  # those after them
        self.prefix: PrefixHash = int(self._first_prefixes[-1])
        """Hash of the whole sequence."""
        self._hash_ahead = _HashAhead()
        self.start = self.end = len(self._token_ids)

    def __len__(self) -> int:
        return self.end

    def __getitem__(self, position: int) -> int:
        return self._token_ids[position]

    @property
    def last(self) -> int:
        return self._token_ids[-1]

    def since(self, position: int) -> tuple[int, ...]:
        """Return the tokens from an absolute position on."""
        return tuple(self._token_ids[position:])

    def append(self, token_id: int) -> None:
        self.extend((token_id,))

    def extend(self, token_ids: Iterable[int]) -> None:
        if added := tuple(token_ids):
            self._token_ids += added
            self.end += len(added)
            self._prefixes += self._hash_ahead.past(self.prefix, added)
            self.prefix = self._prefixes[-1]

    def prefix_at(self, position: int) -> int:
        """Return the hash of the ids before an absolute position."""
        known = len(self._first_prefixes)
        if position < known:
            return int(self._first_prefixes[position])
        return self._prefixes[position - known]

    def prefix_with(self, token_ids: Sequence[int]) -> int:
        """Return the hash of the whole sequence followed by `token_ids`."""
        return self._hash_ahead(self.prefix, tuple(token_ids)) if token_ids else self.prefix

    def check(self, position: int, prefix: int, beyond: Sequence[int] = ()) -> None:
        """Raise PrefixMismatch unless `prefix` is the hash of all ids before `position`; `beyond`:
        tokens that follow this sequence."""
        if position <= self.end:
            computed = self.prefix_at(position)
        else:
            computed = self.prefix_with(beyond[: position - self.end])
        if computed != prefix:
            raise PrefixMismatch(position)
