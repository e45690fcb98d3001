"""Standing connections to several services of which any will do: a call goes to the one that is
nearest and serves. Invariant: a call keeps its service to its end, as with one connection; of a
service that was lost new calls learn at once."""

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import grpc

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.health_checks import HealthChecks, asked_health
from tandem.routing.router import CloudReport, Router


class NearestConnection(Connection):
    """A `Connection` to one of `targets`: of two of the near ones that with fewer calls of ours.
    They are asked, by health and round trip, from the first call on."""

    def __init__(
        self, targets: Sequence[str], max_message_bytes: int, access: ClientAccess
    ) -> None:
        super().__init__(targets[0], max_message_bytes, access)
        self._connections = [Connection(target, max_message_bytes, access) for target in targets]
        self._routing = Router(len(targets))
        self._open: Counter[int] = Counter()
        """Calls by the number of their service."""
        self._number_of: dict[grpc.aio.Channel, int] = {}
        self._calls_on: Counter[grpc.aio.Channel] = Counter()
        self._checks = HealthChecks(self._routing, self._ask, self._open)
        self._checking = False

    def acquire(self) -> grpc.aio.Channel:
        if not self._checking:
            self._checking = True
            for number, connection in enumerate(self._connections):
                self._checks.begin(number, connection)
        number = self._routing.choose(secrets.randbits(32))
        channel = self._connections[number].acquire()
        self._routing.opened(number)
        self._number_of[channel] = number
        self._calls_on[channel] += 1
        self._open[number] += 1
        return channel

    def retire(self, channel: grpc.aio.Channel) -> None:
        number = self._number_of[channel]
        self._connections[number].retire(channel)
        self._routing.lost(number, time.monotonic())

    async def release(self, channel: grpc.aio.Channel) -> None:
        number = self._number_of[channel]
        self._open[number] -= 1
        self._calls_on[channel] -= 1
        if not self._calls_on[channel]:
            del self._calls_on[channel], self._number_of[channel]
        await self._connections[number].release(channel)

    async def why_silent(self) -> str:
        """Diagnose the best known address."""
        return await self._connections[self._routing.ranked()[0]].why_silent()

    async def close(self) -> None:
        await self._checks.close()
        for connection in self._connections:
            await connection.close()

    async def _ask(self, number: int, channel: grpc.aio.Channel) -> CloudReport:
        return replace(await asked_health(channel), sessions=self._open[number])
