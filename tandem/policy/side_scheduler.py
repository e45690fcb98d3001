"""Which side aggregates next (DRAGON §5.1, with eq. 7 and 8 as DESIGN §3.5 corrects them).

Invariant: pure arithmetic over what was measured; times in seconds. Must not import asyncio, grpc,
torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SideTimes:
    """What one side was measured at: `decode_s` for a draft token, `transfer_s` for the way to the
    other side of it and what goes with it, `acceptance` of its drafts."""

    decode_s: float
    transfer_s: float
    acceptance: float

    def validate(self, side: Side) -> None:
        """Raise InvalidArgument naming side and field."""
        name = side.name.lower()
        for field, seconds in (("decode_s", self.decode_s), ("transfer_s", self.transfer_s)):
            if not 0 <= seconds < float("inf"):
                raise InvalidArgument(f"{name}.{field}", f"{seconds} is not a duration")
        if not 0 <= self.acceptance <= 1:
            raise InvalidArgument(f"{name}.acceptance", f"{self.acceptance} is not a rate")


@dataclass(frozen=True, slots=True)
class BothSides:
    """Measurements of device and cloud."""

    device: SideTimes
    cloud: SideTimes

    def of(self, side: Side) -> SideTimes:
        return self.device if side is Side.DEVICE else self.cloud

    @property
    def round_trip_s(self) -> float:
        return self.device.transfer_s + self.cloud.transfer_s


@dataclass(frozen=True, slots=True)
class SideChoice:
    """Where to aggregate next, and the ΔZ that says so: seconds a token that moving to the other
    side saves (negative: costs)."""

    side: Side
    gain_s: float
    moves: bool


def token_time_s(sides: BothSides, aggregating: Side) -> float:
    """Z of a side that goes on aggregating: expected seconds between two tokens (eq. 7).

    An accepted draft of the other side is followed by the next at its decoding pace; a refused one
    costs a round trip more, since that side must hear of it and draft anew.
    """
    here, there = sides.of(aggregating), sides.of(aggregating.other)
    kept_s = max(here.decode_s, there.decode_s)
    refused_s = max(here.decode_s, there.decode_s + sides.round_trip_s)
    return there.acceptance * kept_s + (1 - there.acceptance) * refused_s


def choose_side(sides: BothSides, aggregating: Side, hysteresis_s: float = 0.0) -> SideChoice:
    """The side for the next token: the other one iff ΔZ = Z^l − Z^r exceeds `hysteresis_s`.

    Raises InvalidArgument for what cannot have been measured.
    """
    sides.device.validate(Side.DEVICE)
    sides.cloud.validate(Side.CLOUD)
    if not hysteresis_s >= 0:
        raise InvalidArgument("hysteresis_s", f"{hysteresis_s} is negative")
    gain_s = token_time_s(sides, aggregating) - token_time_s(sides, aggregating.other)
    moves = gain_s > hysteresis_s
    return SideChoice(aggregating.other if moves else aggregating, gain_s, moves)


def speedup_over_synchronous(sides: BothSides, aggregating: Side = Side.DEVICE) -> float:
    """How much faster tokens come than when both sides wait for each other at every token, which
    is refusing every draft (Theorem 6.2, for either side)."""
    here, there = sides.of(aggregating), sides.of(aggregating.other)
    synchronous_s = max(here.decode_s, there.decode_s + sides.round_trip_s)
    return synchronous_s / token_time_s(sides, aggregating)
