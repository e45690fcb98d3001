"""What steps and tokens took under each kind of schedule, and what had been expected of the latter:
where both models share processors, or messages cost more than a pass, no timeline knows that, and
this does. Invariant: pure; a kind that was not tried counts as expected, and what was seen of one
fades while others are in use, so that it is tried again. What changes the steps of the kind in use
changes those of the others by the same share: a machine or a link is faster or slower for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, log

from tandem.specdec.choices import Schedule

_GUESS_TOKENS = 10.0
"""What the expectation counts for beside tokens seen."""
_KEEP, _KEEP_OTHERS = 0.985, 0.995
"""Of what was seen, per further token of the same kind, and of others."""
_FURTHEST = 4.0
"""No stretch of tokens tells of more: a machine may have been away."""
_FOLLOW = 0.1
"""How far a step moves the estimate of its kind."""
_SURE = 10
"""So many steps or passes of a kind must have been seen before others are believed to change as
they do."""
_TOLD, _SLOWED = 6, 1.2
"""Drafting on while a round is judged saves less than that where passes take so many times as long
beside it, as so many passes tell."""
_ALONE_KNOWN = 300
"""For so many tokens a measured pass tells what the cloud alone takes."""
_NEAR = 0.4
"""No kind's steps are believed to take less than this share of those of now."""
_MOST_OVERHEAD = 0.5
_USUAL = 0.12
"""A difference (of logarithms) that may be chance."""


class Kind(StrEnum):
    """Schedules that keep the same things busy at the same time."""

    CLOUD_ALONE = "cloud_alone"
    ROUNDS = "rounds"
    ROUNDS_AHEAD = "rounds_ahead"
    STREAM = "stream"
    WAITING_STREAM = "stream_that_waits"


_MESSAGES = {
    Kind.CLOUD_ALONE: 1.0,
    Kind.ROUNDS: -1.0,
    Kind.ROUNDS_AHEAD: -1.0,
    Kind.STREAM: 3.0,
    Kind.WAITING_STREAM: 2.0,
}
"""Where processors spend as long on messages as on passes, kinds that send one for each token are
believed slower before they are tried, and rounds faster: these come to be tried first."""


BUSY = (Kind.ROUNDS_AHEAD, Kind.STREAM, Kind.WAITING_STREAM)
"""Passes run beside draft steps."""


def kind_of(schedule: Schedule, ahead: bool = False) -> Kind:
    """The kind of a schedule. `ahead`: the edge drafts on while the cloud judges a round."""
    if not schedule.window:
        return Kind.CLOUD_ALONE
    if schedule.stop_and_wait:
        return Kind.ROUNDS_AHEAD if ahead else Kind.ROUNDS
    return Kind.STREAM if schedule.decode_when_idle else Kind.WAITING_STREAM


@dataclass(frozen=True, slots=True)
class Seen:
    """`tokens` of a kind, each weighing less the older it is, and the sum over them of the time
    taken relative to the time expected; seconds of a draft step, and of a pass over one token and
    so many `drafts`, of how many each is the mean, and how many tokens came by other kinds since
    the last pass."""

    tokens: float = 0.0
    relative: float = 0.0
    draft_s: float | None = None
    pass_s: float | None = None
    drafts: float = 0.0
    steps: int = 0
    passes: int = 0
    unseen: int = 0

    def kept(self, share: float) -> Seen:
        return replace(self, tokens=share * self.tokens, relative=share * self.relative)

    def first_s(self, share: float) -> float | None:
        """Of a pass over one token, if each draft adds such a share of that."""
        return None if self.pass_s is None else self.pass_s / (1 + share * self.drafts)

    def factor(self, usual: float = 1.0, untried: float = 1.0) -> float:
        """By which expectations of the kind are to be multiplied, `usual` within what may be
        chance; before it is tried, `untried` times that."""
        weight = _GUESS_TOKENS / (_GUESS_TOKENS + self.tokens)
        guess = usual * exp(weight * log(untried))
        seen = (_GUESS_TOKENS * guess + self.relative) / (_GUESS_TOKENS + self.tokens)
        off = log(seen / guess)
        return guess * exp(off - max(-_USUAL, min(_USUAL, off)))


_NOTHING = Seen()


class SeenTimes:
    """Begins with what earlier requests saw, `of_kinds`, which an instance's own can become."""

    def __init__(self, of_kinds: Iterable[tuple[Kind, Seen]] = ()) -> None:
        self.of_kinds = dict(of_kinds)
        self.totals: dict[Kind, tuple[int, float]] = {}
        """Of this request: tokens and seconds of each kind."""

    def factor(self, schedule: Schedule, overhead: float = 0.0) -> float:
        """Of the schedule's kind. `overhead`: what processors spend on a message and its answer,
        relative to a pass."""
        return self._of(kind_of(schedule), overhead)

    def factors(self, overhead: float = 0.0) -> dict[Kind, float]:
        """Of the kinds seen."""
        return {kind: self._of(kind, overhead) for kind in self.of_kinds}

    def _of(self, kind: Kind, overhead: float) -> float:
        """In a stream the cloud decodes alone too, and tells each token as dearly."""
        alone = self._of(Kind.CLOUD_ALONE, overhead) if kind is Kind.STREAM else 1.0
        untried = (1 + min(overhead, _MOST_OVERHEAD)) ** _MESSAGES[kind]
        return self.of_kinds.get(kind, _NOTHING).factor(max(1.0, alone), untried)

    def draft_s(self, now_s: float) -> float:
        """A step where nothing slows it: of the kind where it was fastest. `now_s` is what it takes
        beside the schedule in use, which another one need not do."""
        return _least(now_s, (seen.draft_s for seen in self.of_kinds.values()))

    def pass_s(self, now_s: float, share: float) -> float:
        """The same of a pass over one token; a further one takes such a share of that."""
        return _least(now_s, (seen.first_s(share) for seen in self.of_kinds.values()))

    def drafted(self, kind: Kind, step_s: float) -> None:
        """A draft step took so long."""
        own = self.of_kinds.get(kind, _NOTHING)
        now_s = _follow(own.draft_s, step_s, own.steps)
        if own.draft_s and own.steps >= _SURE:
            for other, seen in self.of_kinds.items():
                if seen.draft_s is not None:
                    moved_s = seen.draft_s * now_s / own.draft_s
                    self.of_kinds[other] = replace(seen, draft_s=moved_s)
        self.of_kinds[kind] = replace(own, draft_s=now_s, steps=own.steps + 1)

    def passed(self, kind: Kind, pass_s: float, drafts: int = 0, share: float = 0.0) -> None:
        """A pass over so many drafts took so long, of which a draft is believed to add a share."""
        before = self.of_kinds.get(kind, _NOTHING)
        seconds = _follow(before.pass_s, pass_s, before.passes)
        mean = drafts if before.pass_s is None else before.drafts
        mean += _weight(before.passes) * (drafts - mean)
        own = replace(before, pass_s=seconds, drafts=mean, passes=before.passes + 1, unseen=0)
        if (before_s := before.first_s(share)) and before.passes >= _SURE:
            moved = (own.first_s(share) or before_s) / before_s
            for other, seen in self.of_kinds.items():
                if seen.pass_s is not None:
                    self.of_kinds[other] = replace(seen, pass_s=moved * seen.pass_s)
        self.of_kinds[kind] = own

    def slows(self, share: float) -> bool:
        """Whether passes take so much longer beside drafts that these had better not run then."""
        alone_s = self.of_kinds.get(Kind.CLOUD_ALONE, _NOTHING).pass_s
        busy = [seen for kind, seen in self.of_kinds.items() if kind in BUSY]
        seen_s = [seen.first_s(share) or 0.0 for seen in busy if seen.passes >= _TOLD]
        return alone_s is not None and max(seen_s, default=0.0) > _SLOWED * alone_s

    @property
    def knows_alone(self) -> bool:
        """Whether a pass that nothing was drafted beside was measured not too long ago."""
        seen = self.of_kinds.get(Kind.CLOUD_ALONE, _NOTHING)
        return seen.pass_s is not None and seen.unseen < _ALONE_KNOWN

    def took(self, schedule: Schedule, tokens: int, seconds: float, expected_tpot_s: float) -> None:
        """So many tokens in a row, of which so much time each was expected (before `factor`)."""
        if tokens < 1 or expected_tpot_s <= 0:
            return
        kind = kind_of(schedule)
        tokens_before, seconds_before = self.totals.get(kind, (0, 0.0))
        self.totals[kind] = tokens_before + tokens, seconds_before + seconds
        relative = seconds / (tokens * expected_tpot_s)
        relative = max(1 / _FURTHEST, min(_FURTHEST, relative))
        for other, seen in self.of_kinds.items():
            aged = seen.kept(_KEEP_OTHERS**tokens)
            self.of_kinds[other] = replace(aged, unseen=aged.unseen + tokens * (other is not kind))
        own = self.of_kinds.get(kind, _NOTHING).kept((_KEEP / _KEEP_OTHERS) ** tokens)
        tokens_now, relative_now = own.tokens + tokens, own.relative + tokens * relative
        self.of_kinds[kind] = replace(own, tokens=tokens_now, relative=relative_now)


def _least(now_s: float, of_kinds: Iterable[float | None]) -> float:
    """Within reason."""
    return max(_NEAR * now_s, min([now_s, *(each for each in of_kinds if each is not None)]))


def _follow(before: float | None, sample: float, count: int) -> float:
    """The mean of the first ones, then a moving one."""
    if before is None:
        return sample
    return before + _weight(count) * (min(sample, _FURTHEST * before) - before)


def _weight(count: int) -> float:
    return max(_FOLLOW, 1 / (count + 1))
