"""Frames to and from the other side: which drafts are sent, and with what; checks of what arrives.
A draft is sent once per stream, unless more of its distribution is fetched. Checks raise
InvalidArgument naming the field, ProtocolError or PrefixMismatch before any state changes."""

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.liveness import Phase
from tandem.two_sided.protocol.aggregation_rules import AggregationRule, OneSide, SingleAggregator
from tandem.two_sided.protocol.counters import AggregationCounters
from tandem.two_sided.protocol.draft_queues import CommitBatch, OwnDrafts, QueuedDraft
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    Fetch,
    SideDraftFrame,
    TargetFrame,
)
from tandem.two_sided.protocol.top_list import TopList


class DraftSender:
    """Belongs to one machine, over all its streams."""

    def __init__(
        self,
        request: AggregationRequest,
        own: OwnDrafts,
        committed: PrefixedTokens,
        counters: AggregationCounters,
        link: int = 0,
    ) -> None:
        self._link = link
        self._request, self._own, self._committed = request, own, committed
        self._counters = counters
        self._sent: set[tuple[int, int]] = set()
        self._fetched: tuple[int, int] | None = None
        self._owed: Fetch | None = None

    def begin_stream(self) -> None:
        """Nothing has been sent on this stream."""
        self._sent.clear()
        self._fetched = self._owed = None

    def due(self, rule: AggregationRule, now: float) -> list[SideDraftFrame]:
        """The drafts that the other side needs and has not been sent."""
        self._sent = {sent for sent in self._sent if sent[0] >= len(self._committed)}
        frames = []
        for draft in self._own:
            key = (draft.position, draft.prefix)
            if key not in self._sent and rule.sends_draft(draft.position):
                self._sent.add(key)
                frames.append(self._frame(draft, rule, self._request.preset.top, now))
        if (owed := self._owed) is not None and self._own.at(
            owed.base, owed.prefix_hash
        ) is not None:
            frames += self.fetched(owed, rule, now)
        return frames

    def fetched(self, fetch: Fetch, rule: AggregationRule, now: float) -> list[SideDraftFrame]:
        """More of the distribution of a draft that was sent, which is asked for once: of a decoder
        that begins again as soon as it has drawn the draft again, if it ever does. Raises
        InvalidArgument where no distributions are kept."""
        draft = self._own.at(fetch.base, fetch.prefix_hash)
        self._owed = fetch if draft is None else None
        if draft is None:
            return []
        if isinstance(draft.probs, TopList) or draft.probs is None:
            raise InvalidArgument("fetch", "no distribution was kept here")
        return [self._frame(draft, rule, min(fetch.count, len(draft.probs)), now)]

    def fetches(self, position: int, count: int) -> bool:
        """Whether a longer top list is to be fetched: once."""
        first = self._fetched != (position, count)
        self._fetched = (position, count)
        return first

    def _frame(
        self, draft: QueuedDraft, rule: AggregationRule, count: int, now: float
    ) -> SideDraftFrame:
        trips = self._counters.trips[self._link]
        return SideDraftFrame(
            self._request.session,
            draft.epoch,
            draft.position,
            draft.prefix,
            token_id=draft.token_id,
            probs=rule.token_rule.payload(draft, count),
            log_mass=draft.log_mass,
            committed=len(self._committed),
            decode_s=draft.decode_s,
            held_s=trips.held_s(now),
            heard=trips.heard,
        )


def target_frames(
    request: AggregationRequest,
    rule: AggregationRule,
    epoch: int,
    batch: CommitBatch,
    committed: PrefixedTokens,
    hands_over: bool,
) -> list[TargetFrame]:
    """What the side that decides tells of a batch: its tokens and whose they are, all of the answer
    at its end where that is the rule, the tokens alone where the device knows of other sides."""
    if not rule.sends_targets or not batch.token_ids:
        return []
    base, prefix, token_ids = batch.base, batch.prefix, tuple(batch.token_ids)
    token_sources = tuple(batch.token_sources) if rule.tells_sources else ()
    if rule.whole_answer:
        if batch.reason is None:
            return []
        base = len(request.prompt_ids) + len(request.committed_ids)
        prefix, token_ids = committed.prefix_at(base), committed.since(base)
        token_sources = token_sources[:1] * len(token_ids)  # one side's, all of them
    head = (request.session, epoch, base, prefix)
    return [TargetFrame(*head, token_ids, hands_over, token_sources)]


def check_committed(text: PrefixedTokens, base: int, prefix: int, committed: int) -> None:
    """What the sender has committed (its first `committed` tokens) must be the text here."""
    if base <= min(committed, len(text)):
        text.check(base, prefix)


def check_side_draft(
    frame: SideDraftFrame, rule: AggregationRule, length_limit: int, committed: int, ahead: int
) -> None:
    """A draft for a position of the answer, with what the rule needs of its distribution, of which
    no more are kept than a side may draft `ahead`; half of that is room for what is on its way."""
    if frame.base >= length_limit:
        raise InvalidArgument("base", f"{frame.base} lies beyond the answer")
    if frame.probs is not None and frame.base > committed + 2 * ahead:
        why = f"{frame.base} is more than {2 * ahead} after the committed text"
        raise InvalidArgument("base", why)
    if not rule.token_rule.accepts(frame.probs):
        raise InvalidArgument("probs", "is not what was agreed on")


def check_target(
    frame: TargetFrame, rule: AggregationRule | None, committed: PrefixedTokens, phase: Phase
) -> AggregationRule:
    """It comes from the deciding side, and goes on where the text here ends. Returns the rule."""
    if rule is None or (isinstance(rule, SingleAggregator) and rule.here):
        raise ProtocolError(phase, "TargetFrame", "this side decides")
    if not isinstance(rule, SingleAggregator) and not (
        isinstance(rule, OneSide) and rule.receives_drafts()
    ):
        raise ProtocolError(phase, "TargetFrame", "no side tells the other")
    if frame.base != len(committed):
        raise InvalidArgument("base", f"{frame.base} where {len(committed)} is due")
    committed.check(frame.base, frame.prefix_hash)
    return rule
