"""One side of an answer from documents on two sides (DRAGON §3, §4); the same machine at both ends.
It takes this side's drafts (`drafted`) and the other side's frames (`receive`), and commits tokens.

Invariants: a committed token is never retracted or repeated; only a draft of the committed text
counts; decisions follow from drafts, distributions and seed alone, so that a resumed request, or
one aggregated elsewhere, continues with the very same tokens.
"""

from collections.abc import Callable

from tandem.core.errors import ProtocolError
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.stopping import FinishReason
from tandem.specdec.cloud_frame_checks import check_processes
from tandem.specdec.committed_text import CommittedText
from tandem.specdec.events import Commit, Finish, Reconnect, TokenSource
from tandem.specdec.liveness import Liveness, LostCloud, Phase
from tandem.specdec.messages import Cancel, GoingAway, Ping, Pong
from tandem.two_sided.protocol.aggregation_rules import (
    AggregationRule,
    NeedsTopList,
    OneSide,
    SingleAggregator,
    aggregation_rule_for,
)
from tandem.two_sided.protocol.counters import AggregationCounters, MeasurementSink
from tandem.two_sided.protocol.decoder_messages import DecodingDraft, DecodingTarget
from tandem.two_sided.protocol.draft_queues import (
    CommitBatch,
    SideDrafts,
    decoded_draft,
    peer_draft,
)
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    Fetch,
    PeerMessage,
    SideDraftFrame,
    SideOutput,
    TargetFrame,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.peer_frames import (
    DraftSender,
    check_committed,
    check_side_draft,
    check_target,
)
from tandem.two_sided.protocol.placement import FixedPlacement, PlacementPolicy, first_side


class SideMachine:
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
        measurements: MeasurementSink | None = None,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        rng: RandomSource | None = None,
    ) -> None:
        """`log_mass`: h of this side's documents, None until `opened`. `liveness` is the device's,
        which finds its cloud lost. `completes_stop` is told every committed token once."""
        self.side, self.request = side, request
        self.phase = Phase.CONNECTING if side is Side.DEVICE else Phase.RUNNING
        self.finish_reason: FinishReason | None = None
        self._rng = rng if rng is not None else SeededRandom(request.seed)
        self._liveness = liveness
        self._placement_policy = placement_policy or FixedPlacement(
            first_side(request.preset.placement)
        )
        self._counters = AggregationCounters(measurements)
        self.stats = self._counters.stats
        self._text = CommittedText(request, completes_stop)
        self.committed = self._text.tokens
        self.committed.extend(request.committed_ids)
        self._drafts = SideDrafts(side, self._text, self._counters)
        self._sender = DraftSender(request, self._drafts.own, self.committed, self._counters)
        self._epoch = 0
        self._epoch_offset = 0
        self._decoder_epoch = 0
        self._masses: dict[Side, float | None] = {side: log_mass, side.other: peer_log_mass}
        self._rule: AggregationRule | None = None
        self._update_rule()

    @property
    def aggregation_side(self) -> Side | None:
        """The side that decides now, as far as is known here; None where no single side does."""
        rule = self._rule
        return rule.aggregation_side if isinstance(rule, SingleAggregator) else None

    @property
    def queued(self) -> tuple[int, int]:
        """How many drafts wait: own, the other side's."""
        return len(self._drafts.own), len(self._drafts.peer)

    # Connection

    def connect(self, now: float) -> list[SideOutput]:
        """The device has a fresh stream: open it at the committed text."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        own = self._masses[self.side]
        if own is None:
            raise ProtocolError(self.phase, "connect", "this side's decoder has not opened yet")
        self.phase = Phase.RUNNING
        self._counters.begin_stream()
        self._sender.begin_stream()
        self._masses[Side.CLOUD] = None
        self._update_rule()
        if self._liveness is not None:
            self._liveness.connected(now)
        opening = self.request.opening(self._epoch, self.committed, own)
        return [*self._to_peer(now, opening), *self._flush(now)]

    def opened(self, log_mass: float, now: float) -> list[SideOutput]:
        """This side's decoder knows the h of its documents. The cloud tells the device."""
        self._masses[self.side] = log_mass
        self._update_rule(self.aggregation_side)
        if self.side is Side.DEVICE:
            return []
        self._counters.trips.received(now)  # the opening, which made this machine
        limit = self.request.max_tokens
        frame = CollaborationOpened(*self._head(), log_mass, limit, processes=True)
        return [*self._to_peer(now, frame), *self._decide(now)]

    def decoder_restarted(self) -> None:
        """This side's decoder begins again from the committed text and epoch 0."""
        self._drafts.own.clear()
        self._epoch_offset = self._epoch + 1
        self._decoder_epoch = 0

    def lost(self, now: float, stuck_s: float = 0.0) -> list[SideOutput]:
        """The device's stream broke or was found dead; `stuck_s`: see `Liveness.lost`."""
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.CONNECTING
        self._drafts.peer.clear()
        liveness = self._liveness
        self._counters.lost_stream(0.0 if liveness is None else liveness.lost(now, stuck_s))
        return [Reconnect(), *self._give_up_if_due(now)]

    def tick(self, now: float) -> list[SideOutput]:
        """Time passed: ping a silent cloud, notice a dead one, give up a lost one."""
        if self._liveness is None:
            return []
        self._liveness.tick(now)
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        if self._liveness.is_dead(now) or self._liveness.is_given_up(now):
            return self.lost(now)
        nonce = self._liveness.ping_due(now)
        return [] if nonce is None else self._to_peer(now, Ping(*self._head(), nonce=nonce))

    def _give_up_if_due(self, now: float) -> list[SideOutput]:
        if self._liveness is None or not self._liveness.is_given_up(now):
            return []
        if self._liveness.policy is not LostCloud.EDGE:
            return self._finish(FinishReason.ERROR, now)
        self.phase = Phase.ALONE
        self._rule = OneSide(Side.DEVICE, Side.DEVICE)
        return self._decide(now)

    def stop(self, now: float) -> list[SideOutput]:
        """A stop string is complete in the text that was committed."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.STOP, now)

    def cancel(self, now: float) -> list[SideOutput]:
        """The caller left."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.CANCELLED, now)

    def going_away(self, grace_s: float, now: float) -> list[SideOutput]:
        """The cloud is about to stop."""
        return self._to_peer(now, GoingAway(*self._head(), grace_s=grace_s))

    # Drafts and frames

    def drafted(self, draft: DecodingDraft, now: float) -> list[SideOutput]:
        """This side's decoder drew its next draft."""
        if self.phase is Phase.DONE:
            return []
        check_committed(self.committed, draft.base, draft.prefix, draft.committed)
        self._decoder_epoch = max(self._decoder_epoch, draft.epoch)
        self._epoch = max(self._epoch, self._epoch_offset + draft.epoch)
        self._counters.decoded(self.side, draft.base, draft.cost.decode_s)
        if not self._drafts.own.add(decoded_draft(draft, self._epoch_offset)):
            self.stats.stale_drafts += 1
            return []
        return self._decide(now)

    def sized(self, size_bytes: int) -> None:
        """How many bytes the next of the frames for the other side took, in their order."""
        self._counters.trips.sized(size_bytes)

    def receive(self, message: PeerMessage, now: float, size_bytes: int = 0) -> list[SideOutput]:
        """Take one frame of the stream that is open now; `size_bytes` where it is known."""
        if self.phase is not Phase.RUNNING:
            return self._answer_when_done(message, now)
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        if self._liveness is not None:
            self._liveness.received(now)
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
                check_committed(self.committed, message.base, message.prefix, message.base)
                return [] if isinstance(message, Pong) else self._pong(message, now)
            case GoingAway():
                self.phase = Phase.CONNECTING
                self._drafts.peer.clear()
                return [Reconnect()]
            case Cancel() if self.side is Side.CLOUD:
                return self._finish(FinishReason.CANCELLED, now)
        raise ProtocolError(self.phase, type(message).__name__)

    def _answer_when_done(self, message: PeerMessage, now: float) -> list[SideOutput]:
        """The cloud may be done before the device, which may still need something of it."""
        if self.side is Side.DEVICE:
            return []
        if isinstance(message, Ping):
            return self._pong(message, now)
        return self._receive_fetch(message, now) if isinstance(message, Fetch) else []

    def _pong(self, ping: Ping, now: float) -> list[SideOutput]:
        return self._to_peer(now, Pong(*self._head(), nonce=ping.nonce))

    def _receive_opened(self, message: CollaborationOpened, now: float) -> list[SideOutput]:
        if self.side is Side.CLOUD or self._masses[Side.CLOUD] is not None:
            raise ProtocolError(self.phase, "CollaborationOpened")
        check_processes(message.processes, self.request.sampling, self.request.processors)
        self._masses[Side.CLOUD] = message.log_mass
        self._text.limit(message.max_tokens)
        self._update_rule(self.aggregation_side)
        return self._decide(now)

    def _receive_draft(
        self, frame: SideDraftFrame, now: float, size_bytes: int
    ) -> list[SideOutput]:
        check_committed(self.committed, frame.base, frame.prefix, frame.committed)
        if self._rule is None or not self._rule.receives_drafts():
            return []  # sent before the other side knew that it would not count
        limit, ahead = self._text.length_limit, self.request.preset.ahead
        if self.side is Side.CLOUD and frame.base >= limit:
            return []  # drafted where the device may answer more than this side has room for
        check_side_draft(frame, self._rule, limit, len(self.committed), ahead)
        self._counters.decoded(self.side.other, frame.base, frame.decode_s)
        self._counters.answered(frame, self.side, size_bytes, now)
        self._drafts.own.forget_before(frame.committed)
        self._drafts.peer.add(peer_draft(frame))
        return self._decide(now)

    def _receive_target(self, frame: TargetFrame, now: float) -> list[SideOutput]:
        rule = check_target(frame, self._rule, self.committed, self.phase)
        batch = self._drafts.begin()
        token_sources = frame.token_sources or (None,) * len(frame.token_ids)
        for token_id, token_source in zip(frame.token_ids, token_sources, strict=True):
            if batch.reason is None:
                self._drafts.commit(token_id, token_source, batch)
        if isinstance(rule, SingleAggregator):
            self._drafts.own.forget_before(len(self.committed))
            if frame.hands_over:
                rule.aggregation_side = self.side
        return [*self._committed_outputs(batch, now), *self._decide(now)]

    def _receive_fetch(self, frame: Fetch, now: float) -> list[SideOutput]:
        if self._rule is None:
            return []
        return self._to_peer(now, *self._sender.fetched(frame, self._rule, now))

    # Deciding

    def _decide(self, now: float) -> list[SideOutput]:
        """Send the drafts that are due, decide every token that can be decided."""
        if self._rule is None or self.phase is Phase.DONE:
            return []
        outputs: list[SideOutput] = []
        batch = self._drafts.begin()
        hands_over = False
        while batch.reason is None and not hands_over:
            # Before the decision: decided drafts are forgotten, and the other side may need them.
            outputs += self._flush(now)
            position = len(self.committed)
            drafts = self._drafts.first()
            decision = self._rule.decide(position, drafts)
            if isinstance(decision, NeedsTopList):
                outputs += self._fetch(position, decision.count, now)
                break
            if decision is None:
                break
            token_source = self._rule.token_source(position, decision, drafts)
            self._drafts.commit(decision, token_source, batch)
            hands_over = batch.reason is None and self._hands_over(position)
        outputs += self._target_frames(batch, hands_over, now)
        outputs += self._committed_outputs(batch, now)
        return outputs + self._flush(now) if hands_over else outputs

    def _hands_over(self, position: int) -> bool:
        """Whether the other side aggregates from here on."""
        rule = self._rule
        if not isinstance(rule, SingleAggregator) or not rule.here:
            return False
        if self._placement_policy.next_side(position, self.side) is self.side:
            return False
        rule.aggregation_side = self.side.other
        self.stats.side_moves += 1
        return True

    def _target_frames(self, batch: CommitBatch, hands_over: bool, now: float) -> list[SideOutput]:
        rule = self._rule
        if rule is None or not rule.sends_targets or not batch.token_ids:
            return []
        base, prefix, token_ids = batch.base, batch.prefix, tuple(batch.token_ids)
        token_sources = tuple(batch.token_sources)
        if rule.whole_answer:
            if batch.reason is None:
                return []
            base = len(self.request.prompt_ids) + len(self.request.committed_ids)
            prefix, token_ids = self.committed.prefix_at(base), self.committed.since(base)
            token_sources = token_sources[:1] * len(token_ids)  # one side's, all of them
        head = (self.request.session, self._epoch, base, prefix)
        return self._to_peer(now, TargetFrame(*head, token_ids, hands_over, token_sources))

    def _committed_outputs(self, batch: CommitBatch, now: float) -> list[SideOutput]:
        if not batch.token_ids:
            return []
        token_ids = tuple(batch.token_ids)
        unverified = self.phase is Phase.ALONE
        self._counters.committed(len(token_ids), unverified)
        head = (self.request.session, self._decoder_epoch, batch.base, batch.prefix)
        target = DecodingTarget(*head, token_ids=token_ids, last=batch.reason is not None)
        token_sources = (TokenSource.EDGE,) * len(token_ids)
        if not unverified:
            token_sources = tuple(batch.token_sources)
        finish = [] if batch.reason is None else self._finish(batch.reason, now)
        return [ToDecoder(target), Commit(token_ids, unverified, token_sources), *finish]

    def _finish(self, reason: FinishReason, now: float) -> list[SideOutput]:
        """End the request, at the cloud too, which then frees the session at once."""
        cancels = self.side is Side.DEVICE and self.phase is Phase.RUNNING
        outputs = self._to_peer(now, Cancel(*self._head())) if cancels else []
        self.phase = Phase.DONE
        self.finish_reason = reason
        self._drafts.clear()
        return [*outputs, Finish(reason)]

    # Sending

    def _flush(self, now: float) -> list[SideOutput]:
        if self._rule is None or self.phase is not Phase.RUNNING:
            return []
        return self._to_peer(now, *self._sender.due(self._rule, now))

    def _fetch(self, position: int, count: int, now: float) -> list[SideOutput]:
        """Ask once for a longer top list."""
        if not self._sender.fetches(position, count):
            return []
        self.stats.fetches += 1
        return self._to_peer(now, Fetch(*self._head(), count=count))

    def _to_peer(self, now: float, *messages: PeerMessage) -> list[SideOutput]:
        for _ in messages:
            self._counters.trips.sent(now)
        return list(map(ToPeer, messages))

    def _head(self) -> tuple[int, int, int, int]:
        return self.request.session, self._epoch, len(self.committed), self.committed.prefix

    def _update_rule(self, aggregation_side: Side | None = None) -> None:
        self._rule = aggregation_rule_for(
            self.request, self.side, aggregation_side, self._masses, self._rng, len(self.committed)
        )
