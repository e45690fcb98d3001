"""What a simulated fleet is made of: edges, verifiers, links, traffic, as declared distributions.
Invariant: plain values; chance is the caller's source of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from math import cos, exp, inf, isfinite, log, pi

from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import Preset

SWING = 0.8
"""By what share of the mean a day's rate rises and falls; it begins at its lowest."""
BURST_EVERY_S = 60.0
BURST_S = 6.0
BURST = 5.0
"""Every so often the rate is so many times that in between, for so long."""


class TrafficKind(StrEnum):
    """When requests come. All but `CHATS` are open: they come whether or not others are done."""

    POISSON = "poisson"
    DIURNAL = "diurnal"
    BURSTS = "bursts"
    CHATS = "chats"
    """Each edge asks again some time after its answer."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of positive numbers: from `low` to `high` evenly, or a lognormal one of median
    `low` where `sigma` is above 0."""

    low: float
    high: float
    sigma: float = 0.0

    @staticmethod
    def of(number: float) -> Spread:
        """Return a spread that is always this number."""
        return Spread(number, number)

    @staticmethod
    def parsed(field_name: str, text: str, scale: float = 1.0) -> Spread:
        """Parse `30`, `20..60` (evenly between) or `40~0.5` (lognormal with median and sigma),
        times `scale`. Raises InvalidArgument naming the field."""
        try:
            if "~" in text:
                middle, sigma = (float(part) for part in text.split("~"))
                spread = Spread(middle * scale, middle * scale, sigma)
            else:
                low, dots, high = text.partition("..")
                spread = Spread(float(low) * scale, float(high if dots else low) * scale)
        except ValueError:
            why = f"{text!r} is not a number, LOW..HIGH or MEDIAN~SIGMA"
            raise InvalidArgument(field_name, why) from None
        numbers = (spread.low, spread.high, spread.sigma)
        valid = all(isfinite(number) and number >= 0 for number in numbers)
        if not valid or spread.high < spread.low:
            raise InvalidArgument(field_name, f"{text!r} must be finite, rising, not negative")
        return spread

    def draw(self, source: random.Random) -> float:
        if self.sigma:
            return self.low * exp(source.gauss(0.0, self.sigma))
        return self.low if self.low == self.high else source.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class FleetTraffic:
    """`per_edge_s`: mean seconds between the requests of an edge, or from an answer to its next
    question where `kind` is CHATS. A day lasts `day_s`."""

    kind: TrafficKind = TrafficKind.POISSON
    per_edge_s: float = 60.0
    day_s: float = 86_400.0
    prompt_tokens: Spread = field(default_factory=lambda: Spread.of(256))
    answer_tokens: Spread = field(default_factory=lambda: Spread.of(128))

    def rate(self, edges: int, now: float) -> float:
        """Return the requests per second at that time."""
        mean = edges / self.per_edge_s
        match self.kind:
            case TrafficKind.DIURNAL:
                return mean * (1.0 - SWING * cos(2 * pi * now / self.day_s))
            case TrafficKind.BURSTS:
                share = BURST_S / BURST_EVERY_S
                calm = mean / (1 - share + share * BURST)
                return calm * (BURST if now % BURST_EVERY_S < BURST_S else 1.0)
            case _:
                return mean

    def arrivals(self, edges: int, source: random.Random) -> Iterator[float]:
        """Yield the moments of requests, by thinning the busiest rate (Lewis and Shedler 1979)."""
        busiest = edges / self.per_edge_s * (1.0 if self.kind is TrafficKind.POISSON else BURST)
        now = 0.0
        while True:
            now -= log(1.0 - source.random()) / busiest
            if source.random() * busiest <= self.rate(edges, now):
                yield now


@dataclass(frozen=True, slots=True)
class Scaling:
    """A horizontal autoscaler: so many sessions a verifier are wanted. A new one serves after
    `start_s`; one too many is drained once that has been so for `calm_s`."""

    sessions_each: float
    least: int = 1
    most: int = 200
    every_s: float = 15.0
    start_s: float = 60.0
    calm_s: float = 300.0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Times in seconds. A pass takes `verify_first_s`, `verify_further_s` for each further token
    that is decoded or verified, `prompt_token_s` for each of a prompt, and `pass_overhead_s`.
    Where a verifier drafts itself, all sessions that draft do so in step, before the pass that
    judges them: a step takes `cloud_draft_s`, and `cloud_draft_further_s` for each further session.
    `jitter_s`: what round trips take longer on average. `hit_rate`: how often a correction had been
    drafted for, where the preset drafts ahead. A verifier fails every `failure_s` on average, and
    serves again `repair_s` later."""

    preset: Preset
    edges: int
    verifiers: int
    traffic: FleetTraffic = field(default_factory=FleetTraffic)
    verify_first_s: float = 0.03
    verify_further_s: float = 0.0002
    prompt_token_s: float = 0.00005
    pass_overhead_s: float = 0.0
    draft_s: Spread = field(default_factory=lambda: Spread.of(0.008))
    rtt_s: Spread = field(default_factory=lambda: Spread.of(0.03))
    acceptance_rate: Spread = field(default_factory=lambda: Spread.of(0.75))
    jitter_s: float = 0.0
    hit_rate: float = 0.5
    max_sessions: int = 256
    failure_s: float = inf
    repair_s: float = 30.0
    scaling: Scaling | None = None
    lasts_s: float = 60.0
    warm_s: float = 15.0
    seed: int = 0
    cloud_draft_s: float = 0.0
    cloud_draft_further_s: float = 0.0

    def check(self) -> None:
        """Raise InvalidArgument naming the field that cannot be."""
        for name in ("edges", "verifiers", "max_sessions"):
            if getattr(self, name) < 1:
                raise InvalidArgument(name, f"must be at least 1, is {getattr(self, name)}")
        for name in ("verify_first_s", "lasts_s", "failure_s", "repair_s"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(name, f"must be above 0, is {getattr(self, name)}")
        if not self.traffic.per_edge_s > 0:
            raise InvalidArgument("per_edge_s", "must be above 0")
        if not 0 <= self.hit_rate <= 1:
            raise InvalidArgument("hit_rate", f"must be 0…1, is {self.hit_rate}")
        schedule = self.preset.schedule
        if self.preset.expansion or (self.preset.drafts and not schedule.bonus):
            why = "trees, and presets whose cloud adds no token of its own, are not simulated"
            raise InvalidArgument("preset", why)
        if self.preset.cloud_drafts is CloudDrafts.LOOKUP:
            raise InvalidArgument("preset", "drafts that a cloud looks up are not simulated")
