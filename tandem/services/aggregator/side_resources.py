"""What the aggregator of either side uses: decoder, retriever, profiling."""

from tandem.net.access import ClientAccess
from tandem.net.addresses import addresses_of
from tandem.net.connection import Connection
from tandem.net.failover_connection import FailoverConnection
from tandem.net.process import prometheus_server
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.retrieval import Retrieval
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.interface import Profiling, Side

_SIDES = {"device": Side.DEVICE, "cloud": Side.CLOUD}


class SideResources:
    """Used on the event loop only."""

    def __init__(
        self, settings: AggregatorSettings, metrics: Metrics, access: ClientAccess
    ) -> None:
        self._max_message_bytes = settings.max_message_bytes
        self._access = access
        self.decoder = self.connection(settings.decoder or settings.drafter)
        retriever = settings.retriever
        self.retrieval = Retrieval(self.connection(retriever) if retriever else None)
        self.profiling = Profiling(
            _SIDES[settings.side],
            metrics,
            server=prometheus_server(settings),
            instance=settings.prometheus_instance,
            fits=settings.profile_file,
        )

    def connection(self, target: str) -> Connection:
        return Connection(target, self._max_message_bytes, self._access)

    def cloud_connection(self, target: str) -> Connection:
        """Return a connection to the other side, which is shown another key; if `target` is several
        addresses, to the first healthy one."""
        targets = addresses_of(target)
        access = self._access.to_cloud()
        if len(targets) > 1:
            return FailoverConnection(targets, self._max_message_bytes, access)
        return Connection(target, self._max_message_bytes, access)

    async def close(self) -> None:
        await self.profiling.close()
        await self.retrieval.close()
        await self.decoder.close()
