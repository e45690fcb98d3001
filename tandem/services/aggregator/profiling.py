"""What the chooser of the aggregating side knows: a request's own frames first, then what earlier
requests of this process measured, then a Prometheus server, where one is named. A decode line that
`tandem doctor --profile` stored holds for the decoder beside this aggregator, with the model and
the number of documents it was measured with; the other side's steps are followed as they come."""

import asyncio
from contextlib import suppress
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.profiling.profile_sources import PrometheusSource, RegistrySource
from tandem.two_sided.profiling.stored_fits import StoredFit, read_fits
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides
from tandem.two_sided.protocol.profiler import (
    FixedSource,
    ProfileSource,
    Reading,
    SideProfiler,
    both_sides,
    combined,
)


class Profiling:
    """Belongs to the event loop it was made in; asks the server from first use to `close`."""

    def __init__(self, side: Side, metrics: Metrics, prometheus: str, fits: Path | None) -> None:
        """Raises SettingsError for an address or file that cannot be used."""
        self._side = side
        self._fit: StoredFit | None = None
        self._earlier: list[ProfileSource] = [RegistrySource(metrics.registry)]
        self._server: PrometheusSource | None = None
        self._asking: asyncio.Task[None] | None = None
        if fits is not None:
            if not fits.exists():
                why = f"{fits} does not exist; make it with 'tandem doctor --profile'"
                raise SettingsError(f"{variable_of('profile_file')}: {why}")
            self._fit = read_fits(fits).get(side)
        if prometheus:
            try:
                self._server = PrometheusSource(prometheus)
            except InvalidArgument as error:
                raise SettingsError(f"{variable_of('prometheus')}: {error.why}") from None
            self._earlier.append(self._server)

    def profiler(self, model_name: str, documents: int) -> SideProfiler:
        """For one request: what its frames show."""
        fit = self._fit
        if fit is None or (fit.model_name, fit.documents) != (model_name, documents):
            return SideProfiler()
        return SideProfiler({self._side: fit.fit})

    def earlier(self) -> Reading:
        """What is known as a request comes; too costly for every token, as it reads all metrics."""
        if self._server is not None and self._asking is None:
            self._asking = asyncio.create_task(self._server.run())
        return combined(self._earlier)

    def sides(self, profiler: SideProfiler, earlier: Reading | None = None) -> BothSides | None:
        """The freshest known of both sides, or None; `earlier` saves asking for it again."""
        known = FixedSource(self.earlier() if earlier is None else earlier)
        return both_sides(combined([profiler, known]))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking
