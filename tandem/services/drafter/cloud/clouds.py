"""The verifiers that one drafter knows: connections, and what they say when asked. Invariants: a
single one that a setting names is never asked; of several the two best are asked often, over the
connections that sessions use, so that a move finds one open. Used on the event loop."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import grpc
from grpc import StatusCode

from tandem.backends.interface import KV_BLOCK
from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import cleaned
from tandem.net.access import ClientAccess
from tandem.net.channels import open_channel
from tandem.net.connection import Connection
from tandem.net.health_checks import ANSWER_WITHIN_S, HealthChecks, asked_health
from tandem.net.own_side import is_loopback
from tandem.net.reloaded import Reloaded
from tandem.net.status import Rejected, details_of, upstream_rejection
from tandem.net.tenant import Tenant
from tandem.routing.router import CloudReport, Router
from tandem.runtime.prefix_index import PrefixIndex
from tandem.services.drafter.cloud.listed import ListedCloud
from tandem.specdec.liveness import LivenessTimes
from tandem.telemetry.cloud_series import CloudSeries
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

DIAGNOSIS_TIMEOUT_S = 1.0
MOST_BLOCKS = 65_536
"""Of texts, of which it is known where their keys and values were left."""
LOOK_EVERY_S = 0.5
"""How often a file of clouds is looked at."""


class Clouds:
    """Everything the sessions share."""

    def __init__(
        self,
        listed: Sequence[ListedCloud] | Reloaded[tuple[ListedCloud, ...]],
        max_bytes: int,
        access: ClientAccess,
        series: CloudSeries,
        price_weight: float = 1.0,
    ) -> None:
        self.series = series
        self.sessions: Counter[int] = Counter()
        self.relieved_s = -math.inf
        """When a session last left a cloud because it is busy."""
        self.addresses: list[str] = []
        self.routing = Router(0, price_weight)
        self._file = listed if isinstance(listed, Reloaded) else None
        self._max_bytes = max_bytes
        self._access = access
        self._connections: list[Connection] = []
        self._listed: dict[int, ListedCloud] = {}
        self._checks = HealthChecks(self.routing, self._ask, self.sessions, self._checked)
        self._following: asyncio.Task[None] | None = None
        self._texts: PrefixIndex[str] = PrefixIndex()
        """By address: a number may be another cloud's later."""
        self.has_draft_model = True
        """Whether the cloud that was described last has one; before that, nobody knows."""
        self._longest_drafts: dict[str, int] = {}
        for each in listed.current() if isinstance(listed, Reloaded) else listed:
            self._know(each)

    @property
    def on_this_machine(self) -> bool:
        """True if every cloud is reached without leaving the machine."""
        return all(is_loopback(address.rpartition(":")[0]) for address in self.addresses)

    @property
    def count(self) -> int:
        """Number of the clouds in the current list."""
        return len(self._listed)

    def others(self, than: Collection[str]) -> bool:
        """Return whether the list has a cloud at none of these addresses."""
        return any(each.address not in than for each in self._listed.values())

    @property
    def several(self) -> bool:
        """True if there may be other clouds."""
        return self.count > 1 or self._file is not None

    def times(self, times: LivenessTimes) -> LivenessTimes:
        """Return the times of a silent peer: if there is another cloud, it is left before it would
        be given up."""
        return times.with_others() if self.count > 1 else times

    @property
    def longest_draft(self) -> int:
        """Drafts in a frame that every cloud takes which has said so; 0 while none has."""
        return min(self._longest_drafts.values(), default=0)

    def takes(self, cloud: int, longest_draft: int) -> None:
        """Note how many drafts a cloud takes in a frame."""
        self._longest_drafts[self.addresses[cloud]] = longest_draft

    def begin(self) -> None:
        """Ask each cloud from now on."""
        if self.several:
            for number in self._listed:
                self._begin_asking(number)
        if self._file is not None:
            self._following = asyncio.create_task(self._follow(self._file))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._checks.close()
        for connection in self._connections:
            await connection.close()

    async def _follow(self, file: Reloaded[tuple[ListedCloud, ...]]) -> None:
        """Know what the file names, for ever. Clouds that it names no more get no sessions; those
        that they have leave when another works."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            wanted = {each.address: each for each in file.current()}
            gone = []
            for number, known in self._listed.items():
                if known.address in wanted:
                    self._listed[number] = wanted.pop(known.address)
                else:
                    gone.append(number)
            for added in wanted.values():  # first: there is always one to go to
                self._begin_asking(self._know(added))
            for number in gone:
                await self._forget(number)

    def _know(self, listed: ListedCloud) -> int:
        """Add a cloud and return its number: that of a forgotten cloud without sessions, or the
        next."""
        numbers = range(len(self.addresses) + 1)
        free = (each for each in numbers if each not in self._listed and not self.sessions[each])
        number = next(free)
        self.addresses[number : number + 1] = [listed.address]
        connection = Connection(listed.address, self._max_bytes, self._access)
        self._connections[number : number + 1] = [connection]
        self._listed[number] = listed
        self.routing.know(number)
        return number

    def _begin_asking(self, cloud: int) -> None:
        self.series.knows(self.addresses[cloud])
        self._checks.begin(cloud, self._connections[cloud])

    async def _forget(self, cloud: int) -> None:
        del self._listed[cloud]
        self._longest_drafts.pop(self.addresses[cloud], None)
        self.routing.forget(cloud, time.monotonic())
        await self._checks.end(cloud)
        self.series.forgets(self.addresses[cloud])
        await self._connections[cloud].rest()

    def left(self, tenant: Tenant, token_ids: Sequence[int], cloud: int) -> None:
        """Note that a session of `tenant` has ended at this cloud, with this text."""
        blocks = len(token_ids) // KV_BLOCK
        self._texts.put(tenant, token_ids, [self.addresses[cloud]] * blocks, block_bytes=1)
        self._texts.shrink(MOST_BLOCKS)

    def keeping(self, tenant: Tenant, token_ids: Sequence[int]) -> int | None:
        """Return the cloud that may still have the keys and values of most of this text, which the
        tenant left there in an earlier turn, say; None if there is none. What many texts have in
        common, such as a system prompt, binds none of them to a cloud."""
        cloud = self._texts.find(tenant, token_ids)
        if 2 * KV_BLOCK * len(cloud) <= len(token_ids):
            return None
        known = self._listed.items()
        return next((number for number, each in known if each.address == cloud[-1]), None)

    def connection(self, cloud: int) -> Connection:
        return self._connections[cloud]

    async def describe(self, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Describe the best cloud that answers. Raises Rejected with what each said that there was
        time to ask: each gets an even part of what is left."""
        refused: list[tuple[StatusCode, str]] = []
        ends_s = time.monotonic() + timeout_s
        ranked = self.routing.ranked()
        for place, cloud in enumerate(ranked):
            left_s = ends_s - time.monotonic()
            if refused and left_s <= 0:
                break
            try:
                return await self._describe(cloud, left_s / (len(ranked) - place))
            except Rejected as error:
                address = self.addresses[cloud]
                words = f"{error.code.name} {error}"
                refused.append(
                    (error.code, words if address in words else f"the cloud at {address}: {words}")
                )
        raise Rejected(refused[0][0], "; ".join(why for _, why in refused))

    async def why_silent(self, cloud: int) -> str:
        """Return why it does not answer: waiting streams never hear what stands in their way."""
        try:
            await self._describe(cloud, DIAGNOSIS_TIMEOUT_S)
        except Rejected as error:
            return str(upstream_rejection(error.code, str(error)))
        return ""

    def status(self) -> Iterator[generation_pb2.CloudStatus]:
        """Return the state of each of several clouds."""
        for number in sorted(self._listed) if self.several else ():
            cloud = self.routing.clouds[number]
            report = cloud.report or CloudReport(0.0, serving=False)
            yield generation_pb2.CloudStatus(
                address=self.addresses[number],
                serving=cloud.usable,
                round_trip_s=cloud.round_trip_s,
                queue_s=report.queue_s,
                pass_s=report.pass_s,
                model_name=report.model,
                sessions=report.sessions,
                own_sessions=self.sessions[number],
                price=cloud.price,
            )

    async def _describe(self, cloud: int, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Describe a cloud, over a new connection: the state of a standing one says little about
        now. Raises Rejected."""
        address = self.addresses[cloud]
        async with open_channel(address, self._max_bytes, self._access) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            try:
                answer = await stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                stranger = f"the cloud at {address}"
                raise Rejected(error.code(), details_of(error, stranger)) from None
        self.has_draft_model = verifier_pb2.CLOUD_DRAFTS_MODEL in answer.cloud_drafts
        self.takes(cloud, answer.max_draft_length)
        return _shown(answer.model)

    async def _ask(self, cloud: int, channel: grpc.aio.Channel) -> CloudReport:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        describe = stub.Describe(verifier_pb2.DescribeRequest(), timeout=ANSWER_WITHIN_S)
        health, answer = await asked_health(channel), await describe
        report = report_of(health, answer)
        self.takes(cloud, answer.max_draft_length)
        if price := self._listed[cloud].price:
            report = replace(report, price=price)
        self.series.asked(self.addresses[cloud], report.round_trip_s)
        return report

    def _checked(self, cloud: int) -> None:
        self.series.works(self.addresses[cloud], self.routing.clouds[cloud].usable)


def _shown(model: sampling_pb2.ModelDescription) -> sampling_pb2.ModelDescription:
    """Make a description fit to be listed: a cloud chooses these names."""
    for field in ("model_name", "vocabulary_hash", "device", "dtype"):
        setattr(model, field, cleaned(getattr(model, field)))
    return model


def report_of(health: CloudReport, response: verifier_pb2.DescribeResponse) -> CloudReport:
    """Return `health`, with what a cloud says of itself added. Raises InvalidArgument naming a
    field whose value is impossible: other clouds are compared with it."""
    for field in ("queue_s", "pass_s", "price"):
        if not 0 <= getattr(response, field) < math.inf:  # False for NaN as well
            raise InvalidArgument(field, f"{getattr(response, field)} is not finite and at least 0")
    return replace(
        health,
        model=cleaned(response.model.model_name),
        sessions=response.sessions_open,
        max_sessions=response.max_sessions,
        queue_s=response.queue_s,
        pass_s=response.pass_s,
        price=response.price,
        draining=response.draining,
    )
