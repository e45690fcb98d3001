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

from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.tokens import TokenSource
from tandem.specdec.checks import check_committed, check_opened, check_prompt_tokens
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
    LayersTask,
    Send,
)
from tandem.specdec.liveness import Liveness, Phase
from tandem.specdec.logprobs import (
    LogprobsBuffer,
    PromptLogprobsBuffer,
)
from tandem.specdec.measuring import Measuring
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    CloudRoundFrame,
    Committed,
    FrameHeader,
    GoingAway,
    Open,
    Opened,
    Ping,
    Pong,
    PromptLogprobs,
)
from tandem.specdec.observers import EdgeObserver, Observers, Settled
from tandem.specdec.predrafting import Predrafting
from tandem.specdec.proposers import NO_TEXTS, AnswerTexts, TextDrafts
from tandem.specdec.resumable import Resumable
from tandem.specdec.rounds.edge import EdgeRounds, drafting_for
from tandem.specdec.rules import acceptance_rule
from tandem.specdec.text import CommittedText

ALONE_CHUNK = 8
"""Tokens that are drafted at once, and committed unverified, with the cloud lost."""
LEAST_STRETCH = 4
"""Remembered tokens in a row for which the schedule is widened, at least: fewer are decoded by the
cloud before they arrive."""
_BEFORE_OPENED = Opened, GoingAway, Pong
"""Frames that change no text."""
_COMPUTED = Committed, PromptLogprobs, CloudRoundFrame
"""Frames that the cloud's engine had something to compute for."""


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
        self.measuring = Measuring(request, liveness.began_s)
        self.controller = self.measuring.controller
        params = request.params
        self._text = CommittedText(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            eos_token_ids=request.eos_token_ids,
            ignore_eos=params.ignore_eos,
            completes_stop=completes_stop,
        )
        self.committed = self._text.tokens
        self._logprobs_buffer = LogprobsBuffer(params.logprobs, params.top_logprobs)
        buffers = [self._logprobs_buffer] if params.logprobs else []
        self._observers = Observers((self.stats, self.measuring, *buffers, *observers))
        self._drafting = drafting_for(request, self.committed)
        self._predrafting = Predrafting(
            request,
            self.committed,
            self._drafting,
            wanted=self.controller.branches,
            on_drafted=self._observers.on_predrafted,
        )
        self._rounds = EdgeRounds(
            request,
            self.rule,
            rng,
            header=self._header,
            commit=self._go_on_with,
            committed=self.committed,
            drafting=self._drafting,
            predrafting=self._predrafting,
            observers=self._observers,
        )
        self.prompt_logprobs = PromptLogprobsBuffer(params.prompt_logprobs, len(request.prompt_ids))
        self._drafts = request.preset.drafts
        self._goes_on = request.preset.schedule.decode_when_idle or not self._drafts
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
    def drafts_sent(self) -> int:
        """Number of drafts on the stream that is open now."""
        return self._drafting.in_flight.sent

    @property
    def kv_length(self) -> int:
        """Tokens that the draft KV holds."""
        return self._drafting.kv_length

    @property
    def fed_tokens(self) -> tuple[int, ...]:
        """The tokens that the draft KV holds."""
        return self._drafting.unfed(self._drafting.position, 0)[: self._drafting.kv_length]

    @property
    def may_prefill(self) -> bool:
        """True if drafts are wanted and none is under way: the draft KV may be filled first."""
        if self.phase is Phase.DONE:
            return False
        wanted = self.phase is Phase.ALONE or self.controller.may_draft
        return wanted and not self._drafting.task and not self._drafting.in_flight.token_ids

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
            in_flight = self.context(task, self.committed.end)
        else:
            in_flight = self._drafting.in_flight.token_ids[: task.position - self.committed.end]
        return self._texts_after(in_flight)

    def _texts_after(self, in_flight: tuple[int, ...]) -> TextDrafts:
        return self._texts.after(in_flight, self.controller.acceptance.rate)

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
        self._rounds.begin_stream()
        self._observers.on_connected(now)
        self.prompt_logprobs.begin_stream()
        return [*interrupts, Send(self._opening()), *self._flush(now)]

    def _opening(self) -> Open:
        wanted = self.prompt_logprobs.wanted
        return self.request.opening(self.committed, prompt_logprobs=wanted)

    def _forget_stream(self) -> None:
        self._leaving = False
        self._rounds.forget_stream()
        self._observers.on_left()

    def _count_loss(self, silent_s: float) -> None:
        self._observers.on_lost(silent_s)

    def _leave_between_rounds(self) -> list[EdgeOutput]:
        """Reconnect, after GoingAway, as soon as nothing that was sent waits for an answer."""
        if not self._leaving or self._drafting.in_flight.sent or self.phase is not Phase.RUNNING:
            return []
        self._observers.on_departed()
        return self._leave_stream(lost=False)

    def _ping(self, now: float) -> list[EdgeOutput]:
        """Ask a cloud that is silent, or whose round trip nothing else tells."""
        self._liveness.awaits(self._is_owed, self.committed.end, now)
        wanted = self.phase is Phase.RUNNING and self.measuring.ping_wanted(now)
        if (nonce := self._liveness.ping_due(now, wanted)) is None:
            return []
        self._observers.on_pinged(now)
        return [Send(Ping(**self._header(), nonce=nonce))]

    def _go_on_alone(self, now: float) -> list[EdgeOutput]:
        ahead = self._predrafting.clear()
        if self._texts.on:
            ahead += self._drafting.draft_again()  # by the draft model: nobody verifies a text
        return [*map(Interrupt, ahead), *self._commit_alone()]

    @property
    def _is_owed(self) -> bool:
        """True if the cloud owes an answer: it waits for nothing that this end still has to
        send."""
        if self._rounds.owes_hidden_states:
            return False
        if self._goes_on:
            return True
        whole = self._drafting.in_flight.sent > 0 and not self._drafting.chunk_is_open
        return whole or self._rounds.recovery.waits

    # Frames of the cloud.

    def receive(self, message: CloudMessage, now: float) -> list[EdgeOutput]:
        """Take one frame of the stream that is open now."""
        if self.phase is not Phase.RUNNING:
            return []
        if message.session != self.request.session:
            raise ProtocolError(self.phase, f"a frame of session {message.session}")
        if not self._stream_opened and not isinstance(message, _BEFORE_OPENED):
            raise ProtocolError(self.phase, f"{type(message).__name__} before Opened")
        self._liveness.received(now)
        outputs = self._react(message, now)
        if isinstance(message, _COMPUTED):
            self._liveness.answered(now)
        if self._predrafting.on:
            outputs += map(Interrupt, self._predrafting.forget_committed())
        outputs += self._flush(now)
        # Silence, and what is owed, are the tick's: a frame has just come.
        if self.measuring.ping_wanted(now):
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
                self._observers.on_opened(message)
                self._text.take_eos(message.eos_token_ids)
                return [*interrupts]
            case PromptLogprobs():
                check_prompt_tokens(message, self.request)
                self.prompt_logprobs.take(message)
            case CloudRoundFrame():
                return [*self._rounds.receive(message), *self._leave_between_rounds()]
            case GoingAway():
                self._leaving = True
                return self._leave_between_rounds()
            case Pong():
                trip_s = self._liveness.ponged(message.nonce, now)
                self._observers.on_ponged(trip_s, now)
        return []

    def _receive_committed(self, message: Committed, now: float) -> list[EdgeOutput]:
        """Commit what the cloud says. Drafts in flight stay so as far as the text has not departed
        from them."""
        self._rounds.check_not_drawing("Committed")
        sent = self._drafting.judged(message)
        check_committed(message, self.request, self.committed, sent=sent)
        self.prompt_logprobs.check_complete()
        settled = Settled.by(message, sent)
        again = message.base + message.accepted == self._rounds.drawn_again_at
        if again and message.draw_from is not None:
            settled = replace(settled, departs=False, refused=False)  # that was said before
        drafts = self._drafting.in_flight.all
        self._observers.on_committed(message, settled, drafts, now)
        outputs = list[EdgeOutput]()
        if message.accepted:
            outputs = self._commit(sent[: message.accepted], TokenSource.DRAFT)
            self._observers.on_right(drafts[: self.committed.end - message.base])
            self._drafting.settle(message)
        for number, token in enumerate(message.token_ids):
            if self.phase is Phase.DONE:
                break
            by_cloud = number < message.cloud_accepted
            source = TokenSource.CLOUD_DRAFT if by_cloud else TokenSource.TARGET
            outputs += self._go_on_with(token, source)
        if message.draw_from is not None and self.phase is not Phase.DONE:
            outputs += self._rounds.recover(message.draw_from)
        outputs += self._leave_between_rounds()
        return outputs

    def _header(self) -> FrameHeader:
        return {
            "session": self.request.session,
            "base": self.committed.end,
            "prefix_hash": self.committed.prefix,
        }

    # What becomes of the drafts in flight.

    def _go_on_with(self, token: int, source: TokenSource = TokenSource.TARGET) -> list[EdgeOutput]:
        """Commit the next token. The drafts after it stay in flight if it was drafted, and are void
        if not: the cloud, which has the same drafts, decides the same."""
        first = self._drafting.in_flight.first
        if first is not None and first.token_id == token:
            self._observers.on_right([first])
            self._drafting.in_flight.remove(1)
            return self._commit([token], source)
        return self._diverge(token, source)

    def _diverge(self, token: int, source: TokenSource = TokenSource.TARGET) -> list[EdgeOutput]:
        """Commit `token` in place of what is in flight; only a branch that predicted it goes on."""
        if not self._drafts:
            return self._commit([token], source)
        interrupted = self._drafting.discard()
        self._observers.on_discarded()
        if not self._predrafting.on:
            return [*map(Interrupt, interrupted), *self._commit([token], source)]
        branch, others = self._predrafting.resolve(token)
        outputs: list[EdgeOutput] = [*map(Interrupt, (*interrupted, *others))]
        if branch is not None and branch.task is not None and branch.open:
            self._drafting.go_on_with(branch.task, taken=len(branch.drafts))
        outputs += self._commit([token], source)
        if self.phase is not Phase.DONE:
            drafts = branch.drafts if branch is not None else []
            parts = self.request.preset.schedule.token_by_token and bool(drafts)
            ready = branch is not None and (branch.complete or parts)
            self._drafting.in_flight.add(drafts)
            self._observers.on_resolved(begun=branch is not None, ready=ready)
            self._observers.on_adopted(drafts)
        return outputs

    # Drafting and sending.

    def work(self, now: float) -> DraftTask | None:
        """Return the next task to start, if any: the tokens to send next, or those that would
        follow a verdict. Ask again until there is none: tasks run concurrently."""
        if self._drafting.task is not None and not self._predrafting.on:
            return None
        if not self._drafts and self.phase is not Phase.ALONE:
            return None
        if self.phase is Phase.DONE or self.paused:
            return None
        task = None if self._drafting.task else self._main_task(now)
        if task is None and self.phase is not Phase.ALONE:
            return self._predrafting.task()
        return task

    def _main_task(self, now: float) -> DraftTask | None:
        if self.controller.on and self._drafting.may_follow:
            self._drafting.follow(self._schedule())
        alone = self.phase is Phase.ALONE
        count = min(ALONE_CHUNK, self._drafting.room) if alone else self._drafting.draftable
        if count < 1:
            return None
        if self.phase is Phase.RUNNING:
            self._observers.on_draft_begun(now)
        return self._drafting.begin(count, self._text.eos if alone else self._drafting.ends)

    def _schedule(self) -> Schedule:
        """Return the controller's schedule, with room for what is remembered: such drafts take no
        time, so that they pay where those of the draft model do not."""
        schedule = self.controller.schedule
        request = self.request
        if request.recalled is None or not request.preset.drafter_invariant:
            return schedule
        in_flight = self._drafting.in_flight.token_ids
        room = min(self._drafting.longest - len(in_flight), self._drafting.room)
        rate = self.controller.acceptance.rate
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
        return self._rounds.layers_work() if self.phase is Phase.RUNNING else None

    def layers_done(self, task: LayersTask, states: Array, now: float) -> list[EdgeOutput]:
        """Send the hidden states [n, hidden size] of a task, unless its stream is gone."""
        if self.phase is not Phase.RUNNING:
            return []
        if sends := self._rounds.layers_done(task, states):
            self._liveness.uploading(4 * states.size, now)
        return sends

    @property
    def paused(self) -> bool:
        """True if nothing may be drafted or sent until the cloud's next frame."""
        if self._leaving and not self._drafting.chunk_is_open:  # chunks are judged whole
            return True
        return self._rounds.recovery.waits

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
        positions, pure_decode = self._drafting.positions(drafts), self._drafting.is_pure_decode
        self._observers.on_drafted(drafts, positions, draft_s, now, pure_decode=pure_decode)
        return self._commit_alone() if self.phase is Phase.ALONE else self._flush(now)

    def _flush(self, now: float) -> list[EdgeOutput]:
        """Send what is due."""
        if not self._drafting.in_flight.unsent or self.phase is not Phase.RUNNING or self.paused:
            return []
        frames = self._drafting.send_due(self.controller.chunk_budget_s)
        if frames:
            if size_bytes := bulk_bytes(frames, self.request):
                self._liveness.uploading(size_bytes, now)
            for frame in frames:
                self._observers.on_sent(frame, now)
            self._predrafting.expect_likely()
        return [*map(Send, frames)]

    # Committing, and the end.

    def _commit_alone(self) -> list[EdgeOutput]:
        token_ids = self._drafting.in_flight.token_ids
        self._drafting.in_flight.clear()
        return self._commit(token_ids, TokenSource.EDGE)

    def _commit(
        self, token_ids: Sequence[int], token_source: TokenSource = TokenSource.TARGET
    ) -> list[EdgeOutput]:
        """Append tokens to the answer, up to the first that ends it."""
        position = self.committed.end
        committed, reason = self._text.append(token_ids)
        if not committed:
            return []
        count = len(committed)
        unverified = token_source is TokenSource.EDGE
        if self._texts.on and not unverified:
            self._texts.commit(committed)
        self._observers.on_text(count, unverified=unverified)
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
