"""The two kinds of work a session asks of its engine: drafting tokens, and distributions to judge
them by. Invariant: a draft token is drawn from the distribution the other end will reconstruct."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tandem.backends.interface import Engine, ForwardRequest, Logits, Session
from tandem.core.distribution import Distribution, LogitsDistribution
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, SamplingParams, confidence, probs_from_logits
from tandem.core.processors import RowsAfter
from tandem.core.runners_up import RunnersUp, likely_runners_up
from tandem.specdec.events import NO_PROBS, Drafted, DraftWork
from tandem.specdec.in_flight import probs_to_draft_from
from tandem.specdec.judge import DistributionAt, Judgement
from tandem.specdec.messages import EarlyVerdict
from tandem.specdec.presets import Preset
from tandem.specdec.rules import AcceptanceRule
from tandem.specdec.verify_work import VerifyWork

OnDraft = Callable[[Drafted, int, float], None]
OnEarly = Callable[[EarlyVerdict], None]


def rewind(session: Session, keep: int, path: tuple[int, ...]) -> None:
    """Keep the first `keep` tokens and of a tree after them the `path`; repeatable."""
    if path and session.length == keep:
        session.keep_path(path)
    else:
        session.rollback(keep + len(path))


class DraftJob:
    """Drafts the tokens of a work one by one; ends early after an end-of-text token, or one below
    the preset's confidence threshold. With `stepwise` work every token but the last is handed to
    `on_draft` with the length of the draft KV and the seconds it took, on the engine thread; the
    result is then what is left."""

    def __init__(
        self,
        session: Session,
        work: DraftWork,
        sampling: SamplingParams,
        rule: AcceptanceRule,
        preset: Preset,
        on_draft: OnDraft | None = None,
        rows: RowsAfter | None = None,
    ) -> None:
        """`rows`: how the text before changes the model's logits; None where it does not."""
        self.work = work
        self.handed_s = 0.0
        self._session = session
        self._work = work
        self._sampling = sampling
        self._rule = rule
        self._preset = preset
        self._threshold = preset.confidence_threshold
        self._by_token = rule.drafter_invariant and preset.sends_ids_alone
        self._on_draft = on_draft if work.stepwise else None
        self._rows = rows
        self._drafted: tuple[int, ...] = ()
        self._count = 0
        self._last = -1
        self._drafts: list[Drafted] = []
        self._since_s = 0.0

    def request(self) -> ForwardRequest:
        if self._count:
            return ForwardRequest(self._session, (self._last,), logits_to_keep=1)
        self._since_s = time.perf_counter()
        rewind(self._session, self._work.keep, self._work.path)
        return ForwardRequest(self._session, self._work.token_ids, logits_to_keep=1)

    def take(self, logits: Logits) -> bool:
        scores = logits[0] if self._rows is None else self._rows.processed(logits[0], self._drafted)
        whole = LogitsDistribution(scores, self._sampling)
        position = self._work.position + self._count
        if self._by_token:
            self._last, probs = self._rule.propose(whole, position), NO_PROBS
        else:
            guess = self._work.guess and not self._count
            draw = self._rule.target_token if guess else self._rule.propose
            probs = probs_to_draft_from(whole.probs, self._preset)
            self._last = draw(probs, position)
        self._count += 1
        if self._rows is not None:
            self._drafted += (self._last,)
        runners_up = self._runners_up(scores, whole, position)
        unsure = self._threshold > 0 and confidence(scores) < self._threshold
        self._drafts.append(Drafted(self._last, probs, runners_up, ends_chunk=unsure))
        if self._count == self._work.count or self._last in self._work.ends or unsure:
            return True
        if self._on_draft is not None:
            now = time.perf_counter()
            took_s, self._since_s = now - self._since_s, now
            self.handed_s += took_s
            self._on_draft(self._drafts.pop(), self._session.length, took_s)
        return False

    def _runners_up(self, logits: Array, whole: Distribution, position: int) -> RunnersUp:
        wanted = self._work.alternatives
        if not wanted:
            return ()
        if self._sampling.greedy:  # the distribution is one-hot and knows no second
            warm = probs_from_logits(logits, SamplingParams())
            return likely_runners_up(warm, self._last, wanted)
        return self._rule.runners_up(whole, self._last, position, wanted)

    def result(self) -> tuple[list[Drafted], int]:
        """The drafts that were not handed over yet, and the length of the draft KV."""
        return self._drafts, self._session.length


class BranchJob(DraftJob):
    """A `DraftJob` on a fork of the session, which the engine thread closes with the job."""

    def __init__(self, engine: Engine, session: Session, work: DraftWork, *rest: Any) -> None:
        super().__init__(session, work, *rest)
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


class VerifyJob:
    """One pass over a work's tokens; the result is what the work's judge finds in its logits. A row
    becomes a distribution only when the judge asks for it. `on_early` takes early verdicts on the
    engine thread."""

    def __init__(
        self,
        session: Session,
        work: VerifyWork,
        sampling: SamplingParams,
        on_early: OnEarly = lambda verdict: None,
        rows: RowsAfter | None = None,
    ) -> None:
        self._session = session
        self._work = work
        self._sampling = sampling
        self._on_early = on_early
        self._rows = rows
        self._judgement: Judgement | None = None

    def request(self) -> ForwardRequest:
        work = self._work
        rewind(self._session, work.keep, work.path)
        exits = work.early.exits if work.early else ()
        fed = (work.token_ids, work.logits_to_keep, work.parents)
        return ForwardRequest(self._session, *fed, exits=exits, on_exit=self._judge_early)

    def _judge_early(self, exit_index: int, logits: Logits) -> None:
        """An exit that says nothing of use must not fail the pass."""
        assert self._work.early is not None, "no exit is read"
        with suppress(InvalidArgument):
            verdict = self._work.early.verdict(
                exit_index, self._rows_of(logits), lambda row: confidence(logits[row])
            )
            if verdict is not None:
                self._on_early(verdict)

    def take(self, logits: Logits) -> bool:
        self._judgement = self._work.judge.judge(self._rows_of(logits))
        return True

    def _rows_of(self, logits: Logits) -> DistributionAt:
        rows, sampling = self._rows, self._sampling
        if rows is None:
            return lambda row: LogitsDistribution(logits[row], sampling)
        fed_before = self._work.fed_before
        return lambda row: LogitsDistribution(
            rows.processed(logits[row], fed_before(row)), sampling
        )

    def result(self) -> Judgement:
        assert self._judgement is not None, "the pass is over"
        return self._judgement
