"""The two kinds of work a session asks of its engine: drafting tokens, and distributions to judge
them by. Invariant: a draft token is drawn from the distribution the other end will reconstruct."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, Logits, Session
from tandem.core.distribution import Distribution, LogitsDistribution, RunnersUp, likely_runners_up
from tandem.core.errors import InvalidArgument
from tandem.core.frozen import frozen
from tandem.core.probs import Array, SamplingParams, confidence, probs_from_logits
from tandem.core.processors import RowsAfter
from tandem.runtime.engine_jobs import BLOCKED_TIMEOUT_S, Job
from tandem.runtime.forced_drafts import forced_drafts
from tandem.specdec.drafting import draw_draft
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.judge import DistributionAt, Verification
from tandem.specdec.presets import Preset
from tandem.specdec.proposers import NO_TEXTS, TextDrafts
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.rules import AcceptanceRule
from tandem.specdec.verify_task import VerifyTask

Drawn = TypeVar("Drawn")
OnDraft = Callable[[Drafted, int, float], None]
OnEarly = Callable[[EarlyVerdict], None]
CheckRow = Callable[[Array, Array], None]
"""Takes a row of logits [V] and what a request's processors made of it."""


def rewind(session: Session, keep: int, path: tuple[int, ...]) -> None:
    """Keep the first `keep` tokens and of a tree after them the `path`; repeatable."""
    if path and session.length == keep:
        session.keep_path(path)
    else:
        session.rollback(keep + len(path))


@frozen
class DraftRequest:
    """A draft task and how its tokens are drawn. `rows`: how the text before changes the model's
    logits; None where it does not. `texts`: what is drafted from texts after it. `on_draft`: see
    `DraftJob`. `on_broken`: called on the engine thread where logits are no numbers, in place of
    which any draft will do; None: then the task fails."""

    task: DraftTask
    sampling: SamplingParams
    rule: AcceptanceRule
    preset: Preset
    on_draft: OnDraft | None = None
    rows: RowsAfter | None = None
    texts: TextDrafts = NO_TEXTS
    on_broken: Callable[[], None] | None = None

    @property
    def by_token(self) -> bool:
        """True if nobody asks for the distributions of the drafts."""
        return self.rule.drafter_invariant and self.preset.sends_ids_alone


class ModelProposer:
    """The draft model as a proposer, the last one to be asked: it says something everywhere, and
    each time takes a pass of the engine, whose logits it proposes by."""

    def __init__(self, request: DraftRequest) -> None:
        """Prepare to propose for a task."""
        self._request = request
        self._threshold = request.preset.confidence_threshold
        self._by_token = request.by_token

    def propose(self, logits: Array, drafted: tuple[int, ...]) -> Drafted:
        """Return the next draft of the task.

        Args:
            logits: [V], of the pass over the text and the `drafted` tokens after it.
            drafted: the task's drafts so far, whoever proposed them."""
        return self.read(logits, lambda row: self._drawn(row, drafted))

    def read(self, logits: Array, draw: Callable[[Array], Drawn]) -> Drawn:
        """Return what `draw` makes of logits [V]. Where they are no numbers it is given even ones:
        drafts may be drawn from any distribution, so that the answer goes on."""
        try:
            return draw(logits)
        except InvalidArgument as error:
            if error.field != "logits" or self._request.on_broken is None:
                raise
            self._request.on_broken()
            return draw(np.zeros_like(logits))

    def processed(self, logits: Array, drafted: tuple[int, ...]) -> Array:
        """Return logits [V] after the processors of the request."""
        rows = self._request.rows
        return logits if rows is None else rows.processed(logits, drafted)

    def _drawn(self, logits: Array, drafted: tuple[int, ...]) -> Drafted:
        request = self._request
        position = request.task.position + len(drafted)
        scores = self.processed(logits, drafted)
        whole = LogitsDistribution(scores, request.sampling)
        if self._by_token:
            token_id = request.rule.propose(whole, position)
            probs = NO_PROBS
        else:
            token_id, probs = draw_draft(
                whole.probs, request.preset, request.rule.propose, position
            )
        runners_up = self._runners_up(scores, whole, token_id, position)
        unsure = self._threshold > 0 and confidence(scores) < self._threshold
        return Drafted(token_id, probs, runners_up, ends_chunk=unsure)

    def _runners_up(
        self, logits: Array, whole: Distribution, token_id: int, position: int
    ) -> RunnersUp:
        request = self._request
        wanted = request.task.alternatives
        if not wanted:
            return ()
        if request.sampling.greedy:  # the distribution is one-hot and knows no second
            warm = probs_from_logits(logits, SamplingParams())
            return likely_runners_up(warm, token_id, wanted)
        return request.rule.top_alternatives(whole, token_id, position, wanted)


class DraftJob(Job[tuple[list[Drafted], int]]):
    """Drafts the tokens of a task one by one, each by the first of its proposers that has one: a
    grammar or texts, which take no pass, and else the draft model. It ends early after an
    end-of-text token, or one that is not sure enough. With a `stepwise` task every token but the
    last ones is handed to `on_draft` with the length of the draft KV and the seconds it took, on
    the engine thread; the result is then what is left."""

    def __init__(self, session: Session, request: DraftRequest) -> None:
        self.work = request.task
        self.handed_s = 0.0
        self._session = session
        self._work = request.task
        self._model = ModelProposer(request)
        self._by_token = request.by_token
        self._on_draft = request.on_draft if request.task.stepwise else None
        self._rows = request.rows
        self._texts = request.texts
        self._token_ids: tuple[int, ...] = ()  # all that were drafted
        self._fed: int | None = None  # of these; None before the first pass
        self._held = 0  # tokens in the session after the last pass that brought logits
        self._drafts: list[Drafted] = []
        self._since_s = 0.0

    def request(self) -> ForwardRequest:
        if self._fed is not None:
            # A pass that failed for others may have fed these here.
            self._session.rollback(self._held)
            unfed = self._token_ids[self._fed :]
            return ForwardRequest(self._session, unfed, logits_to_keep=1)
        self._since_s = time.perf_counter()
        rewind(self._session, self._work.keep, self._work.path)
        if not self._token_ids:
            self._draft_forced(self._work.count - 1)  # a pass is to give one at least
        token_ids = (*self._work.token_ids, *self._token_ids)
        return ForwardRequest(self._session, token_ids, logits_to_keep=1)

    def take(self, logits: Logits) -> bool:
        self._fed = len(self._token_ids)
        self._held = self._session.length
        self._add(self._model.propose(logits[0], self._token_ids))
        if self._drafts[-1].ends_chunk:
            return True
        self._draft_forced(self._work.count - len(self._token_ids))
        if self._drafts[-1].ends_chunk:
            return True
        if len(self._token_ids) == self._work.count or self._token_ids[-1] in self._work.ends:
            self._draft_forced(self._work.max_extra)
            return True
        self._hand_over()
        return False

    def _draft_forced(self, most: int) -> None:
        forced = forced_drafts(
            self._work,
            self._rows,
            self._token_ids,
            most=most,
            by_token=self._by_token,
            texts=self._texts,
        )
        for drafted in forced:
            self._add(drafted)

    def _add(self, drafted: Drafted) -> None:
        self._token_ids += (drafted.token_id,)
        self._drafts.append(drafted)
        self._texts = self._texts.after(drafted.token_id)

    def _hand_over(self) -> None:
        """Report what is drafted, oldest first, each with no more of the KV than lies before it."""
        if self._on_draft is None:
            return
        now = time.perf_counter()
        took_s = now - self._since_s
        self._since_s = now
        self.handed_s += took_s
        drafts, self._drafts = self._drafts, []
        share_s = took_s / len(drafts)
        held = self._session.length
        first = self._work.position + len(self._token_ids) - len(drafts)
        for position, drafted in enumerate(drafts, start=first):
            self._on_draft(drafted, min(held, position), share_s)

    def result(self) -> tuple[list[Drafted], int]:
        """Return the drafts that were not handed over yet, and the length of the draft KV."""
        return self._drafts, self._session.length


class BranchJob(DraftJob):
    """A `DraftJob` on a fork of the session, which the engine thread closes with the job."""

    def __init__(self, engine: Engine, session: Session, request: DraftRequest) -> None:
        super().__init__(session, request)
        self._engine = engine
        self._parent = session
        self._forked = False

    def request(self) -> ForwardRequest:
        if not self._forked:
            capacity = self._work.keep + len(self._work.token_ids) + self._work.count - 1
            self._session = self._engine.fork(self._parent, self._work.keep, capacity)
            self._forked = True
        return super().request()

    def close(self) -> None:
        if self._forked:
            self._session.close()


class VerifyJob(Job[Verification]):
    """One pass over a task's tokens; the result is what the task's judge reads from its logits.

    A row becomes a distribution only when the judge asks for it. `on_early` takes early verdicts on
    the engine thread. A task that reads its prompt is read in chunks (`read_rows`), and reads no
    early exits."""

    def __init__(
        self,
        session: Session,
        work: VerifyTask,
        sampling: SamplingParams,
        on_early: OnEarly = lambda verdict: None,
        rows: RowsAfter | None = None,
        check_row: CheckRow | None = None,
    ) -> None:
        """Set up the pass. `check_row` raises where a row, as it is told and processed, cannot be
        decided; None: any can."""
        self._check_row = check_row
        self._session = session
        self._work = work
        self._sampling = sampling
        self._on_early = on_early
        self._rows = rows
        self._judgement: Verification | None = None
        reader = work.prompt_reader
        self.read_rows = None if reader is None else reader.read

    def timeout_error(self) -> Exception:
        return InvalidArgument(
            "grammar", f"computing its masks took more than {BLOCKED_TIMEOUT_S:g} s"
        )

    def request(self) -> ForwardRequest:
        work = self._work
        rewind(self._session, work.keep, work.path)
        if self._rows is not None:
            self.awaits = self._rows.prepare(
                [work.fed_before(row) for row in range(work.logits_to_keep)]
            )
        request = ForwardRequest(
            self._session,
            work.token_ids,
            logits_to_keep=work.logits_to_keep,
            parents=work.parents,
            hidden=work.hidden,
            first_layer=work.first_layer,
        )
        if work.early is None or self.read_rows is not None:
            return request
        return replace(request, exits=work.early.exits, on_exit=self._judge_early)

    def _judge_early(self, exit_index: int, logits: Logits) -> None:
        """Judge the drafts by what an exit says. One that says nothing of use must not fail the
        pass."""
        assert self._work.early is not None, "no exit is read"
        if self.awaits is not None and not self.awaits.done():
            return  # the pass is everybody's
        with suppress(InvalidArgument):
            early = self._work.early
            temperature = early.temperature(exit_index)
            verdict = early.verdict(
                exit_index, self._rows_of(logits), lambda row: confidence(logits[row], temperature)
            )
            if verdict is not None:
                self._on_early(verdict)

    def take(self, logits: Logits) -> bool:
        self._judgement = self._work.judge.judge(self._rows_of(logits))
        return True

    def _rows_of(self, logits: Logits) -> DistributionAt:
        rows, check_row = self._rows, self._check_row
        sampling, fed_before = self._sampling, self._work.fed_before

        def distribution_at(row: int) -> LogitsDistribution:
            told = logits[row]
            processed = told if rows is None else rows.processed(told, fed_before(row))
            if check_row is not None:
                check_row(told, processed)
            return LogitsDistribution(processed, sampling)

        return distribution_at

    def result(self) -> Verification:
        assert self._judgement is not None, "the pass is over"
        reader = self._work.prompt_reader
        if reader is None:
            return self._judgement
        return replace(self._judgement, prompt_logprobs=reader.result())
