"""`python -m tandem.services.aggregator`: the aggregator as a process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tandem.core.extras import require
from tandem.net.access import client_access
from tandem.net.process import run_service
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: AggregatorSettings, metrics: Metrics) -> AggregatorServicer:
    """Build the servicer, with what it shows to the drafter and where its traces go."""
    if _serves_http(settings):
        require("fastapi", "uvicorn")  # refused before anything listens
    access = client_access(settings)
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "aggregator")
    return AggregatorServicer(settings, metrics, access, tracing)


@asynccontextmanager
async def serve_http(
    settings: AggregatorSettings, metrics: Metrics, aggregator: AggregatorServicer
) -> AsyncIterator[str]:
    """Serve HTTP inside, if it is set; yields its address line. Imported only then: an aggregator
    of the cloud needs no HTTP server installed."""
    if not _serves_http(settings):
        yield ""
        return
    from tandem.services.aggregator import http

    async with http.serve_http(settings, metrics, aggregator) as line:
        yield line


def _serves_http(settings: AggregatorSettings) -> bool:
    return settings.http and settings.side == "device"


if __name__ == "__main__":
    run_service(AggregatorSettings, build, side=lambda settings: settings.side, beside=serve_http)
