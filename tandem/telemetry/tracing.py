"""Traces: what one request did, on every service it passed through, as spans of one tree.

Off by default: `Tracing` and `Span` record and send nothing. `RecordedTracing` and `RecordedSpan`
derive from them; they need the extra `tracing`, so OpenTelemetry is imported inside them alone. A
span's context is sent as W3C `traceparent` in metadata.

Invariants: attributes are numbers and names of ours, never a caller's text; there is no global
provider, each service has its own, so that several fit into one process.

    with tracing.span("generate", context.invocation_metadata(), preset="dsd") as span:
        call = stub.Verify(metadata=span.headers())
        span.record("draft round", duration_s=0.031, accepted=4)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tandem.core.errors import TandemError
from tandem.core.extras import install_command

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

ATTRIBUTE_PREFIX = "tandem."
EXPORT_TIMEOUT_S = 3

Headers = Iterable[tuple[str, str | bytes]]
Sent = tuple[tuple[str, str], ...] | None
"""Metadata that makes what a called service does a child of a span; None without tracing."""

Attribute = str | int | float | bool


class TracingUnavailable(TandemError):
    """Traces were asked for and cannot be made."""


class Span:
    """A part of a request's time; this one is not recorded."""

    def headers(self) -> Sent:
        """Return metadata that makes a called service's spans children of this one."""
        return None

    def note(self, **attributes: Attribute) -> None:
        """Add attributes."""

    def record(self, name: str, duration_s: float, **attributes: Attribute) -> None:
        """Add a child that took `duration_s` and ended now."""


class Tracing:
    """Destination of a service's spans; with this one, nowhere."""

    def span(
        self, name: str, headers: Headers | None = None, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        """Return a span around what happens inside; a child of the one in the caller's `headers`,
        if any. An exception that leaves it marks it as failed, by its type alone."""
        return NOT_RECORDED

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""


_callers: ContextVar[Headers] = ContextVar("tandem_caller_headers", default=())


@contextmanager
def called_with(headers: Headers) -> Iterator[None]:
    """Use `headers` for spans that are given none, within the context and in tasks begun in it."""
    outer = _callers.get()
    _callers.set(tuple(headers))
    try:
        yield
    finally:
        _callers.set(outer)


def caller_headers() -> Headers:
    """Return the headers of the innermost `called_with`."""
    return _callers.get()


NO_TRACING = Tracing()
NOT_RECORDED = nullcontext(Span())


def open_tracing(endpoint: str | None, sample: float, service: str) -> Tracing:
    """Send the spans of `service` to the OTLP collector at `endpoint`, as http://127.0.0.1:4317.

    `sample` is the share, in [0, 1], of the traces that begin here; what a caller decided stands.
    Without an endpoint nothing is recorded. Raises TracingUnavailable when the extra is not
    installed or the endpoint is not such an address."""
    if endpoint is None:
        return NO_TRACING
    if not endpoint.startswith(("http://", "https://")):
        why = f"must be http://HOST:PORT or https://HOST:PORT, got {endpoint[:80]!r}"
        raise TracingUnavailable(f"TANDEM_TRACE_ENDPOINT: {why}")
    try:
        return _exported_tracing(endpoint, sample, service)
    except ModuleNotFoundError as error:
        why = f"needs opentelemetry: {install_command('tracing')}"
        raise TracingUnavailable(f"TANDEM_TRACE_ENDPOINT: {why}") from error


def _exported_tracing(endpoint: str, sample: float, service: str) -> Tracing:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(
        endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_TIMEOUT_S
    )
    provider = new_provider(service, sample)
    # In batches, by a thread of its own: a slow collector must not hold up the event loop.
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RecordedTracing(provider)


def new_provider(service: str, sample: float = 1.0) -> TracerProvider:
    """Make a provider that samples the traces that begin here. The service shuts it down."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    return TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample)),
        resource=Resource.create({SERVICE_NAME: f"tandem-{service}"}),
        shutdown_on_exit=False,
    )


class RecordedTracing(Tracing):
    """Spans of one service, recorded by `provider`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("tandem")
        self._propagator = TraceContextTextMapPropagator()
        self._failed = StatusCode.ERROR

    @contextmanager
    def span(
        self, name: str, headers: Headers | None = None, **attributes: Attribute
    ) -> Iterator[Span]:
        sent = caller_headers() if headers is None else headers
        carrier = {key: text for key, text in sent if isinstance(text, str)}
        parent = self._propagator.extract(carrier)
        span = self._tracer.start_span(name, parent, attributes=_prefixed(attributes))
        try:
            yield RecordedSpan(self._tracer, span)
        except GeneratorExit:  # an answer that nobody reads to its end has not failed
            raise
        except BaseException as error:
            span.set_status(self._failed, type(error).__name__)
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


class RecordedSpan(Span):
    """A part of a request's time that is recorded."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._propagator = TraceContextTextMapPropagator()

    def headers(self) -> tuple[tuple[str, str], ...]:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._context)
        return tuple(carrier.items())

    def note(self, **attributes: Attribute) -> None:
        self._span.set_attributes(_prefixed(attributes))

    def record(self, name: str, duration_s: float, **attributes: Attribute) -> None:
        ended_ns = time.time_ns()
        child = self._tracer.start_span(
            name,
            self._context,
            attributes=_prefixed(attributes),
            start_time=ended_ns - round(duration_s * 1e9),
        )
        child.end(ended_ns)


def _prefixed(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {ATTRIBUTE_PREFIX + name: value for name, value in attributes.items()}
