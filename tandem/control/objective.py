"""The objective of an answer: soon, cheap, easy on the edge's battery, or weights between these.
Values an estimate of a token relative to the cloud alone, so that seconds, money and joules can be
weighed. Invariant: pure; a smaller value is better, and 1 is the cloud alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from tandem.control.conditions import check_duration
from tandem.control.config import TINY
from tandem.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in one currency; all 0 where nothing is declared: then target passes are the cost, as
    FSD's Table 1 bills a verification. `edge_watts`: what the edge draws while it drafts beyond
    what it draws anyway; `edge_idle_watts`: the latter, for as long as an answer takes."""

    cloud_second: float = 0.0
    gigabyte: float = 0.0
    edge_watt_second: float = 0.0
    edge_watts: float = 10.0
    edge_idle_watts: float = 2.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_duration(name, getattr(self, name))

    @property
    def declared(self) -> bool:
        """True if any price is given."""
        return max(self.cloud_second, self.gigabyte, self.edge_watt_second) > 0


NO_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Aim:
    """The default objective of a drafter's answers, for requests that name none, and its prices."""

    objective: str = "latency"
    prices: Prices = NO_PRICES

    def __post_init__(self) -> None:
        weights_of(self.objective)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of a request's preset, applied before its own."""
        return () if self.objective == "latency" else (f"objective={self.objective}",)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of one token: seconds until it comes, target passes, the cloud's seconds,
    bytes of both directions, and seconds for which the edge drafts."""

    tpot_s: float
    passes: float
    cloud_s: float = 0.0
    link_bytes: float = 0.0
    drafting_s: float = 0.0

    def edge_joules(self, prices: Prices) -> float:
        return prices.edge_watts * self.drafting_s + prices.edge_idle_watts * self.tpot_s

    def cost(self, prices: Prices) -> float:
        """Return the cost in money, or in target passes where there are no prices."""
        if not prices.declared:
            return self.passes
        return (
            prices.cloud_second * self.cloud_s
            + prices.gigabyte * self.link_bytes / 1e9
            + prices.edge_watt_second * self.edge_joules(prices)
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """`energy_weight`: what the edge's energy counts, the rest is for time and cost; `idle_weight`:
    time's share of that rest. The cloud goes by the latter alone where it may decode alone."""

    idle_weight: float = 1.0
    energy_weight: float = 0.0
    prices: Prices = NO_PRICES

    def value(self, estimate: Estimate, alone: Estimate) -> float:
        """Return the value of one way to make a token: a weighted mean of its ratios to the target
        alone, where smaller is better."""
        rest = 1.0 - self.energy_weight
        ratios = (
            (rest * self.idle_weight, estimate.tpot_s, alone.tpot_s),
            (rest * (1.0 - self.idle_weight), estimate.cost(self.prices), alone.cost(self.prices)),
            (self.energy_weight, estimate.edge_joules(self.prices), alone.edge_joules(self.prices)),
        )
        return sum(
            weight * planned / max(baseline, TINY) for weight, planned, baseline in ratios if weight
        )


_WORDS = {"latency": (1.0, 0.0), "cost": (0.0, 0.0), "energy": (1.0, 1.0)}


def weights_of(text: str) -> tuple[float, float]:
    """Return (`idle_weight`, `energy_weight`) of a word, of a number (1 latency, 0 cost), or of
    parts of a whole as `latency=2,energy=1,cost=1`. Raises InvalidArgument("objective")."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if "=" not in text:
            idle_weight = float(text)
            if not 0 <= idle_weight <= 1:
                raise ValueError
            return idle_weight, 0.0
        parts = dict(part.strip().split("=") for part in text.split(","))
        latency, cost, energy = (float(parts.pop(name, 0)) for name in _WORDS)
        if parts or not all(isfinite(share) and share >= 0 for share in (latency, cost, energy)):
            raise ValueError
        energy_weight = energy / (latency + cost + energy)
        return latency / (latency + cost) if latency + cost else 1.0, energy_weight
    except (ValueError, ZeroDivisionError):
        why = f"must be latency, cost, energy, 0…1 or parts as latency=2,cost=1; is {text!r}"
        raise InvalidArgument("objective", why) from None
