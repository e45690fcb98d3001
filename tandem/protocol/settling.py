"""Committing one token after the other, with the drafts that were for its position.

Invariant: both queues begin at the first position that is not committed. Must not import asyncio,
grpc, torch or time.
"""

from __future__ import annotations

from tandem.core.aggregation import Side
from tandem.core.prefix import PrefixHash
from tandem.core.stopping import FinishReason
from tandem.protocol.aggregation_counting import AggregationCounting
from tandem.protocol.aggregation_drafts import OwnDrafts, PeerDrafts
from tandem.protocol.agreements import DraftPair
from tandem.protocol.committing import Committing
from tandem.protocol.outputs import Maker


class Settled:
    """Tokens committed in one go, from `base` on, and why the answer ended with them."""

    def __init__(self, base: int, prefix: PrefixHash) -> None:
        self.base = base
        self.prefix = prefix
        self.token_ids: list[int] = []
        self.makers: list[Maker] = []
        self.reason: FinishReason | None = None


class Settling:
    """The committed text of one side, and both sides' drafts after it."""

    def __init__(
        self, side: Side, committing: Committing, own: OwnDrafts, counting: AggregationCounting
    ) -> None:
        self.own = own
        self.peer = PeerDrafts(committing.tokens)
        self._side = side
        self._committing = committing
        self._counting = counting

    def begin(self) -> Settled:
        """Nothing is settled yet."""
        return Settled(len(self._committing.tokens), self._committing.tokens.prefix)

    def drafts(self) -> DraftPair:
        """For the first position that is not committed, as far as they are here."""
        pair = {self._side: self.own.first, self._side.other: self.peer.first}
        return DraftPair(pair[Side.DEVICE], pair[Side.CLOUD])

    def settle(self, token_id: int, maker: Maker | None, settled: Settled) -> None:
        """Commit one token; both queues go on behind it, or are void. `maker`: where known."""
        own, theirs = self.own.settle(token_id), self.peer.settle(token_id)
        for side, draft in ((self._side, own), (self._side.other, theirs)):
            if draft is not None:
                self._counting.judged(side, draft.token_id == token_id)
        _, settled.reason = self._committing.append((token_id,))
        settled.token_ids.append(token_id)
        if maker is not None:
            settled.makers.append(maker)

    def clear(self) -> None:
        self.own.clear()
        self.peer.clear()
