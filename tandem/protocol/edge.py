"""The edge's half of a session: drafts, draws recovered tokens, commits, survives a lost cloud.

`connect` opens (or resumes) on a fresh stream, `receive` takes a frame, `work` names the tokens to
draft, `drafted` takes them, `tick` is the only clock. Invariants: a committed token is never
retracted or repeated; whoever discards a draft that was sent raises the epoch, and both ends can
tell; the draft KV is valid exactly for the first `kv_length` tokens of committed + in flight.
Must not import asyncio, grpc, torch or time; never logs, never reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tandem.core.chance import Chance, SeededChance
from tandem.core.errors import ProtocolError
from tandem.core.sparse_answer import (
    NeedFullLaw as NeedMore,
)
from tandem.core.sparse_answer import (
    SparseAnswer,
    draw_from_sparse_answer,
    finish_with_full_law,
)
from tandem.core.stopping import FinishReason
from tandem.policy.presets import Uplink
from tandem.protocol.liveness import Liveness, LostCloud
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    FullAnswer,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Open,
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
    Reconnect,
    Send,
)
from tandem.protocol.prefixes import PrefixedTokens
from tandem.protocol.rules import Proposal, acceptance_rule

ALONE_CHUNK = 8


class Phase(StrEnum):
    """CONNECTING: no stream. RUNNING: stream open. ALONE: the cloud was given up. DONE: finished."""

    CONNECTING = "connecting"
    RUNNING = "running"
    ALONE = "alone"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A sparse answer that was not enough: the same draw goes on with the full law."""

    answer: SparseAnswer
    need: NeedMore


class EdgeMachine:
    """One request. Raises ProtocolError when the cloud breaks the conversation."""

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
        self.committed = PrefixedTokens(request.prompt_ids)
        self.kv_length = 0
        self.stats = EdgeStats()
        self.finish_reason: FinishReason | None = None
        self.rule = acceptance_rule(request.preset, request.seed, chance)
        self._chance = chance
        self._liveness = liveness
        self._completes_stop = completes_stop
        self._schedule = request.preset.schedule
        self._length_limit = len(request.prompt_ids) + request.max_tokens
        self._in_flight: list[Drafted] = []
        self._sent = 0
        self._work: DraftWork | None = None
        self._drawing: _Drawing | None = None
        self._leaving = False
        self._round_started_s: float | None = None
        self._round_draft_s = 0.0

    # Connection

    def connect(self, now: float) -> list[EdgeOutput]:
        """A fresh stream is there: open it at the committed prefix and send what is in flight again."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        self.phase = Phase.RUNNING
        self._leaving = False
        self._drawing = None
        self._sent = 0
        self._liveness.connected(now)
        self.stats.begin_stream()
        request = self.request
        opening = Open(
            *self._frame(len(self.committed)),
            vocabulary_hash=request.vocabulary_hash,
            vocabulary_size=request.vocabulary_size,
            prompt_ids=request.prompt_ids,
            committed_ids=self.committed.since(len(request.prompt_ids)),
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            ignore_eos=request.ignore_eos,
            preset=request.preset,
        )
        return [Send(opening), *self._flush()]

    def lost(self, now: float) -> list[EdgeOutput]:
        """The stream broke or was found dead."""
        if self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.CONNECTING
        self._round_started_s = None
        self.stats.links_lost += 1
        self.stats.loss_noticed_s = max(self.stats.loss_noticed_s, self._liveness.lost(now))
        return [Reconnect(), *self._give_up_if_due(now)]

    def tick(self, now: float) -> list[EdgeOutput]:
        """Time passed: ping a silent cloud, notice a dead one, give up a lost one."""
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        if self._liveness.is_dead(now):
            return self.lost(now)
        nonce = self._liveness.ping_due(now)
        return [] if nonce is None else [Send(Ping(*self._frame(len(self.committed)), nonce=nonce))]

    def _give_up_if_due(self, now: float) -> list[EdgeOutput]:
        if not self._liveness.is_given_up(now):
            return []
        if self._liveness.policy is LostCloud.EDGE:
            self.phase = Phase.ALONE
            return self._commit_alone()
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
        match message:
            case Opened() | Pong():
                return []
            case Verdict():
                return self._receive_verdict(message, now)
            case Tokens():
                return self._receive_tokens(message)
            case FullLaw():
                return self._receive_full_law(message)
            case GoingAway():
                self._leaving = True
                return self._leave_between_rounds()

    def _receive_verdict(self, verdict: Verdict, now: float) -> list[EdgeOutput]:
        self._check_order(verdict)
        judged = verdict.accepted + verdict.rejected
        if judged > self._sent:
            raise ProtocolError(f"{self._sent} drafts sent", f"a verdict on {judged}")
        self.stats.count_verdict(verdict)
        self._end_round(verdict, now)
        accepted = [drafted.token_id for drafted in self._in_flight[: verdict.accepted]]
        outputs = self._commit(accepted)
        del self._in_flight[: verdict.accepted]
        self._sent -= verdict.accepted
        if self.phase is Phase.DONE:
            return outputs
        if verdict.rejected:
            return [*outputs, *self._recover(verdict)]
        if isinstance(verdict.outcome, int):
            outputs += self._overtake(verdict.outcome)
        self._check_prefix(verdict)
        return [*outputs, *self._leave_between_rounds()]

    def _recover(self, verdict: Verdict) -> list[EdgeOutput]:
        """The first draft in flight was refused: take the token in its place, or draw it."""
        outcome = verdict.outcome
        if isinstance(outcome, int):
            outputs = self._replace(outcome)
            self._check_prefix(verdict)
            return [*outputs, *self._leave_between_rounds()]
        self._check_prefix(verdict)
        refused = self._in_flight[0]
        position = len(self.committed)
        if isinstance(outcome, FullAnswer):
            proposal = Proposal(refused.token_id, draft_probs=refused.draft_probs)
            return self._draw(self.rule.recovered(outcome.target_probs, proposal, position))
        if not isinstance(outcome, SparseAnswer):
            raise ProtocolError("a refused draft", "a verdict without an outcome")
        drawn = draw_from_sparse_answer(outcome, refused.draft_probs, self._chance, position)
        if isinstance(drawn, NeedMore):
            self._drawing = _Drawing(outcome, drawn)
            self.stats.full_law_requests += 1
            session, epoch, base, prefix = self._frame(position)
            return [Send(NeedFullLaw(session, epoch + 1, base, prefix))]
        return self._draw(drawn)

    def _receive_full_law(self, message: FullLaw) -> list[EdgeOutput]:
        drawing = self._drawing
        if drawing is None or message.base != len(self.committed):
            raise ProtocolError(self.phase, "a full law that was not asked for")
        self._drawing = None
        draft_probs = self._in_flight[0].draft_probs
        token = finish_with_full_law(
            drawing.answer,
            message.target_probs,
            draft_probs,
            drawing.need,
            self._chance,
            message.base,
        )
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
        self._check_order(message)
        self.stats.count_tokens(message)
        outputs: list[EdgeOutput] = []
        for token in message.token_ids:
            outputs += self._overtake(token)
            if self.phase is Phase.DONE:
                return outputs
        self._check_prefix(message)
        return [*outputs, *self._leave_between_rounds()]

    def _replace(self, token: int) -> list[EdgeOutput]:
        """`token` takes the place of a refused draft: everything in flight is void."""
        outputs = self._discard()
        self.epoch += 1
        return [*outputs, *self._commit([token])]

    def _overtake(self, token: int) -> list[EdgeOutput]:
        """The cloud added a token by itself; drafts in flight live on only if they agree."""
        if self._in_flight and self._in_flight[0].token_id == token:
            self._in_flight.pop(0)
            self._sent = max(0, self._sent - 1)
            return self._commit([token])
        sent = self._sent
        outputs = self._discard()
        if sent:
            self.epoch += 1
        return [*outputs, *self._commit([token])]

    def _discard(self) -> list[EdgeOutput]:
        """Void the drafts in flight; stop the drafting that builds on them."""
        self._in_flight.clear()
        self._sent = 0
        self.kv_length = min(self.kv_length, len(self.committed))
        if self._work is None:
            return []
        self._work = None
        return [Interrupt()]

    # Drafting

    def work(self, now: float) -> DraftWork | None:
        """Tokens to draft now, if any; one work at a time, until `drafted`."""
        count = self._draftable()
        if self._work or count < 1:
            return None
        if self._round_started_s is None and self.phase is Phase.RUNNING:
            self._round_started_s = now
        context = (*self.committed.since(0), *(d.token_id for d in self._in_flight))
        self._work = DraftWork(
            keep=self.kv_length,
            token_ids=context[self.kv_length :],
            position=len(context),
            count=count,
        )
        return self._work

    def _draftable(self) -> int:
        if self.phase is Phase.DONE or self._leaving or self._drawing:
            return 0
        room = self._length_limit - len(self.committed) - len(self._in_flight)
        if self.phase is Phase.ALONE:
            return min(ALONE_CHUNK, room)
        if not self.request.preset.drafts or self._is_past_eos():
            return 0
        unsent = len(self._in_flight) - self._sent
        window = self._schedule.window - len(self._in_flight)
        return min(self._schedule.chunk - unsent, window, room)

    def context(self, work: DraftWork) -> tuple[int, ...]:
        """All tokens before the first one of a work."""
        return (*self.committed.since(0), *(d.token_id for d in self._in_flight))[: work.position]

    def drafted(
        self, work: DraftWork, drafts: list[Drafted], kv_length: int, draft_s: float
    ) -> list[EdgeOutput]:
        """Take the tokens of a work. `kv_length`: tokens the draft KV now holds. The tokens of an
        interrupted work are dropped."""
        if work is not self._work:
            return []
        self._work = None
        self.kv_length = kv_length
        self.stats.count_drafts(len(drafts), draft_s)
        self._round_draft_s += draft_s
        self._in_flight += drafts
        if self.phase is Phase.ALONE:
            return self._commit_alone()
        return self._flush()

    def _flush(self) -> list[EdgeOutput]:
        """Send the chunks that are complete."""
        outputs: list[EdgeOutput] = []
        while self.phase is Phase.RUNNING and self._sent < len(self._in_flight):
            chunk = self._in_flight[self._sent : self._sent + self._schedule.chunk]
            whole = len(chunk) == self._schedule.chunk or self._draftable() < 1
            if not whole or self._drawing:
                break
            outputs.append(Send(self._draft(chunk)))
            self._sent += len(chunk)
        return outputs

    def _draft(self, chunk: list[Drafted]) -> Draft:
        before = [drafted.token_id for drafted in self._in_flight[: self._sent]]
        base = len(self.committed) + len(before)
        uplink = self.request.preset.uplink
        return Draft(
            self.request.session,
            self.epoch,
            base,
            self.committed.prefix_with(before),
            token_ids=tuple(drafted.token_id for drafted in chunk),
            end_of_chunk=True,
            probabilities=tuple(float(d.draft_probs[d.token_id]) for d in chunk)
            if uplink is Uplink.PROBABILITIES
            else None,
            laws=np.stack([d.draft_probs for d in chunk])
            if uplink is Uplink.FULL_LAWS
            else None,
        )

    def _is_past_eos(self) -> bool:
        if self.request.ignore_eos or not self._in_flight:
            return False
        return self._in_flight[-1].token_id in self.request.eos_token_ids

    # Committing

    def _commit_alone(self) -> list[EdgeOutput]:
        tokens = [drafted.token_id for drafted in self._in_flight]
        self._in_flight.clear()
        self._sent = 0
        return self._commit(tokens, unverified=True)

    def _commit(self, token_ids: list[int], unverified: bool = False) -> list[EdgeOutput]:
        """Append tokens to the answer; a stop condition inside the block ends it there."""
        committed: list[int] = []
        reason: FinishReason | None = None
        for token in token_ids:
            committed.append(token)
            self.committed.append(token)
            reason = self._stop_reason(token)
            if reason:
                break
        if not committed:
            return []
        self.stats.count_commit(len(committed), unverified)
        outputs: list[EdgeOutput] = [Commit(tuple(committed), unverified)]
        return outputs if reason is None else [*outputs, *self._finish(reason)]

    def _stop_reason(self, token: int) -> FinishReason | None:
        if self._completes_stop(token):
            return FinishReason.STOP
        if token in self.request.eos_token_ids and not self.request.ignore_eos:
            return FinishReason.STOP
        if len(self.committed) >= self._length_limit:
            return FinishReason.LENGTH
        return None

    def _finish(self, reason: FinishReason) -> list[EdgeOutput]:
        """End the request; the cloud is told so that it frees the session at once."""
        outputs: list[EdgeOutput] = []
        if self.phase is Phase.RUNNING:
            outputs.append(Send(Cancel(*self._frame(len(self.committed)))))
        if self._work:
            outputs.append(Interrupt())
            self._work = None
        self.phase = Phase.DONE
        self.finish_reason = reason
        return [*outputs, Finish(reason)]

    # Order and rounds

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """After GoingAway: reconnect as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self._sent or self._drawing or self.phase is not Phase.RUNNING:
            return []
        self.phase = Phase.CONNECTING
        self._leaving = False
        self.stats.departures += 1
        return [Reconnect()]

    def _check_order(self, message: Verdict | Tokens) -> None:
        if self._drawing:
            raise ProtocolError("drawing a recovered token", type(message).__name__)
        if message.base != len(self.committed):
            state = f"{len(self.committed)} tokens committed"
            raise ProtocolError(state, f"{type(message).__name__} at {message.base}")

    def _check_prefix(self, message: CloudMessage) -> None:
        if self.phase is not Phase.DONE:
            self.committed.check(len(self.committed), message.prefix)

    def _end_round(self, verdict: Verdict, now: float) -> None:
        if self._round_started_s is None:
            return
        round_s = now - self._round_started_s
        work = verdict.work
        self.stats.count_round(round_s, self._round_draft_s, work.verify_s + work.queue_s)
        self._round_started_s = None
        self._round_draft_s = 0.0

    def _frame(self, base: int) -> tuple[int, int, int, int]:
        return self.request.session, self.epoch, base, self.committed.prefix

