"""Token ids that come from elsewhere, and committed tokens with the rolling 64-bit hash of every
prefix, by which two ends notice that their texts differ.

Invariant: committed tokens are only appended; extending a hash by a sequence equals extending it by
its parts in order. A mismatch is a fault to report and resynchronise from, never text. The hash is
not cryptographic: it finds bugs, not forgeries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray

from tandem.core.errors import DataLoss, InvalidArgument
from tandem.core.hashing import GOLDEN, mix

PrefixHash = int
"""In [0, 2^64)."""

EMPTY_PREFIX: PrefixHash = GOLDEN


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
    """Both sides had drafted the token; of more than two, several."""
    RECOVERED = "recovered"
    """No side's draft: drawn from what the sides' distributions give together."""
    SIDE = "side"
    """Of more than two sides one beyond the cloud: its draft alone became the token."""
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


def extend_prefix(prefix: PrefixHash, token_ids: Iterable[int]) -> PrefixHash:
    """Return the hash of the prefix with `token_ids` appended. Order, length and every id count."""
    for token in token_ids:
        prefix = mix(prefix + (int(token) + 1) * GOLDEN)  # int: numpy integers overflow
    return prefix


class PrefixMismatch(DataLoss):
    """The two ends differ in the text before a position (DATA_LOSS; resync, never wrong text)."""

    def __init__(self, position: int) -> None:
        super().__init__(f"prefix: the two ends differ before position {position}")
        self.position = position


class PrefixedTokens:
    """A growing token sequence; `start`: its length when it was made (prompt and resume point)."""

    def __init__(self, token_ids: Iterable[int]) -> None:
        self._token_ids: list[int] = []
        self._prefixes = [EMPTY_PREFIX]
        self.extend(token_ids)
        self.start = len(self._token_ids)

    def __len__(self) -> int:
        return len(self._token_ids)

    def __getitem__(self, position: int) -> int:
        return self._token_ids[position]

    @property
    def last(self) -> int:
        return self._token_ids[-1]

    @property
    def prefix(self) -> int:
        """Hash of the whole sequence."""
        return self._prefixes[-1]

    def since(self, position: int) -> tuple[int, ...]:
        """Return the tokens from an absolute position on."""
        return tuple(self._token_ids[position:])

    def append(self, token_id: int) -> None:
        self._token_ids.append(token_id)
        self._prefixes.append(extend_prefix(self._prefixes[-1], (token_id,)))

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self.append(token_id)

    def prefix_at(self, position: int) -> int:
        """Return the hash of the ids before an absolute position."""
        return self._prefixes[position]

    def prefix_with(self, token_ids: Iterable[int]) -> int:
        """Return the hash of the whole sequence followed by `token_ids`."""
        return extend_prefix(self.prefix, token_ids)

    def check(self, position: int, prefix: int, beyond: Sequence[int] = ()) -> None:
        """Raise PrefixMismatch unless `prefix` is the hash of all ids before `position`; `beyond`:
        tokens that follow this sequence."""
        if position <= len(self):
            computed = self._prefixes[position]
        else:
            computed = self.prefix_with(beyond[: position - len(self)])
        if computed != prefix:
            raise PrefixMismatch(position)
