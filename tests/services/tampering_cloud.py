"""A cloud that lies: a relay before the real verifier which changes what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc
from tests.services.scripted_suite import listening
from tests.services.verifier_peer import VERIFY

Tamper = Callable[[pb.VerifyResponse], bytes | None]
"""The bytes to send in the place of an answer, or None to leave it as it is."""


@dataclass(slots=True)
class TamperingCloud:
    """Tampers with at most `times` answers, over all streams; `end_with` ends each stream after its
    first answer; `refuse` ends the streams of these numbers at once. `before` is the suite's path.
    """

    tamper: Tamper
    times: int = 10**9
    end_with: grpc.StatusCode | None = None
    refuse: Mapping[int, grpc.StatusCode] = field(default_factory=dict)
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
        upwards = asyncio.create_task(_pass_up(context, call))
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


async def _pass_up(context: Any, call: Any) -> None:
    while isinstance(frame := await context.read(), pb.VerifyRequest):
        await call.write(frame)
    await call.done_writing()
