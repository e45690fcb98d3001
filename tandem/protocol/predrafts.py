"""The pre-draft cache: what would be drafted next, for verdicts that have not come yet.

A branch is keyed by (position, token): the text goes on as drafted up to `position`, where `token`
comes instead. That is FSD's key (accepted count, correction), made absolute. Whoever expects an
outcome, the draft model's own laws or an early verdict, feeds the same cache. Invariant: a branch
speaks of the drafts in flight as they are; when these are void, so is all that is not the outcome
itself. Randomness is keyed by position, so a branch holds exactly the tokens that would be drafted
after its outcome anyway. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.core.chance import unit
from tandem.core.hashing import hash_words
from tandem.policy.choices import PredraftOrder
from tandem.protocol.outputs import Drafted, DraftWork


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
        ended = self.drafts[-1].token_id in self.work.ends
        self.open = not ended and len(self.drafts) < self.work.count


class Predrafts:
    """Branches of one request, at most `capacity`, drafted for in `order`."""

    def __init__(self, order: PredraftOrder, capacity: int, seed: int) -> None:
        self._order = order
        self._capacity = capacity
        self._seed = seed
        self._arrivals = 0
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
            self._arrivals += 1
            key = (outcome.position, outcome.token_id)
            known = self._branches.get(key)
            if known is None:
                self._branches[key] = Branch(outcome, self._arrivals)
            elif known.outcome.confidence < outcome.confidence:
                known.outcome = outcome
        while len(self._branches) > self._capacity:
            waiting = [branch for branch in self._branches.values() if branch.work is None]
            if not waiting:
                return
            self._drop(max(waiting, key=self._rank))

    def next_waiting(self) -> Branch | None:
        """The outcome to draft for next, if any waits."""
        waiting = [branch for branch in self._branches.values() if branch.work is None]
        return min(waiting, key=self._rank, default=None)

    def start(self, branch: Branch, work: DraftWork) -> None:
        branch.work, branch.open = work, True

    def drop(self, branch: Branch) -> None:
        """Forget an outcome that cannot be drafted for."""
        self._drop(branch)

    def of(self, work: DraftWork) -> Branch | None:
        """The branch this work drafts for."""
        for branch in self._branches.values():
            if branch.work is work:
                return branch
        return None

    def resolve(self, position: int, token_id: int) -> tuple[Branch | None, list[DraftWork]]:
        """The text diverged: the branch that foresaw it, and the works of all others that are open.
        Nothing is kept."""
        hit = self._branches.pop((position, token_id), None)
        if hit is not None and hit.work is None:
            hit = None
        return hit, self.clear()

    def forget_before(self, position: int) -> list[DraftWork]:
        """Positions before this one are committed: outcomes there did not come. Returns the works
        to interrupt."""
        past = [branch for key, branch in self._branches.items() if key[0] < position]
        for branch in past:
            self._drop(branch)
        return [branch.work for branch in past if branch.open and branch.work]

    def clear(self) -> list[DraftWork]:
        """Forget everything; returns the works to interrupt."""
        open_works = [branch.work for branch in self._branches.values() if branch.open]
        self._branches.clear()
        return [work for work in open_works if work]

    def _drop(self, branch: Branch) -> None:
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
                words = (self._seed, outcome.position, outcome.token_id)
                return unit(hash_words(*words)), branch.arrival
