"""Standing connections to several services of which any will do: a call goes to the one that is
nearest and serves. Invariant: a call keeps its service to its end, as with one connection; of a
service that was lost new calls learn at once."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.specdec.cloud_routing import ASK_COLD_EVERY_S, ASK_EVERY_S, CloudReport, CloudRouting

ASK_TIMEOUT_S = 1.5


class NearestConnection(Connection):
    """As a `Connection`, to one of `targets`: of two of the near ones that with fewer calls of
    ours. They are asked, by health and round trip, from the first call on."""

    def __init__(
        self, targets: Sequence[str], max_message_bytes: int, access: ClientAccess
    ) -> None:
        super().__init__(targets[0], max_message_bytes, access)
        self._connections = [Connection(each, max_message_bytes, access) for each in targets]
        self._routing = CloudRouting(len(targets))
        self._number_of: dict[grpc.aio.Channel, int] = {}
        self._open = [0] * len(targets)
        self._asking: list[asyncio.Task[None]] = []

    def acquire(self) -> grpc.aio.Channel:
        if not self._asking:
            numbers = range(len(self._connections))
            self._asking = [asyncio.create_task(self._ask_again(each)) for each in numbers]
        number = self._routing.choose(secrets.randbits(32))
        self._routing.opened(number)
        channel = self._connections[number].acquire()
        self._number_of[channel] = number
        self._open[number] += 1
        return channel

    def retire(self, channel: grpc.aio.Channel) -> None:
        number = self._number_of[channel]
        self._connections[number].retire(channel)
        self._routing.lost(number, time.monotonic())

    async def release(self, channel: grpc.aio.Channel) -> None:
        number = self._number_of[channel]
        self._open[number] -= 1
        if not self._open[number]:
            self._number_of = {each: of for each, of in self._number_of.items() if of != number}
        await self._connections[number].release(channel)

    async def why_silent(self) -> str:
        """Of the best one that is known."""
        return await self._connections[self._routing.ranked()[0]].why_silent()

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for connection in self._connections:
            await connection.close()

    async def _ask_again(self, number: int) -> None:
        """For ever."""
        while True:
            await self._ask(number)
            warm = number in self._routing.warm() or self._open[number]
            await asyncio.sleep(ASK_EVERY_S if warm else ASK_COLD_EVERY_S)

    async def _ask(self, number: int) -> None:
        connection = self._connections[number]
        async with connection.channel() as channel:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    report = await self._report(number, channel)
            except (TimeoutError, grpc.aio.AioRpcError):
                connection.retire(channel)
                self._routing.unanswered(number, time.monotonic())
            else:
                self._routing.reported(number, report, time.monotonic())

    async def _report(self, number: int, channel: grpc.aio.Channel) -> CloudReport:
        await channel.channel_ready()
        health: Any = health_pb2_grpc.HealthStub(channel)
        began_s = time.monotonic()
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=ASK_TIMEOUT_S)
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return CloudReport(time.monotonic() - began_s, serving, sessions=self._open[number])
