"""One side of an answer from documents on two sides (DRAGON §3, §4); the same machine at both ends.

It takes this side's drafts (`drafted`) and the other side's frames (`receive`), and commits tokens.

Invariants: a committed token is never retracted or repeated; only a draft of the committed text
counts; decisions follow from drafts, distributions and seed alone, so that a resumed request, or
one aggregated elsewhere, continues with the very same tokens. What arrives is checked before any
state changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens, PrefixHash, TokenSource
from tandem.specdec.events import Commit
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import Cancel, Frame, FrameHeader, GoingAway, Ping, Pong
from tandem.specdec.resumable import Resumable
from tandem.specdec.text import CommittedText
from tandem.two_sided.protocol.aggregation_rules import (
    AggregationRule,
    Drafts,
    NeedsTopList,
    OneSide,
    SingleAggregator,
    TokenRule,
    aggregation_rule_for,
)
from tandem.two_sided.protocol.counters import AggregationCounters, RoundTrips
from tandem.two_sided.protocol.draft_queues import DraftQueue
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    DecodingTarget,
    Fetch,
    PeerMessage,
    SideDraftFrame,
    SideOutputs,
    TargetFrame,
    ToDecoder,
    ToPeer,
    frame_header,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy, first_side
from tandem.two_sided.protocol.profiler import SideProfiler

NEVER = LivenessTimes(inf, inf, inf)
"""When a side that waits for none misses the other one."""


@dataclass(slots=True)
class CommitBatch:
    """Tokens committed in one go, from `base` on, and why the answer ended with them."""

    base: int
    prefix: PrefixHash
    token_ids: list[int] = field(default_factory=list)
    token_sources: list[TokenSource] = field(default_factory=list)
    reason: FinishReason | None = None


class SideMachine(Resumable[ToPeer | ToDecoder | Commit]):
    """One request at one side. Raises ProtocolError, InvalidArgument or PrefixMismatch when the
    other end breaks the conversation, and is then as it was before: the device may resume it with
    `lost` and `connect`, the cloud ends the stream."""

    def __init__(
        self,
        side: Side,
        request: AggregationRequest,
        *,
        log_mass: float | None = None,
        peer_log_mass: float | None = None,
        liveness: Liveness | None = None,
        placement_policy: PlacementPolicy | None = None,
        measurements: SideProfiler | None = None,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        rng: RandomSource | None = None,
    ) -> None:
        """Begin a request at one side.

        Args:
            log_mass: h of this side's documents; None until `opened`.
            liveness: when the device finds its cloud lost; the device's alone.
            completes_stop: called once with every committed token: whether a stop string ends with
                it."""
        phase = Phase.CONNECTING if side is Side.DEVICE else Phase.RUNNING
        super().__init__(liveness or Liveness(LostCloud.WAIT, NEVER, 0.0), phase)
        self.side = side
        self.request = request
        self._rng = rng if rng is not None else SeededRandom(request.seed)
        self._next_side = placement_policy or (
            lambda position, aggregating: first_side(request.preset.placement)
        )
        self._counters = AggregationCounters(measurements)
        self.stats = self._counters.stats
        self._text = CommittedText(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            eos_token_ids=request.eos_token_ids,
            ignore_eos=request.ignore_eos,
            completes_stop=completes_stop,
        )
        self.committed = self._text.tokens
        self.committed.extend(request.committed_ids)
        self._own = DraftQueue(self.committed)
        self._peers = DraftQueue(self.committed)
        self._sender = DraftSender(request, self._own, self.committed, self._counters)
        self._masses: dict[Side, float | None] = {side: log_mass, side.other: peer_log_mass}
        self.peer_opened: CollaborationOpened | None = None
        """What the cloud said of itself last, at the device."""
        self._fetched: tuple[int, int] | None = None
        """Of which position, and how many entries, a top list was asked for last."""
        self._rule: AggregationRule | None = None
        self._update_rule()

    @property
    def aggregation_side(self) -> Side | None:
        """The side that decides now, as far as is known here; None where no single side does."""
        rule = self._rule
        return rule.aggregation_side if isinstance(rule, SingleAggregator) else None

    # Connection

    def connect(self, now: float) -> SideOutputs:
        """Open the device's fresh stream to the cloud at the committed text."""
        if self._masses[self.side] is None:
            raise ProtocolError(self.phase, "connect", "this side's decoder has not opened yet")
        return super().connect(now)

    def _open_stream(self, now: float) -> SideOutputs:
        self.stats.streams += 1
        self._counters.trips = RoundTrips()
        self._sender.begin_stream()
        self._fetched = None
        log_mass = self._masses[self.side]
        assert log_mass is not None, "`connect` has checked it"
        self._masses[Side.CLOUD] = None
        self._update_rule()
        opening = self.request.opening(self.committed, log_mass)
        return [*self._to_peer(now, opening), *self._flush(now)]

    def _forget_stream(self) -> None:
        self._peers.clear()

    def _count_loss(self, silent_s: float) -> None:
        self.stats.links_lost += 1
        self.stats.loss_noticed_s = max(self.stats.loss_noticed_s, silent_s)

    def _ping(self, now: float) -> SideOutputs:
        nonce = self._liveness.ping_due(now)
        return [] if nonce is None else self._to_peer(now, Ping(**self._header(), nonce=nonce))

    def _go_on_alone(self, now: float) -> SideOutputs:
        self._rule = OneSide(Side.DEVICE, Side.DEVICE)
        return self._decide(now)

    def opened(
        self, log_mass: float, now: float, document_tokens: Sequence[int] = ()
    ) -> SideOutputs:
        """Take h of this side's documents and the tokens of each, which its decoder knows now. The
        cloud tells the device."""
        self._masses[self.side] = log_mass
        self._update_rule(self.aggregation_side)
        if self.side is Side.DEVICE:
            return []
        self._counters.trips.received(now)  # the opening, which made this machine
        frame = CollaborationOpened(
            **self._header(),
            log_mass=log_mass,
            max_tokens=self.request.max_tokens,
            documents=len(document_tokens),
            document_tokens=sum(document_tokens),
        )
        return [*self._to_peer(now, frame), *self._decide(now)]

    def decoder_restarted(self) -> None:
        """Begin again with a decoder that starts from the committed text."""
        self._own.clear()

    def stop(self) -> SideOutputs:
        """End the answer: a stop string is complete in the text that was committed."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.STOP)

    def going_away(self, now: float) -> SideOutputs:
        """Ask the device to go on elsewhere: the cloud is about to stop."""
        return self._to_peer(now, GoingAway(**self._header()))

    # Drafts and frames

    def drafted(self, draft: SideDraftFrame, now: float) -> SideOutputs:
        """Take the next draft of this side's decoder."""
        if self.phase is Phase.DONE:
            return []
        check_committed(self.committed, draft, ends_at=draft.committed)
        self._counters.decoded(self.side, draft.base, draft.decode_s)
        return self._decide(now) if self._own.append(draft) else []

    def sized(self, size_bytes: int) -> None:
        """Take the size of the next of the frames for the other side, in their order."""
        self._counters.trips.sized(size_bytes)

    def receive(self, message: PeerMessage, now: float, size_bytes: int = 0) -> SideOutputs:
        """Take one frame of the stream that is open now; `size_bytes` where it is known."""
        if self.phase is not Phase.RUNNING:
            return self._answer_when_done(message, now)
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        self._liveness.received(now)
        if isinstance(message, SideDraftFrame | TargetFrame):
            self._liveness.answered(now)
        self._counters.trips.received(now)
        match message:
            case SideDraftFrame():
                return self._receive_draft(message, now, size_bytes)
            case TargetFrame():
                return self._receive_target(message, now)
            case Fetch():
                return self._receive_fetch(message, now)
            case CollaborationOpened():
                return self._receive_opened(message, now)
            case Ping() | Pong():
                check_committed(self.committed, message, ends_at=message.base)
                return [] if isinstance(message, Pong) else self._pong(message, now)
            case GoingAway():
                return self._leave_stream()
            case Cancel() if self.side is Side.CLOUD:
                return self._finish(FinishReason.CANCELLED)
        raise ProtocolError(self.phase, type(message).__name__)

    def _answer_when_done(self, message: PeerMessage, now: float) -> SideOutputs:
        """Answer a message that comes after the end. The cloud may be done before the device, which
        may still need something from it."""
        if self.side is Side.DEVICE:
            return []
        if isinstance(message, Ping):
            return self._pong(message, now)
        return self._receive_fetch(message, now) if isinstance(message, Fetch) else []

    def _pong(self, ping: Ping, now: float) -> SideOutputs:
        return self._to_peer(now, Pong(**self._header(), nonce=ping.nonce))

    def _receive_opened(self, message: CollaborationOpened, now: float) -> SideOutputs:
        if self.side is Side.CLOUD or self._masses[Side.CLOUD] is not None:
            raise ProtocolError(self.phase, "CollaborationOpened")
        self.peer_opened = message
        self._masses[Side.CLOUD] = message.log_mass
        self._text.limit(message.max_tokens)
        self._update_rule(self.aggregation_side)
        return self._decide(now)

    def _receive_draft(self, frame: SideDraftFrame, now: float, size_bytes: int) -> SideOutputs:
        check_committed(self.committed, frame, ends_at=frame.committed)
        if self._rule is None or not self._rule.receives_drafts():
            return []  # sent before the other side knew that it would not count
        limit = self._text.length_limit
        if frame.base >= limit and self.side is Side.CLOUD:
            return []  # drafted before the device knew how little room there is here
        check_side_draft(
            frame,
            self._rule.token_rule,
            length_limit=limit,
            committed=len(self.committed),
            ahead=self.request.preset.ahead,
        )
        self._counters.decoded(self.side.other, frame.base, frame.decode_s)
        self._counters.answered(frame, self.side, size_bytes=size_bytes, now=now)
        self._own.forget_before(frame.committed)
        self._peers.add(frame)
        return self._decide(now)

    def _receive_target(self, frame: TargetFrame, now: float) -> SideOutputs:
        rule = check_target(frame, self._rule, self.committed, self.phase)
        batch = CommitBatch(len(self.committed), self.committed.prefix)
        token_sources = frame.token_sources or (None,) * len(frame.token_ids)
        for token_id, token_source in zip(frame.token_ids, token_sources, strict=True):
            if batch.reason is None:
                self._commit(token_id, token_source, batch)
        self._own.forget_before(len(self.committed))
        if frame.hands_over and isinstance(rule, SingleAggregator):
            rule.aggregation_side = self.side
        return [*self._committed_outputs(batch, now), *self._decide(now)]

    def _receive_fetch(self, frame: Fetch, now: float) -> SideOutputs:
        if self._rule is None:
            return []
        return self._to_peer(now, *self._sender.fetched(frame, self._rule, now))

    # Deciding

    def _decide(self, now: float) -> SideOutputs:
        """Send the drafts that are due, decide every token that can be decided."""
        if self._rule is None or self.phase is Phase.DONE:
            return []
        outputs: SideOutputs = []
        batch = CommitBatch(len(self.committed), self.committed.prefix)
        hands_over = False
        while batch.reason is None and not hands_over:
            # Before the decision: decided drafts are forgotten, and the other side may need them.
            outputs += self._flush(now)
            position = len(self.committed)
            drafts = self._first_drafts()
            decision = self._rule.decide(position, drafts)
            if isinstance(decision, NeedsTopList):
                outputs += self._fetch(position, decision.count, now)
                break
            if decision is None:
                break
            token_source = self._rule.token_source(position, decision, drafts)
            self._commit(decision, token_source, batch)
            hands_over = batch.reason is None and self._hands_over(position)
        targets = target_frames(
            self.request,
            self._rule,
            batch=batch,
            committed=self.committed,
            hands_over=hands_over,
        )
        outputs += self._to_peer(now, *targets)
        outputs += self._committed_outputs(batch, now)
        return outputs + self._flush(now) if hands_over else outputs

    def _first_drafts(self) -> Drafts:
        """Return the drafts for the first position that is not committed."""
        drafts = {self.side: self._own.first, self.side.other: self._peers.first}
        return {side: draft for side, draft in drafts.items() if draft is not None}

    def _commit(self, token_id: int, token_source: TokenSource | None, batch: CommitBatch) -> None:
        """Commit one token; `token_source`: where known."""
        for side, draft in self._first_drafts().items():
            self._counters.verified(side, draft.token_id == token_id)
        _, batch.reason = self._text.append((token_id,))
        self._peers.forget_before(len(self.committed))
        batch.token_ids.append(token_id)
        if token_source is not None:
            batch.token_sources.append(token_source)

    def _hands_over(self, position: int) -> bool:
        """Return whether the other side aggregates from here on."""
        rule = self._rule
        if not isinstance(rule, SingleAggregator) or not rule.here:
            return False
        if self._next_side(position, self.side) is self.side:
            return False
        rule.aggregation_side = self.side.other
        self.stats.side_moves += 1
        return True

    def _committed_outputs(self, batch: CommitBatch, now: float) -> SideOutputs:
        if not batch.token_ids:
            return []
        token_ids = tuple(batch.token_ids)
        unverified = self.phase is Phase.ALONE
        self.stats.tokens += len(token_ids)
        self.stats.unverified_tokens += len(token_ids) * unverified
        target = DecodingTarget(
            session=self.request.session,
            base=batch.base,
            prefix_hash=batch.prefix,
            token_ids=token_ids,
            last=batch.reason is not None,
        )
        alone = (TokenSource.EDGE,) * len(token_ids)
        token_sources = alone if unverified else tuple(batch.token_sources)
        finish = [] if batch.reason is None else self._finish(batch.reason)
        return [ToDecoder(target), Commit(token_ids, unverified, token_sources), *finish]

    def _close(self) -> SideOutputs:
        """Drop the drafts; `Cancel` has the cloud free the session at once."""
        outputs: SideOutputs = []
        if self.side is Side.DEVICE and self.phase is Phase.RUNNING:
            # Not counted as sent: nothing answers it, so that no round trip ends with it.
            outputs.append(ToPeer(Cancel(**self._header())))
        self._own.clear()
        self._peers.clear()
        return outputs

    # Sending

    def _flush(self, now: float) -> SideOutputs:
        if self._rule is None or self.phase is not Phase.RUNNING:
            return []
        return self._to_peer(now, *self._sender.due(self._rule, now))

    def _fetch(self, position: int, count: int, now: float) -> SideOutputs:
        """Ask once for a longer top list."""
        if self._fetched == (position, count):
            return []
        self._fetched = (position, count)
        self.stats.fetches += 1
        return self._to_peer(now, Fetch(**self._header(), count=count))

    def _to_peer(self, now: float, *messages: PeerMessage) -> SideOutputs:
        for _ in messages:
            self._counters.trips.sent(now)
        return [ToPeer(message) for message in messages]

    def _header(self) -> FrameHeader:
        return frame_header(self.request.session, self.committed)

    def _update_rule(self, aggregation_side: Side | None = None) -> None:
        self._rule = aggregation_rule_for(
            self.request,
            self.side,
            aggregation_side=aggregation_side,
            log_masses=self._masses,
            rng=self._rng,
            first=len(self.committed),
        )


class DraftSender:
    """Sends the drafts of one machine, over all its streams."""

    def __init__(
        self,
        request: AggregationRequest,
        drafts: DraftQueue,
        committed: PrefixedTokens,
        counters: AggregationCounters,
    ) -> None:
        self._request = request
        self._drafts = drafts
        self._committed = committed
        self._counters = counters
        self._sent: set[tuple[int, int]] = set()
        self._owed: Fetch | None = None

    def begin_stream(self) -> None:
        """Forget what was sent: nothing has been on this stream."""
        self._sent.clear()
        self._owed = None

    def due(self, rule: AggregationRule, now: float) -> list[SideDraftFrame]:
        """Return the drafts that the other side needs and has not been sent."""
        self._sent = {sent for sent in self._sent if sent[0] >= len(self._committed)}
        frames = []
        for draft in self._drafts:
            key = (draft.base, draft.prefix_hash)
            if key not in self._sent and rule.sends_draft(draft.base):
                self._sent.add(key)
                frames.append(self._frame(draft, rule, self._request.preset.top, now))
        if (owed := self._owed) is not None and self._drafts.at(
            owed.base, owed.prefix_hash
        ) is not None:
            frames += self.fetched(owed, rule, now)
        return frames

    def fetched(self, fetch: Fetch, rule: AggregationRule, now: float) -> list[SideDraftFrame]:
        """Return more of the distribution of a draft that was sent, which is asked for once: of a
        decoder that begins again as soon as it has drawn the draft again, if it ever does. Raises
        InvalidArgument where no distributions are kept."""
        draft = self._drafts.at(fetch.base, fetch.prefix_hash)
        self._owed = fetch if draft is None else None
        if draft is None:
            return []
        if not isinstance(draft.probs, np.ndarray):
            raise InvalidArgument("fetch", "no distribution was kept here")
        return [self._frame(draft, rule, min(fetch.count, len(draft.probs)), now)]

    def _frame(
        self, draft: SideDraftFrame, rule: AggregationRule, count: int, now: float
    ) -> SideDraftFrame:
        trips = self._counters.trips
        return replace(
            draft,
            session=self._request.session,
            probs=rule.token_rule.payload(draft, count),
            committed=len(self._committed),
            held_s=trips.held_s(now),
            heard=trips.heard,
        )


def target_frames(
    request: AggregationRequest,
    rule: AggregationRule,
    *,
    batch: CommitBatch,
    committed: PrefixedTokens,
    hands_over: bool,
) -> list[TargetFrame]:
    """Return what the side that decides tells of a batch: its tokens and whose they are, all of the
    answer at its end where that is the rule."""
    if not rule.sends_targets or not batch.token_ids:
        return []
    base = batch.base
    prefix = batch.prefix
    token_ids = tuple(batch.token_ids)
    token_sources = tuple(batch.token_sources)
    if rule.whole_answer:
        if batch.reason is None:
            return []
        base = len(request.prompt_ids) + len(request.committed_ids)
        prefix = committed.prefix_at(base)
        token_ids = committed.since(base)
        token_sources = token_sources[:1] * len(token_ids)  # one side's, all of them
    target = TargetFrame(
        session=request.session,
        base=base,
        prefix_hash=prefix,
        token_ids=token_ids,
        hands_over=hands_over,
        token_sources=token_sources,
    )
    return [target]


def check_committed(text: PrefixedTokens, frame: Frame, *, ends_at: int) -> None:
    """Raise PrefixMismatch unless what the sender has committed, which `ends_at` a position, is the
    text here."""
    if frame.base <= min(ends_at, len(text)):
        text.check(frame.base, frame.prefix_hash)


def check_side_draft(
    frame: SideDraftFrame, rule: TokenRule, *, length_limit: int, committed: int, ahead: int
) -> None:
    """Check a draft: it is for a position of the answer, with what the rule needs of its
    distribution, of which no more are kept than a side may draft `ahead`; half of that is room for
    what is on its way."""
    if frame.base >= length_limit:
        raise InvalidArgument("base", f"{frame.base} lies beyond the answer")
    if frame.probs is not None and frame.base > committed + 2 * ahead:
        why = f"{frame.base} is more than {2 * ahead} after the committed text"
        raise InvalidArgument("base", why)
    if not rule.accepts(frame.probs):
        raise InvalidArgument("probs", "is not what was agreed on")


def check_target(
    frame: TargetFrame, rule: AggregationRule | None, committed: PrefixedTokens, phase: Phase
) -> AggregationRule:
    """Check that a target comes from the deciding side, and goes on where the text here ends.
    Returns the rule."""
    if rule is None or (isinstance(rule, SingleAggregator) and rule.here):
        raise ProtocolError(phase, "TargetFrame", "this side decides")
    if not rule.receives_targets():
        raise ProtocolError(phase, "TargetFrame", "no side tells the other")
    if frame.hands_over and not isinstance(rule, SingleAggregator):
        raise InvalidArgument("hands_over", "the other side decides all of the answer")
    if frame.base != len(committed):
        raise InvalidArgument("base", f"{frame.base} where {len(committed)} is due")
    committed.check(frame.base, frame.prefix_hash)
    return rule
