"""The edge's half of a session: drafts, draws recovered tokens, commits, survives a lost cloud.

Its shell calls

- `connect` on each fresh stream, which opens or resumes the session;
- `receive` with each frame of the cloud;
- `work` for the tokens to draft, and `drafted` with them;
- `tick` regularly: it is the only clock;

and does what each returns: sends, commits, interrupts, reconnects, finishes.

Invariants: a committed token is never retracted or repeated; a draft in flight stays so until the
committed text has passed it or departed from it; a frame that is refused changes nothing, so that a
fresh stream can resume from the committed text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.sparse_payload import (
    FullPayload,
    SparsePayload,
    TailExhausted,
    draw_from_sparse_payload,
    finish_with_full_distribution,
)
from tandem.core.tokens import TokenSource
from tandem.specdec.checks import (
    check_committed,
    check_early_verdict,
    check_full_distribution,
    check_opened,
    check_prompt_tokens,
)
from tandem.specdec.choices import Schedule
from tandem.specdec.drafting import bulk_bytes
from tandem.specdec.edge_stats import EdgeStats
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
)
from tandem.specdec.measuring import Measuring, controller_of
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    Committed,
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
)
from tandem.specdec.observers import EdgeObserver, Hooks, Settled
from tandem.specdec.predrafting import LikelyOutcome, Predrafting
from tandem.specdec.proposers import NO_TEXTS, AnswerTexts, TextDrafts
from tandem.specdec.resumable import Resumable
from tandem.specdec.rules import (
    AcceptanceRule,
    Proposal,
    acceptance_rule,
    payload_type,
)
from tandem.specdec.split_uplink import LayersTask, SplitUplink
from tandem.specdec.text import CommittedText
from tandem.specdec.tree_drafting import drafting_for

ALONE_CHUNK = 8
"""Tokens that are drafted at once, and committed unverified, with the cloud lost."""
LEAST_STRETCH = 4
"""Remembered tokens in a row for which the schedule is widened, at least: fewer are decoded by the
cloud before they arrive."""
_DRAWING = "drawing a recovered token"
_COMPUTED = Committed, PromptLogprobs, FullDistribution
"""Frames that the cloud's engine had to compute."""


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
        observers: Sequence[EdgeObserver] = (),
    ) -> None:
        """Begin a request, with no stream yet.

        Args:
            request: its prompt, preset and limits.
            liveness: when the cloud counts as silent, dead, and given up.
            completes_stop: called once per committed token: whether a stop string ends with it.
            rng: in place of the one that the request's seed gives; for tests.
            observers: who else is to hear what happens."""
        super().__init__(liveness)
        rng = rng or SeededRandom(request.params.seed)
        self.request = request
        self.stats = EdgeStats(prompt_tokens=len(request.prompt_ids))
        self.target_name = ""  # empty until the session is open
        self.rule = acceptance_rule(request.preset, request.params.seed, rng)
        self.controller = controller_of(request)
        self._text = CommittedText(request, completes_stop)
        self.committed = self._text.tokens
        self._liveness = liveness
        self._drafting = drafting_for(request, self.committed)
        self._predrafting = Predrafting(
            request,
            self.committed,
            self._drafting,
            wanted=self.controller.branches,
            on_drafted=self._count_predrafted,
        )
        whole_distributions = payload_type(request.preset).kind is FullPayload
        self._recovery = Recovery(self.rule, rng, whole_distributions)
        params = request.params
        self._logprobs_buffer = LogprobsBuffer(params.logprobs, params.top_logprobs)
        own = (self.stats, Measuring(self.controller), self._logprobs_buffer)
        self._hooks = Hooks((*own, *observers))
        self.prompt_logprobs = PromptLogprobsBuffer(params.prompt_logprobs, len(request.prompt_ids))
        self._split = SplitUplink(request.preset.split_layers > 0, self.committed)
        self._drafts = request.preset.drafts
        self._draft_ends = request.draft_ends
        self._goes_on = request.preset.schedule.decode_when_idle or not self._drafts
        self._leaving = False
        self._stream_opened = False
        # Where a stream was lost in the midst of a draw: the next one brings that rejection again.
        self._drawn_again_at = -1
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
        interrupts = map(Interrupt, self._drafting.reconnected())
        self._split.begin_stream()
        for on_connected in self._hooks.on_connected:
            on_connected(now)
        self.prompt_logprobs.begin_stream()
        return [*interrupts, Send(self._opening()), *self._flush(now)]

    def _opening(self) -> Open:
        wanted = self.prompt_logprobs.wanted
        return self.request.opening(self.committed, prompt_logprobs=wanted)

    def _forget_stream(self) -> None:
        self._leaving = False
        if self._recovery.waits:
            self._drawn_again_at = len(self.committed)
        self._recovery.forget()
        for on_left in self._hooks.on_left:
            on_left()

    def _count_loss(self, silent_s: float) -> None:
        for on_lost in self._hooks.on_lost:
            on_lost(silent_s)

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """Reconnect, after GoingAway, as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self._drafting.sent or self.phase is not Phase.RUNNING:
            return []
        for on_departed in self._hooks.on_departed:
            on_departed()
        return self._leave_stream(lost=False)

    def _ping(self, now: float) -> list[EdgeOutput]:
        """Ask a cloud that is silent, or whose round trip nothing else tells."""
        self._liveness.awaits(self._is_owed, len(self.committed), now)
        wanted = self.phase is Phase.RUNNING and self.controller.trip_wanted(now)
        if (nonce := self._liveness.ping_due(now, wanted)) is None:
            return []
        for on_pinged in self._hooks.on_pinged:
            on_pinged(now)
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
        if self._goes_on:
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
        if isinstance(message, _COMPUTED):
            self._liveness.answered(now)
        if self._predrafting.on:
            outputs += map(Interrupt, self._predrafting.forget_committed())
        outputs += self._flush(now)
        outputs += self._ping(now)
        return outputs

    def _react(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        match message:
            case Committed():
                return self._receive_committed(message, now)
            case Opened():
                if self._stream_opened:
                    raise ProtocolError(self.phase, "Opened a second time")
                check_opened(message, self.request)
                self._stream_opened = True
                self.target_name = message.model_name
                interrupts = map(Interrupt, self._drafting.opened(message))
                for on_opened in self._hooks.on_opened:
                    on_opened(message)
                self._text.take_eos(message.eos_token_ids)
                return [*interrupts]
            case PromptLogprobs():
                check_prompt_tokens(message, self.request)
                self.prompt_logprobs.take(message)
            case EarlyVerdict():
                return self._receive_early_verdict(message)
            case FullDistribution():
                return self._receive_full_distribution(message)
            case GoingAway():
                self._leaving = True
                return self._leave_between_rounds()
            case Pong():
                trip_s = self._liveness.ponged(message.nonce, now)
                for on_ponged in self._hooks.on_ponged:
                    on_ponged(trip_s, now)
        return []

    def _receive_committed(self, message: Committed, now: float) -> list[EdgeOutput]:
        """Commit what the cloud says. Drafts in flight stay so as far as the text has not departed
        from them."""
        self._check_not_recovering(message)
        sent = self._drafting.judged(message)
        check_committed(message, self.request, self.committed, sent=sent)
        self.prompt_logprobs.check_complete()
        settled = Settled.by(message, sent)
        position = message.base + message.accepted
        if message.draw_from is not None and position == self._drawn_again_at:
            settled = replace(settled, departs=False, refused=False)  # that was said before
        drafts = self._drafting.drafts
        for on_committed in self._hooks.on_committed:
            on_committed(message, settled, drafts, now)
        outputs = list[EdgeOutput]()
        if message.accepted:
            outputs = self._commit(sent[: message.accepted], TokenSource.DRAFT)
            for on_right in self._hooks.on_right:
                on_right(drafts[: len(self.committed) - message.base])
            self._drafting.settle(message)
        for number, token in enumerate(message.token_ids):
            if self.phase is Phase.DONE:
                break
            by_cloud = number < message.cloud_accepted
            source = TokenSource.CLOUD_DRAFT if by_cloud else TokenSource.TARGET
            if number or not settled.refused:
                for on_token in self._hooks.on_token:
                    on_token(token, self._drafting.first)
            outputs += self._go_on_with(token, source)
        if message.draw_from is not None and self.phase is not Phase.DONE:
            return [*outputs, *self._recover(message.draw_from)]
        outputs += self._leave_between_rounds()
        return outputs

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> list[EdgeOutput]:
        """Draft ahead for the predicted verdict; nothing else follows from it."""
        self._check_not_recovering(verdict)
        sent = self._drafting.sent_token_ids
        check_early_verdict(verdict, self.request, self.committed, sent=sent)
        for on_early_verdict in self._hooks.on_early_verdict:
            on_early_verdict()
        position = verdict.base + verdict.accepted
        token: int | SparsePayload | None = verdict.outcome
        if isinstance(token, SparsePayload):
            rejected = self._drafting.drafts[verdict.accepted]
            token = self._recovery.predict(token, rejected, position)
        if token is not None:
            self._predrafting.expect([LikelyOutcome(position, token, verdict.confidence)])
        return []

    def _check_not_recovering(self, message: Committed | EarlyVerdict) -> None:
        if self._recovery.waits:
            raise ProtocolError(_DRAWING, type(message).__name__)

    # A rejection whose token the edge draws.

    def _recover(self, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Draw the token in the place of the first draft in flight, which was rejected."""
        rejected = self._drafting.drafts[0]
        token = self._recovery.start(payload, rejected, len(self.committed))
        if token is not None:
            return self._draw(token, payload, rejected)
        for on_full_distribution_needed in self._hooks.on_full_distribution_needed:
            on_full_distribution_needed()
        ahead = map(Interrupt, self._drafting.discard_ahead())
        return [*ahead, Send(NeedFullDistribution(**self._header()))]

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
        for on_drawn in self._hooks.on_drawn:
            on_drawn(header["base"], token, payload, rejected)
        outputs = self._go_on_with(token)
        if self.phase is Phase.DONE:
            return outputs
        recovered = Recovered(**header, token_id=token)
        return [*outputs, Send(recovered), *self._leave_between_rounds()]

    # What becomes of the drafts in flight.

    def _go_on_with(self, token: int, source: TokenSource = TokenSource.TARGET) -> list[EdgeOutput]:
        """Commit the next token. The drafts after it stay in flight if it was drafted, and are void
        if not: the cloud, which has the same drafts, decides the same."""
        drafted = self._drafting.next_token
        if drafted == token:
            for on_right in self._hooks.on_right:
                on_right(self._drafting.drafts[:1])
            self._drafting.confirm_next()
            return self._commit([token], source)
        if drafted is None and self._drafting.bonus_token == token:
            outputs = self._commit([token], source)
            if self.phase is not Phase.DONE:
                whole = self._drafting.task is None
                self._drafting.adopt_ahead()
                for on_foreseen in self._hooks.on_foreseen:
                    on_foreseen(ready=whole or self._sends_parts)
                for on_adopted in self._hooks.on_adopted:
                    on_adopted(self._drafting.drafts)
            return outputs
        return self._diverge(token, source)

    def _diverge(self, token: int, source: TokenSource = TokenSource.TARGET) -> list[EdgeOutput]:
        """Commit `token` in place of what is in flight; only a branch that predicted it goes on."""
        if not self._drafts:
            return self._commit([token], source)
        branch, others = self._predrafting.resolve(token)
        outputs: list[EdgeOutput] = [*map(Interrupt, (*self._drafting.discard(), *others))]
        for on_discarded in self._hooks.on_discarded:
            on_discarded()
        if branch is not None and branch.task is not None and branch.open:
            self._drafting.go_on_with(branch.task, taken=len(branch.drafts))
        outputs += self._commit([token], source)
        if self.phase is not Phase.DONE and self._predrafting.on:
            drafts = branch.drafts if branch is not None else []
            ready = branch is not None and (branch.complete or (self._sends_parts and bool(drafts)))
            self._drafting.adopt(drafts)
            for on_resolved in self._hooks.on_resolved:
                on_resolved(begun=branch is not None, ready=ready)
            for on_adopted in self._hooks.on_adopted:
                on_adopted(drafts)
        return outputs

    # Drafting and sending.

    def work(self, now: float) -> DraftTask | None:
        """Return the next task to start, if any: the tokens to send next, or those that would
        follow a verdict. Ask again until there is none: tasks run concurrently."""
        if self.phase is Phase.DONE or self.paused:
            return None
        if not self._drafts and self.phase is not Phase.ALONE:
            return None
        if self._drafting.task is not None and not self._predrafting.on:
            return None
        task = None if self._drafting.task else self._main_task(now)
        if task is None and self.phase is not Phase.ALONE:
            return self._predrafting.task()
        return task

    def _main_task(self, now: float) -> DraftTask | None:
        if self.controller.on:
            schedule = self._schedule() if self._drafting.may_follow else self.schedule
            self._drafting.follow(schedule)
        alone = self.phase is Phase.ALONE
        count = min(ALONE_CHUNK, self._drafting.room) if alone else self._drafting.draftable
        if count < 1:
            return None if alone else self._drafting.begin_ahead()
        if self.phase is Phase.RUNNING:
            for on_draft_begun in self._hooks.on_draft_begun:
                on_draft_begun(now)
        return self._drafting.begin(count, self._text.eos if alone else self._draft_ends)

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

    def predrafted(self, task: DraftTask, drafts: Sequence[Drafted]) -> bool:
        """Take the next tokens of a branch, but not its last one, while nothing hangs on them.
        False: they are for `drafted`, as what the branch is for has come true."""
        if task is self._drafting.task:
            return False
        task.made.extend(drafts)
        return True

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
        if task is not self._drafting.task:
            self._predrafting.take(task, drafts)
            return []
        self._drafting.take(task, drafts, kv_length, draft_s)
        if self._drafting.ahead is not None:
            self._count_predrafted(len(drafts))
            self._predrafting.expect_likely()
            return []
        positions, usual = self._drafting.positions(drafts), self._drafting.feeds_few
        for on_drafted in self._hooks.on_drafted:
            on_drafted(drafts, positions, draft_s, now, usual=usual)
        return self._commit_alone() if self.phase is Phase.ALONE else self._flush(now)

    def _count_predrafted(self, count: int) -> None:
        for on_predrafted in self._hooks.on_predrafted:
            on_predrafted(count)

    def _flush(self, now: float) -> list[EdgeOutput]:
        """Send what is due."""
        if self.phase is not Phase.RUNNING or self.paused or not self._drafting.unsent:
            return []
        frames = self._drafting.send_due(self.controller.chunk_budget_s)
        if frames:
            self._liveness.uploading(bulk_bytes(frames, self.request), now)
            for frame in frames:
                for on_sent in self._hooks.on_sent:
                    on_sent(frame, now)
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
        for on_text in self._hooks.on_text:
            on_text(count, unverified=unverified)
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
            "base": len(self.committed),
            "prefix_hash": self.committed.prefix,
        }


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
