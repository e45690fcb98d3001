"""Traces leave a service for a collector, the last of them before it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc

from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams
from tests.process.service_process import ServiceProcess, free_port


class Collector(pb_grpc.TraceServiceServicer):
    """Keeps what services export."""

    def __init__(self) -> None:
        self.exported: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # the RPC's name
        self.exported += request.resource_spans
        return pb.ExportTraceServiceResponse()


@contextmanager
def collector() -> Iterator[tuple[Collector, str]]:
    """With its endpoint."""
    server, kept = grpc.server(ThreadPoolExecutor(1)), Collector()
    add: Any = pb_grpc.add_TraceServiceServicer_to_server
    add(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield kept, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


async def test_a_stopping_service_exports_its_last_spans() -> None:
    flags = ("--port", "0", "--http", "false", "--drafter", f"127.0.0.1:{free_port()}")
    with (
        collector() as (kept, endpoint),
        ServiceProcess(
            "tandem.services.aggregator", *flags, "--trace-endpoint", endpoint
        ) as process,
    ):
        async with AggregatorClient(process.address()) as client:
            with pytest.raises(Rejected):
                await client.generate(
                    GenerationRequest("a secret", params=GenerationParams(max_tokens=1))
                )
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
        (exported,) = kept.exported
    attributes = {entry.key: entry.value.string_value for entry in exported.resource.attributes}
    assert attributes["service.name"] == "tandem-aggregator"
    names = [span.name for scope in exported.scope_spans for span in scope.spans]
    assert names == ["wait for a slot", "request"]
    assert "a secret" not in str(exported)
