"""The choice of the side that aggregates next (DRAGON §5.1, with eq. 7 and 8 corrected), decided by
the aggregating side after every token. Invariant: it changes times, never the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isnan, nan
from typing import NamedTuple

from tandem.core.randomness import Purpose, RandomSource
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import Placement

UNKNOWN = nan
"""What nobody measured: never a guess."""


@dataclass(frozen=True, slots=True)
class SideTimes:
    """Measurements of one side: `decode_s` for a draft token, `transfer_s` for the way to the other
    side of it and what goes with it, `acceptance` of its drafts, `queue_s` what a draft waits for
    the engine, which others use too."""

    decode_s: float = UNKNOWN
    transfer_s: float = UNKNOWN
    acceptance: float = UNKNOWN
    queue_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds from wanting a draft token to having it."""
        return self.queue_s + self.decode_s

    def or_else(self, earlier: SideTimes) -> SideTimes:
        """Return this with what `earlier` knows where this does not."""
        return SideTimes(
            earlier.decode_s if isnan(self.decode_s) else self.decode_s,
            earlier.transfer_s if isnan(self.transfer_s) else self.transfer_s,
            earlier.acceptance if isnan(self.acceptance) else self.acceptance,
            self.queue_s or earlier.queue_s,
        )


class BothSides(NamedTuple):
    """Measurements of device and cloud, which are their indices, by one source or several."""

    device: SideTimes = SideTimes()
    cloud: SideTimes = SideTimes()

    def or_else(self, earlier: BothSides) -> BothSides:
        """Return this with what `earlier` knows where this does not."""
        return BothSides(self.device.or_else(earlier.device), self.cloud.or_else(earlier.cloud))

    @property
    def complete(self) -> bool:
        """True if nothing is unknown."""
        return not any(isnan(each.decode_s + each.transfer_s + each.acceptance) for each in self)

    @property
    def round_trip_s(self) -> float:
        return self.device.transfer_s + self.cloud.transfer_s


@dataclass(frozen=True, slots=True)
class SideChoice:
    """The side that aggregates next, and the ΔZ that decided it: seconds a token that moving to the
    other side saves (negative: costs)."""

    side: Side
    gain_s: float
    moves: bool


def token_time_s(sides: BothSides, aggregating: Side) -> float:
    """Return Z of a side that goes on aggregating: expected seconds between two tokens (eq. 7). A
    refused draft of the other side costs a round trip more: it must receive the token and draft
    again."""
    here = sides[aggregating]
    there = sides[aggregating.other]
    kept_s = max(here.step_s, there.step_s)
    refused_s = max(here.step_s, there.step_s + sides.round_trip_s)
    return there.acceptance * kept_s + (1 - there.acceptance) * refused_s


def choose_side(sides: BothSides, aggregating: Side, hysteresis_s: float = 0.0) -> SideChoice:
    """Return the side for the next token: the other one iff ΔZ = Z^l − Z^r exceeds
    `hysteresis_s`."""
    gain_s = token_time_s(sides, aggregating) - token_time_s(sides, aggregating.other)
    moves = gain_s > hysteresis_s
    return SideChoice(aggregating.other if moves else aggregating, gain_s, moves)


HYSTERESIS_S = 0.002
"""What a move must save per token: below that, measuring is noise."""


PlacementPolicy = Callable[[int, Side], Side]
"""Chooses the side for the next token, given the position of the last one and the side that
aggregated it."""


def placement_policy_for(
    placement: Placement,
    rng: RandomSource,
    *,
    measured: Callable[[], BothSides] = BothSides,
    decided: Callable[[SideChoice, BothSides], None] = lambda choice, sides: None,
    unmeasured: Callable[[], None] = lambda: None,
) -> PlacementPolicy:
    """Return the chooser that a preset names.

    DRAGON §5.1 goes where tokens are expected sooner, and stays while anything is not `measured`.
    `decided` gets every choice and what it was made from; `unmeasured` is called where none could
    be made."""

    def scheduled(position: int, aggregating: Side) -> Side:
        sides = measured()
        if not sides.complete:
            unmeasured()
            return aggregating
        choice = choose_side(sides, aggregating, HYSTERESIS_S)
        decided(choice, sides)
        return choice.side

    def random(position: int, aggregating: Side) -> Side:
        return Side.DEVICE if rng.bernoulli(1, 2, position, Purpose.PLACE) else Side.CLOUD

    match placement:
        case Placement.SCHEDULED:
            return scheduled
        case Placement.RANDOM:
            return random
    return lambda position, aggregating: first_side(placement)


def first_side(placement: Placement) -> Side:
    """Return where aggregating begins."""
    return Side.CLOUD if placement is Placement.CLOUD else Side.DEVICE
