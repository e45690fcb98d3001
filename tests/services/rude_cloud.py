"""A cloud whose words are not fit to be shown, over real gRPC: escape sequences, kilobytes, times
of years, in statuses, their metadata and names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc
from tests.services.scripted_suite import listening

AGES = "99999999"
RUDE = (
    f'\x1b[2J\x1b]0;owned\x07\u202efull\r\nroot: \x9b31m"rm -rf /"; try again in {AGES} s\0'
    + "words " * 900
)
"""5 KiB; a status has 8."""


@dataclass(slots=True)
class RudeCloud(pb_grpc.VerifierServiceServicer):
    """Refuses every stream with `code`; the first `admitting` ones only after it has admitted them,
    and after the first `refusing` ones it serves as the real verifier behind it does. `retry_after`
    is what its statuses' metadata say. `before` is the suite's path; `beside` has the real verifier
    as a second cloud."""

    code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusing: int = 10**9
    admitting: int = 0
    describes: bool = True
    words: str = RUDE
    name: str = ""
    retry_after: str = AGES
    streams: int = 0
    address: str = ""
    _stubs: list[Any] = field(default_factory=list)

    @asynccontextmanager
    async def before(self, verifier: str) -> AsyncIterator[str]:
        async with grpc.aio.insecure_channel(verifier) as channel:
            self._stubs.append(pb_grpc.VerifierServiceStub(channel))
            server = grpc.aio.server()
            pb_grpc.add_VerifierServiceServicer_to_server(self, server)
            working = health.aio.HealthServicer()
            await working.set("", health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(working, server)
            async with listening(server) as self.address:
                yield self.address

    @asynccontextmanager
    async def beside(self, verifier: str) -> AsyncIterator[str]:
        async with self.before(verifier) as address:
            yield f"{address},{verifier}"

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802  # the RPC's name
        if not self.describes:
            await self._refuse(context)
        answer = await self._stubs[0].Describe(request)
        self._rename(answer.model)
        return answer

    async def Verify(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.streams += 1
        if self.streams > self.refusing or self.streams <= self.admitting:
            async for answer in self._stubs[0].Verify(requests):
                if answer.HasField("opened"):
                    self._rename(answer.opened.model)
                yield answer
                if self.streams <= self.refusing:
                    await self._refuse(context)
            return
        await anext(requests)
        await self._refuse(context)

    def _rename(self, model: Any) -> None:
        model.model_name = self.name or model.model_name

    async def _refuse(self, context: Any) -> None:
        await context.abort(self.code, self.words, (("retry-after", self.retry_after),))


def unfit(text: str) -> Iterator[str]:
    """What in `text` may not be shown."""
    yield from (letter for letter in text if not letter.isprintable())
    yield from (word for word in (AGES, "[2J", "31m", "owned", "words " * 40) if word in text)
