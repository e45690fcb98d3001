"""The aggregation side as metrics, and its choice as a log line with its ΔZ.

Invariant: what is exported is what the choice was made from; a choice that was not made for lack of
measurements counts too, by its own reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.metrics import Side as SideName
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideChoice
from tandem.two_sided.protocol.side_machine import SideMachine

log = get_logger(__name__)

MOVE = "move_saves_time"
STAY = "stay_saves_time"
UNMEASURED = "unmeasured"
NAMES: dict[Side, SideName] = {Side.DEVICE: "device", Side.CLOUD: "cloud"}


class SideDecisions:
    """Exports the decisions of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self._series = metrics.scheduler()
        self._measured = {side: metrics.measured_side(name) for side, name in NAMES.items()}

    def decided(self, choice: SideChoice, sides: BothSides) -> None:
        """Export what the scheduler compared and chose. A move is logged at INFO, else at DEBUG."""
        for side, measured in self._measured.items():
            times = sides[side]
            measured.decode.set(times.decode_s)
            measured.transfer.set(times.transfer_s)
            measured.acceptance.set(times.acceptance)
        self._series.gain.set(choice.gain_s)
        self._series.decided(MOVE if choice.moves else STAY)
        write = log.info if choice.moves else log.debug
        write(
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
        """Export what frames of different sizes showed; infinite where they showed no limit."""
        self._measured[Side.DEVICE].bandwidth.set(up_bytes_per_s)
        self._measured[Side.CLOUD].bandwidth.set(down_bytes_per_s)

    def unmeasured(self) -> None:
        """Count a decision that was due while something was not measured yet: the side stays."""
        self._series.decided(UNMEASURED)


class AggregationGauge:
    """Number of running answers by the side that aggregates them, counted when metrics are read: on
    the endpoint's thread, changed on the event loop. Where a coin decides, neither side
    aggregates."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: dict[tuple[str, str], set[SideMachine]] = {}

    @contextmanager
    def counted(self, preset: str, model_name: str, machine: SideMachine) -> Iterator[None]:
        """Count `machine` as running inside, with `preset`; `model_name` is the target's."""
        preset = self._metrics.admit("preset", preset)
        model_name = self._metrics.admit("model_name", model_name)
        if (preset, model_name) not in self._running:
            self._running[preset, model_name] = set()
            self._export(preset, model_name)
        machines = self._running[preset, model_name]
        machines.add(machine)
        try:
            yield
        finally:
            machines.discard(machine)
            series = self._metrics.method(preset, model_name)
            for side, name in NAMES.items():
                series.judged(machine.stats.drafted[side], machine.stats.accepted[side], name)

    def _export(self, preset: str, model_name: str) -> None:
        machines = self._running[preset, model_name]
        series = self._metrics.method(preset, model_name)

        def at(side: Side) -> float:
            return sum(machine.aggregation_side is side for machine in tuple(machines))

        for side, name in NAMES.items():
            series.aggregating_at(name).set_function(partial(at, side))
