"""One target model in virtual time, shared by many sessions: a pass takes every session whose work
is due. Invariants: as in the engine thread, one pass runs at a time, and work that becomes due
while it runs waits for the next; a pass that nobody waits for any more ends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.netem.link_model import Link
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.judge import Verification
from tandem.specdec.messages import CloudMessage, Work
from tandem.specdec.verify_task import VerifyTask
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_cloud_drafts import SimulatedCloudDrafts
from tandem.testing.simulation.simulated_drafts import ProbsOf, SimulatedKv
from tandem.testing.simulation.virtual_time import VirtualTime


@dataclass(frozen=True, slots=True)
class TargetModel:
    """Distributions as functions of a context; early exits answer after these shares of a pass."""

    probs: ProbsOf
    exit_distributions: Sequence[ProbsOf] = ()
    exit_depths: Sequence[float] = ()
    exit_temperatures: tuple[float, ...] = ()


@dataclass(slots=True, eq=False)
class ServedSession:
    """A session at the verifier: its machine and KV, what it drafts itself, and how its messages
    leave."""

    cloud: CloudMachine
    model: TargetModel
    down: Link
    send: Callable[[Sequence[CloudMessage]], None]
    drafts: SimulatedCloudDrafts
    kv: SimulatedKv = field(default_factory=SimulatedKv)
    due: DueTask | None = None

    def take_due(self, now: float) -> None:
        """Have the machine name its next drafts and its next pass, if they are due."""
        self.drafts.follow()
        if self.due is None and (work := self.cloud.work()) is not None:
            contexts = self._contexts(work)
            if work.hidden is not None:
                told = tuple(map(int, work.hidden[:, 0]))
                if told != work.token_ids:
                    raise ProtocolError(f"hidden states of {told}", f"tokens {work.token_ids}")
            verification = work.judge.judge(lambda row: self.model.probs(contexts[row]))
            self.due = DueTask(work, contexts, verification, now)

    def _contexts(self, work: VerifyTask) -> list[tuple[int, ...]]:
        """Return the contexts of the distributions that the task asks for."""
        kv = self.kv
        kv.rewind(work.keep, work.path)
        contexts = work.contexts(kv.token_ids)
        fed = work.token_ids[: len(work.token_ids) - work.drafts]
        SimulatedKv((*kv.token_ids, *fed)).check((*self.cloud.committed.since(0), *work.prepared))
        kv.feed(work.token_ids, work.parents)
        return contexts


@dataclass(frozen=True, slots=True)
class DueTask:
    """A session's share of a pass, and what its judge will find; due since `due_s`."""

    work: VerifyTask
    contexts: Sequence[tuple[int, ...]]
    verification: Verification
    due_s: float


def tempered_confidence(probs: Array, temperature: float) -> float:
    """Return the largest probability once the logits behind `probs` [V] are divided by a
    temperature. At sampling temperature 1 that is `tandem.core.probs.confidence`."""
    if temperature == 1.0:
        return float(probs.max())
    weights = (probs / probs.max()) ** (1.0 / temperature)
    return 1.0 / float(weights.sum())


class SimulatedVerifier:
    """Sessions join with their first `look`, which follows every frame that one of them received.
    Draft steps in the cloud take all sessions that draft there. They share the processor with
    passes, and go first: a pass then takes those who drafted too, and a few short steps delay it
    little."""

    def __init__(
        self, time: VirtualTime, times: ModelTimes, edges_draft: Callable[[], bool]
    ) -> None:
        """Start with no sessions. `edges_draft`: whether any edge drafts now."""
        self.passes = 0
        first_s = times.pass_s(1)
        self.row_share = min(1.0, max(0.0, times.pass_s(2) / first_s - 1)) if first_s > 0 else None
        """What a verifier measures when it starts."""
        self.budget = PassBudget(row_share=self.row_share)
        self.draft_budget = CloudDraftBudget(self.budget)
        self.times = times
        self._served: list[ServedSession] = []
        self._drafting: list[ServedSession] = []
        self._time = time
        self._edges_draft = edges_draft
        self._waiting: list[ServedSession] = []
        self._passing: list[ServedSession] = []

    @property
    def under_way(self) -> bool:
        """True if a pass is under way, or a draft step."""
        return bool(self._passing or self._drafting)

    def look(self, session: ServedSession) -> None:
        """Take a session's work if it has some now, and start a pass if none runs."""
        self._take(session)
        self._start()

    def remove(self, session: ServedSession) -> None:
        """Remove a session whose stream is gone, and with it the results of its pass."""
        session.due = None
        self._served = [other for other in self._served if other is not session]
        self._waiting = [other for other in self._waiting if other is not session]
        if session in self._passing:
            self._passing.remove(session)
            if not self._passing:
                self.passes += 1  # what was scheduled for its end is void
                self._start()

    def _take(self, session: ServedSession) -> None:
        if session not in self._served:
            self._served.append(session)
        if session.due is None:
            session.take_due(self._time.now)
            if session.due is not None:
                self._waiting.append(session)

    def _start(self) -> None:
        if self._passing or self._drafting:
            return
        if drafting := [session for session in self._served if session.drafts.under_way]:
            self._draft(drafting)
            return
        if not self._waiting:
            return
        self._passing, self._waiting = self._waiting, []
        dues = [(session, session.due) for session in self._passing if session.due]
        tokens = sum(len(due.work.token_ids) for _, due in dues)
        slowed = self._slowed()
        without_s, exit_s = slowed * self.times.pass_s(tokens), slowed * self.times.exit_s
        early = [due.work.early for _, due in dues if due.work.early]
        read = sorted({index for one in early for index in one.exits})
        took_s = without_s + len(read) * exit_s
        now, self.passes = self._time.now, self.passes + 1
        self.budget.passed(took_s, tokens, len(dues))
        for session, due in dues:
            for index in due.work.early.exits if due.work.early else ():
                read_s = now + session.model.exit_depths[index] * without_s
                read_s += (1 + read.index(index)) * exit_s
                self._time.at(read_s, partial(self._read_exit, session, due, index))
        self._time.at(now + took_s, partial(self._end, self.passes, now, took_s))

    def _slowed(self) -> float:
        return self.times.slowed_at(self._time.now, beside=self._edges_draft())

    def _draft(self, sessions: list[ServedSession]) -> None:
        """Begin a draft step of these sessions."""
        self._drafting = sessions
        step_s = self._slowed() * self.times.cloud_step_s
        self.draft_budget.drafted(step_s, len(sessions), len(sessions))
        self._time.at(self._time.now + step_s, partial(self._drafted, step_s))

    def _drafted(self, step_s: float) -> None:
        sessions, self._drafting = self._drafting, []
        for session in sessions:
            if session in self._served:
                session.drafts.step()
                self._take(session)
        self._start()

    def _end(self, number: int, began_s: float, took_s: float) -> None:
        if number != self.passes:
            return
        ended, self._passing = self._passing, []
        for session in ended:
            if (due := session.due) is not None:
                session.due = None
                cost = Work(took_s, began_s - due.due_s, len(ended))
                session.send(session.cloud.complete(due.verification, cost))
        for session in ended:
            self._take(session)
        self._start()

    def _read_exit(self, session: ServedSession, due: DueTask, index: int) -> None:
        if session.due is not due or due.work.early is None:
            return
        probs_of = session.model.exit_distributions[index]
        temperature = due.work.early.temperature(index)
        verdict = due.work.early.verdict(
            index,
            lambda row: probs_of(due.contexts[row]),
            lambda row: tempered_confidence(probs_of(due.contexts[row]), temperature),
        )
        if verdict is not None:
            session.cloud.push_early_verdict(due.work, verdict)
            self._send_early(session)

    def _send_early(self, session: ServedSession) -> None:
        """Send the next early verdict when the link is free, unless the pass ends before."""
        if session.due is None or not session.cloud.early_verdicts:
            return
        if session.down.free_at > self._time.now:
            self._time.at(session.down.free_at, partial(self._send_early, session))
            return
        session.send([session.cloud.early_verdicts.pop()])
        self._send_early(session)
