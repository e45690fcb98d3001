"""What one session's edge has measured: draft steps, verify passes, round trips, acceptance.
Invariant: times are differences of one clock; estimates start from what `earlier` requests of the
same pair and preset measured, else from stated guesses, and what this one measures takes over."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from tandem.core.line_fit import LineFit
from tandem.specdec.messages import Draft, Work
from tandem.specdec.scheduling import Measured, PairTimes
from tandem.specdec.seen_times import Kind, Seen, SeenTimes

_RECENT = 32
_KEEP = 0.9
_PRIOR_ACCEPTANCE, _PRIOR_TOKENS = 0.7, 4.0
_EARLIER_TOKENS = 16.0
"""What earlier acceptance counts for: more than a guess, less than half a sentence of this text."""
_MOSTLY_RIGHT = 0.6
"""Where such a share of the first drafts is right, acceptance is no mere guess any more: of bad
drafts hardly any first ones are."""
_KEEP_PER_TOKEN = 0.97
_KEEP_KNOWN = 0.995
"""What earlier requests knew of acceptance is believed so much less with each token for which
nothing is drafted."""
_STALE = 16
"""After so many tokens without a draft, a step tells as much as all before it."""
_KEEP_LONG = 0.995
_SURE_LONG, _UNSURE_LONG = 20.0, 2.0
"""What a further token of a pass costs, as a share of the first, changes with the model and not
with the hour: what many passes tell counts beside the last ten, which may all be equally long."""
_SURE_TRIPS, _FIRST_TRIPS, _FIRST_TOKENS = 12, 2, 8
_FRESH_S, _FEW_TRIPS = 2.0, 4
"""A round trip tells for so long, and the last few do in any case."""
_COLD_STEPS, _COLD_PASSES = 8, 3.0
"""So many steps and passes of a process may take long because they are its first."""
_FAR = 3.0
"""A step or pass that takes so many times as long as usual had to wait for other programs."""
_HOPE, _HOPE_STEP = 0.99, 0.995
"""What was slow may be fast again: with each token for which nothing was drafted, a wait for a pass
and a draft step are believed to take this share of the time, so that drafts are tried again in the
end. Steps are slow for longer: at 0.99 each answer of 60 tokens tried bad drafts again."""
_UNSURE_HOPE = 0.97
"""The same of a round trip of which few were measured: a process's first ones take long."""
_MOST_BRANCHING = 10.0
_ALONE = 1.5
"""So many sessions a pass, on average, are one."""
_TINY_S = 1e-9


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known of a pair and preset before a request begins, in seconds; None: nothing.
    `verify_s` is a pass of the target over one token, `acceptance_rate` the share of judged drafts
    that stood, `queue_s` the wait for a pass, `branching` how many times as long a draft step takes
    with branches beside it, `undrafted` how many tokens came since a draft step was measured."""

    draft_s: float | None = None
    verify_s: float | None = None
    rtt_s: float | None = None
    acceptance_rate: float | None = None
    queue_s: float | None = None
    branching: float = 1.0
    undrafted: int = 0
    further_share: float = 0.0
    """What a further token of a pass costs, relative to the first."""
    trips: int = 0
    """How many round trips were measured."""
    seen: tuple[tuple[Kind, Seen], ...] = ()
    """What each kind of schedule took, beside what was expected."""


NOTHING_EARLIER = Earlier()


class Profile:
    """Moving estimates of one request; `measured` is None while a time is known neither from
    `earlier` nor from this request."""

    def __init__(self, earlier: Earlier = NOTHING_EARLIER, hopes: bool = True) -> None:
        """`hopes`: a round trip of which few were measured is believed shorter with each token that
        nothing is drafted for, since then nothing else tells it: no pings."""
        self._earlier, self._hopes = earlier, hopes
        self._draft_s: float | None = None
        self._cold_steps = _COLD_STEPS if earlier.draft_s is None else 0
        self._branching, self._undrafted = earlier.branching, earlier.undrafted
        self.seen = SeenTimes(earlier.seen)
        self._verify, self._long = LineFit(_KEEP), LineFit(_KEEP_LONG)
        self._regrouped_share = earlier.further_share
        self.trips_s: list[float] = []
        self._recent = deque[tuple[float, float]](maxlen=_RECENT)
        self._now = -inf
        self._pings = self._tokens = 0
        self.judged_tokens = self.agreed_tokens = 0
        self._sent: deque[tuple[int, float]] = deque(maxlen=4 * _RECENT)
        known = earlier.acceptance_rate
        self._judged = _PRIOR_TOKENS if known is None else _EARLIER_TOKENS
        self._accepted = self._judged * (_PRIOR_ACCEPTANCE if known is None else known)
        self._wait_s = earlier.queue_s or 0.0
        self._sharing = 1.0
        self._hit_rate = 0.0

    @property
    def measured(self) -> Measured | None:
        own, earlier = self.own, self._earlier
        draft_s = earlier.draft_s if own.draft_s is None else own.draft_s
        first_s, further_s = self._pass_times()
        rtt_s = earlier.rtt_s if own.rtt_s is None else own.rtt_s
        if rtt_s is not None and earlier.rtt_s is not None and len(self.trips_s) < _SURE_TRIPS:
            rtt_s = min(rtt_s, earlier.rtt_s)  # of a few trips each may have waited for a pass
        if draft_s is None or first_s is None or rtt_s is None:
            return None
        hope = _HOPE_STEP**self._undrafted
        draft_s *= hope
        if self._hopes and not self.knows_trip:
            rtt_s *= _UNSURE_HOPE**self._undrafted
        first_s = max(first_s, 1e-6)
        pair, pairs = PairTimes(draft_s, first_s, further_s), dict[Kind, PairTimes]()
        slows, share = False, self.further_share
        if self._sharing < _ALONE:
            pair = replace(
                pair,
                draft_s=self.seen.draft_s(draft_s),
                verify_first_s=self.seen.pass_s(first_s, share),
            )
            pairs = {
                kind: _beside(seen, pair, hope, share) for kind, seen in self.seen.of_kinds.items()
            }
            slows = self.seen.slows(share)
            if not slows and Kind.ROUNDS_AHEAD in pairs:
                pairs[Kind.ROUNDS] = pairs[Kind.ROUNDS_AHEAD]
        return Measured(
            pair,
            rtt_s,
            self._accepted / self._judged,
            self._wait_s,
            self._sharing,
            self._hit_rate,
            self._branching,
            self._guesses_acceptance,
            pairs,
            slows,
        )

    @property
    def knows_acceptance(self) -> bool:
        """Whether earlier requests or many of this one's drafts told it."""
        told = self._earlier.acceptance_rate is not None
        return told or self.judged_tokens >= _EARLIER_TOKENS

    @property
    def _guesses_acceptance(self) -> bool:
        """Whether neither they nor this one's first drafts told it."""
        if self.knows_acceptance:
            return False
        return self.agreed_tokens < max(1.0, _MOSTLY_RIGHT * self.judged_tokens)

    def _pass_times(self) -> tuple[float | None, float]:
        """Of the first token, and of each further one."""
        if not self._verify.weight:
            first_s = self._earlier.verify_s
            return first_s, 0.0 if first_s is None else self._earlier.further_share * first_s
        return self._verify.fit(self.further_share, inf)

    @property
    def further_share(self) -> float:
        """By all passes of this request, and of earlier ones."""
        if not self._long.weight:
            return self._regrouped_share
        known = self._earlier.further_share
        first_s, further_s = self._long.fit(known, _SURE_LONG if known else _UNSURE_LONG)
        return further_s / max(first_s, _TINY_S)

    @property
    def begins_cold(self) -> bool:
        """Whether too few drafts of the process were answered to choose by what they tell."""
        if self._earlier.rtt_s is not None or len(self.trips_s) - self._pings >= _FIRST_TRIPS:
            return False
        return len(self.trips_s) < _FIRST_TRIPS or self._tokens < _FIRST_TOKENS

    @property
    def knows_trip(self) -> bool:
        """Whether so many round trips were measured that the shortest had to wait for nothing."""
        return self._earlier.trips + len(self.trips_s) >= _SURE_TRIPS

    @property
    def own(self) -> Earlier:
        """What this request has measured itself."""
        return Earlier(
            self._draft_s,
            self._pass_times()[0] if self._verify.weight else None,
            min(trip_s for _, trip_s in self._recent) if self._recent else None,
            self.agreed_tokens / self.judged_tokens if self.judged_tokens else None,
            self._wait_s if self._verify.weight else None,
            self._branching,
            self._undrafted,
            self.further_share,
            self._earlier.trips + len(self.trips_s),
            tuple(self.seen.of_kinds.items()),
        )

    def drafted(self, count: int, draft_s: float, branches: bool = False) -> None:
        """`branches`: whether other outcomes were drafted for in the same passes."""
        usual_s = self._earlier.draft_s if self._draft_s is None else self._draft_s
        step_s = draft_s / count
        if usual_s is not None and not branches:
            step_s = min(step_s, _FAR * usual_s)
        if self._undrafted >= _STALE and self._draft_s is not None:
            usual_s, self._draft_s = self._draft_s, None
        self._undrafted = 0
        if self._cold_steps:
            self._cold_steps -= 1
            self._draft_s = step_s if usual_s is None else min(step_s, usual_s)
        if self._draft_s is None:
            usual_s = step_s if usual_s is None else usual_s
            self._draft_s = min(step_s, (step_s + usual_s) / 2)
        if branches:
            share = step_s / max(self._draft_s, _TINY_S)
            self._branching = _follow(self._branching, min(share, _MOST_BRANCHING))
            return
        self._draft_s = _follow(self._draft_s, step_s)

    def connected(self) -> None:
        """What was sent before will not be answered."""
        self._sent.clear()

    def sent(self, frame: Draft, now: float) -> None:
        self._sent.append((frame.base, now))

    def answered(self, end: int, work: Work, now: float) -> None:
        """An answer came that judged drafts before position `end`, after `work`. How long its last
        frame was away, but for the work, is a round trip or more: it may have waited for a pass."""
        sent_s = None
        while self._sent and self._sent[0][0] < end:
            sent_s = self._sent.popleft()[1]
        if sent_s is not None:
            self.tripped(max(0.0, now - sent_s - work.verify_s - work.queue_s), now)
        self.passed(work)

    def passed(self, work: Work) -> None:
        """A frame reported what a pass cost. A session's first one takes its prompt, and would hide
        what a further token costs."""
        if work.verify_s > 0 and work.target_passes != 1:
            usual_s = self._verify.mean if self._verify.weight else self._earlier.verify_s
            took_s = work.verify_s if usual_s is None else min(work.verify_s, _FAR * usual_s)
            cold = self._earlier.verify_s is None and self._verify.weight < _COLD_PASSES
            if cold and usual_s is not None and _FAR * took_s < usual_s:
                self._verify, self._long = LineFit(_KEEP), LineFit(_KEEP_LONG)
            self._verify.add(work.drafts, took_s)
            self._long.add(work.drafts, took_s)
            self._sharing = _follow(self._sharing, work.batch_size)
            if work.drafts:  # the cloud's own passes follow one another, and do not wait
                self._wait_s = _follow(self._wait_s, work.queue_s)

    def regrouped(self) -> None:
        """What runs beside passes from now on may slow them more, or less: how they compare with
        those before says nothing of what a further token costs."""
        self._regrouped_share = self.further_share
        self._long.regroup()

    def resolved(self, hit: bool) -> None:
        """A correction came; `hit`: it had been drafted for."""
        self._hit_rate = _follow(self._hit_rate, float(hit))

    def ponged(self, trip_s: float) -> None:
        """A ping was answered, which waits for no pass."""
        self.tripped(trip_s, self._now)
        self._pings += 1

    def tripped(self, trip_s: float, now: float) -> None:
        """A round trip took so long. Old ones are forgotten, but for a few: a link that became slow
        is to be believed so."""
        self.trips_s.append(trip_s)
        self._now = max(self._now, now)
        self._recent.append((self._now, trip_s))
        while len(self._recent) > _FEW_TRIPS and self._recent[0][0] < self._now - _FRESH_S:
            self._recent.popleft()

    def discarded(self) -> None:
        """What was sent will not be judged."""
        self._sent.clear()

    def judged(self, accepted: int, rejected: int) -> None:
        """Drafts were accepted (or equal to the cloud's token), or rejected."""
        self.judged_tokens += accepted + rejected
        self.agreed_tokens += accepted
        self._tokens += accepted + rejected
        keep = _KEEP_PER_TOKEN ** (accepted + rejected)
        self._accepted = keep * self._accepted + accepted
        self._judged = keep * self._judged + accepted + rejected

    def unjudged(self, tokens: int) -> None:
        """Tokens came for which there was no draft: the acceptance estimate ages."""
        self._undrafted += tokens
        keep, known = _KEEP_PER_TOKEN**tokens, self._earlier.acceptance_rate
        rate = _PRIOR_ACCEPTANCE
        if known is not None:
            rate += (known - rate) * _KEEP_KNOWN**self._undrafted
        self._accepted = keep * self._accepted + (1 - keep) * rate * _PRIOR_TOKENS
        self._judged = keep * self._judged + (1 - keep) * _PRIOR_TOKENS
        self._wait_s *= _HOPE**tokens
        self._tokens += tokens


def _beside(seen: Seen, usual: PairTimes, hope: float, share: float) -> PairTimes:
    """Step times under a kind of schedule; `usual` where it was not tried. A pass that is slowed is
    so with each of its tokens."""
    draft_s = usual.draft_s if seen.draft_s is None else hope * seen.draft_s
    first_s = max(seen.first_s(share) or usual.verify_first_s, 1e-6)
    return PairTimes(draft_s, first_s, usual.verify_further_s * first_s / usual.verify_first_s)


def _follow(estimate: float, sample: float) -> float:
    return estimate + (1 - _KEEP) * (sample - estimate)
