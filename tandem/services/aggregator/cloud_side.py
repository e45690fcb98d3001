"""Devices' streams at the cloud's aggregator: admitted, traced, and served with its documents."""

from tandem.core.errors import Unavailable
from tandem.net.access import ClientAccess
from tandem.net.admission import SESSIONS, Admission, quota_of
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.side_resources import SideResources
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.two_sided.interface import (
    AGGREGATION_PRESETS,
    CloudAnswers,
    CollaborationStream,
    ContextDocument,
)

log = get_logger(__name__)


class CloudSide:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._tracing = tracing
        self._resources = SideResources(settings, metrics, access)
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
        await self._resources.close()

    async def collaborate(self, stream: CollaborationStream) -> None:
        """Serve one device's stream."""
        collaboration = await self._answers.open(stream)
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        opening = collaboration.opening
        preset = opening.request.preset.name  # the device's; any text
        label = preset if preset in AGGREGATION_PRESETS else OTHER
        named = {"session": f"{opening.session:08x}", "preset": label}
        headers = stream.invocation_metadata()
        with (
            self._admission.reserve(),
            log_context(**named),
            self._tracing.span("collaborate", headers, **named) as span,
        ):

            async def search(query: str, count: int) -> tuple[ContextDocument, ...]:
                return await self._resources.retrieval.search(query, count, span.headers())

            log.info("collaboration begun")
            try:
                await self._answers.serve(collaboration, search, span.headers())
            finally:
                log.info("collaboration ended")
