"""Devices' streams at the cloud's aggregator: admitted, traced, and served with its documents."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tandem.core.errors import Unavailable
from tandem.net.admission import SESSIONS, Admission, quota_of
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.side_resources import SideResources
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Headers, Span, Tracing
from tandem.two_sided.interface import (
    AGGREGATION_PRESETS,
    CloudAnswers,
    CollaborationStream,
    ContextDocument,
    FetchStream,
)

log = get_logger(__name__)

Search = Callable[[str, int], Awaitable[tuple[ContextDocument, ...]]]


class CloudSide:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        resources: SideResources,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._tracing = tracing
        self._resources = resources
        self._answers = CloudAnswers(
            decoder=self._resources.decoder,
            profiling=self._resources.profiling,
            request_timeout_s=settings.request_timeout_s,
        )
        self._admission = Admission(
            {SESSIONS: settings.max_running}, quota=quota_of(settings), series=metrics.holders()
        )
        self._leaving = False

    @property
    def open_requests(self) -> int:
        return self._admission.sessions

    def going_away(self, grace_s: float) -> None:
        """Refuse new collaborations, and ask those there are to go on elsewhere."""
        self._leaving = True
        self._answers.going_away(grace_s)

    async def close(self) -> None:
        await self._answers.close()

    async def collaborate(self, stream: CollaborationStream) -> None:
        """Serve one device's stream."""
        collaboration = await self._answers.open(stream)
        opening = collaboration.opening
        preset = opening.request.preset.name  # the device's; any text
        label = preset if preset in AGGREGATION_PRESETS else OTHER
        headers = stream.invocation_metadata()
        with self._admitted(
            "collaborate", headers, session=f"{opening.session:08x}", preset=label
        ) as span:
            await self._answers.serve(collaboration, self._search(span), span.headers())

    async def fetch_documents(self, stream: FetchStream) -> None:
        """Serve one device's stream that asks for documents."""
        find = await self._answers.asked(stream)
        with self._admitted("fetch documents", stream.invocation_metadata()) as span:
            await self._answers.give(stream, find, self._search(span), span.headers())

    @contextmanager
    def _admitted(self, what: str, headers: Headers | None, **named: str) -> Iterator[Span]:
        """Hold a place for a device's stream. Raises ResourceExhausted, or Unavailable while the
        service stops."""
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        with (
            self._admission.reserve(),
            log_context(**named),
            self._tracing.span(what, headers, **named) as span,
        ):
            log.info(f"{what}: begun")
            try:
                yield span
            finally:
                log.info(f"{what}: ended")

    def _search(self, span: Span) -> Search:
        async def search(query: str, count: int) -> tuple[ContextDocument, ...]:
            return await self._resources.retrieval.search(query, count, span.headers())

        return search
