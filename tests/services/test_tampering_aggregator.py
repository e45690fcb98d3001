"""A cloud's aggregator that breaks the conversation: another stream a few times, then a status."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.decoding.v1 import decoding_pb2
from tests.services.scripted_suite import listening
from tests.services.two_sided_suite import two_sides

Answers = Callable[[pb.CollaborateRequest], list[pb.CollaborateResponse]]


def opened(opening: pb.CollaborateRequest) -> pb.CollaborateResponse:
    told = pb.CollaborationOpened(log_mass=0.0, max_tokens=opening.open.max_tokens)
    return answer(opening, opened=told)


def answer(opening: pb.CollaborateRequest, **message: Any) -> pb.CollaborateResponse:
    return pb.CollaborateResponse(
        session=opening.session, base=opening.base, prefix=opening.prefix, **message
    )


def draft(opening: pb.CollaborateRequest, **fields: Any) -> pb.CollaborateResponse:
    return answer(opening, draft=decoding_pb2.Draft(**fields))


BAD: dict[str, Answers] = {
    "a draft before it has opened": lambda o: [draft(o, token_id=1, committed=o.base)],
    "no distribution": lambda o: [opened(o), draft(o, token_id=1)],
    "a torn distribution": lambda o: [opened(o), draft(o, token_id=1, probs=b"abc")],
    "a foreign token": lambda o: [opened(o), draft(o, token_id=2**31)],
    "a target where the device decides": lambda o: [
        opened(o),
        answer(o, target=pb.Target(token_ids=[1])),
    ],
    "another session": lambda o: [pb.CollaborateResponse(session=o.session ^ 1, pong=pb.Pong())],
    "another text": lambda o: [
        pb.CollaborateResponse(session=o.session, base=o.base, prefix=7, pong=pb.Pong())
    ],
    "nothing in a frame": lambda o: [pb.CollaborateResponse()],
    "an end in the middle": lambda o: [opened(o)],
}


class Tampering(pb_grpc.AggregatorServiceServicer):
    """Says what it is told to, and counts how often it was asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.streams = 0

    async def Collaborate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Any
    ) -> None:
        self.streams += 1
        opening = await context.read()
        for frame in self.answers(opening):
            await context.write(frame)

    async def Generate(  # type: ignore[override]  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> Any:
        raise NotImplementedError

    async def FetchDocuments(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Any
    ) -> None:
        raise NotImplementedError

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


@asynccontextmanager
async def tampering(servicer: Tampering) -> AsyncIterator[str]:
    server = grpc.aio.server()
    pb_grpc.add_AggregatorServiceServicer_to_server(servicer, server)
    async with listening(server) as address:
        yield address


@pytest.mark.parametrize("case", BAD)
async def test_a_cloud_that_breaks_the_conversation_ends_it_with_a_status(
    case: str, tmp_path: Path
) -> None:
    servicer = Tampering(BAD[case])
    async with two_sides(tmp_path, way=lambda address: tampering(servicer)) as suite:
        request = GenerationRequest(
            "heron?", "dragon-device", GenerationParams(max_tokens=8), query="heron"
        )
        with pytest.raises(Rejected, match="violated the protocol 4 times") as caught:
            await suite.client.generate(request)
        assert caught.value.code is grpc.StatusCode.DATA_LOSS
        assert servicer.streams == 4
