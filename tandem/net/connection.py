"""A standing connection to one service, shared by all calls until it is no longer to be trusted.
Invariant: a call keeps the channel it began on to its end; a new call gets a fresh one after a
loss, now and then after a refusal, after this process's certificate changed and, where the target
stands for replicas, after a while: a channel looks for replicas that were added only when it loses
one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.net.access import ClientAccess
from tandem.net.channels import is_replicated, open_channel, replicas_of
from tandem.net.status import details_of

HEALTH_MESSAGE_BYTES = 2**16
DIAGNOSIS_TIMEOUT_S = 1.0

FRESH_FOR_S = 120.0
"""How long a channel to replicas is used for new calls."""

KEPT_FOR_S = 10.0
"""How long a channel is used whatever is refused on it: a new one takes round trips, for which
everybody's next call waits, so that who is refused all the time must not cost them one each."""


class Connection:
    """The channel that new calls use, kept open between them. Used on the event loop only."""

    def __init__(
        self,
        target: str,
        max_message_bytes: int,
        access: ClientAccess,
        fresh_for_s: float = FRESH_FOR_S,
    ) -> None:
        self.target = target
        self._fresh_for_s = fresh_for_s if is_replicated(target) else float("inf")
        self._opened_s = 0.0
        self._max_message_bytes = max_message_bytes
        self._access = access
        self._credentials: grpc.ChannelCredentials | None = None
        self._current: grpc.aio.Channel | None = None
        self._calls: Counter[grpc.aio.Channel] = Counter()
        self._unused: list[grpc.aio.Channel] = []

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a channel for the calls made inside."""
        channel = self.acquire()
        try:
            yield channel
        finally:
            await self.release(channel)

    async def every_replica(self) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a fresh channel to each replica that the target stands for now, one after the
        other. Raises OSError for a name that cannot be resolved."""
        name = self.target.removeprefix("dns:///").rpartition(":")[0]
        for address in await replicas_of(self.target):
            called = name if address != self.target else ""
            fresh = open_channel(address, self._max_message_bytes, self._access, called)
            async with fresh as channel:
                yield channel

    def acquire(self) -> grpc.aio.Channel:
        """Return a channel for one call; give it back with `release`."""
        credentials = self._access.channel_credentials()
        now = asyncio.get_running_loop().time()
        stale = now - self._opened_s >= self._fresh_for_s
        if self._current is not None and (stale or credentials is not self._credentials):
            self.retire(self._current)
        if self._current is None:
            self._opened_s = now
            self._credentials = credentials
            self._current = open_channel(self.target, self._max_message_bytes, self._access)
        self._calls[self._current] += 1
        return self._current

    def retire(self, channel: grpc.aio.Channel) -> None:
        """Use `channel` for no new calls."""
        if channel is self._current:
            self._current = None
            if not self._calls[channel]:
                self._unused.append(channel)

    def refused(self, channel: grpc.aio.Channel) -> None:
        """Record that the service ended a call with a status of the call's own, which says nothing
        about other calls. Now and then the next try takes another channel: there may be replicas
        behind the target, of which it does not know."""
        if asyncio.get_running_loop().time() - self._opened_s >= KEPT_FOR_S:
            self.retire(channel)

    def for_request(self) -> "Connection":
        """Return the connection for the calls of one request, which avoids services that refused
        it, where there are several."""
        return self

    async def release(self, channel: grpc.aio.Channel) -> None:
        """End a call on `channel`; the last one closes a channel that is not trusted."""
        self._calls[channel] -= 1
        if self._calls[channel] == 0:
            del self._calls[channel]
            if channel is not self._current:
                self._unused.append(channel)
        await self._close_unused()

    async def rest(self) -> None:
        """Keep no channel open but those that calls use."""
        if self._current is not None:
            self.retire(self._current)
        await self._close_unused()

    async def why_silent(self) -> str:
        """Return why a fresh connection is not served, in one line; empty if it is. Calls that wait
        for a connection never hear what stands in its way."""
        async with open_channel(self.target, HEALTH_MESSAGE_BYTES, self._access) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=DIAGNOSIS_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return details_of(error, f"the service at {self.target}")
        return ""

    async def close(self) -> None:
        channels = {*self._calls, *self._unused, *((self._current,) if self._current else ())}
        self._current = None
        for channel in channels:
            await channel.close()

    async def _close_unused(self) -> None:
        while self._unused:
            await self._unused.pop().close()
