"""Committed tokens with the rolling hash of every prefix, so that two ends can compare their texts.

Invariant: tokens are only appended. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.core.errors import TandemError
from tandem.core.prefix import EMPTY_PREFIX, extend_prefix


class PrefixMismatch(TandemError):
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
        """The tokens from an absolute position on."""
        return tuple(self._token_ids[position:])

    def append(self, token_id: int) -> None:
        self._token_ids.append(token_id)
        self._prefixes.append(extend_prefix(self._prefixes[-1], (token_id,)))

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self.append(token_id)

    def prefix_at(self, position: int) -> int:
        """Hash of the ids before an absolute position."""
        return self._prefixes[position]

    def prefix_with(self, token_ids: Iterable[int]) -> int:
        """Hash of the whole sequence followed by `token_ids`."""
        return extend_prefix(self.prefix, token_ids)

    def check(self, position: int, prefix: int, beyond: Sequence[int] = ()) -> None:
        """Raise PrefixMismatch unless `prefix` is the hash of all ids before `position`; `beyond`:
        tokens that follow this sequence."""
        if position <= len(self):
            own = self._prefixes[position]
        else:
            own = self.prefix_with(beyond[: position - len(self)])
        if own != prefix:
            raise PrefixMismatch(position)
