"""A drafter and a verifier of different versions, over real gRPC: what one adds to the messages of
the other is ignored. The text stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tandem.generation.request import GenerationRequest
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


def unchanged(frame: Any) -> None:
    """As it was sent."""


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


async def test_the_text_is_the_same_with_a_peer_of_another_version() -> None:
    requests = [
        GenerationRequest((1, 2, 3), preset, GenerationParams(max_tokens=24, seed=5))
        for preset in ("coupled", "dssd", "tslt", "stream")
    ]
    async with scripted_suite() as suite:
        alike = [(await suite.client.generate(request)).token_ids for request in requests]
    seen: list[str] = []
    async with scripted_suite(path=path_of(add_unknown, seen)) as suite:
        for request, token_ids in zip(requests, alike, strict=True):
            answer = await suite.client.generate(request)
            assert answer.token_ids == token_ids
            assert answer.summary is not None
            assert answer.summary.resumes == 0, "no frame was refused"
    assert {"open", "drafts", "opened", "committed"} <= set(seen)


@pytest.mark.parametrize(
    ("first", "second"),
    [(unchanged, add_unknown), pytest.param(add_unknown, unchanged, marks=LONG)],
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
