"""The verifiers that one drafter knows: connections, what they say when asked, and each session's
way among them. Invariants: a single one is never asked; of several the two best are asked often,
over the connections that sessions use, so that a move finds one open. Used on the event loop."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.backends.interface import KV_BLOCK
from tandem.net.access import ClientAccess
from tandem.net.channels import is_replicated, open_channel
from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL
from tandem.net.status import Rejected, details_of, upstream_rejection
from tandem.runtime.prefix_index import PrefixIndex
from tandem.specdec.cloud_routing import (
    ASK_COLD_EVERY_S,
    ASK_EVERY_S,
    CloudPlace,
    CloudReport,
    CloudRouting,
    MoveReason,
)
from tandem.specdec.liveness import LivenessTimes
from tandem.telemetry.cloud_series import CloudSeries
from tandem.telemetry.logging import get_logger
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

log = get_logger(__name__)

ASK_TIMEOUT_S = 1.5
DIAGNOSIS_TIMEOUT_S = 1.0
MOVE_S = 1.0
"""For what another cloud takes to answer, before a lost one is given up."""
MOST_BLOCKS = 65_536
"""Of texts, of which it is known where their keys and values were left."""
OWN_FAULT = frozenset({StatusCode.DEADLINE_EXCEEDED, StatusCode.INVALID_ARGUMENT})
"""Refusals that any other cloud would give too."""


class Clouds:
    """Everything the sessions share."""

    def __init__(
        self, addresses: Sequence[str], max_bytes: int, access: ClientAccess, series: CloudSeries
    ) -> None:
        self.addresses = tuple(addresses)
        self.routing = CloudRouting(len(self.addresses))
        self.sessions: Counter[int] = Counter()
        self.series = series
        self._max_bytes, self._access = max_bytes, access
        self._connections = [Connection(each, max_bytes, access) for each in self.addresses]
        self._asking: list[asyncio.Task[None]] = []
        self._texts: PrefixIndex[int] = PrefixIndex()

    @property
    def several(self) -> bool:
        return len(self.addresses) > 1

    def times(self, times: LivenessTimes) -> LivenessTimes:
        """Where there is another cloud, a silent one is left before it would be given up."""
        if not self.several:
            return times
        dead_s = min(times.dead_after_s, times.give_up_after_s - MOVE_S)
        return replace(times, dead_after_s=max(dead_s, 1.25 * times.ping_after_s))

    def begin(self) -> None:
        """Ask each cloud from now on."""
        if self.several:
            numbers = range(len(self.addresses))
            self._asking = [asyncio.create_task(self._ask_again(n)) for n in numbers]
            for address in self.addresses:
                self.series.knows(address)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for connection in self._connections:
            await connection.close()

    def left(self, holder: str, token_ids: Sequence[int], cloud: int) -> None:
        """A session of `holder` has ended there, with this text."""
        blocks = len(token_ids) // KV_BLOCK
        self._texts.put(holder, token_ids, [cloud] * blocks, block_bytes=1)
        self._texts.shrink(MOST_BLOCKS)

    def keeping(self, holder: str, token_ids: Sequence[int]) -> int | None:
        """The cloud that may still have the keys and values of most of this text: of an earlier
        turn, say. What is common to many texts, as a system prompt, binds none of them."""
        found = self._texts.find(holder, token_ids)
        return found[-1] if 2 * KV_BLOCK * len(found) > len(token_ids) else None

    def connection(self, cloud: int) -> Connection:
        return self._connections[cloud]

    async def describe(self, timeout_s: float) -> sampling_pb2.ModelDescription:
        """What the best cloud that answers serves. Raises Rejected with what each said."""
        refused: list[tuple[StatusCode, str]] = []
        for cloud in self.routing.ranked():
            try:
                return await self._describe(cloud, timeout_s)
            except Rejected as error:
                refused.append((error.code, f"{self.addresses[cloud]}: {error.code.name} {error}"))
        raise Rejected(refused[0][0], "; ".join(why for _, why in refused))

    async def why_silent(self, cloud: int) -> str:
        """Why it does not answer: waiting streams never hear what stands in their way."""
        try:
            await self._describe(cloud, DIAGNOSIS_TIMEOUT_S)
        except Rejected as error:
            return str(upstream_rejection(error.code, str(error)))
        return ""

    def status(self) -> Iterator[generation_pb2.CloudStatus]:
        """What is known of each of several clouds."""
        for number, address in enumerate(self.addresses if self.several else ()):
            cloud = self.routing.clouds[number]
            report = cloud.report or CloudReport(0.0, serving=False)
            yield generation_pb2.CloudStatus(
                address=address,
                serving=cloud.usable,
                round_trip_s=cloud.round_trip_s,
                queue_s=report.queue_s,
                pass_s=report.pass_s,
                model_name=report.model,
                sessions=report.sessions,
                own_sessions=self.sessions[number],
            )

    async def _describe(self, cloud: int, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Over a connection of its own: what a standing one is like says little about now."""
        address = self.addresses[cloud]
        async with open_channel(address, self._max_bytes, self._access) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            try:
                answer = await stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                raise Rejected(error.code(), details_of(error)) from None
        return answer.model

    async def _ask_again(self, cloud: int) -> None:
        """For ever."""
        while True:
            began_s = time.monotonic()
            await self._ask(cloud)
            warm = cloud in self.routing.warm() or self.sessions[cloud]
            every_s = ASK_EVERY_S if warm else ASK_COLD_EVERY_S
            await asyncio.sleep(max(0.0, began_s + every_s - time.monotonic()))

    async def _ask(self, cloud: int) -> None:
        connection, address = self._connections[cloud], self.addresses[cloud]
        async with connection.channel() as channel:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    report = await _report(channel)
            except (TimeoutError, grpc.aio.AioRpcError):
                connection.retire(channel)
                self.routing.unanswered(cloud, time.monotonic())
            else:
                self.routing.reported(cloud, report, time.monotonic())
                self.series.asked(address, report.round_trip_s)
        self.series.works(address, self.routing.clouds[cloud].usable)
        if cloud not in self.routing.warm() and not self.sessions[cloud]:
            async with connection.channel() as channel:
                connection.retire(channel)


class CloudRoute:
    """One session's way; it counts at its cloud until `end`."""

    def __init__(
        self, clouds: Clouds, session: int, holder: str = "", prompt_ids: Sequence[int] = ()
    ) -> None:
        """`prompt_ids` of which the cloud may keep the keys and values, for this holder."""
        self._clouds, self._session = clouds, session
        self._holder, self._prompt_ids = holder, prompt_ids
        self._place: CloudPlace | None = None
        self._reason: MoveReason | None = None
        self._refused: set[int] = set()
        self._model = ""

    @property
    def address(self) -> str:
        return "" if self._place is None else self._clouds.addresses[self._place.cloud]

    def connect(self) -> Connection:
        """Where the next stream goes; a stream that broke by a fault of the conversation comes back
        to where it was."""
        clouds, place, now = self._clouds, self._place, time.monotonic()
        if not clouds.several:
            return clouds.connection(0)
        if place is None:
            kept = clouds.keeping(self._holder, self._prompt_ids)
            self._settle(CloudPlace(clouds.routing.choose(self._session, kept=kept), now))
        elif self._reason is not None:
            refused, leaving = self._refused, place.cloud
            found = clouds.routing.choose(self._session, self._model, refused, leaving)
            if found != place.cloud:
                moves = place.moves + (self._reason is MoveReason.BETTER)
                self._moved(place.cloud, found, self._reason)
                self._settle(CloudPlace(found, now, moves))
            self._reason = None
        assert self._place is not None
        return clouds.connection(self._place.cloud)

    def asked_to_leave(self, now: float) -> None:
        """By its cloud; one with replicas has others."""
        if self._place is not None and not is_replicated(self.address):
            self._clouds.routing.leaves(self._place.cloud, now)
            self._reason = MoveReason.DRAINING

    def admits(self, model: str) -> bool:
        """Whether the cloud that was reached, which serves `model`, may go on with the text."""
        self._model = self._model or model
        return self._place is None or self._model == model

    def leave_due(self, now: float) -> bool:
        """Whether a session with a working stream should move."""
        if self._place is None or not self._model:
            return False
        reason = self._clouds.routing.why_leave(self._place, self._session, now, self._model)
        self._reason = self._reason or reason
        return reason is not None

    def failed(self, code: StatusCode, now: float) -> bool:
        """Its stream ended with this, or was silent for too long; whether another cloud is left
        that has not refused it."""
        if self._place is None or code in OWN_FAULT:
            return False
        cloud = self._place.cloud
        if code in FATAL:
            self._refused.add(cloud)
            self._reason = MoveReason.REFUSED
            return len(self._refused) < len(self._clouds.addresses)
        self._clouds.routing.lost(cloud, now)
        self._reason = MoveReason.LOST
        return True

    async def why_silent(self) -> str:
        return await self._clouds.why_silent(0 if self._place is None else self._place.cloud)

    def end(self, token_ids: Sequence[int]) -> None:
        """The session is over, with this text."""
        if self._place is not None and self._prompt_ids:
            self._clouds.left(self._holder, token_ids, self._place.cloud)
        self._leave()

    def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            self._count(place.cloud, -1)

    def _settle(self, place: CloudPlace) -> None:
        self._clouds.routing.opened(place.cloud)
        self._leave()
        self._place = place
        self._count(place.cloud, 1)

    def _count(self, cloud: int, change: int) -> None:
        self._clouds.sessions[cloud] += change
        self._clouds.series.holds(self._clouds.addresses[cloud], self._clouds.sessions[cloud])

    def _moved(self, origin: int, found: int, reason: MoveReason) -> None:
        addresses = self._clouds.addresses
        log.info("session moved", origin=addresses[origin], to=addresses[found], reason=str(reason))
        self._clouds.series.moved(str(reason))


async def _report(channel: grpc.aio.Channel) -> CloudReport:
    """What a cloud answers. A round trip is that of the smallest question there is, on an open
    connection."""
    await channel.channel_ready()
    health: Any = health_pb2_grpc.HealthStub(channel)
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    began_s = time.monotonic()
    check = health.Check(health_pb2.HealthCheckRequest(), timeout=ASK_TIMEOUT_S)
    describe = stub.Describe(verifier_pb2.DescribeRequest(), timeout=ASK_TIMEOUT_S)
    serving = (await check).status == health_pb2.HealthCheckResponse.SERVING
    round_trip_s = time.monotonic() - began_s
    told = await describe
    return CloudReport(
        round_trip_s,
        serving,
        model=told.model.model_name,
        sessions=told.sessions_open,
        max_sessions=told.max_sessions,
        queue_s=told.queue_s,
        pass_s=told.pass_s,
    )
