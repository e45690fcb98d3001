"""Spans by OpenTelemetry; imported only where tracing was asked for. Invariant: no global provider:
each service has its own, so that several fit into one process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tandem.telemetry.tracing import Attribute, Headers, Span, Tracing, caller_headers

PREFIX = "tandem."
EXPORT_TIMEOUT_S = 3
_PROPAGATOR = TraceContextTextMapPropagator()


def exported_tracing(endpoint: str, sample: float, service: str) -> Tracing:
    """Spans in batches, by a thread of their own, to an OTLP collector."""
    provider = new_provider(service, sample)
    exporter = OTLPSpanExporter(
        endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_TIMEOUT_S
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RecordedTracing(provider)


def new_provider(service: str, sample: float = 1.0) -> TracerProvider:
    """Samples traces that begin here; what a caller decided stands. Shut down by the service."""
    return TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample)),
        resource=Resource.create({SERVICE_NAME: f"tandem-{service}"}),
        shutdown_on_exit=False,
    )


class RecordedTracing(Tracing):
    """Spans of one service by `provider`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tandem")

    @contextmanager
    def span(
        self, name: str, headers: Headers | None = None, **attributes: Attribute
    ) -> Iterator[Span]:
        given = caller_headers() if headers is None else headers
        carrier = {key: text for key, text in given if isinstance(text, str)}
        parent = _PROPAGATOR.extract(carrier)
        span = self._tracer.start_span(name, parent, attributes=_named(attributes))
        try:
            yield RecordedSpan(self._tracer, span)
        except GeneratorExit:
            raise
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


class RecordedSpan(Span):
    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)

    def headers(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, self._context)
        return tuple(carrier.items())

    def note(self, **attributes: Attribute) -> None:
        self._span.set_attributes(_named(attributes))

    def record(self, name: str, duration_s: float, **attributes: Attribute) -> None:
        now_ns = time.time_ns()
        began_ns, named = now_ns - round(duration_s * 1e9), _named(attributes)
        child = self._tracer.start_span(name, self._context, attributes=named, start_time=began_ns)
        child.end(now_ns)


def _named(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {PREFIX + name: worth for name, worth in attributes.items()}
