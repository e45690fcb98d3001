"""The measurements of one session's edge: draft steps, passes, round trips, acceptance, the cloud
alone.

Readings carry the moment they were taken. They are robust against a few that are far off (a
process's first steps, a machine that was away), follow a change within half a dozen readings, and
are forgotten after some minutes. So no reading is believed for ever.
Invariant: times are differences of one clock, which is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tandem.control.acceptance import AcceptanceKnown, AnswerAcceptanceRate
from tandem.control.conditions import Conditions, PairTimes, several
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.core.line_fit import LineFit

Aged = tuple[tuple[float, float], ...]
"""Readings as (age in seconds, value), oldest first."""


class Recent:
    """The last readings of one quantity."""

    __slots__ = ("_config", "_readings", "_value")

    def __init__(self, config: ControllerConfig, aged: Aged = (), now: float = 0.0) -> None:
        self._config = config
        self._readings: deque[tuple[float, float]] = deque(maxlen=config.readings)
        self._readings.extend((now - age, value) for age, value in aged)
        self._value: float | None = None
        self._forget(now)

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, value: float, now: float) -> None:
        self._readings.append((now, value))
        self._value = None
        self._forget(now)

    def _forget(self, now: float) -> None:
        oldest = now - self._config.forget_s
        while self._readings and self._readings[0][0] < oldest:
            self._readings.popleft()

    @property
    def value(self) -> float | None:
        """The mean of the middle third; of two the smaller one, as first readings are long."""
        if self._value is None and self._readings:
            self._value = _middle([value for _, value in self._readings])
        return self._value

    @property
    def mean(self) -> float:
        """The mean of all readings; 0 before the first."""
        return sum(value for _, value in self._readings) / max(1, len(self._readings))

    @property
    def at_s(self) -> float:
        """Time of the last reading; -inf before the first."""
        return self._readings[-1][0] if self._readings else -inf

    def aged(self, now: float) -> Aged:
        return tuple((now - at, value) for at, value in self._readings)


class Mean:
    """A mean in which each number weighs `keep` times as much as the one after it."""

    __slots__ = ("_keep", "_sum", "_weight")

    def __init__(self, keep: float, earlier: float = 0.0) -> None:
        """Start with no numbers, or with the mean of as many as are ever remembered."""
        self._keep = keep
        self._weight = 1 / (1 - keep) if earlier else 0.0
        self._sum = earlier * self._weight

    def add(self, number: float) -> None:
        self._sum = self._keep * self._sum + number
        self._weight = self._keep * self._weight + 1

    @property
    def value(self) -> float:
        """The mean; 0 before the first."""
        return self._sum / self._weight if self._weight else 0.0


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    if len(ordered) <= 2:
        return ordered[0]
    cut = len(ordered) // 3
    middle = ordered[cut : len(ordered) - cut]
    return sum(middle) / len(middle)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Measurements of earlier answers of a pair and its cloud; times as aged readings, in seconds.
    `row_share`: the time that a further row of a pass adds, relative to the first. `alone`: from
    one pass of the cloud alone to the next, relative to a pass over one token; `alone_tokens`: how
    many tokens it brought, and `cloud_drafts` how many drafts of the cloud it judged.
    `prompt_row_s`: what the draft model takes for a token of a prompt, measured before it was used;
    0: not known. `beside_cloud`: the cloud is known to be on this machine, whatever a link between
    them takes. Without them `auto` is at 0.997 of what it is with them in the mean of 54 cells of
    the grid, and at 0.94 in the worst."""

    draft: Aged = ()
    first: Aged = ()
    first_busy: Aged = ()
    alone: Aged = ()
    alone_tokens: float = 0.0
    cloud_drafts: Aged = ()
    trip: Aged = ()
    row_share: float | None = None
    acceptance: AcceptanceKnown | None = None
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

        self._config = config
        self.draft = recent(warm_start.draft)
        self.first = recent(warm_start.first)
        """Passes while the edge drafts nothing."""
        self.first_busy = recent(warm_start.first_busy)
        """Those beside its drafting. Without the difference, where both sides share processors,
        the cloud alone seems slower than it is, and drafts go on that lose a third of the time
        (`test_where_drafts_slow_the_passes_it_is_hardly_slower_either`)."""
        self.alone = recent(warm_start.alone)
        """From one pass of the cloud alone to the next, relative to a pass over one token. In
        seconds it would not follow a load: 0.93 where other load comes and goes each second."""
        self.alone_tokens = Mean(config.keep, warm_start.alone_tokens)
        """Tokens that a pass of the cloud alone brings."""
        self._cloud_drafts = recent(warm_start.cloud_drafts)
        self.sharing = recent()
        self.acceptance = AnswerAcceptanceRate(config, warm_start.acceptance)
        self._beside_cloud = warm_start.beside_cloud
        self._trips = deque(((now - age, value) for age, value in warm_start.trip), config.readings)
        self._slope = LineFit(config.keep)
        self._earlier_share = self._share = warm_start.row_share

    def drafted(self, count: int, seconds: float, now: float) -> None:
        """Record draft steps in a row and the seconds that they took together."""
        self.draft.add(seconds / count, now)

    def passed(self, seconds: float, drafts: int, now: float, *, busy: bool = False) -> None:
        """Record a pass over one token and drafts, and its seconds. `busy`: the edge drafts
        meanwhile."""
        usual = self._pass_times_s
        if usual is not None:
            expected_s = usual[busy] * (1 + self.row_share * drafts)
            seconds = min(seconds, self._config.far * expected_s)
        self._slope.add(drafts, seconds)
        earlier = self._earlier_share
        if earlier is None:  # which counts as little as one pass that was a row longer
            first_s, further_s = self._slope.fit(self._config.prior_row_share, 1.0)
        else:
            first_s, further_s = self._slope.fit(earlier, self._config.sentence_tokens)
        if drafts or self._share is not None:
            self._share = further_s / max(first_s, TINY)
        times = self.first_busy if busy else self.first
        times.add(seconds / (1 + self.row_share * drafts), now)

    @property
    def _pass_times_s(self) -> tuple[float, float] | None:
        """The seconds of a pass over one token while the edge rests, and while it drafts; what is
        not known is believed to be like the other. None is faster beside other work: where
        readings say so, the newer ones are right."""
        quiet = self.first.value
        busy = self.first_busy.value
        if quiet is None or busy is None:
            known = quiet or busy
            return (known, known) if known else None
        if self.first_busy.at_s > self.first.at_s:
            return min(quiet, busy), busy
        return quiet, max(quiet, busy)

    @property
    def row_share(self) -> float:
        """The time that a further row of a pass adds, relative to the first. With what the cloud
        said when it started alone, `auto` is at 0.96 where other load comes and goes."""
        return self._config.prior_row_share if self._share is None else self._share

    def set_prior_row_share(self, row_share: float) -> None:
        """Believe what the cloud's engine measured of a row before anybody asked, where no answer
        measured it since."""
        if self._share is None:
            self._earlier_share = self._share = row_share

    def decoded_alone(self, passes: float, tokens: int, drafts: int, now: float) -> None:
        """Record a pass of the cloud alone: the time since the one before, in passes over one
        token, the tokens that it brought, and the drafts of the cloud in it."""
        self.alone.add(passes, now)
        self.alone_tokens.add(tokens)
        self._cloud_drafts.add(drafts, now)

    def forget_cloud_drafts(self) -> bool:
        """Forget the cloud alone if it drafted itself: this one does not. Return whether it did."""
        if not self._cloud_drafts.mean:
            return False
        self.alone = Recent(self._config)
        self.alone_tokens = Mean(self._config.keep)
        self._cloud_drafts = Recent(self._config)
        return True

    @property
    def alone_s(self) -> float | None:
        """A token of the cloud alone, at the present time of a pass; None: not measured."""
        passes = self.alone.value
        times_s = self._pass_times_s
        if passes is None or times_s is None:
            return None
        return passes * times_s[self.shared] / max(1.0, self.alone_tokens.value)

    @property
    def knows_alone(self) -> bool:
        """True if two readings of the cloud alone are not old; all that are kept where it drafts
        itself, as each of its passes brings another number of tokens."""
        return len(self.alone) >= (self._config.readings if self._cloud_drafts.mean else 2)

    def tripped(self, trip_s: float, now: float) -> None:
        self._trips.append((now, trip_s))
        old = now - 2 * self._config.ping_every_s
        while len(self._trips) > self._config.few_tokens and self._trips[0][0] < old:
            self._trips.popleft()

    @property
    def rtt_s(self) -> float | None:
        return min((trip_s for _, trip_s in self._trips), default=None)

    @property
    def shares_processors(self) -> bool:
        """True if both models compute on the same processors."""
        return self._beside_cloud or (self.rtt_s or 0.0) < self._config.same_machine_s

    @property
    def shared(self) -> bool:
        """True if other sessions share the passes."""
        return several(self.sharing.value or 1.0)

    def conditions(self) -> Conditions | None:
        """Return the conditions as measured; None before a pass and a round trip were."""
        times_s = self._pass_times_s
        rtt_s = self.rtt_s
        if times_s is None or rtt_s is None:
            return None
        # What others feed changes shared passes more than the edge's drafting does.
        first_s = max(times_s[self.shared], TINY)
        draft_s = self.draft.value
        if draft_s is None:
            draft_s = self._config.prior_draft_share * first_s
        return Conditions(
            PairTimes(draft_s, first_s, self.row_share * first_s),
            rtt_s,
            self.acceptance.rate,
            sharing=self.sharing.value or 1.0,
            alone_s=self.alone_s,
            slowdown=max(1.0, times_s[1] / first_s),
            cloud_drafts=self._cloud_drafts.mean,
            message_s=self._config.message_s,
        )

    def snapshot(self, now: float) -> WarmStart:
        """Return the measurements for the requests after this one."""
        return WarmStart(
            draft=self.draft.aged(now),
            first=self.first.aged(now),
            first_busy=self.first_busy.aged(now),
            alone=self.alone.aged(now),
            alone_tokens=self.alone_tokens.value,
            cloud_drafts=self._cloud_drafts.aged(now),
            trip=tuple(
                (now - at, value) for at, value in list(self._trips)[-self._config.few_tokens :]
            ),
            row_share=self._share,
            acceptance=self.acceptance.known,
        )
