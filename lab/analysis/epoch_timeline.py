"""When positions are decided after a correction, if every draft is accepted from there on.

A correction is the token that the target puts in the place of a draft. From there on what either
side does is known until the next one: so one timeline per schedule, weighted by how likely each
position is the first that goes wrong, gives the expected time and work of a token, whatever the
schedule. Invariant: pure arithmetic, no randomness; times count from the correction, at the cloud.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tandem.core.probs import Array
from tandem.specdec.choices import Schedule


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds. `draft_s`: a draft step; `pass_s`: a pass over one token of this session, with what
    other sessions feed to it, and `further_s` each further token; `wait_s`: what work that comes
    due waits for a pass under way; `up_s`, `down_s`: propagation; `frame_s`, `token_s`,
    `verdict_s`, `correction_s`: serialising a frame of drafts, each draft in it, an answer, and
    one with a rejection. `siblings`: tokens of a tree beside its accepted path, fed with drafts."""

    draft_s: float
    pass_s: float
    further_s: float
    wait_s: float = 0.0
    up_s: float = 0.0
    down_s: float = 0.0
    frame_s: float = 0.0
    token_s: float = 0.0
    verdict_s: float = 0.0
    correction_s: float = 0.0
    siblings: int = 0


class Decided(NamedTuple):
    """When a token is decided, in seconds; passes, tokens fed, frames and drafts up until then. In
    the order of what `Epoch` counts."""

    moment_s: float
    passes: int
    fed: int
    frames: int
    drafted: int


class Position(NamedTuple):
    """A token after the correction, if its draft is accepted, and if it is not, which may be known
    before its pass; `judged`: whether there was a draft."""

    accepted: Decided
    rejected: Decided
    judged: bool


def timeline(
    schedule: Schedule, times: StepTimes, depth: int, *, head_s: float = 0.0
) -> list[Position]:
    """Return the next `depth` positions. `head_s`: how long the edge has drafted already when it
    learns of the correction."""
    return Timeline(schedule, times, head_s).positions(depth)


class Timeline:
    """Positions count from 1; what is known, drafted, arrived, committed is the last such one."""

    def __init__(self, schedule: Schedule, times: StepTimes, head_s: float) -> None:
        self.schedule = schedule
        self.times = times
        self.now, self.order = 0.0, itertools.count()
        self.events: list[tuple[float, int, int, int, bool]] = []
        self.known = self.drafted = self.sent = self.arrived = self.ready = self.committed = 0
        self.chunk_sent = self.step = self.passes = self.fed = self.frames = 0
        self.head_s = head_s
        self.prepared = 0
        self.drafting = self.frontier = self.busy = self.leaves = False
        self.up_free_s = 0.0
        self.judged_before: list[Decided] = []
        self.found: list[Position] = []

    def positions(self, depth: int) -> list[Position]:
        self.begin()
        while len(self.found) < depth and self.events:
            self.now, _, kind, number, whole = heapq.heappop(self.events)
            self.take(kind, number, whole)
        return self.found[:depth]

    def begin(self) -> None:
        """Begin with the correction made: the edge will learn of it, and the cloud goes on if it
        decodes alone."""
        self.at(self.now + self.times.down_s + self.times.correction_s, _HEARD, 0)
        self.start_pass(0.0)

    def take(self, kind: int, number: int, whole: bool) -> None:
        if kind == _HEARD:
            self.heard(number)
        elif kind == _DRAFTED and number == self.step:
            self.draft_ended()
        elif kind == _ARRIVED:
            self.arrive(number, whole)
        elif kind == _PASSED:
            self.passed(number)
        elif kind == _PREPARED:
            self.prepared_are(number)

    def draft_ended(self) -> None:
        self.drafting = False
        self.drafted += 1
        self.send()
        self.draft()

    def at(self, moment: float, kind: int, number: int, whole: bool = False) -> None:
        heapq.heappush(self.events, (moment, next(self.order), kind, number, whole))

    def heard(self, known: int) -> None:
        """Let the edge know that `known` positions are decided."""
        self.known = known
        if not known and self.head_s and self.schedule.window:
            self.begin_ahead()
        if self.drafted < known:  # the cloud was there first: what is being drafted is void
            self.drafted = known
            self.drafting = False
            self.step = next(self.order)
        if self.sent < known:
            self.sent = known
            self.chunk_sent = 0
        self.send()
        self.draft()

    def begin_ahead(self) -> None:
        """Begin with what a branch holds when it comes true: a chunk at most, or a part and a step
        begun."""
        steps = self.head_s / self.times.draft_s if self.times.draft_s else float("inf")
        self.drafted = int(min(steps, self.schedule.chunk))
        if self.drafted < self.schedule.chunk:
            self.drafting = True
            self.step = next(self.order)
            left_s = (self.drafted + 1 - steps) * self.times.draft_s
            self.at(self.now + left_s, _DRAFTED, self.step)

    def draft(self) -> None:
        window = self.schedule.window
        if self.drafting or not window or self.drafted - self.known >= window:
            return
        self.drafting = True
        self.step = next(self.order)
        self.at(self.now + self.times.draft_s, _DRAFTED, self.step)

    def send(self) -> None:
        """Send what is due of the drafts, in frames."""
        schedule = self.schedule
        times = self.times
        most = min(self.drafted, self.known + schedule.window)
        while self.sent < most:
            count = min(most - self.sent, schedule.chunk - self.chunk_sent)
            full = self.chunk_sent + count == schedule.chunk
            whole = full or self.sent + count - self.known >= schedule.window
            if not whole and not schedule.token_by_token:
                return
            self.sent += count
            self.chunk_sent = 0 if whole else self.chunk_sent + count
            self.frames += 1
            self.up_free_s = max(self.now, self.up_free_s) + times.frame_s + count * times.token_s
            self.at(self.up_free_s + times.up_s, _ARRIVED, self.sent, whole)

    def arrive(self, end: int, whole: bool) -> None:
        self.arrived = max(self.arrived, end)
        if whole or self.schedule.verify_on_arrival:
            self.ready = self.arrived
        if self.frontier and self.ready > self.committed and not self.busy:
            self.judge_first()
        self.start_pass(self.times.wait_s)

    def judge_first(self) -> None:
        """Judge the first draft before its pass, by the distribution kept from the last, and so
        those that follow drafts which were fed ahead."""
        if not self.judged_before:
            self.judged_before = [self.so_far] * (1 + self.prepared)

    def taken(self, ready: int) -> int:
        """Return how many of the drafts that are ready the next pass takes."""
        return ready

    @property
    def decodes_alone(self) -> bool:
        """True if the cloud goes on while no draft waits."""
        return self.schedule.decode_when_idle

    def start_pass(self, wait_s: float) -> None:
        """Start a pass over the drafts that are ready, or over none where the cloud decodes
        alone."""
        ready = max(0, self.ready - self.committed)
        idle = self.decodes_alone and not self.frontier
        if not ready and self.prepares:
            self.prepare(wait_s)
        if self.busy or not (ready or idle):
            return
        self.busy = True
        drafts = self.taken(ready)
        self.leaves = drafts < ready
        tokens = drafts - self.prepared + (not self.frontier)
        tokens += self.times.siblings if drafts else 0
        self.prepared = 0
        self.passes += 1
        self.fed += tokens
        self.submit(drafts + self.leaves, tokens, wait_s)  # the last one's row judges one more

    @property
    def prepares(self) -> bool:
        """True if drafts of a chunk under way are to be fed ahead."""
        waits = self.schedule.prepare_on_arrival and not (self.busy or self.prepared)
        return waits and self.arrived > self.committed

    def prepare(self, wait_s: float) -> None:
        self.busy = True
        drafts = self.arrived - self.committed
        tokens = drafts + (not self.frontier)
        self.passes += 1
        self.fed += tokens
        took_s = self.times.pass_s + (tokens - 1) * self.times.further_s
        self.at(self.now + wait_s + took_s, _PREPARED, drafts)

    def prepared_are(self, drafts: int) -> None:
        """Record that `drafts` drafts were fed ahead; their chunk may be whole by now."""
        self.busy = False
        self.frontier = True
        self.prepared = drafts
        if self.ready > self.committed:
            self.judge_first()
        self.start_pass(0.0)

    def submit(self, drafts: int, tokens: int, wait_s: float) -> None:
        took_s = self.times.pass_s + (tokens - 1) * self.times.further_s
        self.at(self.now + wait_s + took_s, _PASSED, drafts)

    def passed(self, drafts: int) -> None:
        self.busy = False
        for _ in range(drafts):
            if not self.decide(judged=True):
                return
        schedule = self.schedule
        pending = self.arrived > self.committed
        if self.leaves:
            self.frontier = False
        elif not pending and ((drafts and schedule.bonus) or self.decodes_alone):
            self.frontier = False
            if not self.decide(judged=self.drafted > self.committed):
                return
        else:
            self.frontier = True
        self.answer()
        if self.frontier and self.ready > self.committed:
            self.judge_first()
        self.start_pass(0.0)

    def answer(self) -> None:
        """Send the edge what is decided."""
        self.at(self.now + self.times.verdict_s + self.times.down_s, _HEARD, self.committed)

    def decide(self, judged: bool) -> bool:
        """Decide the next position. Return whether its draft, if there is one, was right."""
        accepted = self.so_far
        first = self.judged_before.pop(0) if self.judged_before else None
        self.found.append(Position(accepted, first or accepted, judged))
        self.committed += 1
        return True

    @property
    def so_far(self) -> Decided:
        return Decided(self.now, self.passes, self.fed, self.frames, self.drafted)


_HEARD, _DRAFTED, _ARRIVED, _PASSED, _PREPARED = range(5)


@dataclass(frozen=True, slots=True)
class Expected:
    """Per token: seconds, target passes, tokens fed to them, frames of drafts, drafts made, and
    corrections."""

    tpot_s: float
    passes: float
    fed: float
    frames: float
    drafted: float
    corrections: float


_LEAST = 8
_MOST = 72
_RARE = 0.003


def expected(
    schedule: Schedule,
    times: StepTimes,
    acceptance_rate: float,
    *,
    hit_rate: float = 0.0,
    head_s: float = 0.0,
) -> Expected:
    """Return what a token takes if each draft is accepted with `acceptance_rate`, whatever came
    before. `hit_rate`: how often a correction finds drafts that were begun `head_s` before."""
    depth = _LEAST
    while depth < _MOST and acceptance_rate**depth > _RARE:
        depth += 4
    sums = np.zeros(len(_COUNTED))
    for share, early_s in ((1 - hit_rate, 0.0), (hit_rate, head_s)):
        if share > 0:
            positions = timeline(schedule, times, depth, head_s=early_s)
            sums += share * Epoch.of(positions).expected(acceptance_rate)
    return per_token(sums)


def per_token(sums: Array) -> Expected:
    """Return what `Epoch.expected` found, for each token."""
    return Expected(*(sums[1:] / sums[0]).tolist())


_COUNTED = ("tokens", "seconds", "passes", "fed", "frames", "drafted", "corrections")


class Epoch:
    """A timeline as arrays: what an epoch takes in all, at any acceptance rate. Several of one
    depth may be stacked along a first axis."""

    def __init__(
        self, judged: Array, before: Array, rejected: Array, last: Array, further: Array
    ) -> None:
        self._arrays = judged, before, rejected, last, further

    @classmethod
    def of(cls, positions: list[Position]) -> Epoch:
        """Return the epoch of the positions of one timeline."""
        judged = np.array([position.judged for position in positions])
        accepted = np.array(
            [(count, *position.accepted, 1) for count, position in enumerate(positions, start=1)]
        )
        rejected = accepted.copy()
        for index, position in enumerate(positions):
            if position.rejected is not position.accepted:
                rejected[index] = (index + 1, *position.rejected, 1)
        half = len(positions) // 2
        last = accepted[-1]
        further = (accepted[-1] - accepted[half - 1]) / (len(positions) - half)
        last[-1], further[-1] = float(judged.any()), 0.0
        return cls(judged, np.cumsum(judged) - judged, rejected, last, further)

    @classmethod
    def stack(cls, epochs: Sequence[Epoch]) -> Epoch:
        """Return the epochs side by side, in order."""
        return cls(*map(np.array, zip(*(epoch._arrays for epoch in epochs), strict=True)))

    def expected(self, rate: float) -> Array:
        """Return […, 7]: tokens, seconds, passes, tokens fed, frames, drafts and corrections of an
        epoch. Beyond the positions that were followed it goes on as it did at last."""
        judged, before, rejected, last, further = self._arrays
        ends = rate**before * judged * (1 - rate)
        goes_on = 1 / max(1 - rate, 1e-6)
        survives = np.maximum(0.0, 1.0 - ends.sum(-1))[..., None]
        sums: Array = (ends[..., None] * rejected).sum(-2)
        sums += survives * (last + goes_on * further)
        return sums
