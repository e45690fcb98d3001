"""What the chooser of the aggregating side knows: a request's own frames first, then what earlier
requests of this process measured, then a Prometheus server, where one is named.

A decode line that `tandem doctor --profile` stored holds for the decoder beside this aggregator,
with the model and the number of documents it was measured with; the other side's steps are followed
as they come. Must not import torch.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from tandem.core.aggregation import Side
from tandem.core.errors import InvalidArgument
from tandem.policy.profiler import (
    Known,
    ProfileSource,
    Reading,
    SideProfiler,
    both_sides,
    combined,
)
from tandem.policy.side_scheduler import BothSides
from tandem.settings import SettingsError, variable_of
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.profile_sources import PrometheusSource, RegistrySource
from tandem.telemetry.stored_fits import StoredFit, read_fits


class Profiling:
    """Belongs to the event loop it was made in, where it asks the server, once it is needed, until
    `close`."""

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
                source = PrometheusSource(prometheus)
            except InvalidArgument as error:
                raise SettingsError(f"{variable_of('prometheus')}: {error.why}") from None
            self._earlier.append(source)
            self._server = source

    def profiler(self, model_name: str, documents: int) -> SideProfiler:
        """For one request: what its frames show."""
        fit = self._fit
        if fit is None or (fit.model_name, fit.documents) != (model_name, documents):
            return SideProfiler()
        return SideProfiler({self._side: fit.fit})

    def earlier(self) -> Reading:
        """What is known as a request comes. Reading a registry goes through all its metrics, which
        is too much for every token. A server is asked from the first request on."""
        if self._server is not None and self._asking is None:
            self._asking = asyncio.create_task(self._server.run())
        return combined(self._earlier)

    def sides(self, profiler: SideProfiler, earlier: Reading | None = None) -> BothSides | None:
        """The freshest that is known of both sides; None while anything is unknown. `earlier` saves
        asking for it again."""
        known = Known(self.earlier() if earlier is None else earlier)
        return both_sides(combined([profiler, known]))

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking
