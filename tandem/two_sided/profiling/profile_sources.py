"""What is known of both sides before a request has measured: what earlier requests of this process
did, and a Prometheus server. Invariant: of two that know a number, the fresher is believed."""

from collections.abc import Sequence
from dataclasses import fields

from prometheus_client import CollectorRegistry

from tandem.telemetry.document_series import MeasuredSideSeries
from tandem.telemetry.metrics import Side as SideName
from tandem.telemetry.prometheus_server import (
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    SIDE_ACCEPTANCE,
    Aged,
    Sample,
    freshest,
    mean_of,
)
from tandem.two_sided.protocol.profiler import Reading

SIDES: tuple[SideName, ...] = ("device", "cloud")

MEASURED = {
    "decode_s": MeasuredSideSeries.decode.name,
    "transfer_s": MeasuredSideSeries.transfer.name,
    "acceptance": MeasuredSideSeries.acceptance.name,
}
"""The metric that holds each number of a reading."""


class RegistrySource:
    """What earlier requests of this process measured: the gauges it exports itself."""

    name = "registry"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def reading(self) -> Reading:
        return Reading(
            **{
                f"{side}_{field}": self._registry.get_sample_value(metric, {"side": side})
                for field, metric in MEASURED.items()
                for side in SIDES
            }
        )


def earlier_reading(
    own: Reading,
    own_age_s: float,
    samples: Sequence[Sample],
    preset: str,
    own_side: SideName,
    instance: str,
) -> Reading:
    """Each number from whoever measured it last. `instance`: what the server calls the decoder at
    `own_side`; of the other side's decoders, and without it, the mean."""
    others = _others(samples, preset, own_side, instance)
    found = {}
    for field in fields(Reading):
        value = getattr(own, field.name)
        mine = None if value is None else Aged(value, own_age_s)
        found[field.name] = freshest(mine, others.get(field.name))
    return Reading(**found)


def _others(
    samples: Sequence[Sample], preset: str, own_side: SideName, instance: str
) -> dict[str, Aged | None]:
    """What the server knows of each side, by fields of a reading."""
    found: dict[str, Aged | None] = {}
    for side in SIDES:
        here = {"instance": instance} if side == own_side else {}
        step = {"side": side, "engine": ""}
        found[f"{side}_decode_s"] = mean_of(samples, DRAFT_STEP, step, here)
        found[f"{side}_queue_s"] = mean_of(samples, QUEUE, {"side": side}, here)
        judged = {"side": side, "preset": preset, "model_name": ""}
        found[f"{side}_acceptance"] = mean_of(samples, SIDE_ACCEPTANCE, judged)
        trip = mean_of(samples, ROUND_TRIP, {"side": "device"}, here)
        if trip is not None:  # only the sum of both ways counts
            found[f"{side}_transfer_s"] = Aged(trip.value / 2, trip.age_s)
    return found
