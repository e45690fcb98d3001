"""What a token took under each kind of schedule, beside what was expected of it: where both models
share cores, or messages cost more than a pass, no timeline knows that, and this does. Invariant:
pure; a kind that was not tried counts as expected, and what was seen of one fades while others are
in use, so that it is tried again."""

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
_FOLLOW, _DRIFT = 0.1, 0.004
"""How far a step moves the estimate of its kind, and those of other kinds: the machine, or the
link's other end, may have changed for all."""
_NEAR = 0.4
"""No kind's steps are believed to take less than this share of those of now."""
_MOST_OVERHEAD = 0.5
_USUAL = 0.12
"""A difference (of logarithms) that may be chance."""


class Kind(StrEnum):
    """Schedules that keep the same things busy at the same time."""

    CLOUD_ALONE = "cloud_alone"
    ROUNDS = "rounds"
    STREAM = "stream"
    WAITING_STREAM = "stream_that_waits"


_MESSAGES = {Kind.CLOUD_ALONE: 1.0, Kind.ROUNDS: -1.0, Kind.STREAM: 3.0, Kind.WAITING_STREAM: 2.0}
"""Where processors spend as long on messages as on passes, kinds that send one for each token are
believed slower before they are tried, and rounds faster: these come to be tried first."""


def kind_of(schedule: Schedule) -> Kind:
    """The kind of a schedule."""
    if not schedule.window:
        return Kind.CLOUD_ALONE
    if schedule.stop_and_wait:
        return Kind.ROUNDS
    return Kind.STREAM if schedule.decode_when_idle else Kind.WAITING_STREAM


@dataclass(frozen=True, slots=True)
class Seen:
    """`tokens` of a kind, each weighing less the older it is, and the sum over them of the time
    taken relative to the time expected; seconds of a draft step, and of a pass over one token."""

    tokens: float = 0.0
    relative: float = 0.0
    draft_s: float | None = None
    pass_s: float | None = None

    def kept(self, share: float) -> Seen:
        return replace(self, tokens=share * self.tokens, relative=share * self.relative)

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

    def pass_s(self, now_s: float) -> float:
        """The same of a pass over one token."""
        return _least(now_s, (seen.pass_s for seen in self.of_kinds.values()))

    def drafted(self, schedule: Schedule, step_s: float) -> None:
        """A draft step took so long."""
        own = self.of_kinds.get(kind_of(schedule), _NOTHING)
        self.of_kinds[kind_of(schedule)] = replace(own, draft_s=_follow(own.draft_s, step_s))
        for kind, seen in self.of_kinds.items():
            if seen.draft_s is not None:
                moved_s = seen.draft_s + _DRIFT * (step_s - seen.draft_s)
                self.of_kinds[kind] = replace(seen, draft_s=moved_s)

    def passed(self, schedule: Schedule, pass_s: float) -> None:
        """A pass took so long, less what its drafts took of it."""
        own = self.of_kinds.get(kind_of(schedule), _NOTHING)
        self.of_kinds[kind_of(schedule)] = replace(own, pass_s=_follow(own.pass_s, pass_s))
        for kind, seen in self.of_kinds.items():
            if seen.pass_s is not None:
                moved_s = seen.pass_s + _DRIFT * (pass_s - seen.pass_s)
                self.of_kinds[kind] = replace(seen, pass_s=moved_s)

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
            self.of_kinds[other] = seen.kept(_KEEP_OTHERS**tokens)
        own = self.of_kinds.get(kind, _NOTHING).kept((_KEEP / _KEEP_OTHERS) ** tokens)
        tokens_now, relative_now = own.tokens + tokens, own.relative + tokens * relative
        self.of_kinds[kind] = replace(own, tokens=tokens_now, relative=relative_now)


def _least(now_s: float, of_kinds: Iterable[float | None]) -> float:
    """Within reason."""
    return max(_NEAR * now_s, min([now_s, *(each for each in of_kinds if each is not None)]))


def _follow(before: float | None, sample: float) -> float:
    if before is None:
        return sample
    return before + _FOLLOW * (min(sample, _FURTHEST * before) - before)
