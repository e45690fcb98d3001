"""What the chooser of the aggregating side knows: a request's own frames first, then what earlier
requests of this process or, by a Prometheus server, of others measured, whichever is fresher. A
decode line that `tandem doctor --profile` stored holds for the decoder beside this aggregator, with
the model and the number of documents it was measured with; the other side's steps are followed."""

import time
from collections.abc import Callable
from math import inf
from pathlib import Path

from tandem.settings import SettingsError, variable_of
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import PrometheusServer
from tandem.two_sided.profiling.profile_sources import RegistrySource, earlier_reading
from tandem.two_sided.profiling.side_metrics import NAMES
from tandem.two_sided.profiling.stored_fits import StoredFit, read_fits
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides
from tandem.two_sided.protocol.profiler import (
    FixedSource,
    Reading,
    SideProfiler,
    both_sides,
    combined,
)


class Profiling:
    """Belongs to the event loop it was made in; asks the server from then to `close`."""

    def __init__(
        self,
        side: Side,
        metrics: Metrics,
        server: PrometheusServer | None = None,
        instance: str = "",
        fits: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`instance`: what the server calls the decoder at `side`. Raises SettingsError for a file
        that cannot be used."""
        self._side, self._instance, self._clock = side, instance, clock
        self._fit: StoredFit | None = None
        self._registry = RegistrySource(metrics.registry)
        self._measured_s = -inf
        self._server = server
        if fits is not None:
            if not fits.exists():
                why = f"{fits} does not exist; make it with 'tandem doctor --profile'"
                raise SettingsError(f"{variable_of('profile_file')}: {why}")
            self._fit = read_fits(fits).get(side)
        if server is not None:
            server.start()

    def profiler(self, model_name: str, documents: int) -> SideProfiler:
        """For one request: what its frames show."""
        fit = self._fit
        if fit is None or (fit.model_name, fit.documents) != (model_name, documents):
            return SideProfiler()
        return SideProfiler({self._side: fit.fit})

    def earlier(self, preset: str) -> Reading:
        """What is known as a request comes; too costly for every token, as it reads all metrics."""
        samples = () if self._server is None else self._server.read()
        age_s = self._clock() - self._measured_s
        name = NAMES[self._side]
        own = self._registry.reading()
        return earlier_reading(own, age_s, samples, preset, name, self._instance)

    def sides(self, profiler: SideProfiler, earlier: Reading) -> BothSides | None:
        """The request's own measurements, else the `earlier` ones; None where both lack any."""
        if profiler.transfer.known:
            self._measured_s = self._clock()
        return both_sides(combined([profiler, FixedSource(earlier)]))

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
