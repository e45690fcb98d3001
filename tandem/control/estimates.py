"""The measurements of one session's edge: draft steps, passes, round trips, acceptance, the cloud
alone.

Readings carry the moment they were taken. They are robust against a few that are far off (a
process's first steps, a machine that was away), follow a change within half a dozen readings, and
fade with time: after some minutes a new reading counts alone. So no reading is believed for ever.
Invariant: times are differences of one clock, which is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

from tandem.control.cloud_draft_budget import tokens_per_pass
from tandem.control.conditions import Conditions, PairTimes, several
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.core.line_fit import LineFit

Aged = tuple[tuple[float, float], ...]
"""Readings as (age in seconds, value), oldest first."""


TRIPS_TOLD = 1024
"""Round trips that one answer tells of: it may take any number."""


class Recent:
    """The last readings of one quantity."""

    __slots__ = ("_config", "_readings")

    def __init__(self, config: ControllerConfig, aged: Aged = (), now: float = 0.0) -> None:
        self._config = config
        self._readings: deque[tuple[float, float]] = deque(maxlen=config.readings)
        if aged:
            self._readings.extend((now - age, value) for age, value in aged)
            self._forget(now)

    def add(self, value: float, now: float) -> None:
        self._readings.append((now, value))
        self._forget(now)

    def _forget(self, now: float) -> None:
        oldest = now - 2 * self._config.half_life_s
        while self._readings and self._readings[0][0] < oldest:
            self._readings.popleft()

    @property
    def value(self) -> float | None:
        """The mean of the middle third; of two the smaller one, as first readings are long."""
        return _middle([value for _, value in self._readings]) if self._readings else None

    @property
    def values(self) -> list[float]:
        """All readings, oldest first."""
        return [value for _, value in self._readings]

    @property
    def mean(self) -> float:
        """The mean of all readings with equal weights; 0 before the first."""
        return sum(value for _, value in self._readings) / max(1, len(self._readings))

    @property
    def at_s(self) -> float:
        """Time of the last reading; -inf before the first."""
        return self._readings[-1][0] if self._readings else -inf

    def weight(self, now: float) -> float:
        """Return how many fresh readings the value is worth at `now`."""
        half_life_s = self._config.half_life_s
        return sum((0.5 ** ((now - at) / half_life_s) for at, _ in self._readings), 0.0)

    def doubt(self, now: float) -> float:
        """Return the share by which the value may be wrong."""
        return self._config.doubt / (1 + self.weight(now))

    def aged(self, now: float) -> Aged:
        return tuple((now - at, value) for at, value in self._readings)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    if len(ordered) <= 2:
        return ordered[0]
    cut = len(ordered) // 3
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


class RecentTime(Recent):
    """Recent readings of a time, which may jump as a load begins or ends."""

    __slots__ = ("jump",)

    def __init__(self, config: ControllerConfig, aged: Aged = (), now: float = 0.0) -> None:
        super().__init__(config, aged, now)
        self.jump = 0
        """1 if the last reading showed that the time has risen, -1 if it showed that it has fallen;
        else 0."""

    def add(self, value: float, now: float) -> None:
        """Add a reading. Two in a row that are much shorter, or three that are much longer, show
        that the time has changed, and those before are dropped: nothing is short by chance."""
        super().add(value, now)
        self.jump = 0
        jump = self._config.jump
        values = [reading for _, reading in self._readings]
        if len(values) > 2 and max(values[-2:]) < _middle(values[:-2]) / jump:
            self._keep(2)
            self.jump = -1
        elif len(values) > 3 and min(values[-3:]) > _middle(values[:-3]) * jump:
            self._keep(3)
            self.jump = 1

    def _keep(self, count: int) -> None:
        while len(self._readings) > count:
            self._readings.popleft()


class StepTime:
    """A step of one model: while the other model rests (quiet), and beside it (busy)."""

    def __init__(self, quiet: RecentTime, busy: RecentTime) -> None:
        self.quiet = quiet
        self.busy = busy

    def add(self, seconds: float, now: float, *, busy: bool) -> int:
        """Add a reading; return its `RecentTime.jump`."""
        times = self.busy if busy else self.quiet
        times.add(seconds, now)
        return times.jump

    def seconds(self) -> tuple[float, float] | None:
        """Return (quiet, busy); the one that is not known is believed to be like the other. No step
        is faster beside other work: where readings say so, the newer ones are right."""
        quiet = self.quiet.value
        busy = self.busy.value
        if quiet is None or busy is None:
            known = quiet or busy
            return (known, known) if known else None
        if self.busy.at_s > self.quiet.at_s:
            return min(quiet, busy), busy
        return quiet, max(quiet, busy)

    def doubt(self, now: float) -> float:
        return min(self.quiet.doubt(now), self.busy.doubt(now))


@dataclass(frozen=True, slots=True)
class AcceptanceKnown:
    """A rate, and the judged drafts that it is worth."""

    rate: float
    tokens: float


class AcceptanceRate:
    """The rate at which drafts are accepted: of all, and of the first after a correction, which may
    differ from those after one that stood."""

    def __init__(self, config: ControllerConfig, earlier: AcceptanceKnown | None = None) -> None:
        self.judged = self.agreed = 0
        self._config = config
        self._keep = config.keep
        known = min(earlier.tokens, config.sentence_tokens) if earlier else 0.0
        guessed = max(0.0, config.few_tokens - known)
        self._tokens = known + guessed
        self._right = guessed * config.prior_acceptance + (known * earlier.rate if earlier else 0.0)
        self._prior = self._right / self._tokens
        self.begins_guessed = guessed > 0
        self._first_tokens = self._first_right = 0.0
        self._at_first = True
        self.idle_tokens = 0
        """Since the last draft was judged."""

    def add(self, accepted: int, rejected: int) -> None:
        """Record `accepted` drafts in a row, and then `rejected` (1 or 0)."""
        if not accepted + rejected:
            return
        self.idle_tokens = 0
        self.judged += accepted + rejected
        self.agreed += accepted
        keep = self._keep ** (accepted + rejected)
        self._tokens = keep * self._tokens + accepted + rejected
        self._right = keep * self._right + accepted
        if self._at_first:
            self._first_tokens = self._keep * self._first_tokens + 1
            self._first_right = self._keep * self._first_right + (accepted > 0)
        self._at_first = rejected > 0

    def undrafted(self, tokens: int) -> None:
        """Record tokens that came without drafts: what is known of this place in the text ages."""
        self.idle_tokens += tokens
        least = min(self._tokens, self._config.few_tokens)
        kept = max(least, self._keep**tokens * self._tokens)
        self._right *= kept / self._tokens
        self._tokens = kept
        self._at_first = True

    @property
    def rate(self) -> float:
        return self._right / self._tokens

    @property
    def is_guess(self) -> bool:
        """True if neither earlier answers nor this one's drafts measured it."""
        return self.begins_guessed and self.judged < self._config.few_tokens

    @property
    def deviation(self) -> float:
        """Standard deviation of the rate."""
        surest = self._config.surest
        rate = min(surest, max(1 - surest, self.rate))
        return sqrt(rate * (1 - rate) / (self._tokens + 1))

    @property
    def regained(self) -> float:
        """Difference to the usual rate, to which it may have returned after a long time without
        drafts."""
        forgotten = 1 - self._keep**self.idle_tokens
        return forgotten * (self._prior - self.rate)

    def by_position(self) -> tuple[float, float]:
        """Return (of the first draft, of later ones), each believed like all for as many drafts as
        the prior counts."""
        guess = self._config.sentence_tokens
        rate = self.rate
        first = (guess * rate + self._first_right) / (guess + self._first_tokens)
        later_tokens = max(0.0, self._tokens - self._first_tokens)
        later_right = min(later_tokens, max(0.0, self._right - self._first_right))
        later = (guess * rate + later_right) / (guess + later_tokens)
        return first, later

    @property
    def known(self) -> AcceptanceKnown | None:
        """The rate that this request measured; None where nothing was judged."""
        if not self.judged:
            return None
        return AcceptanceKnown(self.agreed / self.judged, self.judged)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Measurements of earlier answers of a pair and its cloud; times as aged readings, in seconds.
    `row_share`: the time that a further row of a pass adds, relative to the first; `jumps`: when
    passes became much longer (1) or shorter (-1). `untried_tokens`: tokens of earlier answers that
    still bear a trial; see `Controller.measured`. `prompt_row_s`: what the draft model takes for a
    token of a prompt, measured before it was used; 0: not known. `beside_cloud`: the cloud is known
    to be on this machine, whatever a link between them takes."""

    draft: Aged = ()
    draft_busy: Aged = ()
    first: Aged = ()
    first_busy: Aged = ()
    jumps: Aged = ()
    alone: Aged = ()
    alone_pass: Aged = ()
    trip: Aged = ()
    wait: Aged = ()
    branching: Aged = ()
    row_share: float | None = None
    rounds_factor: Aged = ()
    stream_factor: Aged = ()
    acceptance: AcceptanceKnown | None = None
    cloud_drafts: Aged = ()
    cloud_draft: Aged = ()
    cloud_tokens: Aged = ()
    cloud_acceptance: AcceptanceKnown | None = None
    untried_tokens: int = 0
    prompt_row_s: float = 0.0
    beside_cloud: bool = False

    def later(self, by_s: float) -> WarmStart:
        """Return the same readings, so much later."""
        aged: dict[str, Any] = {
            name: tuple((age + by_s, value) for age, value in getattr(self, name))
            for name in self.__slots__
            if isinstance(getattr(self, name), tuple)
        }
        return replace(self, **aged)


NO_WARM_START = WarmStart()


class Estimates:
    """Estimates of one request; begins with a warm start as of `now`."""

    def __init__(
        self,
        warm_start: WarmStart = NO_WARM_START,
        now: float = 0.0,
        config: ControllerConfig = DEFAULT_CONFIG,
    ) -> None:
        def recent(aged: Aged = ()) -> Recent:
            return Recent(config, aged, now)

        def time(aged: Aged) -> RecentTime:
            return RecentTime(config, aged, now)

        self._config = config
        self.draft = StepTime(time(warm_start.draft), time(warm_start.draft_busy))
        self.first = StepTime(time(warm_start.first), time(warm_start.first_busy))
        self._jumps = deque(((now - age, way) for age, way in warm_start.jumps), config.readings)
        self.alone = time(warm_start.alone)
        self.alone_pass = time(warm_start.alone_pass)
        self.branching = recent(warm_start.branching)
        self.wait = recent(warm_start.wait)
        self.sharing = recent()
        self._hits = recent()
        self.factors = recent(warm_start.rounds_factor), recent(warm_start.stream_factor)
        """What a token took relative to its expected cost, in rounds and in streams."""
        self.cloud_drafts = recent(warm_start.cloud_drafts)
        """How many drafts of its own each pass of the cloud by itself judged."""
        self.cloud_draft = time(warm_start.cloud_draft)
        """What it took to make one."""
        self._cloud_tokens = recent(warm_start.cloud_tokens)
        self.cloud_acceptance = AcceptanceRate(config, warm_start.cloud_acceptance)
        self.drafts_in_cloud: bool | None = None
        """Whether the cloud may draft in this session; None before a stream opened: it may, if it
        did so in the answers before."""
        self.acceptance = AcceptanceRate(config, warm_start.acceptance)
        self.trips_s = deque[float](maxlen=TRIPS_TOLD)
        """Round trips that this request measured, the last ones."""
        self._trips = deque(((now - age, value) for age, value in warm_start.trip), config.readings)
        self._slope = LineFit(config.keep)
        self._earlier_share = self._share = warm_start.row_share
        self._slope_busy = False

    def drafted(
        self, count: int, seconds: float, now: float, *, busy: bool, branches: bool
    ) -> None:
        """Record draft steps in a row and the seconds that they took together."""
        step_s = seconds / count
        if branches:
            usual = self.draft.seconds()
            if usual is not None:
                self.branching.add(max(1.0, step_s / max(usual[busy], TINY)), now)
                return
        self.draft.add(step_s, now, busy=busy)

    def passed(self, seconds: float, drafts: int, now: float, *, busy: bool) -> None:
        """Record a pass over one token and drafts, and its seconds."""
        usual = self.first.seconds()
        if usual is not None:
            expected_s = usual[busy] * (1 + self.row_share * drafts)
            seconds = min(seconds, self._config.far * expected_s)
        if busy != self._slope_busy and self._slope.weight:
            self._slope.regroup()  # what runs beside passes moves them all, not the slope
        self._slope_busy = busy
        self._slope.add(drafts, seconds)
        earlier = self._earlier_share
        if earlier is None:  # which counts as little as one pass that was a row longer
            first_s, further_s = self._slope.fit(self._config.prior_row_share, 1.0)
        else:
            first_s, further_s = self._slope.fit(earlier, self._config.sentence_tokens)
        if drafts or self._share is not None:
            self._share = further_s / max(first_s, TINY)
        jump = self.first.add(seconds / (1 + self.row_share * drafts), now, busy=busy)
        if jump:
            self._jumps.append((now, jump))

    def load_comes_and_goes(self, now: float) -> bool:
        """Return whether passes have lately become much longer, and much shorter too."""
        lately = now - self._config.restless_s
        return {way for at, way in self._jumps if at > lately} >= {1, -1}

    def begin_with(self, row_share: float) -> None:
        """Begin with the engine's own measurement of a further row, unless an earlier answer
        measured it, with what else the machine does."""
        if self._earlier_share is None:
            self._earlier_share = self._share = row_share

    @property
    def row_share(self) -> float:
        """Time that a further row of a pass adds, relative to the first."""
        return self._config.prior_row_share if self._share is None else self._share

    def drafted_in_cloud(
        self, drafts: int, accepted: int, draft_s: float, draft_rate: float, now: float
    ) -> None:
        """Record a pass of a cloud that goes on by itself.

        Args:
            drafts: how many drafts of its own it judged.
            accepted: how many of them stood.
            draft_s: the seconds that making them took.
            draft_rate: how often the cloud expects such drafts to be right, from those of all its
                sessions; 0: it does not say, and this one's count.
            now: in seconds."""
        self.cloud_drafts.add(drafts, now)
        if drafts:
            self.cloud_draft.add(draft_s / drafts, now)
            self.cloud_acceptance.add(accepted, int(accepted < drafts))
        rate = min(draft_rate or self.cloud_acceptance.rate, self._config.surest)
        # What is looked up, in no time, is as good as the place in the text: what stood counts.
        tokens = tokens_per_pass(rate, drafts) if draft_s > 0 else accepted + 1
        self._cloud_tokens.add(tokens, now)

    def opened(self, *, drafts_in_cloud: bool) -> None:
        """Note whether the cloud may draft in this session. What is known of its drafts stays for
        the answers after this one, since presets without them are answered by the same cloud."""
        self.drafts_in_cloud = drafts_in_cloud

    def knows_cloud_drafts(self, now: float) -> bool:
        """Return whether two readings of what the cloud drafts by itself are not old."""
        return several(self.cloud_drafts.weight(now))

    @property
    def cloud_tokens(self) -> float:
        """Tokens that a pass of a cloud by itself is expected to bring, by the drafts that it
        judged of late."""
        return self._cloud_tokens.mean or 1.0

    def decoded_alone(self, token_s: float, pass_s: float, now: float) -> None:
        """Record a token that the cloud made by itself: the seconds since the one before, and those
        of its pass."""
        self.alone.add(token_s, now)
        self.alone_pass.add(pass_s, now)

    @property
    def alone_s(self) -> float | None:
        """A token of the cloud alone as it was measured; passes of other schedules that are newer
        and shorter say that the machine has become faster since."""
        token_s = self.alone.value
        return None if token_s is None else self._sped_up * token_s

    @property
    def _sped_up(self) -> float:
        """Return the time of passes by now, relative to those of the cloud alone; 1 at most."""
        pass_s = self.alone_pass.value
        share = 1.0
        for other in (self.first.quiet, self.first.busy):
            if pass_s and other.at_s > self.alone.at_s and other.value is not None:
                share = min(share, other.value / pass_s)
        return share

    def knows_alone(self, now: float) -> bool:
        """Return whether two readings of the cloud alone are not old, and nothing contradicts
        them."""
        return several(self.alone.weight(now)) and self._sped_up > 1 - self._config.doubt

    def tripped(self, trip_s: float, now: float) -> None:
        self.trips_s.append(trip_s)
        self._trips.append((now, trip_s))
        old = now - 2 * self._config.ping_every_s
        while len(self._trips) > self._config.few_tokens and self._trips[0][0] < old:
            self._trips.popleft()

    @property
    def rtt_s(self) -> float | None:
        return min((trip_s for _, trip_s in self._trips), default=None)

    def resolved(self, hit: bool, now: float) -> None:
        """Record a correction; `hit`: it had been drafted for."""
        self._hits.add(float(hit), now)

    def conditions(self, now: float, *, hope: bool = False) -> Conditions | None:
        """Return the conditions as measured; None before a pass and a round trip were. `hope`: as
        good for drafting as they may well be."""
        config = self._config
        rtt_s = self.rtt_s
        first = self.first.seconds()
        if first is None or rtt_s is None:
            return None
        first_s = max(first[0], TINY)
        cloud_drafts = self.drafts_in_cloud is not False
        sharing = self.sharing.value or 1.0
        slowdown = max(1.0, first[1] / first_s)
        if several(sharing):  # what others feed changes passes more than the edge's drafting does
            first_s = first[1]
            slowdown = 1.0
        guess_s = config.prior_draft_share * first_s
        draft = self.draft.seconds() or (guess_s, guess_s)
        draft_s = draft[0]
        share = self.row_share
        rate, later = self.acceptance.by_position()
        if hope:
            draft_s *= 1 - self.draft.doubt(now)
            slowdown = max(1.0, slowdown - self.first.busy.doubt(now))
            off = max(self.acceptance.deviation, self.acceptance.regained)
            rate = min(config.surest, rate + off)
            later = min(config.surest, later + off)
        return Conditions(
            PairTimes(draft_s, first_s, share * first_s),
            rtt_s,
            rate,
            wait_s=self.wait.value or 0.0,
            sharing=sharing,
            hit_rate=self.hit_rate,
            branching=self.branching.value or 1.0,
            pass_slowdown=slowdown,
            draft_slowdown=max(1.0, draft[1] / max(draft[0], TINY)),
            later_acceptance_rate=later,
            alone_s=self.alone_s,
            message_s=config.message_s,
            cloud_drafts=self.cloud_drafts.mean if cloud_drafts else 0.0,
            cloud_draft_s=self.cloud_draft.value or 0.0,
            cloud_tokens=self.cloud_tokens if cloud_drafts else 1.0,
        )

    @property
    def hit_rate(self) -> float:
        """Share of the corrections that had been drafted for."""
        return self._hits.mean

    def snapshot(self, now: float) -> WarmStart:
        """Return the measurements for the requests after this one."""
        return WarmStart(
            draft=self.draft.quiet.aged(now),
            draft_busy=self.draft.busy.aged(now),
            first=self.first.quiet.aged(now),
            first_busy=self.first.busy.aged(now),
            jumps=tuple((now - at, way) for at, way in self._jumps),
            alone=self.alone.aged(now),
            alone_pass=self.alone_pass.aged(now),
            trip=tuple(
                (now - at, value) for at, value in list(self._trips)[-self._config.few_tokens :]
            ),
            wait=self.wait.aged(now),
            branching=self.branching.aged(now),
            row_share=self._share,
            rounds_factor=self.factors[0].aged(now),
            stream_factor=self.factors[1].aged(now),
            acceptance=self.acceptance.known,
            cloud_drafts=self.cloud_drafts.aged(now),
            cloud_draft=self.cloud_draft.aged(now),
            cloud_tokens=self._cloud_tokens.aged(now),
            cloud_acceptance=self.cloud_acceptance.known,
        )
