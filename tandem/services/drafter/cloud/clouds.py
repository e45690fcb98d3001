"""The verifiers that one drafter knows: connections, their order and their health. Invariant: a
single one that a setting names is not checked, since there is no other to use. Used on the event
loop."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from grpc import StatusCode

from tandem.core.foreign_words import cleaned
from tandem.net.access import ClientAccess
from tandem.net.channels import open_channel
from tandem.net.connection import Connection
from tandem.net.failover import Failover
from tandem.net.health_checks import ANSWER_WITHIN_S, HealthChecks, serves
from tandem.net.own_side import is_loopback
from tandem.net.reloaded import Reloaded
from tandem.net.status import Rejected, details_of, upstream_rejection
from tandem.specdec.liveness import LivenessTimes
from tandem.telemetry.cloud_series import CloudSeries
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

DIAGNOSIS_TIMEOUT_S = 1.0
LOOK_EVERY_S = 0.5
"""How often a file of clouds is looked at."""


@dataclass(frozen=True, slots=True)
class CloudAnswer:
    """What a cloud answered to a health check, and after how many seconds."""

    round_trip_s: float = 0.0
    model_name: str = ""


class Clouds:
    """Everything the sessions share."""

    def __init__(
        self,
        listed: Sequence[str] | Reloaded[tuple[str, ...]],
        max_bytes: int,
        access: ClientAccess,
        series: CloudSeries,
    ) -> None:
        self.series = series
        self._file = listed if isinstance(listed, Reloaded) else None
        self.order = Failover(listed.current() if isinstance(listed, Reloaded) else listed)
        self._max_bytes = max_bytes
        self._access = access
        self._connections: dict[str, Connection] = {}
        self._sessions: Counter[str] = Counter()
        self._answers: dict[str, CloudAnswer] = {}
        """What each one said last."""
        self._checks = HealthChecks(self.order, self._ask, self._checked)
        self._following: asyncio.Task[None] | None = None
        self.has_draft_model = True
        """Whether the cloud that was described last has one; before that, nobody knows."""
        self._longest_drafts: dict[str, int] = {}

    @property
    def on_this_machine(self) -> bool:
        """True if every cloud is reached without leaving the machine."""
        return all(is_loopback(address.rpartition(":")[0]) for address in self.order.addresses)

    @property
    def several(self) -> bool:
        """True if there may be other clouds."""
        return len(self.order.addresses) > 1 or self._file is not None

    def times(self, times: LivenessTimes) -> LivenessTimes:
        """Return the times of a silent peer: if there is another cloud, it is left before it would
        be given up."""
        return times.with_others() if len(self.order.addresses) > 1 else times

    @property
    def longest_draft(self) -> int:
        """Drafts in a frame that every cloud takes which has said so; 0 while none has."""
        known = self._longest_drafts
        return min((known[each] for each in self.order.addresses if each in known), default=0)

    def takes(self, cloud: str, longest_draft: int) -> None:
        """Note how many drafts a cloud takes in a frame."""
        self._longest_drafts[cloud] = longest_draft

    def connection(self, cloud: str) -> Connection:
        """Return the standing connection to a cloud, made at its first use."""
        if (known := self._connections.get(cloud)) is not None:
            return known
        self._connections[cloud] = made = Connection(cloud, self._max_bytes, self._access)
        return made

    def count(self, cloud: str, change: int) -> None:
        """Count a session that begins at a cloud (1), or leaves it (-1)."""
        self._sessions[cloud] += change
        if self.several:
            self.series.holds(cloud, self._sessions[cloud])

    def begin(self) -> None:
        """Check the health of each of several clouds from now on."""
        if self.several:
            for cloud in self.order.addresses:
                self._begin_checking(cloud)
        if self._file is not None:
            self._following = asyncio.create_task(self._follow(self._file))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._checks.close()
        for connection in self._connections.values():
            await connection.close()

    async def _follow(self, file: Reloaded[tuple[str, ...]]) -> None:
        """Know what the file names, for ever. Clouds that it names no more get no new sessions;
        those that they have end there."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            before, wanted = self.order.addresses, file.current()
            self.order.replace(wanted)
            for cloud in wanted:
                if cloud not in before:
                    self._begin_checking(cloud)
            for cloud in before:
                if cloud not in wanted:
                    await self._forget(cloud)

    def _begin_checking(self, cloud: str) -> None:
        self.series.knows(cloud)
        self._checks.begin(cloud, self.connection(cloud))

    async def _forget(self, cloud: str) -> None:
        await self._checks.end(cloud)
        self._longest_drafts.pop(cloud, None)
        self._answers.pop(cloud, None)
        self.series.forgets(cloud)
        await self._connections.pop(cloud).rest()

    async def describe(self, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Describe the first cloud that answers. Raises Rejected with what each said that there was
        time to ask: each gets an even part of what is left."""
        refused: list[tuple[StatusCode, str]] = []
        ends_s = time.monotonic() + timeout_s
        ranked = self.order.ranked()
        for place, cloud in enumerate(ranked):
            left_s = ends_s - time.monotonic()
            if refused and left_s <= 0:
                break
            try:
                return await self._describe(cloud, left_s / (len(ranked) - place))
            except Rejected as error:
                words = f"{error.code.name} {error}"
                why = words if cloud in words else f"the cloud at {cloud}: {words}"
                refused.append((error.code, why))
        raise Rejected(refused[0][0], "; ".join(why for _, why in refused))

    async def why_silent(self, cloud: str) -> str:
        """Return why it does not answer: waiting streams never hear what stands in their way."""
        try:
            await self._describe(cloud, DIAGNOSIS_TIMEOUT_S)
        except Rejected as error:
            return str(upstream_rejection(error.code, str(error)))
        return ""

    def status(self) -> Iterator[generation_pb2.CloudStatus]:
        """Return the state of each of several clouds."""
        for cloud in self.order.addresses if self.several else ():
            answer = self._answers.get(cloud, CloudAnswer())
            yield generation_pb2.CloudStatus(
                address=cloud,
                serving=self.order.is_healthy(cloud),
                round_trip_s=answer.round_trip_s,
                model_name=answer.model_name,
                own_sessions=self._sessions[cloud],
            )

    async def _describe(self, cloud: str, timeout_s: float) -> sampling_pb2.ModelDescription:
        """Describe a cloud, over a new connection: the state of a standing one says little about
        now. Raises Rejected."""
        async with open_channel(cloud, self._max_bytes, self._access) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            try:
                answer = await stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                stranger = f"the cloud at {cloud}"
                raise Rejected(error.code(), details_of(error, stranger)) from None
        self.has_draft_model = verifier_pb2.CLOUD_DRAFTS_MODEL in answer.cloud_drafts
        self.takes(cloud, answer.max_draft_length)
        return _shown(answer.model)

    async def _ask(self, cloud: str, channel: grpc.aio.Channel) -> bool:
        """Return whether a cloud serves, with the same model as the others."""
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        described = stub.Describe(verifier_pb2.DescribeRequest(), timeout=ANSWER_WITHIN_S)
        began_s = time.monotonic()
        serving = await serves(cloud, channel)
        round_trip_s = time.monotonic() - began_s
        model_name = cleaned((answer := await described).model.model_name)
        self.takes(cloud, answer.max_draft_length)
        self._answers[cloud] = CloudAnswer(round_trip_s, model_name)
        self.series.asked(cloud, round_trip_s)
        return serving and model_name == self._model_name

    @property
    def _model_name(self) -> str:
        """The model of the first cloud that has ever answered: the others must serve the same."""
        answers = (self._answers.get(cloud) for cloud in self.order.addresses)
        return next((answer.model_name for answer in answers if answer is not None), "")

    def _checked(self, cloud: str) -> None:
        self.series.works(cloud, self.order.is_healthy(cloud))


def _shown(model: sampling_pb2.ModelDescription) -> sampling_pb2.ModelDescription:
    """Make a description fit to be listed: a cloud chooses these names."""
    for field in ("model_name", "vocabulary_hash", "device", "dtype"):
        setattr(model, field, cleaned(getattr(model, field)))
    return model
