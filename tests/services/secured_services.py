"""One of each service behind TLS and keys, and any RPC of theirs as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from tandem.index.document_index import open_index
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.channels import open_channel
from tandem.net.lifecycle import RunningService, Service
from tandem.net.status import details_of
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedTokenizer
from tests.services.scripted_suite import (
    MESSAGE_BYTES,
    VOCABULARY,
    draft_engine,
    target_engine,
)

TIMEOUT_S = 30.0
NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def secured_services(
    folder: Path, access: ServerAccess, health_port: int | None = None
) -> AsyncIterator[dict[str, RunningService]]:
    """By name; none of them has anything behind it that it could call."""
    device, cloud = Metrics(new_registry(), "device"), Metrics(new_registry(), "cloud")
    settings = AggregatorSettings(drafter=NOWHERE)
    index = open_index(folder / "documents", "lexical")
    tokenizer = ScriptedTokenizer(VOCABULARY)
    services: dict[str, Service] = {
        "verifier": VerifierServicer(target_engine(), VerifierLimits(), cloud),
        "drafter": DrafterServicer(draft_engine(), tokenizer, NOWHERE, DrafterLimits(), device),
        "aggregator": AggregatorServicer(settings, Metrics(new_registry(), "device")),
        "retriever": RetrieverServicer(
            index, "device", (), RetrieverLimits(), Metrics(new_registry(), "device")
        ),
    }
    async with AsyncExitStack() as stack:
        running = {}
        for name, service in services.items():
            running[name] = RunningService(
                service, "127.0.0.1", 0, MESSAGE_BYTES, access, health_port
            )
            await running[name].start()
            stack.push_async_callback(running[name].drain, 0.0)
        yield running


async def ending(target: str, method: str, access: ClientAccess | None) -> tuple[str, str]:
    """(status, details) of a call of `method`, "/package.Service/Rpc", with one empty message."""
    while True:
        ended = await _ending(target, method, access)
        # grpc.aio loses the status of a stream that ends while it is being written to (grpc issue
        # 36066); the same call tells it another time.
        if ended != ("INTERNAL", "Internal error from Core"):
            return ended


async def _ending(target: str, method: str, access: ClientAccess | None) -> tuple[str, str]:
    async with open_channel(target, MESSAGE_BYTES, access) as channel:
        # On the wire all kinds of calls look like this.
        call: Any = channel.stream_stream(method)(timeout=TIMEOUT_S)
        try:
            await call.write(b"")
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, details_of(error)
        return (await call.code()).name, await call.details() or ""
