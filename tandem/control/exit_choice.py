"""Which early exits judge the drafts of a request, and how many branches are drafted at once.

FSD's authors leave this open ("adaptive scheduling policies"). An exit is worth what it spares the
edge: a token that it foresees early is drafted for while the pass and the link still take their
time. It costs what it adds to the verifier's pass, to all requests that share it, and what its
message adds to the link.

The rule, in three sentences. Now and then a round is judged by all exits, and what each said and
when is kept. Drafting in the rounds that are kept is gone through again on paper for the exits and
branches that are considered, which tells how much sooner the next drafts would have been ready. The
exits with the best difference to their cost are read, and others only where that is clearly better.

Invariants: pure, `now` is passed in; the text never depends on what is decided here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import inf
from statistics import median

from tandem.core.line_fit import LineFit

Outcome = tuple[int, int]
"""An absolute position, and the token that comes there against the drafts."""

FIRST_ROUNDS = 4
"""Rounds before the first choice. None judges the first, which waits for the prompt, and the third;
all judge the others. From the difference follows what an exit costs."""
_FIRST_NONE = (1, 3)
CROWD = 3.0
"""Requests that share a pass from which on a request does not learn at its beginning: all of them
would wait for what each tries."""
CROWD_APART = 16
"""Rounds for each of them between two that all exits judge, where nothing was learnt."""
ENOUGH = 10
"""Rounds that all exits judged, from which on they need not follow one another."""
LEAST_APART = 6
"""Rounds between two that all exits judge, once there were enough."""
NONE_APART = 32
"""Rounds after which none judges one where exits are read, to see what they cost."""
UNHEARD_APART = 64
"""The same where none of them spoke before the verdict."""
CHOICES_APART = 4
"""Rounds between two choices, once there were enough: a choice takes about a millisecond."""
KEPT = 20
"""Rounds that are kept: those of some fifty tokens, so that a choice follows the text."""
PROBE_SHARE = 0.007
"""Share of the time that reading all exits may lose against reading the chosen ones."""
CLEARLY = 0.03
"""Share of the time of drafting a chunk by which other exits must be better."""
KEEP = 0.97
"""Factor by which a draft step reduces the weight of those before it."""
READINGS = 6
"""Rounds of which times are kept for each number of exits that judged."""
PRIOR_SHARE = 0.02
"""Share of a pass that an exit takes, until passes with more and fewer of them were seen: that of
the head in a model of seven thousand million parameters."""
PRIOR_WEIGHT = 2.0
PRIOR_BRANCH = 0.05
"""Share of a draft step that a further branch adds to it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What an exit said, so many seconds before the verdict. No outcome: nothing to draft for."""

    exit_index: int
    outcome: Outcome | None
    confidence: float
    lead_s: float


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round that all exits judged: what they said, in the order of arrival, and what came."""

    heard: tuple[Heard, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ExitPlan:
    """The exits to read, and the branches to draft at once."""

    exits: frozenset[int]
    branches: int


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of a draft step, and those that each further branch adds to it; drafts of a chunk;
    seconds that an exit adds to the pass."""

    step_s: float
    branch_s: float
    chunk: int
    exit_s: float = 0.0

    def step(self, branches: int) -> float:
        return self.step_s + max(0, branches - 1) * self.branch_s

    @property
    def whole_s(self) -> float:
        """A chunk that is begun when the verdict is there."""
        return self.chunk * self.step_s


@dataclass(slots=True)
class _Round:
    """The round under way: when its drafts left, what exits said of it and when."""

    sent_s: float
    whole: bool
    heard: list[tuple[float, int, Outcome | None, float]] = field(default_factory=list)
    judged_s: float | None = None


class ExitChooser:
    """One request's. `exits`: those to read in the next round, by number; None: all that the cloud
    has. `branches`: how many to draft for at once."""

    def __init__(self, most_branches: int, chunk: int) -> None:
        """Start with no rounds seen. `most_branches` and `chunk` are the preset's."""
        self.plan: ExitPlan | None = None
        self._most_branches = most_branches
        self._chunk = chunk
        self._rounds = deque[JudgedRound](maxlen=KEPT)
        self._round: _Round | None = None
        self._began = 0
        self._probe_at = FIRST_ROUNDS
        self._probe_apart = 0.0
        self._chose_at = 0
        self._passes = _Slope()
        self._trips = _Slope()
        self._step = LineFit(KEEP)
        self._sharing = 1.0
        self._known: frozenset[int] = frozenset()
        self._crowd = 1.0
        self._reads_all = True
        self._reads_none = True
        self._none_at = 0

    @property
    def exits(self) -> tuple[int, ...] | None:
        """The exits that are to judge the next drafts; None: all of them."""
        if self._reads_none:
            return ()
        return None if self._reads_all or self.plan is None else tuple(sorted(self.plan.exits))

    @property
    def plan_exits(self) -> frozenset[int]:
        return frozenset() if self.plan is None else self.plan.exits

    @property
    def branches(self) -> int:
        """How many outcomes to draft for at once."""
        return self._most_branches if self.plan is None else self.plan.branches

    # What happens to the request.

    def sent(self, now: float) -> None:
        """Record drafts that leave. Those of the same round may come in several frames."""
        if self._round is None or self._round.judged_s is not None:
            self._began += 1
            wanted = self.exits
            whole = wanted is None or (bool(wanted) and self._known <= set(wanted))
            self._round = _Round(now, whole)
        self._round.sent_s = now

    def heard(
        self, exit_index: int, outcome: Outcome | None, confidence: float, now: float
    ) -> None:
        """Record an early verdict."""
        if self._round is not None:
            self._round.heard.append((now, exit_index, outcome, confidence))
            self._known |= {exit_index}

    def judged(self, verify_s: float, queue_s: float, batch_size: int, now: float) -> None:
        """Record the verdict, and the cost of its pass as the cloud states it."""
        if (this := self._round) is None or this.judged_s is not None:
            return
        this.judged_s = now
        read = len(self._known) if this.whole else len(self.exits or ())
        waiting = queue_s / verify_s if verify_s > 0 else 0.0
        self._crowd = max(1, batch_size) + waiting
        self._sharing += 0.2 * (self._crowd - self._sharing)
        if self._began > 1:
            self._passes.add(read, verify_s)
            self._trips.add(read, max(0.0, now - this.sent_s - verify_s - queue_s))

    def resolved(self, outcome: Outcome) -> None:
        """Record the token that came against the drafts, or after all of them, and choose anew."""
        this, self._round = self._round, None
        if this is not None and this.judged_s is not None and this.whole and this.heard:
            said = (
                Heard(number, each, confidence, this.judged_s - heard_s)
                for heard_s, number, each, confidence in this.heard
            )
            self._rounds.append(JudgedRound(tuple(said), outcome))
        apart = CHOICES_APART if len(self._rounds) >= ENOUGH else 1
        if self._began >= max(FIRST_ROUNDS, self._chose_at + apart):
            self._choose()
        self._choose_round()

    def _choose_round(self) -> None:
        """Decide whether the next round is one of those that tell something."""
        if self._began < FIRST_ROUNDS:
            self._reads_none = self._began + 1 in _FIRST_NONE or self._crowd >= CROWD
            self._none_at = self._began
            return
        self._reads_all = self._began >= self._probe_at + self._probe_apart
        reads = self._reads_all or bool(self.plan_exits)
        self._reads_none = reads and self._began >= self._none_at + NONE_APART
        if self._reads_none:
            self._none_at = self._began
        elif self._reads_all:
            self._probe_at = self._began

    def abandoned(self) -> None:
        """Forget the round under way: its stream is gone."""
        self._round = None

    def drafted(self, seconds: float, steps: int, branches: int) -> None:
        """Record draft steps in a row, each of `branches` at once, and the seconds they took
        together."""
        if steps:
            self._step.add(max(0, branches - 1), seconds / steps)

    # The choice.

    def _choose(self) -> None:
        self._chose_at = self._began
        if not self._rounds or not self._step.weight:
            self.plan = ExitPlan(frozenset(), self._most_branches)
            crowded = CROWD_APART * self._crowd if self._crowd >= CROWD else 0
            self._probe_apart = UNHEARD_APART if self._began >= 2 * FIRST_ROUNDS else crowded
            return
        times = self._times()
        cost_s = times.exit_s * self._sharing + (self._trips.slope() or 0.0)
        best, gain_s = self._best(times, cost_s)
        current = self.plan or ExitPlan(frozenset(), self._most_branches)
        current_s = self._net_s(current, times, cost_s)
        if gain_s < current_s + CLEARLY * times.whole_s:
            best = current
            gain_s = current_s
        self.plan = best
        every = ExitPlan(self._known, best.branches)
        lost_s = max(0.0, gain_s - self._net_s(every, times, cost_s))
        apart = lost_s / (PROBE_SHARE * max(self._round_s(times), 1e-9))
        self._probe_apart = max(apart, LEAST_APART if len(self._rounds) >= ENOUGH else 0)

    def _best(self, times: RoundTimes, cost_s: float) -> tuple[ExitPlan, float]:
        """Return the best plan that is found by adding one exit after the other, and then leaving
        out branches; and its gain."""
        best, gain_s = ExitPlan(frozenset(), self._most_branches), 0.0
        while left := self._known - best.exits:
            tried = [ExitPlan(best.exits | {number}, best.branches) for number in sorted(left)]
            scored = [(self._net_s(one, times, cost_s), one) for one in tried]
            more_s, more = max(scored, key=lambda pair: pair[0])
            if more_s <= gain_s:
                break
            best = more
            gain_s = more_s
        for branches in _fewer(min(self._most_branches, len(best.exits))):
            fewer = ExitPlan(best.exits, branches)
            fewer_s = self._net_s(fewer, times, cost_s)
            if fewer_s > gain_s + CLEARLY * times.whole_s:
                best = fewer
                gain_s = fewer_s
        return best, gain_s

    def _net_s(self, plan: ExitPlan, times: RoundTimes, cost_s: float) -> float:
        """Return the seconds that a round is shorter with a plan than without any exit, with a
        round more in which nothing is spared: few rounds may be chance."""
        spared = sum(spared_s(each, plan, times) for each in self._rounds)
        return spared / (len(self._rounds) + 1) - cost_s * len(plan.exits)

    def _times(self) -> RoundTimes:
        step_s, branch_s = self._step.fit(PRIOR_BRANCH, PRIOR_WEIGHT)
        exit_s = self._passes.slope()
        if exit_s is None:
            exit_s = PRIOR_SHARE * self._passes.middle
        return RoundTimes(max(step_s, 0.0), branch_s, self._chunk, exit_s)

    def _round_s(self, times: RoundTimes) -> float:
        return times.whole_s + self._passes.middle + self._trips.middle


class _Slope:
    """Seconds by the number of exits that judged, and what each adds: the median over all pairs of
    readings (Theil and Sen), which a round that had to wait for something else does not move."""

    def __init__(self) -> None:
        self._readings: dict[int, deque[float]] = {}

    def add(self, exits: int, seconds: float) -> None:
        self._readings.setdefault(exits, deque(maxlen=READINGS)).append(seconds)

    @property
    def middle(self) -> float:
        """The median of all readings; 0 without any."""
        return median(chain.from_iterable(self._readings.values())) if self._readings else 0.0

    def slope(self) -> float | None:
        """Return the seconds that an exit adds, at least 0; None before two numbers of exits were
        seen."""
        slopes = [
            (later - earlier) / (more - fewer)
            for (fewer, some), (more, others) in combinations(sorted(self._readings.items()), 2)
            for earlier in some
            for later in others
        ]
        return max(0.0, median(slopes)) if slopes else None


def spared_s(judged: JudgedRound, plan: ExitPlan, times: RoundTimes) -> float:
    """Return how much sooner after the verdict a chunk is ready than without any exit, in a round
    like this one: branches are drafted as `Predrafting` drafts them, the likeliest first. The exits
    that are left out would have made the pass longer after those before them."""
    arrivals: list[Heard] = []
    left_out = 0
    for one in reversed(judged.heard):
        if one.exit_index not in plan.exits:
            left_out += 1
        elif one.outcome is not None:
            lead_s = max(0.0, one.lead_s - left_out * times.exit_s)
            arrivals.insert(0, Heard(one.exit_index, one.outcome, one.confidence, lead_s))
    waiting = dict[Outcome, float]()
    begun = dict[Outcome, int]()  # drafts that each still lacks
    ready = dict[Outcome, float]()
    now = -inf
    while True:
        now = max(now, -arrivals[0].lead_s) if arrivals and not _open(begun, waiting) else now
        while arrivals and -arrivals[0].lead_s <= now:
            one = arrivals.pop(0)
            if one.outcome is not None and one.outcome not in begun:
                waiting[one.outcome] = max(one.confidence, waiting.get(one.outcome, 0.0))
        under_way = [outcome for outcome, left in begun.items() if left]
        for outcome in sorted(waiting, key=lambda each: -waiting[each]):
            if len(under_way) < plan.branches:
                begun[outcome] = times.chunk
                under_way.append(outcome)
                del waiting[outcome]
        if now >= 0 or not under_way:
            break
        now += times.step(len(under_way))
        for outcome in under_way:
            begun[outcome] -= 1
            if not begun[outcome]:
                ready[outcome] = now
    left = begun.get(judged.outcome)
    if left is None:
        return 0.0
    # The step that is under way when the verdict comes goes on; the rest is drafted alone.
    late_s = ready.get(judged.outcome, now + left * times.step(1))
    return min(times.whole_s, max(0.0, times.whole_s - max(0.0, late_s)))


def _open(begun: dict[Outcome, int], waiting: dict[Outcome, float]) -> bool:
    return bool(waiting) or any(begun.values())


def _fewer(most: int) -> Iterator[int]:
    """Yield half as many, a quarter and so on, down to 1."""
    while most > 1:
        most //= 2
        yield most
