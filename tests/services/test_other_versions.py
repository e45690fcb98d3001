"""A drafter and a verifier of different versions, over real gRPC: what a newer one adds is ignored,
and what an older one does not know is not needed. The text stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.long_runs import LONG
from tests.services.scripted_suite import listening, scripted_suite
from tests.services.test_several_clouds import (
    CloudEngine,
    Standstill,
    begun,
    expected,
    requests,
    two_clouds,
)
from tests.services.verifier_peer import VERIFY
from tests.unit.wire.test_golden import add_unknown

Change = Callable[[Any], None]

SINCE: dict[str, tuple[str, ...]] = {
    "open": ("exit_order", "exits", "with_replacement"),
    "opened": ("exits", "processes", "processes_thinking", "tells_prompt_logprobs"),
    "committed": ("path", "logprobs", "top_logprobs"),
}
"""Fields that came after the first form of their messages: what an older peer leaves out."""


def older(frame: Any) -> None:
    """As a peer sends it that has never heard of these fields."""
    kind = frame.WhichOneof("message")
    for field in SINCE.get(kind, ()):
        getattr(frame, kind).ClearField(field)
    if kind == "committed":
        getattr(frame, kind).work.ClearField("drafts")


def path_of(change: Change, changed: list[str]) -> Any:
    """A relay between drafter and verifier that changes every frame of both."""

    @asynccontextmanager
    async def relay(verifier: str) -> AsyncIterator[str]:
        async with grpc.aio.insecure_channel(verifier) as channel:
            forward = channel.stream_stream(
                VERIFY,
                request_serializer=pb.VerifyRequest.SerializeToString,
                response_deserializer=pb.VerifyResponse.FromString,
            )

            async def verify(_: object, context: Any) -> None:
                call = forward()
                up = asyncio.create_task(_pass(context, call.write, change, changed))
                try:
                    await _pass(call, context.write, change, changed)
                except grpc.aio.AioRpcError as error:  # the verifier's refusal is not the relay's
                    await context.abort(error.code(), error.details())
                finally:
                    up.cancel()
                    call.cancel()

            handler = grpc.stream_stream_rpc_method_handler(
                verify, pb.VerifyRequest.FromString, pb.VerifyResponse.SerializeToString
            )
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((_Relayed(channel, handler),))
            async with listening(server) as address:
                yield address

    return relay


class _Relayed(grpc.GenericRpcHandler):
    """`Verify` by its handler; questions with one answer, as those of health, as they are."""

    def __init__(self, channel: grpc.aio.Channel, verify: Any) -> None:
        self._channel, self._verify = channel, verify

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == VERIFY:
            return self._verify
        forward: Any = self._channel.unary_unary(handler_call_details.method)

        async def ask(request: bytes, context: Any) -> Any:
            try:
                return await forward(request)
            except grpc.aio.AioRpcError as error:
                return await context.abort(error.code(), error.details())

        return grpc.unary_unary_rpc_method_handler(ask)


async def _pass(source: Any, write: Any, change: Change, changed: list[str]) -> None:
    while isinstance(frame := await source.read(), pb.VerifyRequest | pb.VerifyResponse):
        change(frame)
        changed.append(str(frame.WhichOneof("message")))
        await write(frame)


@pytest.mark.parametrize("change", [add_unknown, older])
async def test_the_text_is_the_same_with_a_peer_of_another_version(change: Change) -> None:
    requests = [
        GenerationRequest((1, 2, 3), preset, GenerationParams(max_tokens=24, seed=5))
        for preset in ("coupled", "dssd", "tslt", "stream")
    ]
    async with scripted_suite() as suite:
        alike = [(await suite.client.generate(request)).token_ids for request in requests]
    seen: list[str] = []
    async with scripted_suite(path=path_of(change, seen)) as suite:
        for request, token_ids in zip(requests, alike, strict=True):
            answer = await suite.client.generate(request)
            assert answer.token_ids == token_ids
            assert answer.summary is not None
            assert answer.summary.resumes == 0, "no frame was refused"
    assert {"open", "drafts", "opened", "committed"} <= set(seen)


@pytest.mark.parametrize(
    ("first", "second"), [(older, add_unknown), pytest.param(add_unknown, older, marks=LONG)]
)
async def test_verifiers_are_upgraded_one_after_the_other_and_no_token_is_lost(
    first: Change, second: Change
) -> None:
    """Beside each other for a while: an older one and a newer. Sessions of the one that leaves go
    on with the other, whichever it is."""
    presets = ("coupled", "dssd", "stream", "ar")
    asked = [
        each.with_fields(preset=preset) for each, preset in zip(requests(4), presets, strict=True)
    ]
    relays = (path_of(first, []), path_of(second, []))
    still = Standstill(8)
    async with two_clouds(relays=relays, first=CloudEngine(still)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        draining = asyncio.create_task(clouds.suite.verifier.drain(10.0))
        still.go_on()
        await draining
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("draining") >= 1
        assert clouds.sessions(0) == 0
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
        assert not any(each.unverified for each in answers)


async def test_an_older_cloud_that_would_pass_over_processors_is_refused() -> None:
    asked: list[dict[str, Any]] = [
        {"processors": Processors(logit_bias=((1, 2.0),))},
        {"sampling": SamplingParams(min_p=0.1)},
        {"sampling": SamplingParams(typical_p=0.9)},
    ]
    async with scripted_suite(path=path_of(older, [])) as suite:
        for more in asked:
            params = GenerationParams(max_tokens=24, **more)
            request = GenerationRequest((1, 2, 3), "coupled", params)
            with pytest.raises(Rejected, match="without logits processors") as refused:
                await suite.client.generate(request)
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
