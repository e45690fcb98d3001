"""The edge's half of a session: drafts, draws recovered tokens, commits, survives a lost cloud.

What is drafted and sent is `drafting`'s, what ends the text `committing`'s, the draws `recovery`'s.
`connect` opens (or resumes) on a fresh stream, `receive` takes a frame, `work` names the tokens to
draft, `drafted` takes them, `tick` is the only clock. Invariants: a committed token is never
retracted or repeated; whoever discards a draft that was sent raises the epoch, and both ends can
tell. Must not import asyncio, grpc, torch or time; never logs, never reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tandem.core.chance import Chance, SeededChance
from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.sparse_answer import SparseAnswer
from tandem.core.stopping import FinishReason
from tandem.policy.choices import Answer
from tandem.protocol.committing import Committing
from tandem.protocol.edge_intake import (
    check_early_verdict,
    check_full_law,
    check_tokens,
    check_verdict,
)
from tandem.protocol.in_flight import bulk_bytes
from tandem.protocol.liveness import Liveness, LostCloud
from tandem.protocol.logprobs import Told
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    EarlyVerdict,
    FullAnswer,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Opened,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
)
from tandem.protocol.outputs import (
    Commit,
    Drafted,
    DraftWork,
    EdgeOutput,
    EdgeRequest,
    EdgeStats,
    Finish,
    Interrupt,
    Maker,
    Reconnect,
    Send,
)
from tandem.protocol.pacing import Pacing
from tandem.protocol.phase import Phase
from tandem.protocol.predrafting import Predrafting
from tandem.protocol.predrafts import LikelyOutcome
from tandem.protocol.recovery import Recovery
from tandem.protocol.rules import acceptance_rule
from tandem.protocol.tree_drafting import drafting_for

ALONE_CHUNK = 8


class EdgeMachine:
    """One request. Raises ProtocolError or PrefixMismatch when the cloud breaks the conversation,
    and is then as it was before: `lost` and `connect` resume it."""

    def __init__(
        self,
        request: EdgeRequest,
        liveness: Liveness,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        chance: Chance | None = None,
    ) -> None:
        """`completes_stop` is told every committed token once, and answers whether a stop string
        ends with it."""
        chance = chance if chance is not None else SeededChance(request.seed)
        self.request = request
        self.phase = Phase.CONNECTING
        self.epoch = 0
        self.stats = EdgeStats()
        self.target_name = ""  # until the cloud has said it
        self.finish_reason: FinishReason | None = None
        self.rule = acceptance_rule(request.preset, request.seed, chance)
        self._liveness = liveness
        self._committing = Committing(request, completes_stop)
        self.committed = self._committing.tokens
        self.drafting = drafting_for(request, self.committed)
        self.predrafting = Predrafting(request, self.committed, self.drafting)
        self._pacing = Pacing(request.preset)
        whole_laws = request.preset.answer is Answer.FULL_LAW
        self._recovery = Recovery(self.rule, chance, whole_laws)
        self._told = Told(request.logprobs)
        self._leaving = False

    # Connection

    def connect(self, now: float) -> list[EdgeOutput]:
        """A fresh stream is there: open it at the committed prefix, send what is in flight."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        self.phase = Phase.RUNNING
        self.drafting.reconnected()
        self._pacing.connected()
        self._liveness.connected(now)
        self.stats.begin_stream()
        opening = self.request.opening(self.epoch, self.committed)
        return [Send(opening), *self._flush(now)]

    def lost(self, now: float) -> list[EdgeOutput]:
        """The stream broke or was found dead."""
        if self.phase is not Phase.RUNNING:
            return []
        self._disconnect()
        self.stats.links_lost += 1
        self.stats.loss_noticed_s = max(self.stats.loss_noticed_s, self._liveness.lost(now))
        return [Reconnect(), *self._give_up_if_due(now)]

    def _disconnect(self) -> None:
        """Drop what belongs to the stream; the next one carries it again."""
        self.phase = Phase.CONNECTING
        self._leaving = False
        self._recovery.forget()
        self.stats.abandon_round()

    def tick(self, now: float) -> list[EdgeOutput]:
        """Time passed: ping a silent cloud, notice a dead one, give up a lost one."""
        self._liveness.look(now)
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        if self._liveness.is_dead(now) or self._liveness.is_given_up(now):
            return self.lost(now)
        nonce = self._liveness.ping_due(now)
        return [] if nonce is None else [Send(Ping(*self._frame(len(self.committed)), nonce=nonce))]

    def _give_up_if_due(self, now: float) -> list[EdgeOutput]:
        if not self._liveness.is_given_up(now):
            return []
        if self._liveness.policy is LostCloud.EDGE:
            self.phase = Phase.ALONE
            ahead = [*self.drafting.discard_ahead(), *self.predrafting.clear()]
            return [*map(Interrupt, ahead), *self._commit_alone()]
        return self._finish(FinishReason.ERROR)

    def cancel(self) -> list[EdgeOutput]:
        """The client left."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.CANCELLED)

    # Frames

    def receive(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        """Take one frame of the stream that is open now."""
        if self.phase is not Phase.RUNNING:
            return []
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        self._liveness.heard(now)
        outputs = self._react(message, now)
        outputs += map(Interrupt, self.predrafting.forget_committed())
        return [*outputs, *self._flush(now)]

    def _react(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        match message:
            case Opened():
                self.target_name = message.model_name
                self._committing.take_terms(message.eos_token_ids)
                return []
            case Pong():
                return []
            case Verdict():
                return self._receive_verdict(message, now)
            case EarlyVerdict():
                return self._receive_early_verdict(message)
            case Tokens():
                return self._receive_tokens(message)
            case FullLaw():
                return self._receive_full_law(message)
            case GoingAway():
                self._leaving = True
                return self._leave_between_rounds()

    def _receive_verdict(self, verdict: Verdict, now: float) -> list[EdgeOutput]:
        self._refuse_while_drawing(verdict)
        drafts = self.drafting.judged(verdict)
        check_verdict(verdict, self.request, self.committed, drafts, self.epoch)
        self._told.take(verdict)
        self.stats.count_verdict(verdict)
        self.stats.end_round(verdict.work, now)
        self._pacing.take_verdict(verdict, now)
        outputs = self._commit(drafts[: verdict.accepted], Maker.DRAFT)
        self.drafting.settle(verdict)
        if self.phase is Phase.DONE:
            return outputs
        outcome = verdict.outcome
        if isinstance(outcome, FullAnswer | SparseAnswer):
            return [*outputs, *self._recover(outcome)]
        if outcome is not None:
            outputs += self._replace(outcome) if verdict.rejected else self._overtake(outcome)
        return [*outputs, *self._leave_between_rounds()]

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> list[EdgeOutput]:
        """Draft ahead for what an early exit says will come; nothing else follows from it."""
        self._refuse_while_drawing(verdict)
        in_flight = self.drafting.in_flight
        sent = in_flight.token_ids[: in_flight.sent]
        check_early_verdict(verdict, self.request, self.committed, sent, self.epoch)
        self.stats.early_verdicts += 1
        position, outcome = verdict.base + verdict.accepted, verdict.outcome
        token = (
            self._recovery.foresee(outcome, in_flight.all[verdict.accepted], position)
            if isinstance(outcome, SparseAnswer)
            else outcome
        )
        if token is not None:
            self.anticipate([LikelyOutcome(position, token, verdict.confidence)])
        return []

    def _recover(self, answer: FullAnswer | SparseAnswer) -> list[EdgeOutput]:
        """The first draft in flight was refused: draw the token in its place."""
        token = self._recovery.start(answer, self.drafting.in_flight.first, len(self.committed))
        if token is not None:
            return self._draw(token)
        self.stats.full_law_requests += 1
        ahead = map(Interrupt, self.drafting.discard_ahead())
        session, epoch, base, prefix = self._frame(len(self.committed))
        return [*ahead, Send(NeedFullLaw(session, epoch + 1, base, prefix))]

    def _receive_full_law(self, message: FullLaw) -> list[EdgeOutput]:
        if not self._recovery.waits:
            raise ProtocolError(self.phase, "a full law that was not asked for")
        check_full_law(message, self.request, self.committed)
        refused = self.drafting.in_flight.first
        try:
            token = self._recovery.finish(message.target_probs, refused, message.base)
        except InvalidArgument as error:
            raise ProtocolError("drawing a recovered token", "FullLaw", str(error)) from error
        return self._draw(token)

    def _draw(self, token: int) -> list[EdgeOutput]:
        """Commit the token the edge drew, and tell the cloud."""
        position, prefix = len(self.committed), self.committed.prefix
        outputs = self._replace(token)
        if self.phase is Phase.DONE:
            return outputs
        recovered = Recovered(self.request.session, self.epoch, position, prefix, token_id=token)
        return [*outputs, Send(recovered), *self._leave_between_rounds()]

    def _receive_tokens(self, message: Tokens) -> list[EdgeOutput]:
        self._refuse_while_drawing(message)
        check_tokens(message, self.request, self.committed)
        self._told.take(message)
        self.stats.count_tokens(message)
        self._pacing.take_tokens(message)
        outputs: list[EdgeOutput] = []
        for token in message.token_ids:
            outputs += self._overtake(token)
            if self.phase is Phase.DONE:
                return outputs
        return [*outputs, *self._leave_between_rounds()]

    def _replace(self, token: int) -> list[EdgeOutput]:
        """`token` takes the place of a refused draft: everything in flight is void."""
        return self._diverge(token, new_epoch=True)

    def _overtake(self, token: int) -> list[EdgeOutput]:
        """The cloud added a token by itself; drafts in flight live on only if they agree."""
        in_flight, ahead = self.drafting.in_flight, self.drafting.ahead
        self._pacing.overtaken(in_flight.first.token_id == token if in_flight else None)
        if in_flight and in_flight.first.token_id == token:
            in_flight.remove(1)
            return self._commit([token])
        if not in_flight and ahead and ahead[0].token_id == token:
            outputs = self._commit([token])
            if self.phase is not Phase.DONE:
                self.stats.count_resolved(hit=True)
                self.stats.count_adopted(self.drafting.adopt_ahead())
            return outputs
        return self._diverge(token, new_epoch=in_flight.sent > 0)

    def _diverge(self, token: int, new_epoch: bool) -> list[EdgeOutput]:
        """`token` comes, and not what is in flight: stop all drafting but what foresaw it."""
        branch, void = self.predrafting.resolve(token)
        outputs: list[EdgeOutput] = [*map(Interrupt, (*self.drafting.discard(), *void))]
        self._pacing.discarded()
        if branch is not None:
            self.drafting.promote(branch)
        self.epoch += new_epoch
        outputs += self._commit([token])
        if self.phase is not Phase.DONE and self.predrafting.on:
            self.stats.count_resolved(hit=branch is not None)
            self.stats.count_adopted(self.drafting.adopt(branch) if branch else 0)
        return outputs

    # Drafting

    def work(self, now: float) -> DraftWork | None:
        """The next work to start, if any: the tokens to send next; ahead of a verdict, those that
        would follow it. Ask again until there is none: branches are drafted side by side, and
        beside the tokens to send next."""
        if self.phase is Phase.DONE or self._paused:
            return None
        work = None if self.drafting.work else self._main_work(now)
        if work is None and self.phase is not Phase.ALONE:
            return self.predrafting.work()
        return work

    def _main_work(self, now: float) -> DraftWork | None:
        if self._pacing.on:
            self.drafting.follow(self._pacing.schedule)
        alone = self.phase is Phase.ALONE
        count = min(ALONE_CHUNK, self.drafting.room) if alone else self.drafting.draftable
        if count < 1:
            return None if alone else self.drafting.begin_ahead()
        if self.phase is Phase.RUNNING:
            self.stats.begin_round(now)
        ends = self._committing.eos if alone else self.request.draft_ends
        return self.drafting.begin(count, ends)

    @property
    def _paused(self) -> bool:
        """Whether nothing may be drafted or sent until the cloud's next word."""
        leaving = self._leaving and not self.drafting.chunk_is_open  # what is begun is judged whole
        return leaving or self._recovery.waits

    def context(self, work: DraftWork) -> tuple[int, ...]:
        """All tokens before the first one of a work."""
        if work.branch and work is not self.drafting.work:
            return self.predrafting.context(work)
        return self.drafting.context[: work.position]

    def drafted(
        self, work: DraftWork, drafts: list[Drafted], kv_length: int, draft_s: float, now: float
    ) -> list[EdgeOutput]:
        """Take the next tokens of a work: all `count`, or up to the first among its `ends`; in
        several parts if it is `stepwise`.

        `kv_length`: tokens the draft KV now holds. The tokens of an interrupted work are dropped.
        """
        if not self.drafting.take(work, drafts, kv_length, draft_s):
            if self.predrafting.take(work, drafts):
                self.stats.count_predrafts(len(drafts))
            return []
        if self.drafting.ahead is not None:
            self.stats.count_predrafts(len(drafts))
            self.predrafting.expect_likely()
            return []
        positions = self.drafting.positions(drafts)
        self.stats.count_drafts(positions, draft_s)
        self._pacing.drafted(positions, draft_s)
        if self.phase is Phase.ALONE:
            return self._commit_alone()
        return self._flush(now)

    def anticipate(self, outcomes: Iterable[LikelyOutcome]) -> None:
        """Outcomes that the coming verdict may have: drafted for when nothing else is to be done,
        in the preset's order (`work`), and in flight at once if one of them comes."""
        if self.phase is Phase.RUNNING:
            self.predrafting.expect(outcomes)

    def _flush(self, now: float) -> list[EdgeOutput]:
        """Send what is due."""
        if self.phase is not Phase.RUNNING or self._paused:
            return []
        frames = self.drafting.send_due(self.epoch, self._pacing.chunk_budget_s)
        if frames:
            self._liveness.uploading(bulk_bytes(frames, self.request), now)
            self._pacing.sent(frames, now)
            self.stats.begin_round(now)
            self.predrafting.expect_likely()
        return [Send(frame) for frame in frames]

    # Committing

    def _commit_alone(self) -> list[EdgeOutput]:
        tokens = self.drafting.in_flight.token_ids
        self.drafting.in_flight.clear()
        return self._commit(tokens, Maker.EDGE)

    def _commit(self, token_ids: Sequence[int], maker: Maker = Maker.TARGET) -> list[EdgeOutput]:
        """Append tokens to the answer; a stop condition inside the block ends it there."""
        position = len(self.committed)
        committed, reason = self._committing.append(token_ids)
        if not committed:
            return []
        unverified = maker is Maker.EDGE
        self.stats.count_commit(len(committed), unverified)
        count = len(committed)
        logprobs = self._told.of(position, count)
        outputs: list[EdgeOutput] = [Commit(committed, unverified, (maker,) * count, logprobs)]
        return outputs if reason is None else [*outputs, *self._finish(reason)]

    def _finish(self, reason: FinishReason) -> list[EdgeOutput]:
        """End the request; the cloud is told so that it frees the session at once."""
        outputs: list[EdgeOutput] = []
        if self.phase is Phase.RUNNING:
            outputs.append(Send(Cancel(*self._frame(len(self.committed)))))
        outputs += map(Interrupt, (*self.drafting.interrupt(), *self.predrafting.clear()))
        self.phase = Phase.DONE
        self.finish_reason = reason
        return [*outputs, Finish(reason)]

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """After GoingAway: reconnect as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self.drafting.in_flight.sent or self.phase is not Phase.RUNNING:
            return []
        self._disconnect()
        self.stats.departures += 1
        return [Reconnect()]

    def _refuse_while_drawing(self, message: Verdict | EarlyVerdict | Tokens) -> None:
        if self._recovery.waits:
            raise ProtocolError("drawing a recovered token", type(message).__name__)

    def _frame(self, base: int) -> tuple[int, int, int, int]:
        return self.request.session, self.epoch, base, self.committed.prefix
