"""`python -m tandem.services.aggregator`: the aggregator as a process."""

from tandem.net.access import client_access
from tandem.net.process import run_service
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import http_door
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: AggregatorSettings, metrics: Metrics) -> AggregatorServicer:
    """The servicer with what it shows to the drafter, and its traces."""
    access = client_access(settings)
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "aggregator")
    return AggregatorServicer(settings, metrics, access, tracing)


if __name__ == "__main__":
    run_service(AggregatorSettings, build, side=lambda settings: settings.side, beside=http_door)
