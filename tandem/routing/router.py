"""The router: at which of several clouds a session begins, and when it moves to another.
Invariants: times are the caller's `now`, and chance is the caller's `spread`; a session leaves a
cloud that works only for one that has been better by a margin for a while, and each such move makes
it stay twice as long as before, so that no trace of round trips makes it go to and fro."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import inf, nan
from statistics import median

from tandem.core.hashing import hash_words, unit

RECENT_ROUND_TRIPS = 5
ALL_WORSE = 4
"""Of the first the median counts; a cloud is worse only if each of the last few was."""
LEAST_MARGIN_S = 0.025
MARGIN = 0.4
"""What another cloud must save of a round: seconds, and of this cloud's cost."""
BETTER_FOR_S = 0.7
SPREAD_S = 0.6
"""How long that must last; sessions move at different times of the spread."""
STAY_S = 2.0
"""A session stays that long after its first opening, and twice as long after each move."""
NEAR_S = 0.015
NEAR = 0.25
"""New sessions spread over the clouds that cost so much more than the best one."""
LEAST_PRICED_S = 0.1
"""A round counts as that long at least where prices are compared: what two clouds near by save of a
millisecond is not worth twice the money."""
PLACES = 64
"""Sessions that a cloud has room for, where it does not say."""
ASK_EVERY_S = 0.5
ASK_COLD_EVERY_S = 5.0
"""How often the two best clouds are asked, and the others."""
FAILURES = 2
SUCCESSES = 2
"""Unanswered questions that make a cloud unusable, and answers that make it usable again."""


class MoveReason(StrEnum):
    """Reason why a session left its cloud."""

    BETTER = "better"
    DRAINING = "draining"
    LOST = "lost"
    NOT_SERVING = "not_serving"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CloudReport:
    """A cloud's answer to a query: its duration, and what the cloud reports. A round costs it about
    `queue_s` and `pass_s`."""

    round_trip_s: float
    serving: bool = True
    model: str = ""
    sessions: int = 0
    max_sessions: int = 0
    queue_s: float = 0.0
    pass_s: float = 0.0
    price: float = 0.0
    """Of a second of its model; 0: not known, and taken for the least."""
    draining: bool = False
    """It asks its sessions to leave one after the other: each stays until then."""


@dataclass(slots=True)
class Placement:
    """Placement of one session: which cloud, since when, and how often it moved to a better one."""

    cloud: int
    since_s: float
    moves: int = 0

    @property
    def stay_s(self) -> float:
        return float(STAY_S * 2 ** min(self.moves, 16))


class Router:
    """Routing of one edge, for all its sessions; clouds are numbers from 0."""

    def __init__(self, clouds: int, price_weight: float = 1.0) -> None:
        """Create the router. `price_weight`: a cloud twice as expensive as the cheapest counts as
        slower by this many times the length of its rounds."""
        self.clouds = [_Cloud() for _ in range(clouds)]
        self._price_weight = price_weight
        self._best: dict[str, list[int]] = {}
        """Of each model the two best: with a hundred clouds too, no other has to be compared."""

    def know(self, cloud: int) -> None:
        """Give this number to a cloud of which nothing is known yet: the next one, or one of those
        that were forgotten."""
        self.clouds[cloud : cloud + 1] = [_Cloud()]

    def forget(self, cloud: int, now: float) -> None:
        """Use a cloud no longer: its sessions go where another works."""
        self.clouds[cloud] = _Cloud()
        self.clouds[cloud].forgotten = True
        self._weigh_prices()
        self._compare_all(now)

    def reported(self, cloud: int, report: CloudReport, now: float) -> None:
        """Record the answer of a cloud."""
        state = self.clouds[cloud]
        model = self._model
        price = state.price
        state.reported(report)
        if state.price != price:
            self._weigh_prices()
            self._compare_all(now)
        elif self._model != model:
            self._compare_all(now)
        else:
            self._compare(cloud, now)

    def unanswered(self, cloud: int, now: float) -> None:
        """Record that a cloud did not answer."""
        self.clouds[cloud].unanswered(now)
        self._compare(cloud, now)

    def lost(self, cloud: int, now: float) -> None:
        """Record that a stream to a cloud broke, or that it was silent for too long."""
        self.clouds[cloud].failed(now)
        self._compare(cloud, now)

    def leaves(self, cloud: int, now: float) -> None:
        """Record that a cloud asked its sessions to go."""
        self.lost(cloud, now)

    def opened(self, cloud: int) -> None:
        """Count a session that begins at a cloud, of which its last report does not know."""
        self.clouds[cloud].opened += 1

    def choose(
        self,
        spread: int,
        model: str = "",
        refused: Collection[int] = (),
        leaving: int | None = None,
        kept: int | None = None,
    ) -> int:
        """Return the cloud for a session that begins or is `leaving` one: of two of the near ones
        the less loaded, by the power of two choices; `kept`, which has its text's keys and values,
        if it is near. Clouds that `refused` it and, with `model`, those of other models are out.
        Where no other is known to work: one that was not asked yet, or that failed the longest
        ago."""
        near = self._near(model, refused if leaving is None else {*refused, leaving})
        if not near:
            return self._untried(model, refused)
        if kept in near:
            return kept
        rest, place = divmod(hash_words(spread), len(near))
        first = near.pop(place)
        second = near[rest % len(near)] if near else first
        return min(first, second, key=lambda cloud: self.clouds[cloud].load)

    def why_leave(
        self, place: Placement, spread: int, now: float, model: str = ""
    ) -> MoveReason | None:
        """Return why a session with a working stream should move now, if it should."""
        cloud = self.clouds[place.cloud]
        if cloud.refuses:
            return MoveReason.NOT_SERVING if self._usable(model, (place.cloud,)) else None
        if cloud.worse_since_s is None or now - place.since_s < place.stay_s:
            return None
        better_for_s = now - cloud.worse_since_s - SPREAD_S * unit(hash_words(spread))
        best = self._best.get(model or cloud.model or self._model, [])
        if better_for_s < BETTER_FOR_S or not self._better(place.cloud, best):
            return None
        return MoveReason.BETTER if cloud.usable else MoveReason.LOST

    def is_far(self, cloud: int, model: str = "") -> bool:
        """Return whether another cloud would be better by the margin if both were equally busy."""
        state = self.clouds[cloud]
        usable = self._usable(model, (cloud,))
        nearest_s = min((self.clouds[n].round_trip_s for n in usable), default=inf)
        return nearest_s <= state.round_trip_s - max(LEAST_MARGIN_S, MARGIN * state.cost_s)

    def warm(self) -> tuple[int, ...]:
        """Return the two that sessions would be moved to: channels to them are worth keeping
        open."""
        candidates = sorted(chain.from_iterable(self._best.values()), key=self._rank)
        return tuple(candidates[:2] if len(candidates) > 1 else self.ranked()[:2])

    def ranked(self) -> list[int]:
        """Return every cloud, best first: those that work by what a round costs, then the
        others."""
        return sorted(self._known, key=self._rank)

    def _rank(self, cloud: int) -> tuple[bool, float, int]:
        state = self.clouds[cloud]
        return not state.usable, state.cost_s if state.usable else state.failed_s, cloud

    @property
    def _known(self) -> list[int]:
        return [number for number, cloud in enumerate(self.clouds) if not cloud.forgotten]

    def _weigh_prices(self) -> None:
        cheapest = min((cloud.price for cloud in self.clouds if cloud.price), default=0.0)
        for cloud in self.clouds:
            times = cloud.price / cheapest if cloud.price else 1.0
            cloud.weighed(self._price_weight * (times - 1))

    def _usable(self, model: str, without: Collection[int]) -> list[int]:
        wanted = model or self._model
        usable = [
            n for n, cloud in enumerate(self.clouds) if cloud.usable and cloud.model == wanted
        ]
        return [n for n in usable if n not in without] if without else usable

    @property
    def _model(self) -> str:
        """The model of the first cloud that ever answered: the others must serve the same."""
        for cloud in self.clouds:
            if cloud.model:
                return cloud.model
        return ""

    def _untried(self, model: str, refused: Collection[int]) -> int:
        fits = {"", model} if model else {cloud.model for cloud in self.clouds}
        known = self._known
        left = [n for n in known if self.clouds[n].model in fits and n not in refused]
        return min(left or known, key=lambda n: self.clouds[n].doubt)

    def _near(self, model: str, without: Collection[int]) -> list[int]:
        """Return the clouds that work and cost little more than the best of them."""
        wanted = model or self._model
        best = [n for n in self._best.get(wanted, ()) if n not in without]
        if not best and not (best := self._usable(model, without)):
            return []
        best_s = min(self.clouds[n].cost_s for n in best)
        limit_s = best_s + max(NEAR_S, NEAR * best_s)
        near = [n for n, cloud in enumerate(self.clouds) if cloud.offer_s <= limit_s]
        if len(self._best) > 1:
            near = [n for n in near if self.clouds[n].model == wanted]
        return [n for n in near if n not in without] if without else near

    def _better(self, cloud: int, best: Sequence[int]) -> bool:
        """Return whether another cloud is better by the margin; any other is better than a silent
        one. `best`: of the usable ones the two best, the best first."""
        if not best or best == [cloud]:
            return False
        state = self.clouds[cloud]
        other = best[1] if best[0] == cloud else best[0]
        return self.clouds[other].cost_s <= state.left_at_s if state.usable else state.silent

    def _compare(self, cloud: int, now: float) -> None:
        """Compare a cloud of which something new is known. The others are compared as well if it
        was one of the best, or is now."""
        state = self.clouds[cloud]
        best = self._best.get(state.model, [])
        enters = state.usable and (len(best) < 2 or self._rank(cloud) < self._rank(best[-1]))
        if enters or any(cloud in pair for pair in self._best.values()):
            self._compare_all(now)
        else:
            self._compare_with_best(cloud, self._model, now)

    def _compare_all(self, now: float) -> None:
        self._best.clear()
        usable = [number for number, cloud in enumerate(self.clouds) if cloud.usable]
        for number in sorted(usable, key=lambda n: self.clouds[n].cost_s):
            best = self._best.setdefault(self.clouds[number].model, [])
            if len(best) < 2:
                best.append(number)
        model = self._model
        for number in range(len(self.clouds)):
            self._compare_with_best(number, model, now)

    def _compare_with_best(self, number: int, model: str, now: float) -> None:
        """Record since when a cloud has been worse than the best; `model` is the model of a cloud
        that never answered."""
        cloud = self.clouds[number]
        if not self._better(number, self._best.get(cloud.model or model, [])):
            cloud.worse_since_s = None
        elif cloud.worse_since_s is None:
            cloud.worse_since_s = now


class _Cloud:
    """State of one cloud. Its cost is computed once per change, not at each of the many comparisons
    with others."""

    __slots__ = (
        "_dearness",
        "_down",
        "_failures",
        "_round_trips_s",
        "_successes",
        "cost_s",
        "failed_s",
        "forgotten",
        "left_at_s",
        "model",
        "offer_s",
        "opened",
        "report",
        "round_trip_s",
        "usable",
        "worse_since_s",
    )

    def __init__(self) -> None:
        self.opened = 0
        self.forgotten = False
        self._dearness = 0.0
        self.worse_since_s: float | None = None
        self.failed_s = float("-inf")
        self.report: CloudReport | None = None
        self.round_trip_s = 0.0
        self._round_trips_s: deque[float] = deque(maxlen=RECENT_ROUND_TRIPS)
        self._down = False
        self._failures = self._successes = 0
        self._sum_up()

    def _sum_up(self) -> None:
        """Compute what clouds are compared by: `cost_s` of a round is the time it takes, plus more
        for a more expensive cloud; `offer_s` is the same, but not a number while the cloud cannot
        be used; `left_at_s` is what another cloud must cost at most to be better by the margin, if
        each round trip to this one were as short as the shortest of the last `ALL_WORSE`."""
        report = self.report
        trips_s = self._round_trips_s
        busy_s = 0.0 if report is None else report.queue_s + report.pass_s
        self.model = "" if report is None else report.model
        self.usable = report is not None and report.serving and not self._down
        self.cost_s = self._priced_s(self.round_trip_s + busy_s)
        self.offer_s = self.cost_s if self.usable else nan
        least_s = self._priced_s(min([*trips_s][-ALL_WORSE:], default=0.0) + busy_s)
        self.left_at_s = least_s - max(LEAST_MARGIN_S, MARGIN * least_s)

    def weighed(self, dearness: float) -> None:
        if dearness != self._dearness:
            self._dearness = dearness
            self._sum_up()

    @property
    def refuses(self) -> bool:
        """True if it answers that it is not serving, or is not to be used any more."""
        report = self.report
        faulty = report is not None and not report.serving and not report.draining
        return self.forgotten or faulty

    @property
    def silent(self) -> bool:
        """True if it does not answer."""
        return self._failures >= FAILURES

    @property
    def doubt(self) -> tuple[int, float]:
        """Order among clouds that are not usable: one that does not answer is worse than one that
        was just lost."""
        return min(self._failures, FAILURES), self.failed_s

    @property
    def price(self) -> float:
        return 0.0 if self.report is None else self.report.price

    def _priced_s(self, round_s: float) -> float:
        return round_s + self._dearness * max(round_s, LEAST_PRICED_S)

    @property
    def load(self) -> float:
        """The part of its places that is taken, with those of this edge's that it did not count."""
        if self.report is None:
            return float(self.opened)
        return (self.report.sessions + self.opened) / (self.report.max_sessions or PLACES)

    def reported(self, report: CloudReport) -> None:
        self.report = report
        self._round_trips_s.append(report.round_trip_s)
        self.round_trip_s = median(self._round_trips_s)
        self.opened = self._failures = 0
        self._successes = self._successes + 1 if report.serving else 0
        if self._successes >= SUCCESSES:
            self._down = False
        self._sum_up()

    def unanswered(self, now: float) -> None:
        self._failures += 1
        self._successes = 0
        if self._failures >= FAILURES or self.report is None:
            self.failed(now)

    def failed(self, now: float) -> None:
        self._down = True
        self._successes = 0
        self.failed_s = now
        self._round_trips_s.clear()
        self.round_trip_s = 0.0
        self._sum_up()
