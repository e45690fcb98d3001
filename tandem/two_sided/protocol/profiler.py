"""What both sides of a two-sided answer cost now (DRAGON §5.2). A `Reading` is what one source
knows: the request's own stream (`SideProfiler`), this process's metrics, a metrics server. Every
duration is a difference of one machine's clock; what nobody measured is None, never a guess."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideTimes
from tandem.two_sided.protocol.profiler_decoding import SLOPE_WEIGHT, DecodeFit
from tandem.two_sided.protocol.profiler_transfer import TransferEstimate

_KEEP = 0.9
_KEEP_PER_DRAFT = 0.8
"""Short, since the next token's time hangs on what was refused just now: the side whose draft it
was has its next one first if it aggregates. In `bench scheduler` and `bench dragon-latency` this
saves up to a tenth of the time against 0.97; below 0.7 it costs where one side is much the slower.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one source knows of both sides, None where nothing: `decode_s` of a draft token,
    `transfer_s` of it to the other side, `acceptance` rate of the side's drafts, `queue_s` of
    waiting for the engine before a draft."""

    device_decode_s: float | None = None
    cloud_decode_s: float | None = None
    device_transfer_s: float | None = None
    cloud_transfer_s: float | None = None
    device_acceptance: float | None = None
    cloud_acceptance: float | None = None
    device_queue_s: float | None = None
    cloud_queue_s: float | None = None

    def missing(self) -> tuple[str, ...]:
        """The names of what is not known."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is None)


class ProfileSource(Protocol):
    """Something that knows a part of it. `reading` never waits; an unreachable source knows
    nothing."""

    @property
    def name(self) -> str: ...

    def reading(self) -> Reading: ...


@dataclass(frozen=True, slots=True)
class FixedSource:
    """What was read once."""

    known: Reading
    name: str = "earlier"

    def reading(self) -> Reading:
        return self.known


def combined(sources: Iterable[ProfileSource]) -> Reading:
    """Each number from the first source that knows it: give the freshest source first."""
    known: dict[str, float] = {}
    for source in sources:
        reading = source.reading()
        for field in fields(reading):
            number = getattr(reading, field.name)
            if number is not None:
                known.setdefault(field.name, number)
    return Reading(**known)


def both_sides(reading: Reading) -> BothSides | None:
    """What the scheduler compares; None while anything but a queue is unknown. With one way's time
    alone it stands for both: only their sum counts."""
    up_s, down_s = reading.device_transfer_s, reading.cloud_transfer_s
    if up_s is None or down_s is None:
        up_s = down_s = up_s if down_s is None else down_s
    device = (reading.device_decode_s, up_s, reading.device_acceptance, reading.device_queue_s)
    cloud = (reading.cloud_decode_s, down_s, reading.cloud_acceptance, reading.cloud_queue_s)
    times = []
    for decode_s, transfer_s, acceptance, queue_s in (device, cloud):
        if decode_s is None or transfer_s is None or acceptance is None:
            return None
        times.append(SideTimes(decode_s, transfer_s, acceptance, queue_s or 0.0))
    return BothSides(*times)


class SideProfiler:
    """What the frames of one request show, as a source. `fits` are the lines that were measured at
    rest, where there are any; a side without one is followed by a moving average of its steps."""

    name = "stream"

    def __init__(
        self, fits: Mapping[Side, DecodeFit] | None = None, slope_weight: float = SLOPE_WEIGHT
    ) -> None:
        self._slope_weight = slope_weight
        self._decoding = {side: _Decoding((fits or {}).get(side)) for side in Side}
        self._acceptance = {side: _Rate() for side in Side}
        self._draft_bytes: dict[Side, float] = {}
        self.transfer = TransferEstimate()

    def decoded(self, side: Side, length: int, duration_s: float) -> None:
        """A draft token after `length` tokens took `duration_s` of its own machine's clock."""
        self._decoding[side].follow(length, duration_s, self._slope_weight)

    def exchanged(
        self, up_bytes: int, down_bytes: int, elapsed_s: float, held_s: float = 0.0
    ) -> None:
        """See `TransferEstimate.exchanged`."""
        self.transfer.exchanged(up_bytes, down_bytes, elapsed_s, held_s)

    def drafted(self, side: Side, size: int) -> None:
        """A draft token of `side` took a frame of `size` bytes."""
        if size < 0:
            raise InvalidArgument("size", f"{size} bytes")
        before = self._draft_bytes.get(side, float(size))
        self._draft_bytes[side] = before + (1 - _KEEP) * (size - before)

    def verified(self, side: Side, accepted: float) -> None:
        """A draft of `side` was accepted (1) or not (0); where both distributions are known, eq.
        5's expectation instead, which wavers less."""
        if not 0 <= accepted <= 1:
            raise InvalidArgument("accepted", f"{accepted} is not a rate")
        self._acceptance[side].follow(accepted)

    def reading(self) -> Reading:
        up_s = down_s = None
        if self.transfer.known:
            up_s = self.transfer.up_s(self._draft_bytes.get(Side.DEVICE, 0.0))
            down_s = self.transfer.down_s(self._draft_bytes.get(Side.CLOUD, 0.0))
        return Reading(
            self._decoding[Side.DEVICE].now_s,
            self._decoding[Side.CLOUD].now_s,
            up_s,
            down_s,
            self._acceptance[Side.DEVICE].rate,
            self._acceptance[Side.CLOUD].rate,
        )


class _Decoding:
    """One side's step, now."""

    def __init__(self, fit: DecodeFit | None) -> None:
        self._fit = fit
        self._length = 1
        self._average_s: float | None = None

    @property
    def now_s(self) -> float | None:
        return self._average_s if self._fit is None else self._fit.at(self._length)

    def follow(self, length: int, duration_s: float, weight: float) -> None:
        self._length = length
        if self._fit is not None:
            self._fit = self._fit.updated(length, duration_s, weight)
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
