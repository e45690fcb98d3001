"""The request's own stream, at the two services of the edge that serve it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tandem.generation.request import GenerationRequest, request_to_proto
from tandem.specdec.messages import GenerationParams
from tandem.testing.paced import PacedEngine
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.common.v1 import generation_pb2 as pb
from tandem_api.drafter.v1 import drafter_pb2
from tests.services.scripted_suite import Suite, draft_engine, scripted_suite, target_engine

SERVICES: dict[str, Any] = {"aggregator": aggregator_pb2, "drafter": drafter_pb2}
GARBAGE = b"\xff" * 20
TOKENS = 400


REQUEST = GenerationRequest(
    "frames", "coupled", GenerationParams(max_tokens=TOKENS, ignore_eos=True)
)
START = pb.GenerateRequest(start=request_to_proto(REQUEST)).SerializeToString()
CANCEL = pb.GenerateRequest(cancel=pb.Cancel()).SerializeToString()


async def conversation(
    suite: Suite, name: str, first: bytes, after_commit: bytes | None = None
) -> tuple[str, str, list[Any]]:
    """Send `first`, and `after_commit` once a token came; the status and all answers."""
    (service,) = SERVICES[name].DESCRIPTOR.services_by_name.values()
    answers: list[Any] = []
    async with grpc.aio.insecure_channel(getattr(suite, name).target) as channel:
        generate = channel.stream_stream(
            f"/{service.full_name}/Generate",
            request_serializer=lambda raw: raw,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        call: Any = generate(timeout=60)
        await call.write(first)
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                answers.append(answer)
                if after_commit is not None and answer.HasField("committed"):
                    await call.write(after_commit)
                    after_commit = None
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or "", answers
        return (await call.code()).name, await call.details(), answers


@pytest.mark.parametrize("name", SERVICES)
async def test_a_start_that_is_none_is_refused(name: str) -> None:
    async with scripted_suite() as suite:
        code, details, answers = await conversation(suite, name, GARBAGE)
        assert (code, details.split(":")[0], answers) == ("INVALID_ARGUMENT", "message", [])
        for first in (CANCEL, b""):
            code, details, answers = await conversation(suite, name, first)
            assert (code, details.split(":")[0], answers) == ("INVALID_ARGUMENT", "start", [])


@pytest.mark.parametrize("name", SERVICES)
async def test_what_follows_the_start_and_is_no_cancel_ends_the_request(name: str) -> None:
    slow = PacedEngine(target_engine(), 2e-3, 0.0)
    async with scripted_suite(target=slow) as suite:
        for later, field in ((GARBAGE, "message"), (START, "cancel")):
            code, details, answers = await conversation(suite, name, START, later)
            assert (code, details.split(":")[0]) == ("INVALID_ARGUMENT", field)
            assert not answers[-1].HasField("summary")
            await suite.idle()


@pytest.mark.parametrize("name", SERVICES)
async def test_a_cancel_ends_the_answer_with_its_summary(name: str) -> None:
    slow = PacedEngine(target_engine(), 2e-3, 0.0)
    async with scripted_suite(target=slow, draft=PacedEngine(draft_engine(), 1e-3, 0.0)) as suite:
        code, _, answers = await conversation(suite, name, START, CANCEL)
        assert code == "OK"
        assert answers[-1].summary.finish_reason == "cancelled"
        committed = sum(len(a.committed.token_ids) for a in answers if a.HasField("committed"))
        assert 0 < committed == answers[-1].summary.tokens < TOKENS
        await suite.idle()
