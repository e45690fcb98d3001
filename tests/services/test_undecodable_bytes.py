"""Bytes that are no protobuf message, and values out of range, against every RPC there is: the
caller's fault, told to the caller, and never a traceback in our log."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.core.errors import InvalidArgument
from tandem.net.scopes import SCOPE_OF
from tandem.net.status import STATUS_LOST, Rejected, actual_status
from tests.services.two_sided_suite import asking, retriever, two_sides

GARBAGE = b"\xff\xff\xff\xff"
ALSO = {"FAILED_PRECONDITION", "UNIMPLEMENTED"}
"""Of a service that does not serve the RPC at all, or not at its side."""


async def refused(target: str, method: str) -> tuple[str, str]:
    """Status and details of one garbage message."""
    while True:
        async with grpc.aio.insecure_channel(target) as channel:
            call: Any = channel.stream_stream(method)(timeout=30)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has ended already
                await call.write(GARBAGE)
                await call.done_writing()
                await call.read()
            code, details = await call.code(), await call.details() or ""
        # What ends while it is being written to may lose its status in grpc.aio (issue 36066).
        if actual_status(code, details)[1] != STATUS_LOST:
            return code.name, details


async def test_every_rpc_tells_its_caller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told: set[str] = set()
    async with AsyncExitStack() as stack:
        suite = await stack.enter_async_context(two_sides(tmp_path))
        texts = await stack.enter_async_context(retriever(tmp_path / "more"))
        services = (suite.verifier, suite.drafter, suite.cloud_aggregator, texts.running)
        for target in (suite.client.target, *(service.target for service in services)):
            for method in SCOPE_OF:
                code, details = await refused(target, method)
                assert code in {"INVALID_ARGUMENT", *ALSO}, (method, code, details)
                if code == "INVALID_ARGUMENT":
                    assert details == "message: the bytes are not a protobuf message of this RPC"
                    told.add(method)
    assert told == set(SCOPE_OF)
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_a_machine_refuses_is_its_caller_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the decoder has taken the request before."""

    def refuse(*_: object, **__: object) -> None:
        raise InvalidArgument("temperature", "too hot")

    monkeypatch.setattr("tandem.two_sided.serving.side_session.SideMachine", refuse)
    async with two_sides(tmp_path) as suite:
        with pytest.raises(Rejected, match="temperature: too hot") as error:
            await suite.client.generate(asking("dragon"))
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
