"""The pre-draft cache: what would be drafted next, for verdicts that have not come yet.

A branch is keyed by (position, token): the text goes on as drafted up to `position`, where `token`
comes instead. That is FSD's key (accepted count, correction), made absolute. Outcomes come from the
draft model's own distributions or from early verdicts. Invariant: a branch builds on the drafts in
flight as they are; when these are discarded, so is every branch but the one that came true. As
randomness is keyed by position, a branch holds what would be drafted after its outcome anyway."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from tandem.core.hashing import hash_words, unit
from tandem.specdec.choices import PredraftOrder
from tandem.specdec.events import Drafted, DraftWork


@dataclass(frozen=True, slots=True)
class LikelyOutcome:
    """The verdict may accept all drafts before `position` (absolute) and put `token_id` there."""

    position: int
    token_id: int
    confidence: float


@dataclass(slots=True)
class Branch:
    """An outcome and what is drafted after it. No `work`: it waits; `open`: it is being drafted."""

    outcome: LikelyOutcome
    arrival: int
    work: DraftWork | None = None
    drafts: list[Drafted] = field(default_factory=list)
    open: bool = False

    def take(self, drafts: Iterable[Drafted]) -> None:
        """The next tokens of its work; the last one closes it."""
        assert self.work is not None, "nothing was asked for"
        self.drafts += drafts
        last = self.drafts[-1]
        ended = last.ends_chunk or last.token_id in self.work.ends
        self.open = not ended and len(self.drafts) < self.work.count


class Predrafts:
    """Branches of one request, at most `capacity`, drafted for in `order`."""

    def __init__(self, order: PredraftOrder, capacity: int, seed: int) -> None:
        self._order = order
        self._capacity = capacity
        self._seed = seed
        self._arrivals = count()
        self._branches: dict[tuple[int, int], Branch] = {}

    def __len__(self) -> int:
        return len(self._branches)

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
            if not (waiting := self._waiting()):
                return
            self.drop(max(waiting, key=self._rank))

    def next_waiting(self) -> Branch | None:
        """The outcome to draft for next, if any waits."""
        return min(self._waiting(), key=self._rank, default=None)

    def _waiting(self) -> list[Branch]:
        return [branch for branch in self._branches.values() if branch.work is None]

    def start(self, branch: Branch, work: DraftWork) -> None:
        branch.work, branch.open = work, True

    def of(self, work: DraftWork) -> Branch | None:
        """The branch this work drafts for."""
        return next((branch for branch in self._branches.values() if branch.work is work), None)

    def resolve(self, position: int, token_id: int) -> tuple[Branch | None, list[DraftWork]]:
        """The text diverged: the branch that predicted it, and all other open works. None stays."""
        hit = self._branches.pop((position, token_id), None)
        return hit if hit is not None and hit.work else None, self.clear()

    def forget_before(self, position: int) -> list[DraftWork]:
        """Forget outcomes at committed positions; returns the works to interrupt."""
        past = [branch for key, branch in self._branches.items() if key[0] < position]
        for branch in past:
            self.drop(branch)
        return [branch.work for branch in past if branch.open and branch.work]

    def clear(self) -> list[DraftWork]:
        """Forget everything; returns the works to interrupt."""
        open_works = [branch.work for branch in self._branches.values() if branch.open]
        self._branches.clear()
        return [work for work in open_works if work]

    def drop(self, branch: Branch) -> None:
        """Forget an outcome."""
        del self._branches[(branch.outcome.position, branch.outcome.token_id)]

    def _rank(self, branch: Branch) -> tuple[float, int]:
        """Smaller comes first."""
        outcome = branch.outcome
        match self._order:
            case PredraftOrder.CONFIDENCE:
                return -outcome.confidence, branch.arrival
            case PredraftOrder.FIFO:
                return 0.0, branch.arrival
            case PredraftOrder.RANDOM:
                word = hash_words(self._seed, outcome.position, outcome.token_id)
                return unit(word), branch.arrival
