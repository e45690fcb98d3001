"""What the aggregator of either side uses: decoder, retriever, profiling, the other side."""

from tandem.net.access import ClientAccess
from tandem.net.addresses import addresses_of
from tandem.net.connection import Connection
from tandem.net.failover_connection import FailoverConnection
from tandem.net.process import prometheus_server
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.retrieval import Retrieval
from tandem.telemetry.metrics import Metrics
from tandem.two_sided.interface import Profiling, Side


class SideResources:
    """Used on the event loop only."""

    def __init__(
        self, settings: AggregatorSettings, metrics: Metrics, access: ClientAccess
    ) -> None:
        most = settings.max_message_bytes
        retriever = settings.retriever
        self.decoder = Connection(settings.decoder or settings.drafter, most, access)
        self.retrieval = Retrieval(Connection(retriever, most, access) if retriever else None)
        self.cloud = cloud_connection(settings, access) if settings.cloud else None
        self.profiling = Profiling(
            Side[settings.side.upper()],
            metrics,
            server=prometheus_server(settings),
            instance=settings.prometheus_instance,
            fits=settings.profile_file,
        )

    async def close(self) -> None:
        await self.profiling.close()
        await self.retrieval.close()
        await self.decoder.close()
        if self.cloud is not None:
            await self.cloud.close()


def cloud_connection(settings: AggregatorSettings, access: ClientAccess) -> Connection:
    """Return the connection to the other side, which is shown another key; if that is several
    addresses, to the first healthy one."""
    targets = addresses_of(settings.cloud)
    most = settings.max_message_bytes
    if len(targets) > 1:
        return FailoverConnection(targets, most, access.to_cloud())
    return Connection(settings.cloud, most, access.to_cloud())
