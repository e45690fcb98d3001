"""Callers that say nothing, or do not read, against every stream over real gRPC: what they held is
free again, and they learn why, if they read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.generation.request import GenerationRequest, request_to_proto
from tandem.net.lifecycle import RunningService
from tandem.net.stream_limits import StreamLimits
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.retriever.servicer import RetrieverLimits
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.common.v1 import generation_pb2
from tandem_api.retriever.v1 import retriever_pb2, retriever_pb2_grpc
from tandem_api.verifier.v1 import verifier_pb2_grpc
from tests.services.scripted_suite import Suite, scripted_suite, serving, until
from tests.services.two_sided_suite import raw_ingest, retriever
from tests.services.verifier_peer import EdgePeer, control, edge_peer, opening

HASTY = StreamLimits(first_message_s=0.1, idle_s=0.3, write_s=0.3)
CALLER_S = 20.0
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1)]
"""gRPC must not widen the window of a caller that does not read."""


def hasty_suite(**verifier: Any) -> Any:
    settings = AggregatorSettings(first_message_s=0.1, unread_answer_s=0.3)
    limits = VerifierLimits(streams=HASTY, **verifier), DrafterLimits(streams=HASTY)
    return scripted_suite(*limits, settings)


@asynccontextmanager
async def every_stream(folder: Path) -> AsyncIterator[dict[str, str]]:
    """The address of each RPC whose caller speaks first."""
    cloud_settings = AggregatorSettings(side="cloud", first_message_s=0.1, http=False)
    async with AsyncExitStack() as stack:
        suite: Suite = await stack.enter_async_context(hasty_suite())
        texts = await stack.enter_async_context(
            retriever(folder, limits=RetrieverLimits(streams=HASTY))
        )
        servicer = AggregatorServicer(cloud_settings, Metrics(new_registry(), "cloud"))
        cloud = await stack.enter_async_context(serving(servicer))
        yield {
            "/tandem_api.verifier.v1.VerifierService/Verify": suite.verifier.target,
            "/tandem_api.decoding.v1.DecodingService/Decode": suite.verifier.target,
            "/tandem_api.decoding.v1.DecodingService/ImportDocuments": suite.drafter.target,
            "/tandem_api.drafter.v1.DrafterService/Generate": suite.drafter.target,
            "/tandem_api.aggregator.v1.AggregatorService/Generate": suite.aggregator.target,
            "/tandem_api.aggregator.v1.AggregatorService/Collaborate": cloud.target,
            "/tandem_api.aggregator.v1.AggregatorService/FetchDocuments": cloud.target,
            "/tandem_api.retriever.v1.RetrieverService/Ingest": texts.running.target,
        }


async def test_no_stream_waits_long_for_its_first_message(tmp_path: Path) -> None:
    async with every_stream(tmp_path) as streams:
        for method, target in streams.items():
            async with grpc.aio.insecure_channel(target) as channel:
                call: Any = channel.stream_stream(method)(timeout=CALLER_S)
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await call.read()
                code, why = ended.value.code().name, ended.value.details()
                assert (code, why) == (
                    "DEADLINE_EXCEEDED",
                    "stream: no first message for 0.1 s",
                ), method


async def test_silent_sessions_make_room() -> None:
    async with hasty_suite(max_sessions=2) as suite, AsyncExitStack() as stack:
        silent = [
            await stack.enter_async_context(edge_peer(suite.verifier.target)) for _ in range(2)
        ]
        for peer in silent:
            await peer.send(opening())
        for peer in silent:
            await peer.answer("opened")
            ending = await peer.ending()
            assert (ending.code, ending.details) == (
                "DEADLINE_EXCEEDED",
                "stream: nothing was said for 0.3 s",
            )
        async with edge_peer(suite.verifier.target) as another:
            await another.send(opening())
            await another.answer("opened")


async def test_silent_ingests_take_no_place_and_idle_ones_leave_theirs(tmp_path: Path) -> None:
    limits = RetrieverLimits(max_ingests=1, streams=StreamLimits(idle_s=0.3))
    document = retriever_pb2.IngestRequest(
        number=1, id="a", content=b"a heron", format=retriever_pb2.FORMAT_TEXT
    )
    async with (
        retriever(tmp_path, limits=limits) as service,
        grpc.aio.insecure_channel(service.running.target) as channel,
    ):
        stub: Any = retriever_pb2_grpc.RetrieverServiceStub(channel)
        silent = stub.Ingest(timeout=CALLER_S)
        await silent.wait_for_connection()
        code, _, answers = await raw_ingest(service.running.target, document)
        assert (code, len(answers)) == ("OK", 1)
        idle = stub.Ingest(timeout=CALLER_S)
        await idle.write(document)
        assert (await idle.read()).number == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await idle.read()
        assert await idle.details() == "stream: nothing was said for 0.3 s"
        code, _, _ = await raw_ingest(service.running.target, document)
        assert code == "OK"
        silent.cancel()


async def left_alone(suite: Suite, running: RunningService) -> None:
    """Until `running` has taken a request, and then until nobody holds anything for it."""
    await until(lambda: running.service.open_requests)
    await suite.idle(CALLER_S / 2)


async def test_an_edge_that_does_not_read_is_let_go() -> None:
    async with (
        hasty_suite() as suite,
        grpc.aio.insecure_channel(suite.verifier.target, NARROW) as channel,
    ):
        call: Any = verifier_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=CALLER_S)
        peer = EdgePeer(call)
        await peer.send(opening(), *([control("ping")] * 100))
        await left_alone(suite, suite.verifier)
        call.cancel()


async def test_a_caller_that_does_not_read_its_answer_is_let_go() -> None:
    """Its slot at the aggregator, and its sessions at drafter and verifier, are free again."""
    request = GenerationRequest(
        "abc", "dssd", GenerationParams(max_tokens=450, ignore_eos=True, seed=3)
    )
    async with (
        hasty_suite() as suite,
        grpc.aio.insecure_channel(suite.aggregator.target, NARROW) as channel,
    ):
        stub: Any = aggregator_pb2_grpc.AggregatorServiceStub(channel)
        call = stub.Generate(timeout=CALLER_S)
        await call.write(generation_pb2.GenerateRequest(start=request_to_proto(request)))
        await left_alone(suite, suite.aggregator)
        call.cancel()
