"""One forward pass of the target, as the cloud's machine asks for it.

Invariant: a frozen value. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.tree import depths
from tandem.protocol.early_verdicts import EarlyJudge


@dataclass(frozen=True, slots=True)
class VerifyWork:
    """A forward pass: roll the KV back to `keep`, feed `token_ids`, return the last `wanted` laws.

    The last `drafts` of the fed tokens are drafts; what precedes them is committed. `early`: who
    judges them with what the early exits say of the wanted rows; None where none is read. With
    `parents` they are nodes of a tree, as in `tandem.core.tree`. With `path` the KV holds a tree
    after its first `keep` tokens, of which these nodes are kept in place of a rollback.
    """

    keep: int
    token_ids: tuple[int, ...]
    wanted: int
    drafts: int
    early: EarlyJudge | None = None
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()

    @property
    def kept(self) -> int:
        """Tokens that the KV holds before any is fed."""
        return self.keep + len(self.path)

    @property
    def positions(self) -> list[int]:
        """The position that each wanted law speaks of."""
        count = len(self.token_ids)
        steps = range(count) if self.parents is None else depths(self.parents)
        return [self.kept + step + 1 for step in steps][count - self.wanted :]

    def contexts(self, before: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What each wanted law follows, where the KV holds the tokens `before`."""
        count, found = len(self.token_ids), list[tuple[int, ...]]()
        parents = range(-1, count - 1) if self.parents is None else self.parents
        for token_id, parent in zip(self.token_ids, parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else before), token_id))
        return found[count - self.wanted :]
