"""The edge's half of a session: drafts, draws recovered tokens, commits, survives a lost cloud.

`connect` opens or resumes the session on a fresh stream, `receive` takes a frame, `work` names the
tokens to draft, `drafted` takes them, `tick` is the only clock. Invariants: a committed token is
never retracted or repeated; whichever end discards a sent draft raises the epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.stopping import FinishReason
from tandem.specdec.cloud_frame_checks import (
    check_early_verdict,
    check_full_distribution,
    check_opened,
    check_tokens,
    check_verdict,
)
from tandem.specdec.committed_text import CommittedText
from tandem.specdec.events import (
    Commit,
    Drafted,
    DraftWork,
    EdgeOutput,
    EdgeRequest,
    EdgeStats,
    Finish,
    Interrupt,
    Reconnect,
    Send,
    TokenSource,
)
from tandem.specdec.in_flight import bulk_bytes
from tandem.specdec.liveness import Liveness, LostCloud, Phase
from tandem.specdec.logprobs import LogprobsBuffer
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    EarlyVerdict,
    FullDistribution,
    GoingAway,
    NeedFullDistribution,
    Opened,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
)
from tandem.specdec.pacing import Pacing
from tandem.specdec.predraft_cache import LikelyOutcome
from tandem.specdec.predrafting import Predrafting
from tandem.specdec.recovery import Recovery
from tandem.specdec.rules import acceptance_rule, payload_type
from tandem.specdec.tree_drafting import drafting_for

ALONE_CHUNK = 8
_DRAWING = "drawing a recovered token"


class EdgeMachine:
    """One request. Raises ProtocolError or PrefixMismatch when the cloud breaks the protocol, which
    changes nothing: `lost` and `connect` resume it."""

    def __init__(
        self,
        request: EdgeRequest,
        liveness: Liveness,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        rng: RandomSource | None = None,
    ) -> None:
        """`completes_stop`, called once per committed token: whether a stop string ends with it."""
        rng = rng or SeededRandom(request.params.seed)
        self.request = request
        self.phase = Phase.CONNECTING
        self.epoch = 0
        self.stats = EdgeStats()
        self.target_name = ""  # empty until the session is open
        self.finish_reason: FinishReason | None = None
        self.rule = acceptance_rule(request.preset, request.params.seed, rng)
        self.liveness = liveness
        self._text = CommittedText(request, completes_stop)
        self.committed = self._text.tokens
        self.drafting = drafting_for(request, self.committed)
        self.predrafting = Predrafting(request, self.committed, self.drafting)
        self.pacing = Pacing(request.preset, request.earlier, request.prices)
        self._recovery = Recovery(self.rule, rng, payload_type(request.preset).kind is FullPayload)
        self._logprobs_buffer = LogprobsBuffer(request.params.logprobs, request.params.top_logprobs)
        self._leaving = False

    @property
    def goes_on_alone(self) -> bool:
        """Whether the edge goes on by itself once the cloud is given up."""
        return self.liveness.policy is LostCloud.EDGE

    def connect(self, now: float) -> list[EdgeOutput]:
        """On a fresh stream: open the session at the committed prefix, resend what is in flight."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        self.phase = Phase.RUNNING
        self.drafting.reconnected()
        self.pacing.connected()
        self.liveness.connected(now)
        self.stats.begin_stream()
        return [Send(self.request.opening(self.epoch, self.committed)), *self._flush(now)]

    def lost(self, now: float, stuck_s: float = 0.0) -> list[EdgeOutput]:
        """The stream broke or was found dead; `stuck_s`: see `Liveness.lost`."""
        if self.phase is not Phase.RUNNING:
            return []
        self._disconnect()
        self.stats.count_loss(self.liveness.lost(now, stuck_s))
        return [Reconnect(), *self._give_up_if_due(now)]

    def _disconnect(self) -> None:
        """Drop the state of the stream; the next one carries it again."""
        self.phase = Phase.CONNECTING
        self._leaving = False
        self._recovery.forget()
        self.stats.abandon_round()

    def tick(self, now: float) -> list[EdgeOutput]:
        """Time passed: ping a silent cloud, notice a dead one, give up a lost one."""
        self.liveness.tick(now)
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        dead = self.liveness.is_dead(now) or self.liveness.is_given_up(now)
        return self.lost(now) if dead else self._ping(now)

    def _ping(self, now: float) -> list[EdgeOutput]:
        """Ask a cloud that is silent, or whose round trip nothing else tells."""
        wanted = self.phase is Phase.RUNNING and self.pacing.trip_wanted(now)
        if (nonce := self.liveness.ping_due(now, wanted)) is None:
            return []
        self.pacing.pinged(now)
        return [Send(Ping(*self._frame(), nonce=nonce))]

    def _give_up_if_due(self, now: float) -> list[EdgeOutput]:
        if not self.liveness.is_given_up(now):
            return []
        if self.goes_on_alone:
            self.phase = Phase.ALONE
            ahead = [*self.drafting.discard_ahead(), *self.predrafting.clear()]
            return [*map(Interrupt, ahead), *self._commit_alone()]
        return self._finish(FinishReason.ERROR)

    def cancel(self) -> list[EdgeOutput]:
        """The client left."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.CANCELLED)

    def leave(self) -> list[EdgeOutput]:
        """Another cloud is better: go there as after GoingAway."""
        self._leaving = self.phase is Phase.RUNNING
        return self._leave_between_rounds()

    def receive(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        """Take one frame of the stream that is open now."""
        if self.phase is not Phase.RUNNING:
            return []
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        self.liveness.received(now)
        outputs = self._react(message, now)
        outputs += map(Interrupt, self.predrafting.forget_committed())
        return [*outputs, *self._flush(now), *self._ping(now)]

    def _react(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        match message:
            case Opened():
                check_opened(message, self.request)
                self.target_name = message.model_name
                self.drafting.opened(message)
                self.stats.count_opened(message, len(self.request.prompt_ids))
                self._text.take_eos(message.eos_token_ids)
            case Verdict():
                return self._receive_verdict(message, now)
            case EarlyVerdict():
                return self._receive_early_verdict(message)
            case Tokens():
                return self._receive_tokens(message, now)
            case FullDistribution():
                return self._receive_full_distribution(message)
            case GoingAway():
                self._leaving = True
                return self._leave_between_rounds()
            case Pong():
                self.pacing.ponged(self.liveness.ponged(message.nonce, now))
        return []

    def _receive_verdict(self, verdict: Verdict, now: float) -> list[EdgeOutput]:
        self._check_not_recovering(verdict)
        drafts = self.drafting.judged(verdict)
        check_verdict(verdict, self.request, self.committed, drafts, self.epoch)
        self._logprobs_buffer.take(verdict)
        self.stats.count_verdict(verdict)
        self.stats.end_round(verdict.work, now)
        self.pacing.take_verdict(verdict, now)
        outputs = self._commit(drafts[: verdict.accepted], TokenSource.DRAFT)
        self.drafting.settle(verdict)
        if self.phase is Phase.DONE:
            return outputs
        outcome = verdict.outcome
        if isinstance(outcome, FullPayload | SparsePayload):
            return [*outputs, *self._recover(outcome)]
        if outcome is not None:
            outputs += self._diverge(outcome, True) if verdict.rejected else self._overtake(outcome)
        return [*outputs, *self._leave_between_rounds()]

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> list[EdgeOutput]:
        """Draft ahead for the predicted verdict; nothing else follows from it."""
        self._check_not_recovering(verdict)
        in_flight = self.drafting.in_flight
        sent = in_flight.token_ids[: in_flight.sent]
        check_early_verdict(verdict, self.request, self.committed, sent, self.epoch)
        self.stats.early_verdicts += 1
        position = verdict.base + verdict.accepted
        token: int | SparsePayload | None = verdict.outcome
        if isinstance(token, SparsePayload):
            token = self._recovery.predict(token, in_flight.all[verdict.accepted], position)
        if token is not None:
            self.predrafting.expect([LikelyOutcome(position, token, verdict.confidence)])
        return []

    def _recover(self, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """The first draft in flight was rejected: draw the token in its place."""
        token = self._recovery.start(payload, self.drafting.in_flight.first, len(self.committed))
        if token is not None:
            return self._draw(token, payload)
        self.stats.full_distribution_requests += 1
        ahead = map(Interrupt, self.drafting.discard_ahead())
        session, epoch, base, prefix = self._frame()
        return [*ahead, Send(NeedFullDistribution(session, epoch + 1, base, prefix))]

    def _receive_full_distribution(self, message: FullDistribution) -> list[EdgeOutput]:
        if not self._recovery.waits:
            raise ProtocolError(self.phase, "a full distribution that was not asked for")
        check_full_distribution(message, self.request, self.committed)
        rejected = self.drafting.in_flight.first
        try:
            token = self._recovery.finish(message.target_probs, rejected, message.base)
        except InvalidArgument as error:
            raise ProtocolError(_DRAWING, "FullDistribution", str(error)) from error
        return self._draw(token, FullPayload(message.target_probs))

    def _draw(self, token: int, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Commit the token the edge drew, and tell the cloud."""
        position, prefix = len(self.committed), self.committed.prefix
        self._logprobs_buffer.drawn(position, token, payload)
        outputs = self._diverge(token, new_epoch=True)
        if self.phase is Phase.DONE:
            return outputs
        recovered = Recovered(self.request.session, self.epoch, position, prefix, token_id=token)
        return [*outputs, Send(recovered), *self._leave_between_rounds()]

    def _receive_tokens(self, message: Tokens, now: float) -> list[EdgeOutput]:
        self._check_not_recovering(message)
        check_tokens(message, self.request, self.committed)
        self._logprobs_buffer.take(message)
        self.stats.count_tokens(message)
        self.pacing.take_tokens(message, now)
        outputs: list[EdgeOutput] = []
        for token in message.token_ids:
            outputs += [] if self.phase is Phase.DONE else self._overtake(token)
        return [*outputs, *self._leave_between_rounds()]

    def _overtake(self, token: int) -> list[EdgeOutput]:
        """The cloud added a token of its own; drafts in flight stay valid only if they agree."""
        in_flight, ahead = self.drafting.in_flight, self.drafting.ahead
        self.pacing.overtaken(in_flight.first.token_id == token if in_flight else None)
        if in_flight and in_flight.first.token_id == token:
            in_flight.remove(1)
            return self._commit([token])
        if not in_flight and ahead and ahead[0].token_id == token:
            outputs = self._commit([token])
            if self.phase is not Phase.DONE:
                self.stats.count_resolved(hit=True)
                self.stats.drafted += self.drafting.adopt_ahead()
            return outputs
        return self._diverge(token, new_epoch=in_flight.sent > 0)

    def _diverge(self, token: int, new_epoch: bool) -> list[EdgeOutput]:
        """Commit `token` in place of what is in flight; only a branch that predicted it goes on."""
        branch, others = self.predrafting.resolve(token)
        outputs: list[EdgeOutput] = [*map(Interrupt, (*self.drafting.discard(), *others))]
        self.pacing.discarded()
        if branch is not None:
            self.drafting.promote(branch)
        self.epoch += new_epoch
        outputs += self._commit([token])
        if self.phase is not Phase.DONE and self.predrafting.on:
            if self.predrafting.wanted:
                self.stats.count_resolved(hit=branch is not None)
            self.pacing.resolved(hit=branch is not None)
            self.stats.drafted += self.drafting.adopt(branch) if branch else 0
        return outputs

    def work(self, now: float) -> DraftWork | None:
        """The next work to start, if any: the tokens to send next, or those that would follow a
        verdict. Ask again until there is none: works run side by side."""
        if self.phase is Phase.DONE or self.paused:
            return None
        work = None if self.drafting.work else self._main_work(now)
        if work is None and self.phase is not Phase.ALONE:
            return self.predrafting.work()
        return work

    def _main_work(self, now: float) -> DraftWork | None:
        self.predrafting.follow(self.pacing)
        alone = self.phase is Phase.ALONE
        count = min(ALONE_CHUNK, self.drafting.room) if alone else self.drafting.draftable
        if count < 1:
            return None if alone else self.drafting.begin_ahead()
        if self.phase is Phase.RUNNING:
            self.stats.begin_round(now)
        return self.drafting.begin(count, self._text.eos if alone else self.request.draft_ends)

    @property
    def paused(self) -> bool:
        """Whether nothing may be drafted or sent until the cloud's next frame."""
        leaving = self._leaving and not self.drafting.chunk_is_open  # chunks are judged whole
        return leaving or self._recovery.waits

    def context(self, work: DraftWork) -> tuple[int, ...]:
        """All tokens before the first one of a work."""
        if work.branch and work is not self.drafting.work:
            return self.predrafting.context(work)
        return self.drafting.context[: work.position]

    def drafted(
        self, work: DraftWork, drafts: list[Drafted], kv_length: int, draft_s: float, now: float
    ) -> list[EdgeOutput]:
        """Take the next tokens of a work, one by one if it is `stepwise`; those of an interrupted
        work are dropped. `kv_length`: tokens that the draft KV now holds."""
        if not self.drafting.take(work, drafts, kv_length, draft_s):
            if self.predrafting.take(work, drafts):
                self.stats.predrafted += len(drafts)
            return []
        if self.drafting.ahead is not None:
            self.stats.predrafted += len(drafts)
            self.predrafting.expect_likely()
            return []
        positions = self.drafting.positions(drafts)
        self.stats.count_drafts(positions, draft_s)
        self.pacing.drafted(positions, draft_s, self.drafting.feeds_few)
        return self._commit_alone() if self.phase is Phase.ALONE else self._flush(now)

    def _flush(self, now: float) -> list[EdgeOutput]:
        """Send what is due."""
        if self.phase is not Phase.RUNNING or self.paused:
            return []
        frames = self.drafting.send_due(self.epoch, self.pacing.chunk_budget_s)
        if frames:
            self.liveness.uploading(bulk_bytes(frames, self.request), now)
            self.pacing.sent(frames, now)
            self.stats.begin_round(now)
            self.predrafting.expect_likely()
        return [Send(frame) for frame in frames]

    def _commit_alone(self) -> list[EdgeOutput]:
        tokens = self.drafting.in_flight.token_ids
        self.drafting.in_flight.clear()
        return self._commit(tokens, TokenSource.EDGE)

    def _commit(
        self, token_ids: Sequence[int], token_source: TokenSource = TokenSource.TARGET
    ) -> list[EdgeOutput]:
        """Append tokens to the answer, up to the first that ends it."""
        position = len(self.committed)
        committed, reason = self._text.append(token_ids)
        if not committed:
            return []
        count, unverified = len(committed), token_source is TokenSource.EDGE
        self.stats.count_commit(count, unverified)
        logprobs = self._logprobs_buffer.of(position, count)
        commit = Commit(committed, unverified, (token_source,) * count, logprobs)
        return [commit] if reason is None else [commit, *self._finish(reason)]

    def _finish(self, reason: FinishReason) -> list[EdgeOutput]:
        """End the request; `Cancel` has the cloud free the session at once."""
        outputs: list[EdgeOutput] = []
        if self.phase is Phase.RUNNING:
            outputs.append(Send(Cancel(*self._frame())))
        outputs += map(Interrupt, (*self.drafting.interrupt(), *self.predrafting.clear()))
        self.phase, self.finish_reason = Phase.DONE, reason
        return [*outputs, Finish(reason)]

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """After GoingAway: reconnect as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self.drafting.in_flight.sent or self.phase is not Phase.RUNNING:
            return []
        self._disconnect()
        self.stats.departures += 1
        return [Reconnect()]

    def _check_not_recovering(self, message: Verdict | EarlyVerdict | Tokens) -> None:
        if self._recovery.waits:
            raise ProtocolError(_DRAWING, type(message).__name__)

    def _frame(self) -> tuple[int, int, int, int]:
        return self.request.session, self.epoch, len(self.committed), self.committed.prefix
