"""What the aggregator of either side uses: decoder, retriever, profiling."""

import asyncio

from tandem.net.access import ClientAccess
from tandem.net.addresses import addresses_of
from tandem.net.connection import Connection
from tandem.net.nearest import NearestConnection
from tandem.net.process import prometheus_server
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.retrieval import Retrieval
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem.two_sided.interface import DecoderEvents, DecoderLink, DecodingOpen, Profiling, Side

CLOSING_S = 1.0
_SIDES = {"device": Side.DEVICE, "cloud": Side.CLOUD}


class SideResources:
    """Used on the event loop only; `closing_tasks`: streams that are being closed."""

    def __init__(
        self, settings: AggregatorSettings, metrics: Metrics, access: ClientAccess
    ) -> None:
        self._max_message_bytes = settings.max_message_bytes
        self._access = access
        self.decoder = self.connection(settings.decoder or settings.drafter)
        retriever = settings.retriever
        side = _SIDES[settings.side]
        self.retrieval = Retrieval(self.connection(retriever) if retriever else None)
        self.closing_tasks: set[asyncio.Task[None]] = set()
        self.profiling = Profiling(
            side,
            metrics,
            server=prometheus_server(settings),
            instance=settings.prometheus_instance,
            fits=settings.profile_file,
        )

    def connection(self, target: str) -> Connection:
        return Connection(target, self._max_message_bytes, self._access)

    def cloud_connection(self, target: str) -> Connection:
        """To the other side, which is shown another key; of several the nearest that serves."""
        targets = addresses_of(target)
        access = self._access.to_cloud()
        if len(targets) > 1:
            return NearestConnection(targets, self._max_message_bytes, access)
        return Connection(target, self._max_message_bytes, access)

    def decoder_link(
        self, opening: DecodingOpen, events: DecoderEvents, deadline_s: float, headers: Sent
    ) -> DecoderLink:
        """An open stream to this side's decoder."""
        return DecoderLink(
            self.decoder,
            opening,
            events=events,
            deadline_s=deadline_s,
            closing_tasks=self.closing_tasks,
            headers=headers,
        )

    async def close(self) -> None:
        if self.closing_tasks:
            await asyncio.wait(self.closing_tasks, timeout=CLOSING_S)
        await self.profiling.close()
        await self.retrieval.close()
        await self.decoder.close()
