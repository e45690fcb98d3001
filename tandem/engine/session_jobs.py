"""The two kinds of work a session asks of its engine: drafting tokens, and laws to judge them by.

Invariant: a draft token is drawn from the law the other end will reconstruct. Must not import grpc.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.core.laws import Array, Sampling, confidence, law_from_logits, laws_from_logits
from tandem.core.rivals import Rivals, likely_rivals
from tandem.engine.base import Engine, Logits, Segment, Session
from tandem.policy.draft_laws import law_to_draft_from
from tandem.policy.presets import Preset
from tandem.protocol.messages import EarlyVerdict
from tandem.protocol.outputs import Drafted, DraftWork
from tandem.protocol.rules import AcceptanceRule, TargetLaw
from tandem.protocol.verify_work import VerifyWork

OnDraft = Callable[[Drafted, int, float], None]
OnEarly = Callable[[EarlyVerdict], None]


def go_back(session: Session, keep: int, path: tuple[int, ...]) -> None:
    """Keep the first `keep` tokens, and of a tree that follows them the nodes of `path`. Asked for
    again when a pass is repeated."""
    if path and session.length == keep:
        session.keep_path(path)
    else:
        session.rollback(keep + len(path))


class DraftJob:
    """Drafts the tokens of a work one by one; ends early after an end-of-text token.

    With `stepwise` work every token but the last is handed to `on_draft` with the length of the
    draft KV and the seconds it took, on the engine thread; the result is then what is left.
    """

    def __init__(
        self,
        session: Session,
        work: DraftWork,
        sampling: Sampling,
        rule: AcceptanceRule,
        preset: Preset,
        on_draft: OnDraft | None = None,
    ) -> None:
        self.work = work
        self.handed_s = 0.0
        self._session = session
        self._work = work
        self._sampling = sampling
        self._rule = rule
        self._preset = preset
        self._on_draft = on_draft if work.stepwise else None
        self._count = 0
        self._last = -1
        self._drafts: list[Drafted] = []
        self._since_s = 0.0

    def segment(self) -> Segment:
        if self._count:
            return Segment(self._session, (self._last,), wanted=1)
        self._since_s = time.perf_counter()
        go_back(self._session, self._work.keep, self._work.path)
        return Segment(self._session, self._work.token_ids, wanted=1)

    def take(self, logits: Logits) -> bool:
        whole = law_from_logits(logits[0], self._sampling)
        law = law_to_draft_from(whole, self._preset)
        position = self._work.position + self._count
        guess = self._work.guess and not self._count
        draw = self._rule.own_token if guess else self._rule.propose
        self._last = draw(law, position)
        self._count += 1
        self._drafts.append(Drafted(self._last, law, self._rivals(logits[0], whole, position)))
        if self._count == self._work.count or self._last in self._work.ends:
            return True
        if self._on_draft is not None:
            now = time.perf_counter()
            took_s, self._since_s = now - self._since_s, now
            self.handed_s += took_s
            self._on_draft(self._drafts.pop(), self._session.length, took_s)
        return False

    def _rivals(self, logits: Array, law: Array, position: int) -> Rivals:
        wanted = self._work.alternatives
        if not wanted:
            return ()
        if self._sampling.greedy:  # the law is one-hot and knows no second
            return likely_rivals(law_from_logits(logits, Sampling()), self._last, wanted)
        return self._rule.rivals(law, self._last, position, wanted)

    def result(self) -> tuple[list[Drafted], int]:
        """The drafts that were not handed over yet, and the length of the draft KV."""
        return self._drafts, self._session.length


class BranchJob(DraftJob):
    """A `DraftJob` on a fork of the session, which lives as long as the job."""

    def __init__(self, engine: Engine, session: Session, work: DraftWork, *rest: Any) -> None:
        super().__init__(session, work, *rest)
        self._engine = engine
        self._parent = session
        self._forked = False

    def segment(self) -> Segment:
        if not self._forked:
            capacity = self._work.keep + len(self._work.token_ids) + self._work.count - 1
            self._session = self._engine.fork(self._parent, self._work.keep, capacity)
            self._forked = True
        return super().segment()

    def result(self) -> tuple[list[Drafted], int]:
        outcome = super().result()
        self.close()
        return outcome

    def close(self) -> None:
        """Free the fork; for a job that is given up, to be called on the engine thread."""
        if self._forked:
            self._session.close()


class VerifyJob:
    """One pass over a work's tokens; the result is its `wanted` laws, float32 [vocabulary], or what
    the acceptance rule needs of them.

    `on_early` is given the early verdicts while the pass runs, on the engine thread.
    """

    def __init__(
        self,
        session: Session,
        work: VerifyWork,
        sampling: Sampling,
        rule: AcceptanceRule,
        on_early: OnEarly = lambda verdict: None,
    ) -> None:
        self._session = session
        self._work = work
        self._sampling = sampling
        self._rule = rule
        self._on_early = on_early
        self._laws: list[TargetLaw] = []

    def segment(self) -> Segment:
        work = self._work
        go_back(self._session, work.keep, work.path)
        exits = work.early.exits if work.early else ()
        return Segment(
            self._session,
            work.token_ids,
            work.wanted,
            work.parents,
            exits=exits,
            on_exit=self._hear,
        )

    def _hear(self, exit_index: int, logits: Logits) -> None:
        """Judge with one exit's laws, made one by one: the first refusal ends it. An exit that says
        nothing of use must not fail the pass."""
        assert self._work.early is not None, "no exit is read"
        with suppress(InvalidArgument):
            verdict = self._work.early.verdict(
                exit_index,
                lambda row: law_from_logits(logits[row], self._sampling),
                lambda row: confidence(logits[row]),
            )
            if verdict is not None:
                self._on_early(verdict)

    def take(self, logits: Logits) -> bool:
        laws = laws_from_logits(logits, self._sampling)
        prepare = self._rule.prepare
        self._laws = list(map(prepare, laws, self._work.positions))
        return True

    def result(self) -> list[TargetLaw]:
        return self._laws
