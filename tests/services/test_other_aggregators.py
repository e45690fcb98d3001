"""A cloud's aggregator that breaks the conversation or refuses a request: another stream a few
times, then a status; a request that one refuses goes to another, and nobody is taken for lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.generation.request import GenerationRequest
from tandem.net import health_checks
from tandem.net.status import Rejected
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.decoding.v1 import decoding_pb2
from tests.services.scripted_suite import listening, summary_of, until
from tests.services.two_sided_suite import asking, two_sides

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
    servicer = Tampering(BAD[case])  # type: ignore[abstract]  # nothing else is asked
    async with two_sides(tmp_path, way=lambda address: tampering(servicer)) as suite:
        request = GenerationRequest(
            "heron?", "dragon-device", GenerationParams(max_tokens=8), query="heron"
        )
        with pytest.raises(Rejected, match="violated the protocol 4 times") as caught:
            await suite.client.generate(request)
        assert caught.value.code is grpc.StatusCode.DATA_LOSS
        assert servicer.streams == 4


ANSWERS = 4
"""Asked one right after the other: in less time than a lost service takes to be healthy again."""


class Refusing(pb_grpc.AggregatorServiceServicer, health_pb2_grpc.HealthServicer):
    """Is healthy, and refuses every request; counts them."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code
        self.refused = 0
        self.checks = 0

    async def Collaborate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Any
    ) -> None:
        self.refused += 1
        await context.abort(self.code, "sessions: all places are taken")

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.checks += 1
        return health_pb2.HealthCheckResponse(status="SERVING")


@asynccontextmanager
async def beside(address: str, refusing: Refusing) -> AsyncIterator[str]:
    """The clouds that a device is given: one that refuses, then the one at `address`."""
    server = grpc.aio.server()
    pb_grpc.add_AggregatorServiceServicer_to_server(refusing, server)
    add: Any = health_pb2_grpc.add_HealthServicer_to_server
    add(refusing, server)
    async with listening(server) as first:
        yield f"{first}, {address}"


@pytest.mark.parametrize(
    ("code", "policy"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, LostCloud.FAIL),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, LostCloud.EDGE),
        (grpc.StatusCode.FAILED_PRECONDITION, LostCloud.EDGE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, LostCloud.FAIL),
        (grpc.StatusCode.INTERNAL, LostCloud.FAIL),
    ],
)
async def test_who_refuses_one_request_is_asked_for_the_next_one(
    code: grpc.StatusCode, policy: LostCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_checks, "ANSWER_WITHIN_S", 60.0)  # a busy machine is not lost
    refusing = Refusing(code)  # type: ignore[abstract]  # it refuses one call
    async with two_sides(tmp_path, way=lambda address: beside(address, refusing)) as suite:
        request = asking("dragon-coupled", lost_cloud=policy)
        await suite.client.generate(request)  # the first call begins the checks
        await until(lambda: refusing.checks >= 2)
        for refused in range(refusing.refused + 1, refusing.refused + ANSWERS + 1):
            answer = await suite.client.generate(request)
            assert (answer.unverified, summary_of(answer).resumes) == ([], 1)
            assert refusing.refused == refused


async def test_a_request_that_no_cloud_may_take_is_refused_at_once(tmp_path: Path) -> None:
    refusing = Refusing(grpc.StatusCode.INVALID_ARGUMENT)  # type: ignore[abstract]
    async with two_sides(tmp_path, way=lambda address: beside(address, refusing)) as suite:
        refusals = []
        while not refusing.refused:  # the other one may be known to be healthy first
            try:
                await suite.client.generate(asking("dragon-coupled"))
            except Rejected as error:
                refusals.append(error)
        assert [error.code for error in refusals] == [grpc.StatusCode.INVALID_ARGUMENT]
        assert "all places are taken" in str(refusals[0])
        assert refusing.refused == 1
