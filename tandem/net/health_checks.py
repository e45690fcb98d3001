"""Health checks of several services of which any will do, over the connections that calls use.
Invariant: the two best are asked often and the others seldom, each for as long as it is known,
whatever an asking ends with; no connection is kept to one that is far from being chosen."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.core.foreign_words import cleaned
from tandem.net.connection import Connection
from tandem.net.status import details_of
from tandem.routing.router import ASK_COLD_EVERY_S, ASK_EVERY_S, CloudReport, Router
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

ANSWER_WITHIN_S = 1.5

Ask = Callable[[int, grpc.aio.Channel], Awaitable[CloudReport]]
"""What the service of that number answers; whatever it raises counts as no answer."""


class HealthChecks:
    """Tells `routing` of the services, which have its numbers. Used on the event loop."""

    def __init__(
        self,
        routing: Router,
        ask: Ask,
        in_use: Counter[int],
        checked: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Start with no services to check. `in_use` counts this process's calls at each service;
        `checked` is called after each check."""
        self._routing = routing
        self._ask = ask
        self._in_use = in_use
        self._checked = checked
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._silent: set[int] = set()

    def begin(self, number: int, connection: Connection) -> None:
        """Check the service behind `connection` from now on."""
        self._silent.discard(number)
        self._tasks[number] = asyncio.create_task(self._check_again(number, connection))

    async def end(self, number: int) -> None:
        """Stop checking a service; `routing` learns nothing more of it once this returns."""
        task = self._tasks.pop(number)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for number in [*self._tasks]:
            await self.end(number)

    async def _check_again(self, number: int, connection: Connection) -> None:
        """Check again for ever, even after errors: a service whose checks had ended would never be
        used again."""
        while True:
            began_s = time.monotonic()
            every_s = ASK_EVERY_S
            try:
                await self._check(number, connection)
                self._checked(number)
                if number not in self._routing.warm() and not self._in_use[number]:
                    every_s = ASK_COLD_EVERY_S
                    await connection.rest()
            except Exception:
                log.exception("health check failed", address=connection.target)
            await asyncio.sleep(max(0.0, began_s + every_s - time.monotonic()))

    async def _check(self, number: int, connection: Connection) -> None:
        try:
            report = await self._answer(number, connection)
        except Exception as error:  # of any kind: it is asked again
            self._routing.unanswered(number, time.monotonic())
            if number not in self._silent:
                why = _why(error, f"the service at {connection.target}")
                log.warning("service does not answer", address=connection.target, why=why)
            self._silent.add(number)
        else:
            self._routing.reported(number, report, time.monotonic())
            self._silent.discard(number)

    async def _answer(self, number: int, connection: Connection) -> CloudReport:
        async with connection.channel() as channel:
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    await channel.channel_ready()
                    return await self._ask(number, channel)
            except Exception:
                connection.retire(channel)
                raise


async def asked_health(channel: grpc.aio.Channel) -> CloudReport:
    """Query the health of a service over an open connection. The reported round trip is that of
    this small call."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    began_s = time.monotonic()
    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_WITHIN_S)
    round_trip_s = time.monotonic() - began_s
    return CloudReport(round_trip_s, answer.status == health_pb2.HealthCheckResponse.SERVING)


def _why(error: Exception, stranger: str) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {details_of(error, stranger)}"
    return cleaned(repr(error))
