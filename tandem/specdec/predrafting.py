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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from tandem.core.hashing import hash_words, unit
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Predraft, PredraftOrder
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import Drafted, DraftTask, EdgeRequest


@dataclass(frozen=True, slots=True)
class LikelyOutcome:
    """The verdict may accept all drafts before `position` (absolute) and put `token_id` there."""

    position: int
    token_id: int
    confidence: float


@dataclass(slots=True)
class Branch:
    """An outcome and what is drafted after it. No `task`: it waits; `open`: it is being drafted."""

    outcome: LikelyOutcome
    arrival: int
    task: DraftTask | None = None
    drafts: list[Drafted] = field(default_factory=list)
    open: bool = False

    @property
    def complete(self) -> bool:
        """True if all that was to be drafted is there."""
        return bool(self.drafts) and not self.open

    def take(self, drafts: Iterable[Drafted]) -> None:
        """Take the next tokens of its task; the last one closes it."""
        assert self.task is not None, "nothing was asked for"
        self.drafts += drafts
        last = self.drafts[-1]
        ended = last.ends_chunk or last.token_id in self.task.ends
        self.open = not ended and len(self.drafts) < self.task.count


class Predrafting:
    """Reads `committed` and `drafting`, which their owners alone change."""

    def __init__(
        self,
        request: EdgeRequest,
        committed: PrefixedTokens,
        drafting: Drafting,
        *,
        wanted: bool = True,
    ) -> None:
        preset = request.preset
        self.on = wanted and preset.predraft is not Predraft.OFF
        self._from_distributions = preset.predraft is Predraft.LIKELY_OUTCOMES
        self._workers = preset.predraft_workers
        seed = request.params.seed
        self._cache = Predrafts(preset.predraft_order, preset.predraft_outcomes, seed)
        self._request = request
        self._committed = committed
        self._drafting = drafting

    def expect(self, outcomes: Iterable[LikelyOutcome]) -> None:
        """Take outcomes in, but for those that the drafts in flight or ahead speak of already."""
        if not self.on:
            return
        first = len(self._committed)
        drafted = self._drafting.token_ids
        bonus = self._drafting.bonus_token
        if bonus is not None:
            drafted = (*drafted, bonus)

        def diverges(outcome: LikelyOutcome) -> bool:
            offset = outcome.position - first
            return offset == len(drafted) or drafted[offset] != outcome.token_id

        self._cache.expect(outcome for outcome in outcomes if diverges(outcome))

    def expect_likely(self) -> None:
        """Queue the outcomes that the draft model's own distributions make likely."""
        if self._from_distributions:
            self.expect(self._likely())

    def _likely(self) -> Iterator[LikelyOutcome]:
        """Yield every draft's runners-up, with the draft model's probability that it comes."""
        survives = 1.0
        bonus = (self._drafting.ahead or ())[:1]
        sure = (*self._drafting.drafts, *bonus)
        for position, drafted in enumerate(sure, start=len(self._committed)):
            whole = 1.0 + sum(weight for _, weight in drafted.alternatives)
            for token_id, weight in drafted.alternatives:
                yield LikelyOutcome(position, token_id, survives * weight / whole)
            survives /= whole

    def task(self) -> DraftTask | None:
        """Return the task of the next branch to draft, if one waits and a worker is free."""
        while self.on and self._cache.open_count < self._workers:
            if (branch := self._cache.next_waiting()) is None:
                return None
            task = self._task_for(branch.outcome)
            if task is not None:
                self._cache.start(branch, task)
                return task
            self._cache.drop(branch)
        return None

    def _task_for(self, outcome: LikelyOutcome) -> DraftTask | None:
        """Return the task of an outcome; None where nothing is drafted after it: at an end, at the
        length limit, or where the branch would first have to feed a long text that the caller
        predicted."""
        drafting = self._drafting
        ends = self._request.draft_ends
        room = drafting.room + drafting.position - outcome.position - 1
        count = min(drafting.schedule.chunk, drafting.schedule.window, room)
        if count < 1 or outcome.token_id in ends:
            return None
        keep = min(drafting.kv_length, outcome.position)
        lags = outcome.position - keep > self._request.preset.schedule.window
        if lags and self._request.predicted is not None:
            return None
        return DraftTask(
            keep=keep,
            token_ids=(*drafting.unfed(outcome.position, keep), outcome.token_id),
            position=outcome.position + 1,
            count=count,
            ends=ends,
            stepwise=count > 1,
            alternatives=drafting.alternatives,
            branch=True,
        )

    def context(self, task: DraftTask, first: int = 0) -> tuple[int, ...]:
        """Return the tokens from position `first` on that come before the first one of a branch's
        task; its own beginning is among them."""
        return (*self._drafting.unfed(task.position - 1, first), task.token_ids[-1])

    def take(self, task: DraftTask, drafts: list[Drafted]) -> bool:
        """Take the next tokens of a branch; False when it is not wanted any more."""
        if (branch := self._cache.of(task)) is None:
            return False
        branch.take(drafts)
        return True

    def resolve(self, token_id: int) -> tuple[Branch | None, list[DraftTask]]:
        """Return the branch of `token_id`, which comes next against the drafts, and the tasks to
        interrupt."""
        return self._cache.resolve(len(self._committed), token_id)

    def forget_committed(self) -> list[DraftTask]:
        """Drop the outcomes that did not come; returns the tasks to interrupt."""
        return self._cache.forget_before(len(self._committed))

    def clear(self) -> list[DraftTask]:
        """Drop everything; returns the tasks to interrupt."""
        return self._cache.clear()


class Predrafts:
    """The pre-draft cache: branches of one request, at most `capacity`, drafted for in `order`."""

    def __init__(self, order: PredraftOrder, capacity: int, seed: int) -> None:
        self._order = order
        self._capacity = capacity
        self._seed = seed
        self._arrivals = count()
        self._branches: dict[tuple[int, int], Branch] = {}

    @property
    def open_count(self) -> int:
        """Branches being drafted."""
        return sum(branch.open for branch in self._branches.values())

    def expect(self, outcomes: Iterable[LikelyOutcome]) -> None:
        """Queue outcomes; one already known keeps the higher confidence. Beyond the capacity the
        waiting branch that would come last gives way."""
        for outcome in outcomes:
            key = (outcome.position, outcome.token_id)
            known = self._branches.get(key)
            if known is None:
                self._branches[key] = Branch(outcome, next(self._arrivals))
            else:
                known.outcome = max(known.outcome, outcome, key=lambda one: one.confidence)
        while len(self._branches) > self._capacity:
            self.drop(max(self._waiting(), key=self._rank))

    def next_waiting(self) -> Branch | None:
        """Return the outcome to draft for next, if any waits."""
        return min(self._waiting(), key=self._rank, default=None)

    def _waiting(self) -> list[Branch]:
        return [branch for branch in self._branches.values() if branch.task is None]

    def start(self, branch: Branch, task: DraftTask) -> None:
        branch.task = task
        branch.open = True

    def of(self, task: DraftTask) -> Branch | None:
        """Return the branch this task drafts for."""
        return next((branch for branch in self._branches.values() if branch.task is task), None)

    def resolve(self, position: int, token_id: int) -> tuple[Branch | None, list[DraftTask]]:
        """Return the branch that predicted the diverged text, and all other open tasks. None
        stays."""
        hit = self._branches.pop((position, token_id), None)
        return hit if hit is not None and hit.task else None, self.clear()

    def forget_before(self, position: int) -> list[DraftTask]:
        """Forget outcomes at committed positions; returns the tasks to interrupt."""
        past = [branch for key, branch in self._branches.items() if key[0] < position]
        for branch in past:
            self.drop(branch)
        return [branch.task for branch in past if branch.open and branch.task]

    def clear(self) -> list[DraftTask]:
        """Forget everything; returns the tasks to interrupt."""
        open_tasks = [branch.task for branch in self._branches.values() if branch.open]
        self._branches.clear()
        return [task for task in open_tasks if task]

    def drop(self, branch: Branch) -> None:
        """Forget an outcome."""
        del self._branches[(branch.outcome.position, branch.outcome.token_id)]

    def _rank(self, branch: Branch) -> tuple[float, int]:
        """Return the sort key of a branch; the smaller one comes first."""
        outcome = branch.outcome
        match self._order:
            case PredraftOrder.CONFIDENCE:
                return -outcome.confidence, branch.arrival
            case PredraftOrder.FIFO:
                return 0.0, branch.arrival
            case PredraftOrder.RANDOM:
                word = hash_words(self._seed, outcome.position, outcome.token_id)
                return unit(word), branch.arrival
