"""The measurements that choose the aggregating side: a request's own frames first, then what
earlier requests of this process or, by a Prometheus server, of others measured, whichever is
fresher. How long drafts wait for each side's engine only the server knows: it depends on what
others ask there, and is followed while an answer runs.

A decode line that `tandem doctor --profile` stored holds for the decoder beside this aggregator,
with the model and the number of documents it was measured with; the other side's steps are
followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan
from pathlib import Path

from tandem.core.randomness import SeededRandom
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import (
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    SIDE_ACCEPTANCE,
    Aged,
    PrometheusServer,
    Sample,
    mean_of,
)
from tandem.two_sided.profiling.decode_fits import StoredFit, read_fits
from tandem.two_sided.profiling.side_metrics import NAMES, SideDecisions
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import (
    BothSides,
    PlacementPolicy,
    SideChoice,
    SideTimes,
    placement_policy_for,
)
from tandem.two_sided.protocol.profiler import SideProfiler


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
        self._last = BothSides()
        self._measured_s = -inf
        self._server = server
        self._samples: Sequence[Sample] = ()
        self._queue_s: Mapping[Side, float] = dict.fromkeys(Side, 0.0)
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

    def earlier(self, preset: str) -> BothSides:
        """Return what is known as a request comes, but for the queues."""
        samples = () if self._server is None else self._server.read()
        age_s = self._clock() - self._measured_s
        return BothSides(*(self._earlier_times(side, preset, samples, age_s) for side in Side))

    def sides(self, profiler: SideProfiler, earlier: BothSides) -> BothSides:
        """Return the request's own measurements, else the `earlier` ones, with the queues that the
        server answered with last; without a server, or while it is lost, with none."""
        if profiler.link.times is not None:
            self._measured_s = self._clock()
        known = profiler.sides().or_else(earlier)
        samples = () if self._server is None else self._server.read()
        if samples is not self._samples:  # once for each answer: it is wanted for every token
            self._samples = samples
            self._queue_s = {side: self._queued_s(side) for side in Side}
        return BothSides(*(replace(known[side], queue_s=self._queue_s[side]) for side in Side))

    def placement_policy(
        self, request: AggregationRequest, profiler: SideProfiler
    ) -> PlacementPolicy:
        """Return what chooses the aggregating side of one request, and exports what it chose."""
        earlier = self.earlier(request.preset.name)

        def measured() -> BothSides:
            if (times := profiler.link.times) is not None:
                self._decisions.bandwidth(times.up_bytes_per_s, times.down_bytes_per_s)
            return self.sides(profiler, earlier)

        return placement_policy_for(
            request.preset.placement,
            SeededRandom(request.seed),
            measured=measured,
            decided=self.decided,
            unmeasured=self._decisions.unmeasured,
        )

    def decided(self, choice: SideChoice, sides: BothSides) -> None:
        """Export a choice, and keep what it was made from for later requests."""
        self._last = sides
        self._decisions.decided(choice, sides)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    def _earlier_times(
        self, side: Side, preset: str, samples: Sequence[Sample], own_age_s: float
    ) -> SideTimes:
        """Return each number of a side from whoever measured it last: this process, or others. Of
        the other side's decoders, and where the server knows no `instance`, the mean counts."""
        name = NAMES[side]
        here = self._instance_labels(side)
        own = self._last[side]
        step = mean_of(samples, DRAFT_STEP, {"side": name, "engine": ""}, here)
        trip = mean_of(samples, ROUND_TRIP, {"side": "device"}, here)
        half = None if trip is None else Aged(trip.value / 2, trip.age_s)  # their sum counts
        judged = {"side": name, "preset": preset, "model_name": ""}
        acceptance = mean_of(samples, SIDE_ACCEPTANCE, judged)
        return SideTimes(
            _freshest(own.decode_s, own_age_s, step),
            _freshest(own.transfer_s, own_age_s, half),
            _freshest(own.acceptance, own_age_s, acceptance),
        )

    def _queued_s(self, side: Side) -> float:
        labels = {"side": NAMES[side]}
        queue = mean_of(self._samples, QUEUE, labels, self._instance_labels(side))
        return 0.0 if queue is None else queue.value

    def _instance_labels(self, side: Side) -> dict[str, str]:
        """Return what tells the decoder beside this aggregator from others of its side."""
        return {"instance": self._instance} if side is self._side else {}


def _freshest(own: float, own_age_s: float, others: Aged | None) -> float:
    if others is None or (not isnan(own) and own_age_s <= others.age_s):
        return own
    return others.value
