"""Health checks of several services of which any will do, over the connections that calls use.
Invariant: each is checked for as long as it is known, whatever a check ends with."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.core.foreign_words import cleaned
from tandem.net.connection import Connection
from tandem.net.failover import Failover
from tandem.net.status import details_of
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

CHECK_EVERY_S = 0.5
ANSWER_WITHIN_S = 1.5

Ask = Callable[[str, grpc.aio.Channel], Awaitable[bool]]
"""Whether the service at that address serves; whatever it raises counts as no answer."""


async def serves(address: str, channel: grpc.aio.Channel) -> bool:
    """Ask a service over an open connection whether it serves, by gRPC's health protocol."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_WITHIN_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class HealthChecks:
    """Tells `order` of the services' health. Used on the event loop."""

    def __init__(
        self,
        order: Failover,
        ask: Ask = serves,
        checked: Callable[[str], None] = lambda address: None,
    ) -> None:
        """Start with no services to check. `checked` is called after each check."""
        self._order = order
        self._ask = ask
        self._checked = checked
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()

    def begin(self, address: str, connection: Connection) -> None:
        """Check the service behind `connection` from now on."""
        self._silent.discard(address)
        self._tasks[address] = asyncio.create_task(self._check_again(address, connection))

    async def end(self, address: str) -> None:
        """Stop checking a service; nothing more is learnt of it once this returns."""
        task = self._tasks.pop(address)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for address in [*self._tasks]:
            await self.end(address)

    async def _check_again(self, address: str, connection: Connection) -> None:
        """Check again for ever, even after errors: a service whose checks had ended would never be
        used again."""
        while True:
            began_s = time.monotonic()
            try:
                await self._check(address, connection)
                self._checked(address)
            except Exception:
                log.exception("health check failed", address=address)
            await asyncio.sleep(max(0.0, began_s + CHECK_EVERY_S - time.monotonic()))

    async def _check(self, address: str, connection: Connection) -> None:
        try:
            serving = await self._answer(address, connection)
        except Exception as error:  # of any kind: it is asked again
            self._order.unanswered(address, time.monotonic())
            if address not in self._silent:
                why = _why(error, f"the service at {address}")
                log.warning("service does not answer", address=address, why=why)
            self._silent.add(address)
        else:
            self._order.answered(address, serving)
            self._silent.discard(address)

    async def _answer(self, address: str, connection: Connection) -> bool:
        async with connection.channel() as channel:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    await channel.channel_ready()
                    return await self._ask(address, channel)
            except Exception:
                connection.retire(channel)
                raise


def _why(error: Exception, stranger: str) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {details_of(error, stranger)}"
    return cleaned(repr(error))
