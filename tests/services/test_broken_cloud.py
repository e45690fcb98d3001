"""A cloud that breaks the conversation: the edge never commits a token it cannot vouch for.

One bad answer costs a fresh stream and leaves the text as it would have been; a cloud that goes on
so is given up with a status, after `MAX_RESYNCS` more tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tandem.generation.request import GenerationRequest
from tandem.net.session_runner import MAX_RESYNCS
from tandem.net.status import Rejected
from tandem.specdec import liveness
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc
from tests.faults_of_frames import HUGE, LIES, Lie, Size
from tests.long_runs import LONG
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    Suite,
    listening,
    scripted_suite,
    summary_of,
)
from tests.services.verifier_peer import VERIFY

SIZE = Size(VOCABULARY, CONTEXT)


def told(lie: Lie) -> Tamper:
    """Tell the lie wherever there is something to lie about."""

    def tamper(answer: pb.VerifyResponse) -> bytes | None:
        wrong = lie.wrong(answer, SIZE)
        return None if wrong is None else wrong.SerializeToString()

    return tamper


def garbage(answer: pb.VerifyResponse) -> bytes | None:
    return b"\xff" * 20 if answer.HasField("committed") else None


BROKEN = {str(lie): (lie.preset, told(lie)) for lie in LIES} | {"garbage": ("coupled", garbage)}
"""What a cloud says in the place of what it commits, and in an answer of which preset."""

REQUEST_TOKENS = 16


def request(preset: str) -> GenerationRequest:
    """One that waits for a lost cloud as long as it takes: only the resyncs can end it."""
    return GenerationRequest(
        "broken",
        preset,
        GenerationParams(max_tokens=REQUEST_TOKENS, ignore_eos=True),
        lost_cloud=LostCloud.WAIT,
        overrides=("payload_top=8",),
    )


async def follow(suite: Suite, wanted: GenerationRequest, committed: list[int]) -> None:
    """Generate, and keep what was committed even if it ends badly."""
    async for result in suite.client.stream(wanted):
        committed[:] = result.token_ids


_UNDISTURBED: dict[str, list[int]] = {}


async def undisturbed(preset: str) -> list[int]:
    if preset not in _UNDISTURBED:
        async with scripted_suite() as suite:
            _UNDISTURBED[preset] = (await suite.client.generate(request(preset))).token_ids
    return _UNDISTURBED[preset]


@pytest.mark.parametrize("lie", BROKEN)
async def test_one_lie_costs_a_resync_and_no_token(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ANSWER_S", 2.0)  # what is not said is waited for
    preset, tamper = BROKEN[lie]
    cloud = TamperingCloud(tamper, times=1)
    async with scripted_suite(path=cloud.before) as suite:
        generated = await suite.client.generate(request(preset))
        await suite.idle()
    assert cloud.done == 1
    assert cloud.streams == 2
    assert generated.token_ids == await undisturbed(preset)
    assert summary_of(generated).resumes == 1


@pytest.mark.parametrize("lies", [[*BROKEN][::4], pytest.param([*BROKEN], marks=LONG)], ids=len)
async def test_a_lying_cloud_is_given_up_with_a_status(lies: list[str]) -> None:
    """All at once: most of the time is spent waiting before the next try. `make test` has every
    fourth lie, since each is refused above."""
    await asyncio.gather(*(assert_given_up(lie, *BROKEN[lie]) for lie in lies))


async def assert_given_up(lie: str, preset: str, tamper: Tamper) -> None:
    cloud = TamperingCloud(tamper)
    committed: list[int] = []
    async with scripted_suite(path=cloud.before) as suite:
        with pytest.raises(Rejected, match="the cloud violated the protocol") as refusal:
            await follow(suite, request(preset), committed)
        await suite.idle()
    assert refusal.value.code is grpc.StatusCode.DATA_LOSS, lie
    assert cloud.streams == MAX_RESYNCS + 1, lie
    assert cloud.streams <= cloud.done, lie
    assert committed == (await undisturbed(preset))[: len(committed)], lie


@pytest.mark.parametrize("code", ["OK", "INTERNAL", "UNKNOWN", "DATA_LOSS"])
async def test_a_cloud_that_keeps_ending_streams_is_given_up(code: str) -> None:
    cloud = TamperingCloud(lambda answer: None, end_with=grpc.StatusCode[code])
    async with scripted_suite(path=cloud.before) as suite:
        with pytest.raises(Rejected, match="the cloud violated the protocol") as refusal:
            await suite.client.generate(request("coupled"))
        await suite.idle()
    assert refusal.value.code is grpc.StatusCode.DATA_LOSS
    assert cloud.streams == MAX_RESYNCS + 1


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"])
async def test_a_cloud_s_refusal_is_handed_on(code: str) -> None:
    cloud = TamperingCloud(lambda answer: None, end_with=grpc.StatusCode[code])
    async with scripted_suite(path=cloud.before) as suite:
        with pytest.raises(Rejected) as refusal:
            await suite.client.generate(request("coupled"))
        await suite.idle()
    assert refusal.value.code.name == code
    assert cloud.streams == 1


async def test_a_cloud_that_exaggerates_its_work_harms_nothing() -> None:

    def exaggerate(answer: pb.VerifyResponse) -> bytes | None:
        if answer.HasField("committed"):
            answer.committed.work.target_passes = HUGE
        return bytes(answer.SerializeToString())

    cloud = TamperingCloud(exaggerate)
    async with scripted_suite(path=cloud.before) as suite:
        generated = await suite.client.generate(request("coupled"))
    assert generated.token_ids == await undisturbed("coupled")
    assert summary_of(generated).target_passes == HUGE


async def test_a_full_cloud_is_waited_for_once_it_has_admitted_the_request() -> None:
    """After a cut the streams it left behind may still hold the room."""
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    tamper = BROKEN["coupled: another text"][1]
    cloud = TamperingCloud(tamper, times=1, refuse={2: exhausted, 3: exhausted})
    async with scripted_suite(path=cloud.before) as suite:
        generated = await suite.client.generate(request("coupled"))
        await suite.idle()
    assert generated.token_ids == await undisturbed("coupled")
    assert cloud.streams == 4


Tamper = Callable[[pb.VerifyResponse], bytes | None]
"""The bytes to send in the place of an answer, or None to leave it as it is."""


@dataclass(slots=True)
class TamperingCloud:
    """Tampers with at most `times` answers, over all streams; `end_with` ends each stream after its
    first answer; `refuse` ends the streams of these numbers at once. `before` is the suite's path;
    `on_the_way_up` may change what the edge sends."""

    tamper: Tamper
    times: int = 10**9
    end_with: grpc.StatusCode | None = None
    refuse: Mapping[int, grpc.StatusCode] = field(default_factory=dict)
    on_the_way_up: Callable[[pb.VerifyRequest], object] = lambda frame: None
    done: int = 0
    streams: int = 0

    @asynccontextmanager
    async def before(self, verifier: str) -> AsyncIterator[str]:
        async with grpc.aio.insecure_channel(verifier) as channel:
            stub = pb_grpc.VerifierServiceStub(channel)
            server = grpc.aio.server()

            async def relay(_: object, context: Any) -> None:
                await self._relay(stub.Verify(), context)

            service, method = VERIFY.strip("/").split("/")
            handler = grpc.stream_stream_rpc_method_handler(
                relay,
                request_deserializer=pb.VerifyRequest.FromString,
                response_serializer=lambda raw: raw,
            )
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {method: handler}),)
            )
            async with listening(server) as address:
                yield address

    async def _relay(self, call: Any, context: Any) -> None:
        self.streams += 1
        if self.streams in self.refuse:
            await context.read()
            await context.abort(self.refuse[self.streams], "refused")
        upwards = asyncio.create_task(self._pass_up(context, call))
        try:
            while isinstance(answer := await call.read(), pb.VerifyResponse):
                changed = self.tamper(answer) if self.done < self.times else None
                self.done += changed is not None
                await context.write(answer.SerializeToString() if changed is None else changed)
                if self.end_with is grpc.StatusCode.OK:
                    return
                if self.end_with is not None:
                    await context.abort(self.end_with, "ended")
            await context.abort(await call.code(), await call.details())
        finally:
            upwards.cancel()
            call.cancel()

    async def _pass_up(self, context: Any, call: Any) -> None:
        while isinstance(frame := await context.read(), pb.VerifyRequest):
            self.on_the_way_up(frame)
            await call.write(frame)
        await call.done_writing()
