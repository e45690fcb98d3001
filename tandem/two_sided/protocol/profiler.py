"""The present costs of both sides of a two-sided answer (DRAGON §5.2).

`SideProfiler` follows a request's own stream. A duration is a difference of one machine's clock.

- Decoding (`DecodeFit`) is a line over the context's length, c_dec(t) = (k_a / k_b)·t + k_c. It is
  fitted once, with the machine at rest; at runtime k_c stands and the slope follows what is
  measured. Slope and intercept are never negative.
- The link (`LinkEstimate`) costs L + g/B each way, from frames that are sent anyway (the paper asks
  ping and iperf3).

Durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.link_times import LinkEstimate
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import UNKNOWN, BothSides, SideTimes

SLOPE_WEIGHT = 0.05
"""ζ: what one observation counts against all before it."""


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """The line. `numerator` is k_a = mean of (c - k_c)·t, `denominator` k_b = mean of t²: the
    quotient of the two is the least squares slope through a given intercept `intercept_s`."""

    numerator: float
    denominator: float
    intercept_s: float

    def __post_init__(self) -> None:
        for field in ("numerator", "denominator", "intercept_s"):
            number = getattr(self, field)
            if not (isfinite(number) and number >= 0):
                raise InvalidArgument(field, f"{number} is not a number from 0")
        if self.denominator == 0:
            raise InvalidArgument("denominator", "is 0")

    @property
    def slope_s(self) -> float:
        """Seconds that each token of context adds."""
        return self.numerator / self.denominator

    def at(self, length: float) -> float:
        """Return the predicted seconds for a token after `length` tokens."""
        return self.slope_s * length + self.intercept_s

    def updated(self, length: int, duration_s: float) -> DecodeFit:
        """Return the line after one more observation: the paper's moving averages of k_a and k_b. A
        step faster than the intercept counts as one without slope, not as a negative one."""
        above_s = max(0.0, duration_s - self.intercept_s)
        return DecodeFit(
            (1 - SLOPE_WEIGHT) * self.numerator + SLOPE_WEIGHT * above_s * length,
            (1 - SLOPE_WEIGHT) * self.denominator + SLOPE_WEIGHT * length * length,
            self.intercept_s,
        )


def fit_decoding(lengths: Sequence[int], durations_s: Sequence[float]) -> DecodeFit:
    """Return the least squares line through measured steps; where noise would make a term negative,
    it is 0 and the other is fitted alone. There must be two observations or more."""
    t = np.asarray(lengths, dtype=np.float64)
    c = np.asarray(durations_s, dtype=np.float64)
    spread = float(((t - t.mean()) ** 2).sum())
    slope = float(((t - t.mean()) * (c - c.mean())).sum()) / spread if spread else 0.0
    intercept_s = float(c.mean()) - slope * float(t.mean())
    intercept_s = max(0.0, float(c.mean()) if slope < 0 else intercept_s)
    numerator = float(((c - intercept_s) * t).mean())
    return DecodeFit(max(0.0, numerator), float((t * t).mean()), intercept_s)


_KEEP = 0.9
_KEEP_PER_DRAFT = 0.8
"""Short, since the next token's time hangs on what was refused just now: the side whose draft it
was has its next one first if it aggregates. In our simulations this
saves up to a tenth of the time against 0.97; below 0.7 it costs where one side is much the slower.
"""


class SideProfiler:
    """The measurements in the frames of one request. `fits` are the lines that were
    measured at rest, where there are any; a side without one is followed by a moving average of its
    steps."""

    def __init__(self, fits: Mapping[Side, DecodeFit] | None = None) -> None:
        self._decoding = {side: _Decoding((fits or {}).get(side)) for side in Side}
        self._acceptance = {side: _Rate() for side in Side}
        self._draft_bytes: dict[Side, float] = {}
        self.link = LinkEstimate()

    def decoded(self, side: Side, length: int, duration_s: float) -> None:
        """Follow a draft token that after `length` tokens took `duration_s` of its own machine's
        clock."""
        self._decoding[side].follow(length, duration_s)

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None:
        """Follow an exchange; see `LinkEstimate.exchanged`."""
        self.link.exchanged(up_bytes, down_bytes, elapsed_s, held_s)

    def drafted(self, side: Side, size: int) -> None:
        """Follow a draft token of `side` that took a frame of `size` bytes."""
        before = self._draft_bytes.get(side, float(size))
        self._draft_bytes[side] = before + (1 - _KEEP) * (size - before)

    def verified(self, side: Side, accepted: float) -> None:
        """Follow a draft of `side` that was accepted (1) or not (0), or how likely that was. The
        machines tell outcomes: the next token's time hangs on what was refused just now, of which
        eq. 5's expectation says nothing."""
        self._acceptance[side].follow(accepted)

    def sides(self) -> BothSides:
        """Return what is known by now."""
        up_s = down_s = UNKNOWN
        if (times := self.link.times) is not None:
            up_s = times.to_cloud_s(self._draft_bytes.get(Side.DEVICE, 0.0))
            down_s = times.to_device_s(self._draft_bytes.get(Side.CLOUD, 0.0))
        return BothSides(self._times(Side.DEVICE, up_s), self._times(Side.CLOUD, down_s))

    def _times(self, side: Side, transfer_s: float) -> SideTimes:
        return SideTimes(self._decoding[side].now_s, transfer_s, self._acceptance[side].rate)


class _Decoding:
    """Follows the time of one side's step."""

    def __init__(self, fit: DecodeFit | None) -> None:
        self._fit = fit
        self._length = 1
        self._average_s = UNKNOWN

    @property
    def now_s(self) -> float:
        return self._average_s if self._fit is None else self._fit.at(self._length)

    def follow(self, length: int, duration_s: float) -> None:
        self._length = length
        if self._fit is not None:
            self._fit = self._fit.updated(length, duration_s)
            return
        before_s = duration_s if isnan(self._average_s) else self._average_s
        self._average_s = before_s + (1 - _KEEP) * (duration_s - before_s)


class _Rate:
    """A share of recent drafts, old ones forgotten."""

    def __init__(self) -> None:
        self._accepted = self._drafts = 0.0

    @property
    def rate(self) -> float:
        return self._accepted / self._drafts if self._drafts else UNKNOWN

    def follow(self, accepted: float) -> None:
        self._accepted = _KEEP_PER_DRAFT * self._accepted + accepted
        self._drafts = _KEEP_PER_DRAFT * self._drafts + 1
