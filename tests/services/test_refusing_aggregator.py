"""A cloud's aggregator that refuses a request, beside another one: that request goes to the other,
and the one that refused it is not taken for lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.net import health_checks
from tandem.net.status import Rejected
from tandem.specdec.liveness import LostCloud
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.services.scripted_suite import listening, summary_of, until
from tests.services.two_sided_suite import asking, two_sides

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
    refusing = Refusing(code)
    async with two_sides(tmp_path, way=lambda address: beside(address, refusing)) as suite:
        request = asking("dragon-coupled", lost_cloud=policy)
        await suite.client.generate(request)  # the first call begins the checks
        await until(lambda: refusing.checks >= 2)
        for refused in range(refusing.refused + 1, refusing.refused + ANSWERS + 1):
            answer = await suite.client.generate(request)
            assert (answer.unverified, summary_of(answer).resumes) == ([], 1)
            assert refusing.refused == refused


async def test_a_request_that_no_cloud_may_take_is_refused_at_once(tmp_path: Path) -> None:
    refusing = Refusing(grpc.StatusCode.INVALID_ARGUMENT)
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
