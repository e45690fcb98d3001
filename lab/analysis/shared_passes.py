"""Many sessions of one schedule on one verifier: what a token of theirs takes, by running their
timelines together with drafts that are accepted at random.

A pass takes all sessions whose work is due, and what comes due while it runs waits. How sessions
fall into step with each other decides how long they wait, and no average of one session tells
that. Invariant: pure and seeded; the same arguments give the same figures."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from lab.analysis.epoch_timeline import Expected, StepTimes, Timeline
from tandem.control.conditions import Conditions
from tandem.control.estimates import Estimates
from tandem.control.pass_budget import PassBudget
from tandem.core.hashing import hash_words, unit
from tandem.specdec.choices import Schedule
from tandem.specdec.messages import Work

Control = Callable[[Conditions], Schedule]

_WARM = 0.25
"""The share of the tokens that is left out, while sessions fall into step."""
_LEAST_TOKENS = 96
_ALL_TOKENS = 2400
"""Of each session, and of all: chance then moves the figures by a few hundredths. With fewer of
each, controllers would learn all the while."""
_SPREAD = 0.618033988749895
_PROMPT = 3
"""Tokens of a prompt: few, as its pass only decides who begins with whom."""


def expected_together(
    schedule: Schedule,
    times: StepTimes,
    acceptance_rate: float,
    *,
    sessions: int,
    hit_rate: float = 0.0,
    head_s: float = 0.0,
    in_parts: bool = False,
    control: Control | None = None,
) -> tuple[Expected, float]:
    """Return what `expected` does, for each of `sessions`, over some hundred tokens of each, and
    the mean pass in seconds.

    Args:
        times: where `pass_s` is a pass over one token, and `further_s` each further one of any
            session.
        in_parts: whether a pass takes as many drafts as the verifier's budget bears.
        control: the schedule to go on with by what was measured."""
    crowd = _Crowd(schedule, times, acceptance_rate, sessions, hit_rate, head_s)
    crowd.budget = PassBudget() if in_parts else None
    crowd.control = control
    tokens = max(_LEAST_TOKENS, _ALL_TOKENS // sessions)
    warm = crowd.run_until(int(_WARM * tokens * sessions))
    return _between(warm, crowd.run_until(tokens * sessions), sessions), crowd.mean_pass_s


def _between(before: list[float], after: list[float], sessions: int) -> Expected:
    elapsed_s, tokens, *rest = (a - b for a, b in zip(after, before, strict=True))
    return Expected(elapsed_s * sessions / tokens, *(part / tokens for part in rest))


class _Crowd:
    def __init__(
        self,
        schedule: Schedule,
        times: StepTimes,
        acceptance_rate: float,
        sessions: int,
        hit_rate: float,
        head_s: float,
    ) -> None:
        self.now = 0.0
        self.times = times
        self.rate = acceptance_rate
        self.hit_rate = hit_rate
        self.head_s = head_s
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count(1)  # of events and of draws
        self.budget: PassBudget | None = None
        self.control: Control | None = None
        self.passes = 0
        self.pass_s_sum = self.began_s = self.took_s = 0.0
        self.waiting: list[_Member] = []
        self.passing: list[_Member] = []
        self.totals = [0.0] * 6  # tokens, passes, fed, frames, drafted, corrections
        self.members = [_Member(self, schedule, times) for _ in range(sessions)]
        for number, member in enumerate(self.members):
            start_s = (number * _SPREAD % 1.0) * 4 * times.pass_s
            self.push(start_s, member.start)

    @property
    def mean_pass_s(self) -> float:
        return self.pass_s_sum / max(1, self.passes)

    def run_until(self, tokens: int) -> list[float]:
        """Run until `tokens` tokens are committed; return the seconds and the totals."""
        while self.totals[0] < tokens and self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
            self.start_pass()
        return [self.now, *self.so_far()]

    def so_far(self) -> list[float]:
        """Return the totals, with what the epochs under way have made: some never end."""
        sums = list(self.totals)
        for member in self.members:
            for index, part in enumerate(member.made()):
                sums[1 + index] += part
        return sums

    def push(self, moment: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.events, (moment, next(self.numbers), happen))

    def start_pass(self) -> None:
        if self.passing or not self.waiting:
            return
        self.passing, self.waiting = self.waiting, []
        fed = sum(member.due_tokens for member in self.passing)
        took_s = self.times.pass_s + (fed - 1) * self.times.further_s
        self.passes += 1
        self.pass_s_sum += took_s
        self.began_s = self.now
        self.took_s = took_s
        if self.budget is not None:
            self.budget.passed(took_s, fed, len(self.passing))
        self.push(self.now + took_s, self.end_pass)

    def end_pass(self) -> None:
        ended, self.passing = self.passing, []
        for member in ended:
            member.now = self.now
            if member.due_drafts or member.arrived <= member.committed:  # else nobody is told
                queue_s = max(0.0, self.began_s - member.due_s)
                work = Work(self.took_s, queue_s, len(ended), drafts=member.fed_drafts)
                member.measure(work)
                member.work_s = self.took_s + queue_s
            member.passed(member.due_drafts)
            member.work_s = 0.0
            member.follow()

    def lucky(self) -> bool:
        return unit(hash_words(next(self.numbers))) < self.rate

    def hits(self) -> bool:
        return unit(hash_words(next(self.numbers))) < self.hit_rate


class _Member(Timeline):
    """One session: a timeline that begins anew with every correction."""

    def __init__(self, crowd: _Crowd, schedule: Schedule, times: StepTimes) -> None:
        super().__init__(schedule, times, 0.0)
        self.crowd, self.epoch = crowd, object()
        self.due_drafts = self.due_tokens = self.fed_drafts = 0
        self.due_s = 0.0
        self.work_s = 0.0
        self.flights: deque[tuple[int, float]] = deque()
        self.estimates = Estimates()
        self.is_right = False

    def start(self) -> None:
        """Begin to draft at the edge while the cloud computes the prompt. How sessions begin
        decides which of them share their passes, and that may last."""
        self.now = self.crowd.now
        self.draft()
        self.crowd.push(self.now + self.times.up_s, self.compute_prompt)

    def compute_prompt(self) -> None:
        self.now = self.crowd.now
        self.busy = True
        self.passes += 1
        self.fed += 1
        self.submit(0, _PROMPT, 0.0)

    def correct(self) -> None:
        """Begin a new epoch: a token stands in the place of a draft, and all after it is void."""
        crowd = self.crowd
        up_free_s = self.up_free_s
        self.counted()
        hit = crowd.hits()
        head_s = crowd.head_s if hit else 0.0
        super().__init__(self.schedule, self.times, head_s)
        self.now = crowd.now
        self.up_free_s = up_free_s
        self.epoch = object()
        self.is_right = False
        self.flights.clear()
        self.begin()

    def counted(self) -> None:
        """Add what this epoch made to the totals."""
        for index, part in enumerate(self.made()):
            self.crowd.totals[1 + index] += part
        self.crowd.totals[5] += 1

    def made(self) -> tuple[int, int, int, int]:
        """Return the passes, tokens fed, frames and drafts of this epoch."""
        return self.passes, self.fed, self.frames, self.drafted

    def draft_ended(self) -> None:
        self.estimates.drafted(1, self.times.draft_s, self.crowd.now)
        super().draft_ended()

    def at(self, moment: float, kind: int, number: int, whole: bool = False) -> None:
        self.crowd.push(moment, partial(self.happen, self.epoch, kind, number, whole))

    def happen(self, epoch: object, kind: int, number: int, whole: bool) -> None:
        if epoch is self.epoch:  # else a correction has made it void
            self.now = self.crowd.now
            self.take(kind, number, whole)

    def send(self) -> None:
        base = self.sent
        frames = self.frames
        super().send()
        if self.frames > frames:
            self.flights.append((base, self.now))

    def landed(self) -> None:
        """Record the trip of a draft that came and is now decided, as the edge will measure it:
        with the time it waited for a pass of its session to end."""
        sent_s = None
        times = self.times
        while self.flights and self.flights[0][0] < self.committed:
            if self.flights[0][1] + times.up_s > self.now:
                break
            sent_s = self.flights.popleft()[1]
        if sent_s is not None:
            trip_s = self.now + times.down_s - sent_s - self.work_s
            self.estimates.tripped(trip_s, self.now)

    def submit(self, drafts: int, tokens: int, wait_s: float) -> None:
        self.due_drafts = drafts
        self.due_tokens = tokens
        self.due_s = self.crowd.now
        self.fed_drafts = drafts - self.leaves
        self.crowd.waiting.append(self)

    def measure(self, work: Work) -> None:
        """Record what the edge learns of a pass."""
        now = self.crowd.now
        self.estimates.passed(work.verify_s, work.drafts, now)
        self.estimates.sharing.add(work.batch_size, now)

    def follow(self) -> None:
        """Go on with the schedule that its controller takes for what was measured."""
        conditions = self.estimates.conditions()
        if self.crowd.control is not None and conditions is not None:
            self.schedule = self.crowd.control(conditions)

    def taken(self, ready: int) -> int:
        budget = self.crowd.budget
        return ready if budget is None else budget.drafts(self.crowd.rate, ready)

    @property
    def prepares(self) -> bool:
        """A session of several is predicted without: its passes wait for those of the others."""
        return False

    def judge_first(self) -> None:
        """Judge the first draft before its pass, by the distribution kept from the last. A draft
        that is judged in parts is then committed."""
        if self.is_right:
            return
        if self.crowd.budget is not None:
            self.frontier = False
            self.work_s = 0.0
            if self.decide(judged=True):
                self.answer()
            return
        self.is_right = self.crowd.lucky()
        if not self.is_right:
            self.committed, self.work_s = self.committed + 1, 0.0
            self.landed()
            self.estimates.acceptance.add(0, 1)
            self.crowd.totals[0] += 1
            self.correct()

    def decide(self, judged: bool) -> bool:
        self.crowd.totals[0] += 1
        right = self.is_right or not judged or self.crowd.lucky()
        self.is_right = False
        self.committed += 1
        if judged:
            self.landed()
            self.estimates.acceptance.add(int(right), int(not right))
        else:
            self.estimates.acceptance.undrafted(1)
        if not right:
            self.correct()
        return right
