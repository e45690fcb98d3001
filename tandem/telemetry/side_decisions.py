"""The choice of the aggregating side, as metrics and as a log line with its ΔZ.

Invariant: what is exported is what the choice was made from; a choice that was not made for want of
measurements counts too, by its own reason. Must not import grpc or torch.
"""

from __future__ import annotations

from tandem.core.aggregation import Side
from tandem.policy.side_scheduler import BothSides, SideChoice
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.metrics import Side as SideName

log = get_logger(__name__)

MOVE, STAY, UNMEASURED = "move_saves_time", "stay_saves_time", "unmeasured"
NAMES: dict[Side, SideName] = {Side.DEVICE: "device", Side.CLOUD: "cloud"}


class SideDecisions:
    """Tells of the decisions of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self._series = metrics.scheduler()
        self._measured = {side: metrics.measured_side(name) for side, name in NAMES.items()}

    def decided(self, choice: SideChoice, sides: BothSides) -> None:
        """The scheduler compared `sides` and chose. A move is logged at INFO, else at DEBUG."""
        for side, measured in self._measured.items():
            times = sides.of(side)
            measured.decode.set(times.decode_s)
            measured.transfer.set(times.transfer_s)
            measured.acceptance.set(times.acceptance)
        self._series.gain.set(choice.gain_s)
        self._series.decided(MOVE if choice.moves else STAY)
        tell = log.info if choice.moves else log.debug
        tell(
            "aggregation side",
            side=NAMES[choice.side],
            moves=choice.moves,
            gain_ms=round(choice.gain_s * 1e3, 3),
            round_trip_ms=round(sides.round_trip_s * 1e3, 3),
            device_decode_ms=round(sides.device.decode_s * 1e3, 3),
            cloud_decode_ms=round(sides.cloud.decode_s * 1e3, 3),
            device_acceptance=round(sides.device.acceptance, 3),
            cloud_acceptance=round(sides.cloud.acceptance, 3),
        )

    def bandwidth(self, up_bytes_per_s: float, down_bytes_per_s: float) -> None:
        """What frames of different sizes showed; infinite where they showed no limit."""
        self._measured[Side.DEVICE].bandwidth.set(up_bytes_per_s)
        self._measured[Side.CLOUD].bandwidth.set(down_bytes_per_s)

    def unmeasured(self) -> None:
        """A decision was due and something was not measured yet: the side stays."""
        self._series.decided(UNMEASURED)
