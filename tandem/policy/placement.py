"""Where to aggregate next, asked by the side that aggregates, after every token.

Invariant: placing changes times only, never the text. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tandem.core.aggregation import Side
from tandem.core.chance import Chance, Purpose
from tandem.policy.aggregation_presets import Placement
from tandem.policy.side_scheduler import BothSides, SideChoice, choose_side

HYSTERESIS_S = 0.002
"""What a move must save per token: below that, measuring is noise."""


class Placing(Protocol):
    """Chooses the side for the next token."""

    def next_side(self, position: int, aggregating: Side) -> Side: ...


@dataclass(frozen=True, slots=True)
class AlwaysAt:
    """Never moves."""

    side: Side

    def next_side(self, position: int, aggregating: Side) -> Side:
        return self.side


@dataclass(frozen=True, slots=True)
class AtRandom:
    """A fair coin at every token."""

    chance: Chance

    def next_side(self, position: int, aggregating: Side) -> Side:
        device = self.chance.happens(1, 2, position, Purpose.PLACE)
        return Side.DEVICE if device else Side.CLOUD


@dataclass(frozen=True, slots=True)
class ByDelay:
    """DRAGON §5.1: where tokens are expected sooner. While anything is not measured it stays.

    `measured` gives what is known now; `decided` hears of every choice and what it was made from,
    `unmeasured` of one that was not made.
    """

    measured: Callable[[], BothSides | None]
    decided: Callable[[SideChoice, BothSides], None] = lambda choice, sides: None
    unmeasured: Callable[[], None] = lambda: None
    hysteresis_s: float = HYSTERESIS_S

    def next_side(self, position: int, aggregating: Side) -> Side:
        sides = self.measured()
        if sides is None:
            self.unmeasured()
            return aggregating
        choice = choose_side(sides, aggregating, self.hysteresis_s)
        self.decided(choice, sides)
        return choice.side


def placing_for(
    placement: Placement,
    chance: Chance,
    measured: Callable[[], BothSides | None] = lambda: None,
    decided: Callable[[SideChoice, BothSides], None] = lambda choice, sides: None,
    unmeasured: Callable[[], None] = lambda: None,
) -> Placing:
    """The chooser that a preset names."""
    match placement:
        case Placement.DEVICE:
            return AlwaysAt(Side.DEVICE)
        case Placement.CLOUD:
            return AlwaysAt(Side.CLOUD)
        case Placement.RANDOM:
            return AtRandom(chance)
        case Placement.SCHEDULED:
            return ByDelay(measured, decided, unmeasured)


def first_side(placement: Placement) -> Side:
    """Where aggregating begins."""
    return Side.CLOUD if placement is Placement.CLOUD else Side.DEVICE
