"""Traces: what one request did, on every service it passed through, as spans of one tree.

Off by default: `Tracing` and `Span` record and send nothing; those of `recorded_spans`, which needs
the extra `tracing`, derive from them. A span's context is sent as W3C `traceparent` in metadata.
Invariant: attributes are numbers and names of ours, never a caller's text.

    with tracing.span("generate", context.invocation_metadata(), preset="dsd") as span:
        call = stub.Verify(metadata=span.headers())
        span.record("draft round", duration_s=0.031, accepted=4)
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from tandem.core.errors import TandemError

Headers = Iterable[tuple[str, str | bytes]]
Sent = tuple[tuple[str, str], ...] | None
"""Metadata that makes what a called service does a child of a span; None without tracing."""

Attribute = str | int | float | bool


class TracingUnavailable(TandemError):
    """Traces were asked for and cannot be made."""


class Span:
    """A part of a request's time; this one is not recorded."""

    def headers(self) -> Sent:
        """Of this span."""
        return None

    def note(self, **attributes: Attribute) -> None:
        """Add attributes."""

    def record(self, name: str, duration_s: float, **attributes: Attribute) -> None:
        """A child that took so long and ended now."""


class Tracing:
    """Where a service's spans go; with this one, nowhere."""

    def span(
        self, name: str, headers: Headers | None = None, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        """A span around what happens inside; a child of the one in the caller's `headers`, if any.
        An exception that leaves it marks it as failed, by its type alone."""
        return NOT_RECORDED

    def close(self) -> None:
        """Send what is left; blocks for some seconds at most."""


_callers: ContextVar[Headers] = ContextVar("tandem_caller_headers", default=())


@contextmanager
def called_with(headers: Headers) -> Iterator[None]:
    """In here, and in tasks begun in here, a span that is given no headers takes these."""
    outer = _callers.get()
    _callers.set(tuple(headers))
    try:
        yield
    finally:
        _callers.set(outer)


def caller_headers() -> Headers:
    """Those of the innermost `called_with`."""
    return _callers.get()


NO_TRACING = Tracing()
NOT_RECORDED = nullcontext(Span())


def open_tracing(endpoint: str | None, sample: float, service: str) -> Tracing:
    """Spans of `service` to the OTLP collector at `endpoint`, as http://127.0.0.1:4317, for the
    share `sample` of the traces that begin here; none at all without an endpoint. Raises
    TracingUnavailable when the extra is not installed or the endpoint is no such address."""
    if endpoint is None:
        return NO_TRACING
    if not endpoint.startswith(("http://", "https://")):
        why = f"must be http://HOST:PORT or https://HOST:PORT, got {endpoint[:80]!r}"
        raise TracingUnavailable(f"TANDEM_TRACE_ENDPOINT: {why}")
    try:
        from tandem.telemetry.recorded_spans import exported_tracing
    except ModuleNotFoundError as error:
        why = f"needs {error.name}: install the extra 'tracing'"
        raise TracingUnavailable(f"TANDEM_TRACE_ENDPOINT: {why}") from error
    return exported_tracing(endpoint, sample, service)
