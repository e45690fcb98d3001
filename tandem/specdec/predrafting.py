"""Drafting ahead of the verdict: which outcomes are likely, and what is drafted for them.

While the edge waits, it drafts the chunk that would follow each likely outcome, as a branch on a
fork of the draft KV; several run in one packed pass. Outcomes come from the draft model's own
distributions or from early verdicts. A branch is keyed by (position, token): the text goes on as
drafted up to `position`, where `token` comes instead. That is FSD's key (accepted count,
correction), made absolute.

Invariants: pre-drafting decides when drafts exist, never which: as randomness is keyed by position,
a branch holds what would be drafted after its outcome anyway. A branch builds on the drafts in
flight as they are; when these are discarded, so is every branch but the one that came true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from operator import attrgetter, is_

from tandem.core.frozen import frozen
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Predraft
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import Drafted, DraftTask, EdgeRequest


@frozen
class LikelyOutcome:
    """The verdict may accept all drafts before `position` (absolute) and put `token_id` there."""

    position: int
    token_id: int
    confidence: float


_TURN = attrgetter("rank", "arrival")
"""What branches that wait are sorted by."""


@dataclass(slots=True, eq=False)
class Branch:
    """An outcome and what is drafted after it. No `task`: it waits; `open`: it is being drafted.
    Of those that wait the one of the smallest `rank` comes first, and of equal ones the first to
    arrive."""

    outcome: LikelyOutcome
    rank: float
    arrival: int
    task: DraftTask | None = None
    open: bool = False
    counted: int = 0
    """Of its tokens, which are counted as drafted."""

    @property
    def drafts(self) -> list[Drafted]:
        return [] if self.task is None else self.task.made

    @property
    def complete(self) -> bool:
        """True if all that was to be drafted is there."""
        return bool(self.drafts) and not self.open

    def take(self, drafts: Iterable[Drafted]) -> None:
        """Take the next tokens of its task; the last one closes it."""
        assert self.task is not None, "nothing was asked for"
        self.task.made.extend(drafts)
        last = self.drafts[-1]
        ended = last.ends_chunk or last.token_id in self.task.ends
        self.open = not ended and len(self.drafts) < self.task.count


class Predrafting:
    """The branches of one request, at most `predraft_outcomes`. Reads `committed` and `drafting`,
    which their owners alone change."""

    def __init__(
        self,
        request: EdgeRequest,
        committed: PrefixedTokens,
        drafting: Drafting,
        *,
        wanted: bool = True,
        on_drafted: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Begin with no branch. `on_drafted`: called with how many tokens were drafted for one."""
        preset = request.preset
        self.on = wanted and preset.predraft is not Predraft.OFF
        self._preset = preset
        self._on_drafted = on_drafted
        self._request = request
        self._committed = committed
        self._drafting = drafting
        self._arrivals = count()
        self._branches: dict[tuple[int, int], Branch] = {}
        # Those that are being drafted, and those that wait, of which the next is the last.
        self._open: list[Branch] = []
        self._waiting: list[Branch] = []
        # The drafts whose runners-up are expected, as far as the text has not moved on, and the
        # chance that all of them stand.
        self._followed: list[Drafted] = []
        self._survives = 1.0

    # Outcomes.

    def expect(self, outcomes: Iterable[LikelyOutcome]) -> None:
        """Queue outcomes, but for those that the drafts in flight speak of already; one already
        known keeps the higher confidence. Beyond the capacity the waiting branch that would come
        last gives way."""
        if not self.on:
            return
        first = len(self._committed)
        drafted = self._drafting.in_flight.token_ids
        changed = False
        for outcome in outcomes:
            offset = outcome.position - first
            if offset == len(drafted) or drafted[offset] != outcome.token_id:
                changed |= self._queue(outcome)
        if not changed:
            return
        self._waiting.sort(key=_TURN, reverse=True)
        surplus = len(self._branches) - self._preset.predraft_outcomes
        if surplus > 0:
            for branch in self._waiting[:surplus]:
                self._drop(branch)

    def _queue(self, outcome: LikelyOutcome) -> bool:
        """Queue an outcome; return whether it is new, or likelier than before."""
        key = (outcome.position, outcome.token_id)
        known = self._branches.get(key)
        if known is None:
            branch = Branch(outcome, self._rank(outcome), next(self._arrivals))
            self._branches[key] = branch
            self._waiting.append(branch)
            return True
        likelier = outcome.confidence > known.outcome.confidence
        if likelier:
            known.outcome = outcome
            known.rank = self._rank(outcome)
        return likelier

    def _rank(self, outcome: LikelyOutcome) -> float:
        """Return what outcomes are ordered by; the smaller one comes first."""
        words = self._request.params.seed, outcome.position, outcome.token_id
        return self._preset.predraft_order.rank(outcome.confidence, *words)

    def expect_likely(self) -> None:
        """Queue the outcomes that the draft model's own distributions make likely."""
        if self._preset.predraft is Predraft.LIKELY_OUTCOMES:
            self.expect(self._likely())

    def _likely(self) -> Iterator[LikelyOutcome]:
        """Yield the runners-up of every draft, with the draft model's probability that each comes:
        of those that follow what is expected already, while the text is the same."""
        sure = self._drafting.in_flight.all
        known = len(self._followed)
        if not all(map(is_, self._followed, sure)) or known > len(sure):
            self._begin_anew()
            known = 0
        for position, drafted in enumerate(sure[known:], start=len(self._committed) + known):
            whole = 1.0 + sum([weight for _, weight in drafted.alternatives])
            for token_id, weight in drafted.alternatives:
                yield LikelyOutcome(position, token_id, self._survives * weight / whole)
            self._survives /= whole
            self._followed.append(drafted)

    def _begin_anew(self) -> None:
        self._followed.clear()
        self._survives = 1.0

    # Tasks.

    def task(self) -> DraftTask | None:
        """Return the task of the next branch to draft, if one waits and a worker is free."""
        workers = self._preset.predraft_workers
        while self.on and self._waiting and len(self._open) < workers:
            branch = self._waiting[-1]
            task = self._task_for(branch.outcome)
            if task is not None:
                self._waiting.pop()
                branch.task = task
                branch.open = True
                self._open.append(branch)
                return task
            self._drop(branch)
        return None

    def _task_for(self, outcome: LikelyOutcome) -> DraftTask | None:
        """Return the task of an outcome; None where nothing is drafted after it: at an end, at the
        length limit, or where the branch would first have to feed a long text that the caller
        predicted."""
        drafting, schedule = self._drafting, self._drafting.schedule
        room = drafting.length_limit - outcome.position - 1
        length = min(schedule.chunk, schedule.window, room)
        if length < 1 or outcome.token_id in drafting.ends:
            return None
        keep = min(drafting.kv_length, outcome.position)
        lags = outcome.position - keep > self._preset.schedule.window
        if lags and self._request.predicted is not None:
            return None
        return DraftTask(
            keep=keep,
            token_ids=(*drafting.unfed(outcome.position, keep), outcome.token_id),
            position=outcome.position + 1,
            count=length,
            ends=drafting.ends,
            stepwise=length > 1,
            alternatives=drafting.alternatives,
            branch=True,
        )

    def context(self, task: DraftTask, first: int = 0) -> tuple[int, ...]:
        """Return the tokens from position `first` on that come before the first one of a branch's
        task; its own beginning is among them."""
        return (*self._drafting.unfed(task.position - 1, first), task.token_ids[-1])

    def take(self, task: DraftTask, drafts: Iterable[Drafted]) -> bool:
        """Take the next tokens of a branch; False when it is not wanted any more."""
        branch = next((branch for branch in self._open if branch.task is task), None)
        if branch is None:
            return False
        branch.take(drafts)
        if not branch.open:
            self._open.remove(branch)
        self._count(branch)
        return True

    def _count(self, branch: Branch) -> None:
        drafted = len(branch.drafts)
        self._on_drafted(drafted - branch.counted)
        branch.counted = drafted

    # What became of them.

    def resolve(self, token_id: int) -> tuple[Branch | None, list[DraftTask]]:
        """Return the branch of `token_id`, which comes next against the drafts, and the tasks to
        interrupt. None stays."""
        hit = self._branches.get((len(self._committed), token_id))
        if hit is not None:
            self._drop(hit)
        return hit if hit is not None and hit.task else None, self.clear()

    def forget_committed(self) -> list[DraftTask]:
        """Drop the outcomes that did not come; returns the tasks to interrupt."""
        position = len(self._committed)
        past = [branch for key, branch in self._branches.items() if key[0] < position]
        for branch in past:
            self._drop(branch)
        return [branch.task for branch in past if branch.open and branch.task]

    def clear(self) -> list[DraftTask]:
        """Drop everything; returns the tasks to interrupt."""
        self._begin_anew()
        for branch in self._branches.values():
            self._count(branch)
        tasks = [branch.task for branch in self._open if branch.task]
        self._branches.clear()
        self._waiting.clear()
        self._open.clear()
        return tasks

    def _drop(self, branch: Branch) -> None:
        del self._branches[(branch.outcome.position, branch.outcome.token_id)]
        if branch.task is None:
            self._waiting.remove(branch)
            return
        if branch.open:
            self._open.remove(branch)
        self._count(branch)
