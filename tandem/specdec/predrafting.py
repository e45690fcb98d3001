"""Drafting ahead of the verdict: which outcomes are likely, and which draft works they make.
Branches run on forks of the draft KV, several in one packed pass; each drafts the chunk that would
follow its outcome. Invariant: pre-drafting decides when drafts exist, never which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Predraft
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import Drafted, DraftWork, EdgeRequest
from tandem.specdec.pacing import Pacing
from tandem.specdec.predraft_cache import Branch, LikelyOutcome, Predrafts


class Predrafting:
    """Reads `committed` and `drafting`, which their owners alone change."""

    def __init__(self, request: EdgeRequest, committed: PrefixedTokens, drafting: Drafting) -> None:
        preset = request.preset
        self.on = preset.predraft is not Predraft.OFF
        self.wanted = True
        self._from_distributions = preset.predraft is Predraft.LIKELY_OUTCOMES
        self._workers = preset.predraft_workers
        seed = request.params.seed
        self._cache = Predrafts(preset.predraft_order, preset.predraft_outcomes, seed)
        self._request = request
        self._committed = committed
        self._drafting = drafting

    def follow(self, pacing: Pacing) -> None:
        """Draft from now on as it has found best, if it looks for that."""
        if pacing.on:
            self._drafting.follow(pacing.schedule)
            self._drafting.drafts_ahead = pacing.ahead
            self.wanted = pacing.branches

    def expect(self, outcomes: Iterable[LikelyOutcome]) -> None:
        """Take outcomes in, but for those that the drafts in flight or ahead speak of already."""
        if self.on and self.wanted:
            self._cache.expect(outcome for outcome in outcomes if self._diverges(outcome))

    def _diverges(self, outcome: LikelyOutcome) -> bool:
        drafting, offset = self._drafting, outcome.position - len(self._committed)
        drafted = drafting.in_flight.token_ids
        if offset == len(drafted) and drafting.ahead:
            drafted = (*drafted, drafting.ahead[0].token_id)
        if not 0 <= offset <= len(drafting.in_flight):
            return False
        return offset == len(drafted) or drafted[offset] != outcome.token_id

    def expect_likely(self) -> None:
        """What the draft model's own distributions say may happen to the drafts that are out."""
        if self._from_distributions:
            self.expect(self._likely())

    def _likely(self) -> Iterator[LikelyOutcome]:
        """Every draft's runners-up, with the draft model's probability that it comes."""
        drafting, survives = self._drafting, 1.0
        sure = (*drafting.in_flight.all, *(drafting.ahead or ())[:1])
        for position, drafted in enumerate(sure, start=len(self._committed)):
            whole = 1.0 + sum(weight for _, weight in drafted.alternatives)
            for token_id, weight in drafted.alternatives:
                yield LikelyOutcome(position, token_id, survives * weight / whole)
            survives /= whole

    def work(self) -> DraftWork | None:
        """The next branch to draft, if one waits and a worker is free."""
        while self.on and self._cache.open_count < self._workers:
            if (branch := self._cache.next_waiting()) is None:
                return None
            work = self._work_of(branch.outcome)
            if work is not None:
                self._cache.start(branch, work)
                return work
            self._cache.drop(branch)
        return None

    def _work_of(self, outcome: LikelyOutcome) -> DraftWork | None:
        """None where nothing is drafted after the outcome: at an end, or at the length limit."""
        drafting, ends = self._drafting, self._request.draft_ends
        room = drafting.room + drafting.position - outcome.position - 1
        count = min(drafting.schedule.chunk, drafting.schedule.window, room)
        if count < 1 or outcome.token_id in ends:
            return None
        keep = min(drafting.kv_length, outcome.position)
        return DraftWork(
            keep=keep,
            token_ids=(*drafting.unfed(outcome.position, keep), outcome.token_id),
            position=outcome.position + 1,
            count=count,
            ends=ends,
            stepwise=count > 1,
            alternatives=drafting.alternatives,
            branch=True,
        )

    def context(self, work: DraftWork) -> tuple[int, ...]:
        """All tokens before the first one of a branch's work."""
        before = self._drafting.context[: work.position - 1]
        return (*before, work.token_ids[-1])

    def take(self, work: DraftWork, drafts: list[Drafted]) -> bool:
        """The next tokens of a branch; False when it is not wanted any more."""
        if (branch := self._cache.of(work)) is None:
            return False
        branch.take(drafts)
        return True

    def resolve(self, token_id: int) -> tuple[Branch | None, list[DraftWork]]:
        """`token_id` comes next, against the drafts: its branch, and the works to interrupt."""
        return self._cache.resolve(len(self._committed), token_id)

    def forget_committed(self) -> list[DraftWork]:
        """Drop the outcomes that did not come; returns the works to interrupt."""
        return self._cache.forget_before(len(self._committed))

    def clear(self) -> list[DraftWork]:
        """Drop everything; returns the works to interrupt."""
        return self._cache.clear()
