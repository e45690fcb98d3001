"""A cloud that breaks the conversation: the edge never commits a token it cannot vouch for.

One bad answer costs a fresh stream and leaves the text as it would have been; a cloud that goes on
so is given up with a status, after `MAX_RESYNCS` more tries.
"""

from __future__ import annotations

import asyncio
import math
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
from tests.long_runs import LONG
from tests.services.scripted_suite import VOCABULARY, Suite, listening, scripted_suite, summary_of
from tests.services.verifier_peer import VERIFY

HUGE = 2**32 - 1
Change = Callable[[pb.VerifyResponse], object]


def committed(change: Change) -> Callable[[pb.VerifyResponse], bytes | None]:
    """Tamper only with what is committed."""

    def tamper(answer: pb.VerifyResponse) -> bytes | None:
        if answer.WhichOneof("message") != "committed":
            return None
        before = answer.SerializeToString()
        change(answer)
        after = answer.SerializeToString()
        return None if after == before else after

    return tamper


def sparse(change: Callable[[pb.SparsePayload], object]) -> Change:
    def of_committed(answer: pb.VerifyResponse) -> None:
        if answer.committed.HasField("sparse"):
            change(answer.committed.sparse)

    return of_committed


def probs(change: Callable[[bytes], bytes]) -> Change:
    def of_committed(answer: pb.VerifyResponse) -> None:
        if answer.committed.HasField("full_distribution"):
            whole = answer.committed.full_distribution
            whole.probabilities = change(whole.probabilities)

    return of_committed


def swap(answer: pb.SparsePayload) -> None:
    answer.ids[0], answer.ids[1] = answer.ids[1], answer.ids[0]


def repeat(answer: pb.SparsePayload) -> None:
    answer.ids[1] = answer.ids[0]


def put(name: str, index: int, value: float) -> Callable[[pb.SparsePayload], None]:
    def change(answer: pb.SparsePayload) -> None:
        getattr(answer, name)[index] = value

    return change


def token(token_id: int) -> Change:
    def change(answer: pb.VerifyResponse) -> None:
        if answer.committed.token_ids:
            answer.committed.token_ids[-1] = token_id

    return change


def set_head(name: str, change: Callable[[int], int]) -> Change:
    return lambda answer: setattr(answer, name, change(getattr(answer, name)))


def set_committed(name: str, value: object) -> Change:
    return lambda answer: setattr(answer.committed, name, value)


def work(name: str, seconds: float) -> Change:
    return lambda answer: setattr(answer.committed.work, name, seconds)


def other_kind(answer: pb.VerifyResponse) -> None:
    if answer.committed.HasField("sparse"):
        answer.committed.ClearField("draw_from")
        answer.committed.token_ids.append(1)


def no_outcome(answer: pb.VerifyResponse) -> None:
    if answer.committed.HasField("sparse"):
        answer.committed.ClearField("draw_from")


def unwanted_probs(answer: pb.VerifyResponse) -> None:
    answer.full_distribution.probabilities = b"\0" * 4 * VOCABULARY


NAN = b"\x00\x00\xc0\x7f"
LIES = {
    "unsorted": ("dssd", committed(sparse(swap))),
    "repeated": ("dssd", committed(sparse(repeat))),
    "id V": ("dssd", committed(sparse(put("ids", -1, VOCABULARY)))),
    "id 2**32-1": ("dssd", committed(sparse(put("ids", -1, HUGE)))),
    "tail id V": ("dssd", committed(sparse(put("tail_ids", 0, VOCABULARY)))),
    "probability NaN": ("dssd", committed(sparse(put("probabilities", 0, math.nan)))),
    "probability -1": ("dssd", committed(sparse(put("probabilities", 0, -1.0)))),
    "probability 2": ("dssd", committed(sparse(put("probabilities", 0, 2.0)))),
    "one too few": ("dssd", committed(sparse(lambda answer: answer.probabilities.pop()))),
    "tail NaN": ("dssd", committed(sparse(lambda answer: setattr(answer, "tail_mass", math.nan)))),
    "other kind": ("dssd", committed(other_kind)),
    "no outcome": ("dssd", committed(no_outcome)),
    "distribution NaN": ("dssd-full", committed(probs(lambda raw: NAN + raw[4:]))),
    "distribution short": ("dssd-full", committed(probs(lambda raw: raw[:-4]))),
    "distribution halved": ("dssd-full", committed(probs(lambda raw: raw[: len(raw) // 2] * 2))),
    "token V": ("coupled", committed(token(VOCABULARY))),
    "token 2**32-1": ("coupled", committed(token(HUGE))),
    "decoded token V": (
        "ar",
        committed(lambda answer: answer.committed.token_ids.append(VOCABULARY)),
    ),
    "accepted too many": ("coupled", committed(set_committed("accepted", 9))),
    "accepted 2**32-1": ("coupled", committed(set_committed("accepted", HUGE))),
    "other prefix": ("coupled", committed(set_head("prefix", lambda prefix: prefix ^ 1))),
    "other session": ("coupled", committed(set_head("session", lambda number: number ^ 1))),
    "base ahead": ("coupled", committed(set_head("base", lambda base: base + 1))),
    "base behind": ("coupled", committed(set_head("base", lambda base: base - 1))),
    "duration NaN": ("coupled", committed(work("verify_s", math.nan))),
    "duration -1": ("coupled", committed(work("queue_s", -1.0))),
    "distribution not asked for": ("dssd", committed(unwanted_probs)),
    "no message": ("coupled", committed(lambda answer: answer.ClearField("committed"))),
    "garbage": (
        "coupled",
        lambda answer: b"\xff" * 20 if answer.HasField("committed") else None,
    ),
}

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


@pytest.mark.parametrize("lie", LIES)
async def test_one_lie_costs_a_resync_and_no_token(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ANSWER_S", 2.0)  # what is not said is waited for
    preset, tamper = LIES[lie]
    cloud = TamperingCloud(tamper, times=1)
    async with scripted_suite(path=cloud.before) as suite:
        generated = await suite.client.generate(request(preset))
        await suite.idle()
    assert cloud.done == 1
    assert cloud.streams == 2
    assert generated.token_ids == await undisturbed(preset)
    assert summary_of(generated).resumes == 1


@pytest.mark.parametrize("lies", [[*LIES][::4], pytest.param([*LIES], marks=LONG)], ids=len)
async def test_a_lying_cloud_is_given_up_with_a_status(lies: list[str]) -> None:
    """All at once: most of the time is spent waiting before the next try. `make test` has every
    fourth lie, since each is refused above."""
    await asyncio.gather(*(assert_given_up(lie, *LIES[lie]) for lie in lies))


async def assert_given_up(lie: str, preset: str, tamper: Tamper) -> None:
    cloud = TamperingCloud(tamper)
    committed: list[int] = []
    async with scripted_suite(path=cloud.before) as suite:
        with pytest.raises(Rejected, match="the cloud violated the protocol") as refusal:
            await follow(suite, request(preset), committed)
        await suite.idle()
    assert refusal.value.code is grpc.StatusCode.DATA_LOSS, lie
    # Drafts accepted beside a missing outcome are no lie: they are progress, once.
    progress = lie == "no outcome"
    assert MAX_RESYNCS + 1 <= cloud.streams <= MAX_RESYNCS + 1 + progress, lie
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
    cloud = TamperingCloud(
        committed(lambda answer: setattr(answer.committed.work, "target_passes", HUGE))
    )
    async with scripted_suite(path=cloud.before) as suite:
        generated = await suite.client.generate(request("coupled"))
    assert generated.token_ids == await undisturbed("coupled")
    assert summary_of(generated).target_passes == HUGE


async def test_a_full_cloud_is_waited_for_once_it_has_admitted_the_request() -> None:
    """After a cut the streams it left behind may still hold the room."""
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    tamper = LIES["other prefix"][1]
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
