"""The measurements that choose the aggregating side: a request's own frames first, then what
earlier requests of this process or, by a Prometheus server, of others measured, whichever is
fresher. How long drafts wait for each side's engine only the server knows: it depends on what
others ask there, and is followed while an answer runs.

A decode line that `tandem doctor --profile` stored holds for the decoder beside this aggregator,
with the model and the number of documents it was measured with; the other side's steps are
followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import inf
from pathlib import Path

from prometheus_client import CollectorRegistry

from tandem.core.randomness import SeededRandom
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.document_series import MeasuredSideSeries
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.metrics import Side as SideName
from tandem.telemetry.prometheus_server import (
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    SIDE_ACCEPTANCE,
    Aged,
    PrometheusServer,
    Sample,
    freshest,
    mean_of,
)
from tandem.two_sided.profiling.decode_fits import StoredFit, read_fits
from tandem.two_sided.profiling.side_metrics import NAMES, SideDecisions
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, PlacementPolicy, placement_policy_for
from tandem.two_sided.protocol.profiler import (
    Reading,
    SideProfiler,
    both_sides,
)


class Profiling:
    """Belongs to the event loop it was made in; asks the server from then to `close`."""

    def __init__(
        self,
        side: Side,
        metrics: Metrics,
        *,
        server: PrometheusServer | None = None,
        instance: str = "",
        fits: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the profiling of one side. `instance`: what the server calls the decoder at
        `side`. Raises SettingsError for a file that cannot be used."""
        self._side = side
        self._instance = instance
        self._clock = clock
        self._decisions = SideDecisions(metrics)
        self._fit: StoredFit | None = None
        self._registry = metrics.registry
        self._measured_s = -inf
        self._server = server
        self._queues = Queues(NAMES[side], instance)
        if fits is not None:
            if not fits.exists():
                why = f"{fits} does not exist; make it with 'tandem doctor --profile'"
                raise SettingsError(f"{variable_of('profile_file')}: {why}")
            self._fit = read_fits(fits).get(side)
        if server is not None:
            server.start()

    def profiler(self, model_name: str, documents: int) -> SideProfiler:
        """Return what follows the frames of one request."""
        fit = self._fit
        if fit is None or (fit.model_name, fit.documents) != (model_name, documents):
            return SideProfiler()
        return SideProfiler({self._side: fit.fit})

    def earlier(self, preset: str) -> Reading:
        """Return what is known as a request comes; too costly for every token, as it collects
        metrics."""
        samples = () if self._server is None else self._server.read()
        age_s = self._clock() - self._measured_s
        name = NAMES[self._side]
        return earlier_reading(
            registry_reading(self._registry),
            own_age_s=age_s,
            samples=samples,
            preset=preset,
            own_side=name,
            instance=self._instance,
        )

    def with_queues(self, earlier: Reading) -> Reading:
        """Return what was known as the request came, with the queues that the server answered with
        last; without a server, or while it is lost, with none."""
        if self._server is None:
            return earlier
        return self._queues.in_place(earlier, self._server.read())

    def sides(self, profiler: SideProfiler, earlier: Reading) -> BothSides | None:
        """Return the request's own measurements, else the `earlier` ones; None where both lack
        any."""
        if profiler.link.times is not None:
            self._measured_s = self._clock()
        return both_sides(profiler.reading().or_else(earlier))

    def placement_policy(
        self, request: AggregationRequest, profiler: SideProfiler
    ) -> PlacementPolicy:
        """Return what chooses the aggregating side of one request, and exports what it chose."""
        earlier = self.earlier(request.preset.name)

        def measured() -> BothSides | None:
            if (times := profiler.link.times) is not None:
                self._decisions.bandwidth(times.up_bytes_per_s, times.down_bytes_per_s)
            return self.sides(profiler, self.with_queues(earlier))

        return placement_policy_for(
            request.preset.placement,
            SeededRandom(request.seed),
            measured=measured,
            decided=self._decisions.decided,
            unmeasured=self._decisions.unmeasured,
        )

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


class Queues:
    """How long drafts wait at the engines of both sides, looked up once for each answer of the
    server: it is wanted for every token."""

    def __init__(self, own_side: SideName, instance: str) -> None:
        self._own_side = own_side
        self._instance = instance
        self._samples: Sequence[Sample] | None = None
        self._queue_s: dict[SideName, float | None] = {}

    def in_place(self, earlier: Reading, samples: Sequence[Sample]) -> Reading:
        """Return the reading with the queues of these samples."""
        if samples is not self._samples:
            self._samples = samples
            for side in SIDES:
                here = _instance_labels(side, self._own_side, self._instance)
                queue = mean_of(samples, QUEUE, {"side": side}, here)
                self._queue_s[side] = None if queue is None else queue.value
        return replace(
            earlier,
            device_queue_s=self._queue_s["device"],
            cloud_queue_s=self._queue_s["cloud"],
        )


SIDES: tuple[SideName, ...] = ("device", "cloud")

MEASURED = {
    "decode_s": MeasuredSideSeries.decode.name,
    "transfer_s": MeasuredSideSeries.transfer.name,
    "acceptance": MeasuredSideSeries.acceptance.name,
}
"""The metric that holds each number of a reading."""


def registry_reading(registry: CollectorRegistry) -> Reading:
    """Return what earlier requests of this process measured: the gauges that it exports itself."""
    # Of these gauges alone: the registry's own look-up collects every metric for each number.
    gauges = registry.restricted_registry(MEASURED.values()).collect()
    values = {
        (sample.name, sample.labels["side"]): sample.value
        for gauge in gauges
        for sample in gauge.samples
        if sample.labels.keys() == {"side"}
    }
    return Reading(
        **{
            f"{side}_{field}": values.get((metric, side))
            for field, metric in MEASURED.items()
            for side in SIDES
        }
    )


def earlier_reading(
    local: Reading,
    *,
    own_age_s: float,
    samples: Sequence[Sample],
    preset: str,
    own_side: SideName,
    instance: str,
) -> Reading:
    """Return each number from whoever measured it last. `instance`: what the server calls the
    decoder at `own_side`; of the other side's decoders, and without it, the mean."""
    others = _others(samples, preset, own_side, instance)
    values = {}
    for field in fields(Reading):
        value = getattr(local, field.name)
        mine = None if value is None else Aged(value, own_age_s)
        values[field.name] = freshest(mine, others.get(field.name))
    return Reading(**values)


def _others(
    samples: Sequence[Sample], preset: str, own_side: SideName, instance: str
) -> dict[str, Aged | None]:
    """Return what the server knows of each side, by fields of a reading."""
    values: dict[str, Aged | None] = {}
    for side in SIDES:
        here = _instance_labels(side, own_side, instance)
        step = {"side": side, "engine": ""}
        values[f"{side}_decode_s"] = mean_of(samples, DRAFT_STEP, step, here)
        values[f"{side}_queue_s"] = mean_of(samples, QUEUE, {"side": side}, here)
        judged = {"side": side, "preset": preset, "model_name": ""}
        values[f"{side}_acceptance"] = mean_of(samples, SIDE_ACCEPTANCE, judged)
        trip = mean_of(samples, ROUND_TRIP, {"side": "device"}, here)
        if trip is not None:  # only the sum of both ways counts
            values[f"{side}_transfer_s"] = Aged(trip.value / 2, trip.age_s)
    return values


def _instance_labels(side: SideName, own_side: SideName, instance: str) -> dict[str, str]:
    """Return what tells the decoder beside this aggregator from others of its side."""
    return {"instance": instance} if side == own_side else {}
