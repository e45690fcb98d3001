"""One side of an answer from documents on two sides (DRAGON §3, §4); the same machine at both ends.

It takes this side's drafts (`drafted`) and the other side's frames (`receive`); who decides a token
is `agreements`'. What it decides or is told it commits, tells its decoder, and at the device its
caller. Invariants: a committed token is never retracted or repeated; only a draft of the committed
text counts; what is decided follows from drafts, laws and seed alone, so that a request resumed
from its committed text, or aggregated elsewhere, goes on with the very same tokens. Must not import
asyncio, grpc, torch or time; never logs, never reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.core.aggregation import Side
from tandem.core.chance import Chance, SeededChance
from tandem.core.errors import ProtocolError
from tandem.core.stopping import FinishReason
from tandem.policy.placement import AlwaysAt, Placing, first_side
from tandem.protocol.aggregation_counting import AggregationCounting, Measuring
from tandem.protocol.aggregation_drafts import OwnDrafts, decoded_draft, sent_draft
from tandem.protocol.aggregation_intake import check_settled, check_side_draft, check_target
from tandem.protocol.aggregation_messages import (
    CollaborationOpened,
    Fetch,
    PeerMessage,
    SideDraftFrame,
    TargetFrame,
)
from tandem.protocol.aggregation_outputs import (
    AggregationRequest,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.protocol.aggregation_sending import DraftSending
from tandem.protocol.agreements import (
    Agreement,
    AtAggregator,
    OneSide,
    Wanted,
    agreement_for,
)
from tandem.protocol.committing import Committing
from tandem.protocol.decoding_messages import DecodingDraft, DecodingTarget
from tandem.protocol.liveness import Liveness, LostCloud
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.protocol.outputs import Commit, Finish, Maker, Reconnect
from tandem.protocol.phase import Phase
from tandem.protocol.settling import Settled, Settling


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
        placing: Placing | None = None,
        measuring: Measuring | None = None,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        chance: Chance | None = None,
    ) -> None:
        """`log_mass`: h of this side's documents, None until `opened`. `liveness` is the device's,
        which finds its cloud lost. `completes_stop` is told every committed token once."""
        self.side = side
        self.request = request
        self.phase = Phase.CONNECTING if side is Side.DEVICE else Phase.RUNNING
        self.finish_reason: FinishReason | None = None
        self._chance = chance if chance is not None else SeededChance(request.seed)
        self._liveness = liveness
        self._placing = placing or AlwaysAt(first_side(request.preset.placement))
        self._counting = AggregationCounting(measuring)
        self.stats = self._counting.stats
        self._committing = Committing(request, completes_stop)
        self.committed = self._committing.tokens
        self.committed.extend(request.committed_ids)
        self._own = OwnDrafts(self.committed)
        self._settling = Settling(side, self._committing, self._own, self._counting)
        self._peer = self._settling.peer
        self._sending = DraftSending(request, self._own, self.committed)
        self._epoch = 0
        self._epoch_offset = 0
        self._decoder_epoch = 0
        self._masses: dict[Side, float | None] = {side: log_mass, side.other: peer_log_mass}
        self._agreement: Agreement | None = None
        self._agree(first_side(request.preset.placement))

    @property
    def aggregating(self) -> Side | None:
        """The side that decides now, as this one knows; None where no single side does."""
        agreement = self._agreement
        return agreement.aggregating if isinstance(agreement, AtAggregator) else None

    @property
    def queued(self) -> tuple[int, int]:
        """How many drafts wait: own, the other side's."""
        return len(self._own), len(self._peer)

    # Connection

    def connect(self, now: float) -> list[SideOutput]:
        """The device has a fresh stream: open it at the committed text."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        own = self._masses[self.side]
        if own is None:
            raise ProtocolError(self.phase, "connect", "this side's decoder has not opened yet")
        self.phase = Phase.RUNNING
        self._counting.begin_stream()
        self._sending.begin_stream()
        self._masses[Side.CLOUD] = None
        self._agree(first_side(self.request.preset.placement))
        if self._liveness is not None:
            self._liveness.connected(now)
        opening = self.request.opening(self._epoch, self.committed, own)
        return [*self._to_peer(opening, now), *self._flush(now)]

    def opened(self, log_mass: float, now: float) -> list[SideOutput]:
        """This side's decoder knows the h of its documents. The cloud tells the device."""
        self._masses[self.side] = log_mass
        self._agree(self.aggregating)
        if self.side is Side.DEVICE:
            return []
        self._counting.trips.received(now)  # the opening, which made this machine
        frame = CollaborationOpened(
            *self._head(), log_mass=log_mass, max_tokens=self.request.max_tokens
        )
        return [*self._to_peer(frame, now), *self._move(now)]

    def limit(self, max_tokens: int) -> None:
        """The answer has no more room than this."""
        self._committing.limit(max_tokens)

    def decoder_restarted(self) -> None:
        """This side's decoder begins again from the committed text, and counts epochs anew."""
        self._own.clear()
        self._epoch_offset = self._epoch + 1
        self._decoder_epoch = 0

    def lost(self, now: float) -> list[SideOutput]:
        """The device's stream broke or was found dead."""
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.CONNECTING
        self._peer.clear()
        self._counting.lost_stream(0.0 if self._liveness is None else self._liveness.lost(now))
        return [Reconnect(), *self._give_up_if_due(now)]

    def tick(self, now: float) -> list[SideOutput]:
        """Time passed: ping a silent cloud, notice a dead one, give up a lost one."""
        if self._liveness is None:
            return []
        self._liveness.look(now)
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        if self._liveness.is_dead(now) or self._liveness.is_given_up(now):
            return self.lost(now)
        nonce = self._liveness.ping_due(now)
        return [] if nonce is None else self._to_peer(Ping(*self._head(), nonce=nonce), now)

    def _give_up_if_due(self, now: float) -> list[SideOutput]:
        if self._liveness is None or not self._liveness.is_given_up(now):
            return []
        if self._liveness.policy is not LostCloud.EDGE:
            return self._finish(FinishReason.ERROR, now)
        self.phase = Phase.ALONE
        self._agreement = OneSide(Side.DEVICE, Side.DEVICE)
        return self._move(now)

    def stop(self, now: float) -> list[SideOutput]:
        """A stop string is complete in the text that was committed."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.STOP, now)

    def cancel(self, now: float) -> list[SideOutput]:
        """The caller left."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.CANCELLED, now)

    def going_away(self, grace_s: float, now: float) -> list[SideOutput]:
        """The cloud is about to stop."""
        return self._to_peer(GoingAway(*self._head(), grace_s=grace_s), now)

    # Drafts and frames

    def drafted(self, draft: DecodingDraft, now: float) -> list[SideOutput]:
        """This side's decoder drew its next draft."""
        if self.phase is Phase.DONE:
            return []
        check_settled(self.committed, draft.base, draft.prefix, draft.settled)
        self._decoder_epoch = max(self._decoder_epoch, draft.epoch)
        self._epoch = max(self._epoch, self._epoch_offset + draft.epoch)
        self._counting.decoded(self.side, draft.base, draft.cost.decode_s)
        if not self._own.add(decoded_draft(draft, self._epoch_offset)):
            self.stats.stale_drafts += 1
            return []
        return self._move(now)

    def sized(self, size_bytes: int) -> None:
        """How many bytes the next of the frames for the other side took, in their order."""
        self._counting.trips.sized(size_bytes)

    def receive(self, message: PeerMessage, now: float, size_bytes: int = 0) -> list[SideOutput]:
        """Take one frame of the stream that is open now; `size_bytes` where it is known."""
        if self.phase is not Phase.RUNNING:
            return self._answer_after_the_end(message, now)
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        if self._liveness is not None:
            self._liveness.heard(now)
        self._counting.trips.received(now)
        match message:
            case SideDraftFrame():
                return self._receive_draft(message, now, size_bytes)
            case TargetFrame():
                return self._receive_target(message, now)
            case Fetch():
                return self._receive_fetch(message, now)
            case CollaborationOpened():
                return self._receive_opened(message, now)
            case Ping():
                check_settled(self.committed, message.base, message.prefix, message.base)
                return self._to_peer(Pong(*self._head(), nonce=message.nonce), now)
            case Pong():
                check_settled(self.committed, message.base, message.prefix, message.base)
                return []
            case GoingAway():
                self.phase = Phase.CONNECTING
                self._peer.clear()
                return [Reconnect()]
            case Cancel() if self.side is Side.CLOUD:
                return self._finish(FinishReason.CANCELLED, now)
        raise ProtocolError(self.phase, type(message).__name__)

    def _answer_after_the_end(self, message: PeerMessage, now: float) -> list[SideOutput]:
        """The cloud may be done before the device is, which may still need something of it."""
        if self.side is Side.DEVICE:
            return []
        match message:
            case Ping():
                return self._to_peer(Pong(*self._head(), nonce=message.nonce), now)
            case Fetch():
                return self._receive_fetch(message, now)
        return []

    def _receive_opened(self, message: CollaborationOpened, now: float) -> list[SideOutput]:
        if self.side is Side.CLOUD or self._masses[Side.CLOUD] is not None:
            raise ProtocolError(self.phase, "CollaborationOpened")
        self._masses[Side.CLOUD] = message.log_mass
        self.limit(message.max_tokens)
        self._agree(self.aggregating)
        return self._move(now)

    def _receive_draft(
        self, frame: SideDraftFrame, now: float, size_bytes: int
    ) -> list[SideOutput]:
        check_settled(self.committed, frame.base, frame.prefix, frame.settled)
        if self._agreement is None or not self._agreement.hears():
            return []  # sent before the other side knew that it would not count
        check_side_draft(frame, self._agreement, self._committing.length_limit)
        self._counting.decoded(self.side.other, frame.base, frame.decode_s)
        self._counting.answered(frame, self.side, size_bytes, now)
        self._own.forget_before(frame.settled)
        self._peer.add(sent_draft(frame))
        return self._move(now)

    def _receive_target(self, frame: TargetFrame, now: float) -> list[SideOutput]:
        agreement = check_target(frame, self._agreement, self.committed, self.phase)
        settled = self._settling.begin()
        makers = frame.makers or (None,) * len(frame.token_ids)
        for token_id, maker in zip(frame.token_ids, makers, strict=True):
            if settled.reason is None:
                self._settling.settle(token_id, maker, settled)
        if isinstance(agreement, AtAggregator) and frame.hands_over:
            agreement.aggregating = self.side
        return [*self._announce(settled, now), *self._move(now)]

    def _receive_fetch(self, frame: Fetch, now: float) -> list[SideOutput]:
        if self._agreement is None:
            return []
        frames = self._sending.fetched(frame, self._agreement, self._counting.trips, now)
        return [output for each in frames for output in self._to_peer(each, now)]

    # Deciding

    def _move(self, now: float) -> list[SideOutput]:
        """Send what is due, decide what can be decided."""
        if self._agreement is None or self.phase is Phase.DONE:
            return []
        outputs: list[SideOutput] = []
        settled = self._settling.begin()
        hands_over = False
        while settled.reason is None and not hands_over:
            # Before it is decided: what counts here must travel, and what is decided is forgotten.
            outputs += self._flush(now)
            position = len(self.committed)
            drafts = self._settling.drafts()
            decision = self._agreement.decide(position, drafts)
            if isinstance(decision, Wanted):
                outputs += self._fetch(position, decision.count, now)
                break
            if decision is None:
                break
            maker = self._agreement.maker(position, decision, drafts)
            self._settling.settle(decision, maker, settled)
            hands_over = settled.reason is None and self._moves(position)
        outputs += self._tell(settled, hands_over, now)
        outputs += self._announce(settled, now)
        return [*outputs, *self._flush(now)] if hands_over else outputs

    def _moves(self, position: int) -> bool:
        """Whether the other side aggregates from here on."""
        agreement = self._agreement
        if not isinstance(agreement, AtAggregator) or not agreement.here:
            return False
        if self._placing.next_side(position, self.side) is self.side:
            return False
        agreement.aggregating = self.side.other
        self.stats.side_moves += 1
        return True

    def _tell(self, settled: Settled, hands_over: bool, now: float) -> list[SideOutput]:
        """The other side's target frame, where it must be told."""
        agreement = self._agreement
        if agreement is None or not agreement.tells or not settled.token_ids:
            return []
        base, prefix, token_ids = settled.base, settled.prefix, tuple(settled.token_ids)
        makers = tuple(settled.makers)
        if agreement.whole:
            if settled.reason is None:
                return []
            base = len(self.request.prompt_ids) + len(self.request.committed_ids)
            prefix, token_ids = self.committed.prefix_at(base), self.committed.since(base)
            makers = makers[:1] * len(token_ids)  # one side's, all of them
        head = (self.request.session, self._epoch, base, prefix)
        return self._to_peer(TargetFrame(*head, token_ids, hands_over, makers), now)

    def _announce(self, settled: Settled, now: float) -> list[SideOutput]:
        """Committed tokens: to the decoder of this side, and to whoever asked for the answer."""
        if not settled.token_ids:
            return []
        token_ids = tuple(settled.token_ids)
        unverified = self.phase is Phase.ALONE
        self._counting.committed(len(token_ids), unverified)
        head = (self.request.session, self._decoder_epoch, settled.base, settled.prefix)
        target = DecodingTarget(*head, token_ids=token_ids, last=settled.reason is not None)
        makers = (Maker.EDGE,) * len(token_ids) if unverified else tuple(settled.makers)
        outputs: list[SideOutput] = [ToDecoder(target), Commit(token_ids, unverified, makers)]
        if settled.reason is not None:
            outputs += self._finish(settled.reason, now)
        return outputs

    def _finish(self, reason: FinishReason, now: float) -> list[SideOutput]:
        """End the request; the cloud is told so that it frees the session at once."""
        outputs: list[SideOutput] = []
        if self.side is Side.DEVICE and self.phase is Phase.RUNNING:
            outputs += self._to_peer(Cancel(*self._head()), now)
        self.phase = Phase.DONE
        self.finish_reason = reason
        self._settling.clear()
        return [*outputs, Finish(reason)]

    # Sending

    def _flush(self, now: float) -> list[SideOutput]:
        """Send the drafts that are due."""
        if self._agreement is None or self.phase is not Phase.RUNNING:
            return []
        frames = self._sending.due(self._agreement, self._counting.trips, now)
        return [output for frame in frames for output in self._to_peer(frame, now)]

    def _fetch(self, position: int, count: int, now: float) -> list[SideOutput]:
        """Ask once for a longer top list."""
        if not self._sending.asks(position, count):
            return []
        self.stats.fetches += 1
        return self._to_peer(Fetch(*self._head(), count=count), now)

    def _to_peer(self, message: PeerMessage, now: float) -> list[SideOutput]:
        self._counting.trips.sent(now)
        return [ToPeer(message)]

    def _head(self) -> tuple[int, int, int, int]:
        return self.request.session, self._epoch, len(self.committed), self.committed.prefix

    # Small matters

    def _agree(self, aggregating: Side | None) -> None:
        """How the sides agree, from what is known of their documents."""
        self._agreement = agreement_for(
            self.request.preset,
            self.request.sampling.greedy,
            self.side,
            aggregating if aggregating is not None else first_side(self.request.preset.placement),
            self._masses,
            self._chance,
            len(self.request.prompt_ids),
            len(self.committed),
        )
