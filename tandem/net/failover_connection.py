"""Standing connections to several services of which any will do, as one connection: a call goes to
the first healthy one. Invariant: a call keeps its service to its end; of a service that was lost
new calls learn at once."""

import time
from collections import Counter
from collections.abc import Sequence

import grpc

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.failover import Failover
from tandem.net.health_checks import HealthChecks


class FailoverConnection(Connection):
    """A `Connection` to the first healthy one of `targets`, whose health is checked from the first
    call on."""

    def __init__(
        self, targets: Sequence[str], max_message_bytes: int, access: ClientAccess
    ) -> None:
        super().__init__(targets[0], max_message_bytes, access)
        self._connections = {
            target: Connection(target, max_message_bytes, access) for target in targets
        }
        self._order = Failover(targets)
        self._target_of: dict[grpc.aio.Channel, str] = {}
        self._calls_on: Counter[grpc.aio.Channel] = Counter()
        self._checks = HealthChecks(self._order)
        self._checking = False

    def acquire(self) -> grpc.aio.Channel:
        if not self._checking:
            self._checking = True
            for target, connection in self._connections.items():
                self._checks.begin(target, connection)
        target = self._order.choose()
        channel = self._connections[target].acquire()
        self._target_of[channel] = target
        self._calls_on[channel] += 1
        return channel

    def retire(self, channel: grpc.aio.Channel) -> None:
        target = self._target_of[channel]
        self._connections[target].retire(channel)
        self._order.lost(target, time.monotonic())

    async def release(self, channel: grpc.aio.Channel) -> None:
        target = self._target_of[channel]
        self._calls_on[channel] -= 1
        if not self._calls_on[channel]:
            del self._calls_on[channel], self._target_of[channel]
        await self._connections[target].release(channel)

    async def why_silent(self) -> str:
        """Diagnose the service that the next call would go to."""
        return await self._connections[self._order.choose()].why_silent()

    async def close(self) -> None:
        await self._checks.close()
        for connection in self._connections.values():
            await connection.close()
