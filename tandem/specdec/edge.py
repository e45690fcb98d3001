"""The edge's half of a session: drafts, draws recovered tokens, commits, survives a lost cloud.

Its shell calls

- `connect` on each fresh stream, which opens or resumes the session;
- `receive` with each frame of the cloud;
- `work` for the tokens to draft, and `drafted` with them;
- `tick` regularly: it is the only clock;

and does what each returns: sends, commits, interrupts, reconnects, finishes.

Invariants: a committed token is never retracted or repeated; whichever end discards a sent draft
raises the epoch; a frame that is refused changes nothing, so that a fresh stream can resume from
the committed text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

import numpy as np

from tandem.control.controller import Controller
from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.probs import Array, SamplingParams
from tandem.core.processors import Processors
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.sparse_payload import (
    FullPayload,
    SparsePayload,
    TailExhausted,
    draw_from_sparse_payload,
    finish_with_full_distribution,
)
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens, PrefixMismatch, TokenSource
from tandem.specdec.choices import CloudDrafts, Predraft, Schedule
from tandem.specdec.drafting import bulk_bytes
from tandem.specdec.events import (
    Commit,
    Drafted,
    DraftTask,
    EdgeOutput,
    EdgeRequest,
    Interrupt,
    Send,
)
from tandem.specdec.liveness import Liveness, Phase
from tandem.specdec.logprobs import (
    LogprobsBuffer,
    PromptLogprobsBuffer,
    check_logprobs,
)
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    EarlyVerdict,
    FrameHeader,
    FullDistribution,
    GoingAway,
    HiddenStates,
    NeedFullDistribution,
    Open,
    Opened,
    Ping,
    Pong,
    PromptLogprobs,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem.specdec.predrafting import LikelyOutcome, Predrafting
from tandem.specdec.presets import MAX_DRAFT_LENGTH
from tandem.specdec.proposers import NO_TEXTS, AnswerTexts, TextDrafts
from tandem.specdec.resumable import Resumable
from tandem.specdec.rules import AcceptanceRule, Proposal, acceptance_rule, payload_type
from tandem.specdec.split_uplink import LayersTask, SplitUplink
from tandem.specdec.tree_drafting import drafting_for

ALONE_CHUNK = 8
"""Tokens that are drafted at once, and committed unverified, with the cloud lost."""
LEAST_STRETCH = 4
"""Remembered tokens in a row for which a schedule is left that has no room for them: fewer are over
before they arrive."""
MEDIAN_OF = 1024
"""Rounds, the last ones: an answer may have any number."""
_DRAWING = "drawing a recovered token"
OnTargetProbs = Callable[[int, FullPayload | SparsePayload, Array], None]


class EdgeMachine(Resumable[Send | Commit | Interrupt]):
    """One request, from its first stream to its last token.

    Raises ProtocolError or PrefixMismatch when the cloud breaks the protocol, which changes
    nothing: `lost` and `connect` resume it."""

    def __init__(
        self,
        request: EdgeRequest,
        liveness: Liveness,
        completes_stop: Callable[[int], bool] = lambda token_id: False,
        rng: RandomSource | None = None,
        on_target_probs: OnTargetProbs | None = None,
    ) -> None:
        """Begin a request, with no stream yet.

        Args:
            request: its prompt, preset and limits.
            liveness: when the cloud counts as silent, dead, and given up.
            completes_stop: called once per committed token: whether a stop string ends with it.
            rng: in place of the one that the request's seed gives; for tests.
            on_target_probs: called with the position of a rejected draft, what the cloud told of
                the target distribution there, and the draft's distribution, before the token that
                takes its place is committed."""
        super().__init__(liveness)
        rng = rng or SeededRandom(request.params.seed)
        self.request = request
        self.epoch = 0
        self.stats = EdgeStats()
        self.target_name = ""  # empty until the session is open
        self.rule = acceptance_rule(request.preset, request.params.seed, rng)
        self.controller = _controller_of(request)
        self._text = CommittedText(request, completes_stop)
        self.committed = self._text.tokens
        self._liveness = liveness
        self._drafting = drafting_for(request, self.committed)
        self._predrafting = Predrafting(request, self.committed, self._drafting)
        whole_distributions = payload_type(request.preset).kind is FullPayload
        self._recovery = Recovery(self.rule, rng, whole_distributions)
        params = request.params
        self._on_target_probs = on_target_probs
        self._logprobs_buffer = LogprobsBuffer(params.logprobs, params.top_logprobs)
        self.prompt_logprobs = PromptLogprobsBuffer(params.prompt_logprobs, len(request.prompt_ids))
        self._split = SplitUplink(request.preset.split_layers > 0, self.committed)
        self._leaving = False
        self._stream_opened = False
        predicted = request.predicted if request.preset.drafts_chains else None
        self._texts = AnswerTexts(predicted, request.recalled)

    # What the shell may ask at any time.

    @property
    def schedule(self) -> Schedule:
        """The schedule in force: the preset's, or what the controller has made of it."""
        return self._drafting.schedule

    @property
    def drafts_in_flight(self) -> tuple[int, ...]:
        """The drafts that no verdict has settled, sent or not; of a tree, its first branch."""
        return self._drafting.token_ids

    @property
    def drafts_sent(self) -> int:
        """Number of drafts on the stream that is open now."""
        return self._drafting.sent

    @property
    def kv_length(self) -> int:
        """Tokens that the draft KV holds."""
        return self._drafting.kv_length

    @property
    def fed_tokens(self) -> tuple[int, ...]:
        """The tokens that the draft KV holds."""
        return self._drafting.context[: self._drafting.kv_length]

    @property
    def may_prefill(self) -> bool:
        """True if drafts are wanted and none is under way: the draft KV may be filled first."""
        if self.phase is Phase.DONE:
            return False
        wanted = self.phase is Phase.ALONE or self.controller.may_draft
        return wanted and not self._drafting.task and not self._drafting.token_ids

    @property
    def predicts(self) -> bool:
        """True if the caller's prediction, or the memory, says what follows the committed text: the
        draft model is not needed for that."""
        return self.phase is not Phase.ALONE and self._texts_after(()).proposed is not None

    def texts(self, task: DraftTask) -> TextDrafts:
        """Return what texts propose at a task; nothing while the cloud is lost, as nobody would
        verify it."""
        if self.phase is Phase.ALONE or not self._texts.on:
            return NO_TEXTS
        if task.branch and task is not self._drafting.task:
            in_flight = self.context(task, len(self.committed))
        else:
            in_flight = self._drafting.token_ids[: task.position - len(self.committed)]
        return self._texts_after(in_flight)

    def _texts_after(self, in_flight: tuple[int, ...]) -> TextDrafts:
        return self._texts.after(in_flight, self.controller.estimates.acceptance.rate)

    def adopt_prefix(self, kv_length: int) -> None:
        """Note that the draft KV holds the first `kv_length` committed tokens, which no task has
        fed.

        Raises ProtocolError while drafts are under way."""
        self._drafting.adopt_prefix(kv_length)

    # Streams.

    def _open_stream(self, now: float) -> list[EdgeOutput]:
        """Open the session at the committed prefix, and send what is in flight again."""
        self._stream_opened = False
        self._drafting.reconnected()
        self._split.begin_stream()
        self.controller.connected(now)
        self.stats.begin_stream()
        self.prompt_logprobs.begin_stream()
        return [Send(self._opening()), *self._flush(now)]

    def _opening(self) -> Open:
        wanted = self.prompt_logprobs.wanted
        return self.request.opening(self.epoch, self.committed, prompt_logprobs=wanted)

    def _forget_stream(self) -> None:
        self._leaving = False
        self._recovery.forget()
        self.stats.abandon_round()

    def _count_loss(self, silent_s: float) -> None:
        self.stats.count_loss(silent_s)

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """Reconnect, after GoingAway, as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self._drafting.sent or self.phase is not Phase.RUNNING:
            return []
        self.stats.departures += 1
        return self._leave_stream(lost=False)

    def _ping(self, now: float) -> list[EdgeOutput]:
        """Ask a cloud that is silent, or whose round trip nothing else tells."""
        self._liveness.awaits(self._is_owed, len(self.committed), now)
        wanted = self.phase is Phase.RUNNING and self.controller.trip_wanted(now)
        if (nonce := self._liveness.ping_due(now, wanted)) is None:
            return []
        self.controller.pinged(now)
        return [Send(Ping(**self._header(), nonce=nonce))]

    def _go_on_alone(self, now: float) -> list[EdgeOutput]:
        ahead = [*self._drafting.discard_ahead(), *self._predrafting.clear()]
        if self._texts.on:
            ahead += self._drafting.discard_from_texts()
        return [*map(Interrupt, ahead), *self._commit_alone()]

    @property
    def _is_owed(self) -> bool:
        """True if the cloud owes an answer: it waits for nothing that this end still has to
        send."""
        if self._split.on and self._split.sent < len(self.committed):
            return False
        preset = self.request.preset
        goes_on = preset.schedule.decode_when_idle or not preset.drafts
        if goes_on and not self.controller.held:
            return True
        whole = self._drafting.sent > 0 and not self._drafting.chunk_is_open
        return whole or self._recovery.waits

    @property
    def _sends_parts(self) -> bool:
        """True if drafts leave one by one, so that a branch is worth what there is of it."""
        return self.request.preset.schedule.token_by_token

    # Frames of the cloud.

    def receive(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        """Take one frame of the stream that is open now."""
        if self.phase is not Phase.RUNNING:
            return []
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        self._liveness.received(now)
        outputs = self._react(message, now)
        if isinstance(message, Verdict | Tokens | PromptLogprobs | FullDistribution):
            self._liveness.answered(now)
        outputs += map(Interrupt, self._predrafting.forget_committed())
        return [*outputs, *self._flush(now), *self._ping(now)]

    def _react(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        match message:
            case Opened():
                if self._stream_opened:
                    raise ProtocolError(self.phase, "Opened a second time")
                check_opened(message, self.request)
                self._stream_opened = True
                self.target_name = message.model_name
                interrupts = map(Interrupt, self._drafting.opened(message))
                self.stats.count_opened(message, len(self.request.prompt_ids))
                self.controller.opened(
                    message.row_share,
                    drafts_in_cloud=message.cloud_drafts is not CloudDrafts.NONE,
                    model_in_cloud=message.cloud_drafts is CloudDrafts.MODEL,
                )
                self._text.take_eos(message.eos_token_ids)
                return [*interrupts]
            case PromptLogprobs():
                check_prompt_tokens(message, self.request)
                self.prompt_logprobs.take(message)
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
                self.controller.ponged(self._liveness.ponged(message.nonce, now), now)
        return []

    def _receive_verdict(self, verdict: Verdict, now: float) -> list[EdgeOutput]:
        self._check_not_recovering(verdict)
        drafts = self._drafting.judged(verdict)
        check_verdict(verdict, self.request, self.committed, sent=drafts, epoch=self.epoch)
        self.prompt_logprobs.check_complete()
        self._logprobs_buffer.take(verdict)
        self.stats.count_verdict(verdict)
        self.stats.end_round(verdict.work, now)
        of_model = [not drafted.remembered for drafted in self._drafting.drafts]
        if not all(of_model[: verdict.accepted + verdict.rejected]):
            self.controller.skip_stretch()
        self.controller.judged(
            end=verdict.base + verdict.accepted + verdict.rejected,
            accepted=sum(of_model[: verdict.accepted]),
            rejected=int(verdict.rejected and of_model[verdict.accepted]),
            tokens=verdict.accepted + (verdict.outcome is not None),  # the edge may draw it
            work=verdict.work,
            now=now,
        )
        judged = self._drafting.drafts
        outputs = self._commit(drafts[: verdict.accepted], TokenSource.DRAFT)
        self.stats.count_predicted(judged[: len(self.committed) - verdict.base])
        self._drafting.settle(verdict)
        if self.phase is Phase.DONE:
            return outputs
        outcome = verdict.outcome
        if isinstance(outcome, FullPayload | SparsePayload):
            return [*outputs, *self._recover(outcome)]
        if outcome is not None and verdict.rejected:
            # The cloud has raised the epoch already; the edge follows.
            outputs += self._diverge(outcome, new_epoch=True)
        elif outcome is not None:
            outputs += self._overtake(outcome)
        return [*outputs, *self._leave_between_rounds()]

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> list[EdgeOutput]:
        """Draft ahead for the predicted verdict; nothing else follows from it."""
        self._check_not_recovering(verdict)
        sent = self._drafting.sent_token_ids
        check_early_verdict(verdict, self.request, self.committed, sent=sent, epoch=self.epoch)
        self.stats.early_verdicts += 1
        position = verdict.base + verdict.accepted
        token: int | SparsePayload | None = verdict.outcome
        if isinstance(token, SparsePayload):
            rejected = self._drafting.drafts[verdict.accepted]
            token = self._recovery.predict(token, rejected, position)
        if token is not None:
            self._predrafting.expect([LikelyOutcome(position, token, verdict.confidence)])
        return []

    def _receive_tokens(self, message: Tokens, now: float) -> list[EdgeOutput]:
        self._check_not_recovering(message)
        check_tokens(message, self.request, self.committed)
        self.prompt_logprobs.check_complete()
        self._logprobs_buffer.take(message)
        self.stats.count_tokens(message)
        self.controller.took_tokens(
            len(message.token_ids), message.work, now, accepted=message.accepted
        )
        outputs: list[EdgeOutput] = []
        for number, token in enumerate(message.token_ids):
            by_cloud = number < message.accepted
            source = TokenSource.CLOUD_DRAFT if by_cloud else TokenSource.TARGET
            outputs += [] if self.phase is Phase.DONE else self._overtake(token, source)
        return [*outputs, *self._leave_between_rounds()]

    def _check_not_recovering(self, message: Verdict | EarlyVerdict | Tokens) -> None:
        if self._recovery.waits:
            raise ProtocolError(_DRAWING, type(message).__name__)

    # A rejection whose token the edge draws.

    def _recover(self, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Draw the token in the place of the first draft in flight, which was rejected."""
        rejected = self._drafting.drafts[0]
        token = self._recovery.start(payload, rejected, len(self.committed))
        if token is not None:
            return self._draw(token, payload, rejected)
        self.stats.full_distribution_requests += 1
        ahead = map(Interrupt, self._drafting.discard_ahead())
        header = self._header()
        header["epoch"] += 1  # which this rejection begins; the machine enters it with the token
        return [*ahead, Send(NeedFullDistribution(**header))]

    def _receive_full_distribution(self, message: FullDistribution) -> list[EdgeOutput]:
        if not self._recovery.waits:
            raise ProtocolError(self.phase, "a full distribution that was not asked for")
        check_full_distribution(message, self.request, self.committed)
        rejected = self._drafting.drafts[0]
        try:
            token = self._recovery.finish(message.target_probs, rejected, message.base)
        except InvalidArgument as error:
            raise ProtocolError(_DRAWING, "FullDistribution", str(error)) from error
        return self._draw(token, FullPayload(message.target_probs), rejected)

    def _draw(
        self, token: int, payload: FullPayload | SparsePayload, rejected: Drafted
    ) -> list[EdgeOutput]:
        """Commit the token the edge drew, and tell the cloud."""
        header = self._header()  # of the text before the token
        self._logprobs_buffer.drawn(header["base"], token, payload)
        if self._on_target_probs is not None:
            self._on_target_probs(header["base"], payload, rejected.draft_probs)
        outputs = self._diverge(token, new_epoch=True)
        if self.phase is Phase.DONE:
            return outputs
        header["epoch"] = self.epoch
        recovered = Recovered(**header, token_id=token)
        return [*outputs, Send(recovered), *self._leave_between_rounds()]

    # What becomes of the drafts in flight.

    def _overtake(self, token: int, source: TokenSource = TokenSource.TARGET) -> list[EdgeOutput]:
        """Commit a token that the cloud added; drafts in flight stay valid only if they agree."""
        drafted = self._drafting.next_token
        if drafted is None or not self._drafting.drafts[0].remembered:
            self.controller.overtaken(drafted == token if drafted is not None else None)
        if drafted == token:
            self.stats.count_predicted(self._drafting.drafts[:1])
            self._drafting.confirm_next()
            return self._commit([token], source)
        if drafted is None and self._drafting.bonus_token == token:
            outputs = self._commit([token], source)
            if self.phase is not Phase.DONE:
                whole = self._drafting.task is None
                self.stats.count_resolved(begun=True, hit=whole or self._sends_parts)
                self.stats.drafted += self._drafting.adopt_ahead()
                self.stats.count_proposed(self._drafting.drafts)
            return outputs
        # Drafts that were never sent end no epoch: the cloud knows nothing of them.
        return self._diverge(token, new_epoch=self._drafting.sent > 0, source=source)

    def _diverge(
        self, token: int, new_epoch: bool, source: TokenSource = TokenSource.TARGET
    ) -> list[EdgeOutput]:
        """Commit `token` in place of what is in flight; only a branch that predicted it goes on."""
        branch, others = self._predrafting.resolve(token)
        outputs: list[EdgeOutput] = [*map(Interrupt, (*self._drafting.discard(), *others))]
        self.controller.discarded()
        if branch is not None and branch.task is not None and branch.open:
            self._drafting.go_on_with(branch.task, taken=len(branch.drafts))
        self.epoch += new_epoch
        outputs += self._commit([token], source)
        if self.phase is not Phase.DONE and self._predrafting.on:
            if self._predrafting.wanted:
                ready = branch is not None and (
                    branch.complete or (self._sends_parts and bool(branch.drafts))
                )
                self.stats.count_resolved(begun=branch is not None, hit=ready)
            self.controller.resolved(hit=branch is not None)
            self.stats.drafted += self._drafting.adopt(branch.drafts) if branch else 0
            self.stats.count_proposed(branch.drafts if branch else ())
        return outputs

    # Drafting and sending.

    def work(self, now: float) -> DraftTask | None:
        """Return the next task to start, if any: the tokens to send next, or those that would
        follow a verdict. Ask again until there is none: tasks run concurrently."""
        if self.phase is Phase.DONE or self.paused:
            return None
        task = None if self._drafting.task else self._main_task(now)
        if task is None and self.phase is not Phase.ALONE:
            return self._predrafting.task()
        return task

    def _main_task(self, now: float) -> DraftTask | None:
        if self.controller.on:
            schedule = self._schedule() if self._drafting.may_follow else self.schedule
            self._drafting.follow(schedule, drafts_ahead=self.controller.ahead)
            self._predrafting.follow(wanted=self.controller.branches)
        alone = self.phase is Phase.ALONE
        count = min(ALONE_CHUNK, self._drafting.room) if alone else self._drafting.draftable
        if count < 1:
            return None if alone else self._drafting.begin_ahead()
        if self.phase is Phase.RUNNING:
            self.stats.begin_round(now)
        return self._drafting.begin(count, self._text.eos if alone else self.request.draft_ends)

    def _schedule(self) -> Schedule:
        """Return the controller's schedule, with room for what is remembered: such drafts take no
        time, so that they pay where those of the draft model do not."""
        schedule = self.controller.schedule
        request = self.request
        if request.recalled is None or not request.preset.drafter_invariant:
            return schedule
        in_flight = self._drafting.token_ids
        room = min(self._drafting.longest - len(in_flight), self._drafting.room)
        rate = self.controller.estimates.acceptance.rate
        count = self._texts.count(in_flight, rate, max(0, room))
        if self.phase is not Phase.RUNNING or count < LEAST_STRETCH:
            return schedule
        base = schedule if schedule.window else request.preset.schedule
        if base.stop_and_wait:
            chunk = max(base.chunk, count)
            return replace(base, window=chunk, chunk=chunk)
        return replace(base, window=max(base.window, len(in_flight) + count))

    def layers_work(self) -> LayersTask | None:
        """Return the next tokens to run through the target's first layers, if any; one task at a
        time."""
        return self._split.due() if self.phase is Phase.RUNNING else None

    def layers_done(self, task: LayersTask, states: Array, now: float) -> list[EdgeOutput]:
        """Send the hidden states [n, hidden size] of a task, unless its stream is gone."""
        if self.phase is not Phase.RUNNING or not self._split.take(task):
            return []
        self._liveness.uploading(4 * states.size, now)
        header = self._header()
        header["base"] = task.first
        header["prefix_hash"] = self.committed.prefix_at(task.first)
        return [Send(HiddenStates(**header, states=states))]

    @property
    def paused(self) -> bool:
        """True if nothing may be drafted or sent until the cloud's next frame."""
        leaving = self._leaving and not self._drafting.chunk_is_open  # chunks are judged whole
        return leaving or self._recovery.waits

    def context(self, task: DraftTask, first: int = 0) -> tuple[int, ...]:
        """Return the tokens from position `first` on that come before the first one of a task."""
        if task.branch and task is not self._drafting.task:
            return self._predrafting.context(task, first)
        return self._drafting.unfed(task.position, first)

    def drafted(
        self, task: DraftTask, drafts: list[Drafted], kv_length: int, draft_s: float, now: float
    ) -> list[EdgeOutput]:
        """Take the next tokens of a task; those of an interrupted task are dropped.

        Args:
            task: what `work` gave.
            drafts: its next tokens, one by one if it is `stepwise`.
            kv_length: tokens that the draft KV now holds.
            draft_s: what drafting them took.
            now: in seconds."""
        if not self._drafting.take(task, drafts, kv_length, draft_s):
            if self._predrafting.take(task, drafts):
                self.stats.predrafted += len(drafts)
            return []
        if self._drafting.ahead is not None:
            self.stats.predrafted += len(drafts)
            self._predrafting.expect_likely()
            return []
        positions = self._drafting.positions(drafts)
        self.stats.count_drafts(positions, draft_s)
        self.stats.count_proposed(drafts)
        if steps := positions - sum(drafted.remembered for drafted in drafts):
            self.controller.drafted(steps, draft_s, now, self._drafting.feeds_few)
        return self._commit_alone() if self.phase is Phase.ALONE else self._flush(now)

    def _flush(self, now: float) -> list[EdgeOutput]:
        """Send what is due."""
        if self.phase is not Phase.RUNNING or self.paused:
            return []
        frames = self._drafting.send_due(self.epoch, self.controller.chunk_budget_s)
        if frames:
            self._liveness.uploading(bulk_bytes(frames, self.request), now)
            for frame in frames:
                self.controller.sent(frame.base, now, frame.hold)
            self.stats.begin_round(now)
            self._predrafting.expect_likely()
        return [Send(frame) for frame in frames]

    # Committing, and the end.

    def _commit_alone(self) -> list[EdgeOutput]:
        return self._commit(self._drafting.take_all(), TokenSource.EDGE)

    def _commit(
        self, token_ids: Sequence[int], token_source: TokenSource = TokenSource.TARGET
    ) -> list[EdgeOutput]:
        """Append tokens to the answer, up to the first that ends it."""
        position = len(self.committed)
        committed, reason = self._text.append(token_ids)
        if not committed:
            return []
        count = len(committed)
        unverified = token_source is TokenSource.EDGE
        if not unverified:
            self._texts.commit(committed)
        self.stats.count_commit(count, unverified)
        commit = Commit(
            committed,
            unverified=unverified,
            token_sources=(token_source,) * count,
            logprobs=self._logprobs_buffer.of(position, count),
        )
        return [commit] if reason is None else [commit, *self._finish(reason)]

    def _close(self) -> list[EdgeOutput]:
        """Interrupt the drafting; `Cancel` has the cloud free the session at once."""
        outputs: list[EdgeOutput] = []
        if self.phase is Phase.RUNNING:
            outputs.append(Send(Cancel(**self._header())))
        return [
            *outputs,
            *map(Interrupt, (*self._drafting.interrupt(), *self._predrafting.clear())),
        ]

    def _header(self) -> FrameHeader:
        """Return the header of every frame."""
        return {
            "session": self.request.session,
            "epoch": self.epoch,
            "base": len(self.committed),
            "prefix_hash": self.committed.prefix,
        }


def _controller_of(request: EdgeRequest) -> Controller:
    preset = request.preset
    return Controller(
        preset.control,
        preset.schedule,
        idle_weight=preset.idle_weight,
        drafts_ahead=preset.predraft is not Predraft.OFF,
        max_tokens=request.max_tokens,
        prompt_tokens=len(request.prompt_ids),
        warm_start=request.warm_start,
    )


class TextLimits(Protocol):
    """The part of a request that says where its answer ends."""

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def ignore_eos(self) -> bool: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...


class CommittedText:
    """Prompt and answer of one request, and the conditions that end the answer.

    Invariant: nothing is committed after the token that ends the text."""

    def __init__(self, request: TextLimits, completes_stop: Callable[[int], bool]) -> None:
        """Start with the prompt. `completes_stop` is called once per answer token and returns
        whether a stop string ends with it."""
        self.tokens = PrefixedTokens(request.prompt_ids)
        self.eos = frozenset() if request.ignore_eos else request.eos_token_ids
        self._ignore_eos = request.ignore_eos
        self._completes_stop = completes_stop
        self._first = len(request.prompt_ids)
        self.length_limit = self._first + request.max_tokens

    def take_eos(self, eos_token_ids: frozenset[int]) -> None:
        """Take the target model's end-of-sequence tokens: both ends must stop together."""
        if not self._ignore_eos:
            self.eos = eos_token_ids

    def limit(self, max_tokens: int) -> None:
        """Lower the length limit of the answer to `max_tokens`, unless it is lower already."""
        self.length_limit = min(self.length_limit, self._first + max_tokens)

    def append(self, token_ids: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Commit tokens up to the first that ends the text; which these are, and why it ended."""
        committed: list[int] = []
        for token in token_ids:
            committed.append(token)
            self.tokens.append(token)
            if reason := self._stop_reason(token):
                return tuple(committed), reason
        return tuple(committed), None

    def _stop_reason(self, token: int) -> FinishReason | None:
        if self._completes_stop(token) or token in self.eos:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.length_limit else None


class Recovery:
    """Draws recovered tokens, each in one step or, with a full distribution asked for, in two.

    Invariant: one rejection is one draw. When a sparse payload was not enough, that same draw goes
    on with the full distribution; a fresh one would be biased."""

    def __init__(
        self, rule: AcceptanceRule, rng: RandomSource, whole_distributions: bool = False
    ) -> None:
        """Start with no recovery under way. `whole_distributions`: whether rejections bring the
        whole target distribution."""
        self._rule = rule
        self._whole_distributions = whole_distributions
        self._rng = rng
        self._unfinished: tuple[SparsePayload, TailExhausted] | None = None

    @property
    def waits(self) -> bool:
        """True if a draw waits for the full distribution."""
        return self._unfinished is not None

    def start(
        self, payload: FullPayload | SparsePayload, rejected: Drafted, position: int
    ) -> int | None:
        """Return the recovered token, or None when the draw needs the full distribution."""
        if isinstance(payload, FullPayload):
            proposal = Proposal((rejected.token_id,), draft_probs=rejected.draft_probs)
            return self._rule.recovered(payload.target_probs, proposal, position)
        drawn = draw_from_sparse_payload(payload, rejected.draft_probs, self._rng, position)
        if isinstance(drawn, TailExhausted):
            self._unfinished = (payload, drawn)
            return None
        return drawn

    def predict(self, payload: SparsePayload, rejected: Drafted, position: int) -> int | None:
        """Return the token that a verdict like this early one would bring, by the same random
        numbers; None where the payload does not say. Changes nothing."""
        if not self._whole_distributions:
            drawn = draw_from_sparse_payload(payload, rejected.draft_probs, self._rng, position)
            return None if isinstance(drawn, TailExhausted) else drawn
        probs = np.zeros_like(rejected.draft_probs)
        probs[payload.ids] = payload.probs
        if not probs.any():
            return None
        proposal = Proposal((rejected.token_id,), draft_probs=rejected.draft_probs)
        return self._rule.recovered(probs, proposal, position)

    def finish(self, target_probs: Array, rejected: Drafted, position: int) -> int:
        """Return the recovered token: the draw goes on with the full distribution. Only while
        `waits`, and still so after InvalidArgument for a distribution that the sparse payload
        cannot be of."""
        assert self._unfinished is not None, "no draw waits for a full distribution"
        payload, need = self._unfinished
        token = finish_with_full_distribution(
            payload,
            target_probs,
            draft_probs=rejected.draft_probs,
            need=need,
            rng=self._rng,
            position=position,
        )
        self._unfinished = None
        return token

    def forget(self) -> None:
        """Forget the rejection: the stream is gone, and it will come again and be decided the same
        way."""
        self._unfinished = None


@dataclass(slots=True)
class EdgeStats:
    """Running totals of one request; times in seconds, each by the clock of who did the work."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    unverified_tokens: int = 0
    target_passes: int = 0
    full_distribution_requests: int = 0
    predrafted: int = 0
    """Tokens drafted before it was known whether they are wanted."""
    predraft_hits: int = 0
    predraft_misses: int = 0
    predraft_begun: int = 0
    """Misses for which drafting was under way, and the next message had to wait for it."""
    early_verdicts: int = 0
    proposed_prediction_tokens: int = 0
    """Drafts from the caller's prediction that were in flight."""
    accepted_prediction_tokens: int = 0
    proposed_memory_tokens: int = 0
    """Drafts from earlier texts, the prompt or the answer so far that were in flight."""
    accepted_memory_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    """Verdicts that accepted 0, 1, 2, … drafts; as long as the most that one judged."""
    cloud_drafted: int = 0
    """Drafts that the cloud made itself, and judged."""
    cloud_accepted: int = 0
    cached_tokens: int = 0
    same_bits: bool | None = None
    """Whether all clouds so far promise it; None before the first."""
    batch_invariant: bool | None = None
    """Likewise."""
    links_lost: int = 0
    departures: int = 0
    loss_noticed_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    queue_s: float = 0.0
    round_s: float = 0.0
    round_overheads_s: deque[float] = field(default_factory=lambda: deque(maxlen=MEDIAN_OF))
    _stream_passes: int = 0
    _streams: int = 0
    _round_started_s: float | None = None
    _round_draft_s: float = 0.0

    @property
    def rejected_prediction_tokens(self) -> int:
        """Those that were proposed and are not in the answer."""
        return self.proposed_prediction_tokens - self.accepted_prediction_tokens

    @property
    def rejected_memory_tokens(self) -> int:
        """Likewise of drafts from the memory."""
        return self.proposed_memory_tokens - self.accepted_memory_tokens

    @property
    def model_drafts(self) -> int:
        """Drafts that the draft model made."""
        return self.drafted - self.proposed_prediction_tokens - self.proposed_memory_tokens

    @property
    def resumes(self) -> int:
        """Streams after the first."""
        return max(0, self._streams - 1)

    @property
    def round_overhead_median_s(self) -> float:
        """Median over the last rounds of round time minus model time on both sides."""
        return median(self.round_overheads_s) if self.round_overheads_s else 0.0

    def begin_stream(self) -> None:
        """Begin to count the cloud's passes, which it counts from the start of a stream."""
        self._stream_passes = 0
        self._streams += 1

    def count_opened(self, opened: Opened, prompt_tokens: int) -> None:
        """Record what the cloud promises, and how much of the prompt it had cached when the first
        stream opened."""
        self.same_bits = opened.same_bits and self.same_bits is not False
        self.batch_invariant = opened.batch_invariant and self.batch_invariant is not False
        if self._streams <= 1:
            self.cached_tokens = min(opened.cached_tokens, prompt_tokens)

    def count_loss(self, silent_s: float) -> None:
        """Count a stream that broke, or was found dead after a silence."""
        self.links_lost += 1
        self.loss_noticed_s = max(self.loss_noticed_s, silent_s)

    def count_drafts(self, count: int, draft_s: float) -> None:
        self.drafted += count
        self.draft_s += draft_s
        self._round_draft_s += draft_s

    def count_proposed(self, drafts: Sequence[Drafted]) -> None:
        """Count the drafts from the prediction and from memory among those put in flight."""
        self.proposed_prediction_tokens += sum(drafted.predicted for drafted in drafts)
        self.proposed_memory_tokens += sum(drafted.remembered for drafted in drafts)

    def count_predicted(self, drafts: Sequence[Drafted]) -> None:
        """Count the drafts from the prediction and from memory among those now in the answer."""
        self.accepted_prediction_tokens += sum(drafted.predicted for drafted in drafts)
        self.accepted_memory_tokens += sum(drafted.remembered for drafted in drafts)

    def count_resolved(self, begun: bool, hit: bool) -> None:
        """Count a token that the drafts in flight did not hold. `hit`: the drafts that follow it
        can leave at once; `begun`: they are being drafted."""
        self.predraft_hits += hit
        self.predraft_misses += not hit
        self.predraft_begun += begun and not hit

    def count_verdict(self, verdict: Verdict) -> None:
        self.rounds += 1
        self.accepted += verdict.accepted
        missing = 1 + verdict.accepted + verdict.rejected - len(self.acceptance_histogram)
        self.acceptance_histogram += [0] * missing
        self.acceptance_histogram[verdict.accepted] += 1
        self._count_passes(verdict.work.target_passes)
        self.verify_s += verdict.work.verify_s
        self.queue_s += verdict.work.queue_s

    def count_tokens(self, message: Tokens) -> None:
        self.cloud_drafted += message.work.drafts
        self.cloud_accepted += message.accepted
        self._count_passes(message.work.target_passes)
        self.verify_s += message.work.verify_s
        self.queue_s += message.work.queue_s

    def begin_round(self, now: float) -> None:
        """Begin to time a round, with the first drafting since the last verdict."""
        if self._round_started_s is None:
            self._round_started_s = now
            self._round_draft_s = 0.0

    def end_round(self, work: Work, now: float) -> None:
        """End a round with its verdict: time that neither side's model needed was spent in
        between."""
        if self._round_started_s is not None:
            round_s = now - self._round_started_s
            self.round_s += round_s
            self.round_overheads_s.append(round_s - self._round_draft_s - work.verify_s)
        self.abandon_round()

    def abandon_round(self) -> None:
        """Abandon the timing of this round: the stream is gone."""
        self._round_started_s = None
        self._round_draft_s = 0.0

    def count_commit(self, count: int, unverified: bool) -> None:
        self.tokens += count
        self.unverified_tokens += count if unverified else 0

    def _count_passes(self, stream_passes: int) -> None:
        self.target_passes += stream_passes - self._stream_passes
        self._stream_passes = stream_passes


_Based = Verdict | EarlyVerdict | Tokens | FullDistribution


def check_opened(opened: Opened, request: EdgeRequest) -> None:
    """Raise FailedPrecondition where the cloud is older than what was asked for: it passes over
    what it does not know, and its text would be that of another request."""
    check_processes(opened.processes, request.params.sampling, request.params.processors)
    if request.params.prompt_logprobs and not opened.tells_prompt_logprobs:
        raise FailedPrecondition("the cloud is of a version without log-probabilities of prompts")
    if request.params.processors.thinking is not None and not opened.processes_thinking:
        raise FailedPrecondition("the cloud is of a version that knows no thinking before answers")
    preset = request.preset
    if preset.drafts_in_cloud and opened.cloud_drafts is not preset.cloud_drafts:
        raise FailedPrecondition(
            f"cloud_drafts: the cloud is of a version that drafts nothing itself; preset"
            f" {preset.name!r} needs a newer verifier"
        )


def check_processes(
    processes: bool, sampling: SamplingParams, processors: Processors, place: str = "cloud"
) -> None:
    """Raise FailedPrecondition where sampling settings or processors are asked of an end that does
    not know them; `processes`: whether that end, at that `place`, says that it does."""
    newer = processors.active or sampling.min_p > 0 or sampling.typical_p < 1
    if newer and not processes:
        raise FailedPrecondition(f"the {place} is of a version without logits processors")


def check_verdict(
    verdict: Verdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """Check that a verdict judges drafts that were sent, in this epoch, as the preset says.

    Args:
        verdict: the frame.
        request: whose preset and vocabulary it must fit.
        committed: the edge's text.
        sent: token ids of the drafts that it may speak of, oldest first.
        epoch: the edge's.

    Raises ProtocolError, or PrefixMismatch where the two texts differ."""
    _check_base(verdict, committed)
    _check_judged(verdict, len(sent), "a verdict")
    if verdict.epoch != epoch + verdict.rejected:
        raise ProtocolError(f"epoch {epoch}", f"a verdict of epoch {verdict.epoch}")
    outcome = verdict.outcome
    appended = tuple(sent[: verdict.accepted])
    if isinstance(outcome, int):
        _check_token(outcome, request, "Verdict")
        appended = (*appended, outcome)
    if verdict.rejected:
        _check_payload(verdict, request)
    elif not (outcome is None or isinstance(outcome, int)):
        raise ProtocolError("no draft rejected", "a distribution to draw from")
    _check_logprobs(verdict, len(appended), request)
    _check_prefix(verdict, committed, appended)


def check_early_verdict(
    verdict: EarlyVerdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
    epoch: int,
) -> None:
    """Check that an early verdict was asked for, and judges drafts that were sent (token ids
    `sent`), in this epoch, as the preset says. Raises as `check_verdict`."""
    preset = request.preset
    if not preset.exits:
        raise ProtocolError("no early exits asked for", "EarlyVerdict")
    _check_base(verdict, committed)
    _check_judged(verdict, len(sent), "an early verdict")
    if verdict.epoch != epoch:
        raise ProtocolError(f"epoch {epoch}", f"an early verdict of epoch {verdict.epoch}")
    if isinstance(verdict.outcome, int):
        _check_token(verdict.outcome, request, "EarlyVerdict")
    elif not verdict.rejected or preset.cloud_draws:
        raise ProtocolError("nothing to draw", "an early verdict with a distribution to draw from")
    _check_prefix(verdict, committed, ())


def check_tokens(message: Tokens, request: EdgeRequest, committed: PrefixedTokens) -> None:
    """Check that these are tokens of the vocabulary that follow the committed ones, no more of them
    than the answer has room for."""
    _check_base(message, committed)
    room = len(request.prompt_ids) + request.max_tokens - len(committed)
    if not 1 <= len(message.token_ids) <= room:
        raise ProtocolError(f"1…{room} tokens expected", f"Tokens with {len(message.token_ids)}")
    for token in message.token_ids:
        _check_token(token, request, "Tokens")
    _check_cloud_drafts(message, request)
    _check_logprobs(message, len(message.token_ids), request)
    _check_prefix(message, committed, message.token_ids)


def _check_cloud_drafts(message: Tokens, request: EdgeRequest) -> None:
    """Check what a cloud says of drafts that it made itself: as many as it may make, and more where
    it may have remembered them."""
    preset = request.preset
    most = 0
    if preset.may_draft_in_cloud:
        most = MAX_DRAFT_LENGTH if request.allows_memory else preset.cloud_draft_length
    judged = message.work.drafts
    if judged > most:
        raise ProtocolError(f"{most} drafts of the cloud", f"Tokens after {judged}")
    if message.accepted > min(judged, len(message.token_ids)):
        raise ProtocolError(f"{judged} drafts of the cloud", f"{message.accepted} accepted")


def check_prompt_tokens(message: PromptLogprobs, request: EdgeRequest) -> None:
    """Check that they are log-probabilities, with as many likeliest tokens as were asked for."""
    check_logprobs(
        message.logprobs,
        tokens=len(message.logprobs),
        params=request.params,
        vocabulary_size=request.vocabulary_size,
        message="PromptLogprobs",
    )


def check_full_distribution(
    message: FullDistribution, request: EdgeRequest, committed: PrefixedTokens
) -> None:
    """Check that this is a distribution at the position that is being drawn."""
    _check_base(message, committed)
    _check_shape(message.target_probs, request, "FullDistribution")
    _check_prefix(message, committed, ())


def _check_logprobs(message: Verdict | Tokens, tokens: int, request: EdgeRequest) -> None:
    if request.logprobs_are_optional and not message.logprobs:
        return
    check_logprobs(
        message.logprobs,
        tokens=tokens,
        params=request.params,
        vocabulary_size=request.vocabulary_size,
        message=type(message).__name__,
    )


def _check_base(message: _Based, committed: PrefixedTokens) -> None:
    if message.base != len(committed):
        state = f"{len(committed)} tokens committed"
        raise ProtocolError(state, f"{type(message).__name__} at {message.base}")


def _check_judged(verdict: Verdict | EarlyVerdict, sent: int, name: str) -> None:
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= sent:
        raise ProtocolError(f"{sent} drafts sent", f"{name} on {judged}")


def _check_payload(verdict: Verdict, request: EdgeRequest) -> None:
    preset = request.preset
    outcome = verdict.outcome
    if not isinstance(outcome, payload_type(preset).kind):
        state = f"rejection payloads '{preset.rejection_payload}'"
        raise ProtocolError(state, f"a rejection that carries {type(outcome).__name__}")
    if isinstance(outcome, FullPayload):
        _check_shape(outcome.target_probs, request, "Verdict")


def _check_token(token: int, request: EdgeRequest, message: str) -> None:
    if not 0 <= token < request.vocabulary_size:
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has token {token}")


def _check_shape(probs: Array, request: EdgeRequest, message: str) -> None:
    if probs.shape != (request.vocabulary_size,):
        state = f"vocabulary of {request.vocabulary_size}"
        raise ProtocolError(state, message, f"has a distribution of shape {probs.shape}")


def _check_prefix(message: _Based, committed: PrefixedTokens, appended: Sequence[int]) -> None:
    """Check that the frame carries the hash of the committed text once it is applied."""
    if committed.prefix_with(appended) != message.prefix_hash:
        raise PrefixMismatch(len(committed) + len(appended))
