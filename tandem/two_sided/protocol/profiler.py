"""The present costs of both sides of a two-sided answer (DRAGON §5.2).

A `Reading` is what one source knows: the request's own stream (`SideProfiler`), this process's
metrics, a metrics server. Every duration is a difference of one machine's clock; what nobody
measured is None, never a guess.

- Decoding (`DecodeFit`) is a line over the context's length, c_dec(t) = (k_a / k_b)·t + k_c. It is
  fitted once, with the machine at rest; at runtime k_c stands and the slope follows what is
  measured. Slope and intercept are never negative.
- The link (`LinkEstimate`) costs L + g/B each way, from frames that are sent anyway (the paper asks
  ping and iperf3).

Durations in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite

import numpy as np

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.link_times import LinkEstimate
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideTimes

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

    def updated(self, length: int, duration_s: float, weight: float = SLOPE_WEIGHT) -> DecodeFit:
        """Return the line after one more observation: the paper's moving averages of k_a and k_b. A
        step faster than the intercept counts as one without slope, not as a negative one."""
        _check_observation(length, duration_s)
        if not 0 <= weight <= 1:
            raise InvalidArgument("weight", f"{weight} is not a weight")
        above_s = max(0.0, duration_s - self.intercept_s)
        return DecodeFit(
            (1 - weight) * self.numerator + weight * above_s * length,
            (1 - weight) * self.denominator + weight * length * length,
            self.intercept_s,
        )


def fit_decoding(lengths: Sequence[int], durations_s: Sequence[float]) -> DecodeFit:
    """Return the least squares line through measured steps; where noise would make a term negative,
    it is 0 and the other is fitted alone. Raises InvalidArgument for fewer than two observations or
    impossible ones."""
    if len(lengths) != len(durations_s):
        raise InvalidArgument("durations_s", f"{len(durations_s)} for {len(lengths)} lengths")
    if len(lengths) < 2:
        raise InvalidArgument("lengths", "two observations are needed for a line")
    for length, duration_s in zip(lengths, durations_s, strict=True):
        _check_observation(length, duration_s)
    t = np.asarray(lengths, dtype=np.float64)
    c = np.asarray(durations_s, dtype=np.float64)
    spread = float(((t - t.mean()) ** 2).sum())
    slope = float(((t - t.mean()) * (c - c.mean())).sum()) / spread if spread else 0.0
    intercept_s = float(c.mean()) - slope * float(t.mean())
    intercept_s = max(0.0, float(c.mean()) if slope < 0 else intercept_s)
    numerator = float(((c - intercept_s) * t).mean())
    return DecodeFit(max(0.0, numerator), float((t * t).mean()), intercept_s)


def _check_observation(length: int, duration_s: float) -> None:
    if length < 1:
        raise InvalidArgument("length", f"{length} tokens")
    if not (isfinite(duration_s) and duration_s >= 0):
        raise InvalidArgument("duration_s", f"{duration_s} is not a duration")


_KEEP = 0.9
_KEEP_PER_DRAFT = 0.8
"""Short, since the next token's time hangs on what was refused just now: the side whose draft it
was has its next one first if it aggregates. In `bench scheduler` and `bench dragon-latency` this
saves up to a tenth of the time against 0.97; below 0.7 it costs where one side is much the slower.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of both sides by one source, None where it has none: `decode_s` of a draft
    token, `transfer_s` of it to the other side, `acceptance` rate of the side's drafts, `queue_s`
    of waiting for the engine before a draft."""

    device_decode_s: float | None = None
    cloud_decode_s: float | None = None
    device_transfer_s: float | None = None
    cloud_transfer_s: float | None = None
    device_acceptance: float | None = None
    cloud_acceptance: float | None = None
    device_queue_s: float | None = None
    cloud_queue_s: float | None = None

    def or_else(self, earlier: Reading) -> Reading:
        """Return this with what `earlier` knows where this does not."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(earlier, **{name: it for name, it in numbers.items() if it is not None})


def both_sides(reading: Reading) -> BothSides | None:
    """Return what the scheduler compares; None while anything but a queue is unknown. With one
    way's time alone it stands for both: only their sum counts."""
    up_s = reading.device_transfer_s
    down_s = reading.cloud_transfer_s
    if up_s is None or down_s is None:
        up_s = down_s = up_s if down_s is None else down_s
    device = _side_times(
        decode_s=reading.device_decode_s,
        transfer_s=up_s,
        acceptance=reading.device_acceptance,
        queue_s=reading.device_queue_s,
    )
    cloud = _side_times(
        decode_s=reading.cloud_decode_s,
        transfer_s=down_s,
        acceptance=reading.cloud_acceptance,
        queue_s=reading.cloud_queue_s,
    )
    return None if device is None or cloud is None else BothSides(device, cloud)


def _side_times(
    *,
    decode_s: float | None,
    transfer_s: float | None,
    acceptance: float | None,
    queue_s: float | None,
) -> SideTimes | None:
    """Return what is known of one side; None while anything but its queue is unknown."""
    if decode_s is None or transfer_s is None or acceptance is None:
        return None
    return SideTimes(decode_s, transfer_s, acceptance, queue_s or 0.0)


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
        if size < 0:
            raise InvalidArgument("size", f"{size} bytes")
        before = self._draft_bytes.get(side, float(size))
        self._draft_bytes[side] = before + (1 - _KEEP) * (size - before)

    def verified(self, side: Side, accepted: float) -> None:
        """Follow a draft of `side` that was accepted (1) or not (0), or how likely that was. The
        machines tell outcomes: the next token's time hangs on what was refused just now, of which
        eq. 5's expectation says nothing (`tandem bench scheduler` compares the two)."""
        if not 0 <= accepted <= 1:
            raise InvalidArgument("accepted", f"{accepted} is not a rate")
        self._acceptance[side].follow(accepted)

    def reading(self) -> Reading:
        up_s = down_s = None
        if (times := self.link.times) is not None:
            up_s = times.to_cloud_s(self._draft_bytes.get(Side.DEVICE, 0.0))
            down_s = times.to_device_s(self._draft_bytes.get(Side.CLOUD, 0.0))
        return Reading(
            device_decode_s=self._decoding[Side.DEVICE].now_s,
            cloud_decode_s=self._decoding[Side.CLOUD].now_s,
            device_transfer_s=up_s,
            cloud_transfer_s=down_s,
            device_acceptance=self._acceptance[Side.DEVICE].rate,
            cloud_acceptance=self._acceptance[Side.CLOUD].rate,
        )


class _Decoding:
    """Follows the time of one side's step."""

    def __init__(self, fit: DecodeFit | None) -> None:
        self._fit = fit
        self._length = 1
        self._average_s: float | None = None

    @property
    def now_s(self) -> float | None:
        return self._average_s if self._fit is None else self._fit.at(self._length)

    def follow(self, length: int, duration_s: float) -> None:
        self._length = length
        if self._fit is not None:
            self._fit = self._fit.updated(length, duration_s)
            return
        if not 0 <= duration_s < float("inf"):
            raise InvalidArgument("duration_s", f"{duration_s} is not a duration")
        before_s = duration_s if self._average_s is None else self._average_s
        self._average_s = before_s + (1 - _KEEP) * (duration_s - before_s)


class _Rate:
    """A share of recent drafts, old ones forgotten."""

    def __init__(self) -> None:
        self._accepted = self._drafts = 0.0

    @property
    def rate(self) -> float | None:
        return self._accepted / self._drafts if self._drafts else None

    def follow(self, accepted: float) -> None:
        self._accepted = _KEEP_PER_DRAFT * self._accepted + accepted
        self._drafts = _KEEP_PER_DRAFT * self._drafts + 1
