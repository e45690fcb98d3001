"""Standing connections to several services of which any will do, as one connection: a call goes to
the first healthy one, a request's to one that has not refused it. Invariant: a call keeps its
service to its end; of a service that was lost new calls learn at once, of a refusal its request
alone."""

import time
from collections import Counter
from collections.abc import Collection, Sequence

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
        self.targets = frozenset(targets)
        self._connections = {
            target: Connection(target, max_message_bytes, access) for target in targets
        }
        self._order = Failover(targets)
        self._target_of: dict[grpc.aio.Channel, str] = {}
        self._calls_on: Counter[grpc.aio.Channel] = Counter()
        self._checks = HealthChecks(self._order)
        self._checking = False

    def for_request(self) -> Connection:
        return _RequestConnection(self)

    def acquire(self, avoided: Collection[str] = ()) -> grpc.aio.Channel:
        """Return a channel for one call, to none of the `avoided` services if there are others."""
        if not self._checking:
            self._checking = True
            for target, connection in self._connections.items():
                self._checks.begin(target, connection)
        target = self._order.choose(avoided)
        channel = self._connections[target].acquire()
        self._target_of[channel] = target
        self._calls_on[channel] += 1
        return channel

    def retire(self, channel: grpc.aio.Channel) -> None:
        target = self._target_of[channel]
        self._connections[target].retire(channel)
        self._order.lost(target, time.monotonic())

    def refused(self, channel: grpc.aio.Channel) -> None:
        self._connections[self.target_of(channel)].refused(channel)

    def target_of(self, channel: grpc.aio.Channel) -> str:
        """Return the service that a call on `channel` goes to."""
        return self._target_of[channel]

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


class _RequestConnection(Connection):
    """One request's way to the services; once all of them refused it, it asks them in turn."""

    def __init__(self, services: FailoverConnection) -> None:
        self.target = services.target
        self._services = services
        self._refused_by: set[str] = set()

    def acquire(self) -> grpc.aio.Channel:
        return self._services.acquire(self._refused_by)

    def retire(self, channel: grpc.aio.Channel) -> None:
        self._refused_by.clear()  # where it was refused there may be room by now
        self._services.retire(channel)

    def refused(self, channel: grpc.aio.Channel) -> None:
        target = self._services.target_of(channel)
        self._refused_by.add(target)
        if self._refused_by >= self._services.targets:
            self._refused_by = {target}
        self._services.refused(channel)

    async def release(self, channel: grpc.aio.Channel) -> None:
        await self._services.release(channel)
