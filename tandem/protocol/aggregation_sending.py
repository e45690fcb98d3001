"""Which of this side's drafts travel, and with what.

Invariant: a draft is sent once per stream, unless more of its law is asked for. Must not import
asyncio, grpc, torch or time.
"""

from __future__ import annotations

from tandem.core.errors import InvalidArgument
from tandem.core.top_list import TopList
from tandem.protocol.aggregation_drafts import OwnDrafts, QueuedDraft
from tandem.protocol.aggregation_messages import Fetch, SideDraftFrame
from tandem.protocol.aggregation_outputs import AggregationRequest
from tandem.protocol.agreements import Agreement
from tandem.protocol.prefixes import PrefixedTokens
from tandem.protocol.round_trips import RoundTrips


class DraftSending:
    """The drafts' way out."""

    def __init__(
        self, request: AggregationRequest, own: OwnDrafts, committed: PrefixedTokens
    ) -> None:
        self._request = request
        self._own = own
        self._committed = committed
        self._sent: set[tuple[int, int]] = set()
        self._asked: tuple[int, int] | None = None

    def begin_stream(self) -> None:
        """Nothing has been sent on this stream."""
        self._sent.clear()
        self._asked = None

    def due(self, agreement: Agreement, trips: RoundTrips, now: float) -> list[SideDraftFrame]:
        """The drafts that must travel and have not yet."""
        self._sent = {sent for sent in self._sent if sent[0] >= len(self._committed)}
        frames = []
        for draft in self._own:
            key = (draft.position, draft.prefix)
            if key not in self._sent and agreement.sends(draft.position):
                self._sent.add(key)
                frames.append(self._frame(draft, agreement, self._request.preset.top, trips, now))
        return frames

    def fetched(
        self, fetch: Fetch, agreement: Agreement, trips: RoundTrips, now: float
    ) -> list[SideDraftFrame]:
        """More of the law of a draft that was sent; nothing if it was drawn again meanwhile: the
        new one is on its way. Raises InvalidArgument where no laws are kept."""
        draft = self._own.at(fetch.base, fetch.prefix)
        if draft is None:
            return []
        if isinstance(draft.law, TopList) or draft.law is None:
            raise InvalidArgument("fetch", "no law was kept here")
        count = min(fetch.count, len(draft.law))
        return [self._frame(draft, agreement, count, trips, now)]

    def asks(self, position: int, count: int) -> bool:
        """Whether that is to be asked for: once."""
        first = self._asked != (position, count)
        self._asked = (position, count)
        return first

    def _frame(
        self, draft: QueuedDraft, agreement: Agreement, count: int, trips: RoundTrips, now: float
    ) -> SideDraftFrame:
        return SideDraftFrame(
            self._request.session,
            draft.epoch,
            draft.position,
            draft.prefix,
            token_id=draft.token_id,
            law=agreement.rule.payload(draft, count),
            log_mass=draft.log_mass,
            settled=len(self._committed),
            decode_s=draft.decode_s,
            held_s=trips.held_s(now),
            heard=trips.heard,
        )
