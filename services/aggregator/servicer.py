"""gRPC handlers of the aggregator.

Invariant: every request that arrives ends in exactly one status, counted once; times are of this
process's own clock. Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.aggregator.config import AggregatorSettings
from services.aggregator.slots import Slots
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.policy.presets import PRESETS
from tandem.rpc.channels import open_channel
from tandem.rpc.generation import DEFAULT_PRESET, request_from_proto
from tandem.rpc.status import Rejected, errors_as_status, status_of
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metrics import OTHER, MethodSeries, Metrics
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.drafter.v1 import drafter_pb2, drafter_pb2_grpc

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[pb.GenerateRequest, pb.GenerateResponse]
DESCRIBE_TIMEOUT_S = 5.0


class AggregatorServicer(pb_grpc.AggregatorServiceServicer):
    """Serves requests through one drafter."""

    full_name = pb.DESCRIPTOR.services_by_name["AggregatorService"].full_name

    def __init__(self, settings: AggregatorSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._slots = Slots(settings.max_running, settings.max_waiting)
        self._channel = open_channel(settings.drafter, settings.max_message_bytes)
        self._drafter = drafter_pb2_grpc.DrafterServiceStub(self._channel)
        self._leaving = False

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_AggregatorServiceServicer_to_server(self, server)

    @property
    def open_requests(self) -> int:
        return self._slots.running + self._slots.waiting

    def going_away(self, grace_s: float) -> None:
        """Requests under way run to their end within the grace; new ones are refused."""
        self._leaving = True

    async def close(self) -> None:
        await self._channel.close()

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        async with errors_as_status(context):
            described = await self._drafter.Describe(
                drafter_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S
            )
            answer = pb.DescribeResponse(
                draft=described.draft, cloud_error=described.cloud_error, presets=described.presets
            )
            if described.HasField("target"):
                answer.target.CopyFrom(described.target)
            return answer
        raise AssertionError("abort ends the call")

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Context
    ) -> None:
        async with errors_as_status(context):
            await self._generate(context)

    async def _generate(self, context: Context) -> None:
        arrived_s = time.monotonic()
        first = await context.read()
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        if not isinstance(first, pb.GenerateRequest) or not first.HasField("start"):
            raise InvalidArgument("start", "must be the first message of a stream")
        series = self._metrics.method(_label(first.start.preset), "suite")
        status = "CANCELLED"
        try:
            request_from_proto(first.start)
            async with self._slots.slot(series.requests_waiting.track_inprogress()):
                with series.requests_running.track_inprogress():
                    await self._relay(first, context, _Timing(series, arrived_s))
            status = "OK"
        except Exception as error:
            status = status_of(error)[0].name
            raise
        finally:
            series.request_ended(status)

    async def _relay(self, first: pb.GenerateRequest, context: Context, timing: _Timing) -> None:
        """Pass the request to the drafter and its answer back; leaving cancels both."""
        remaining = context.time_remaining()
        timeout_s = min(
            remaining or self._settings.request_timeout_s, self._settings.request_timeout_s
        )
        call = self._drafter.Generate(timeout=timeout_s, wait_for_ready=False)
        cancelling = asyncio.create_task(_pass_cancel(context, call))
        with ExitStack() as naming:
            try:
                await call.write(drafter_pb2.GenerateRequest(start=first.start))
                async for answer in _answers(call):
                    if answer.HasField("started"):
                        session, preset = answer.started.session, answer.started.preset
                        naming.enter_context(log_context(session=session, preset=preset))
                        log.info("request started")
                    timing.observe(answer)
                    await context.write(_translated(answer))
            finally:
                cancelling.cancel()
                call.cancel()
                await _raise_bad_message(cancelling)
                log.info("request ended", tokens=timing.tokens, duration_s=timing.elapsed_s())


class _Timing:
    """TTFT, ITL, TPOT and end-to-end latency of one request, as its commits pass by."""

    def __init__(self, series: MethodSeries, arrived_s: float) -> None:
        self._series = series
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = arrived_s
        self.tokens = 0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._arrived_s

    def observe(self, answer: drafter_pb2.GenerateResponse) -> None:
        now = time.monotonic()
        if answer.HasField("committed") and answer.committed.token_ids:
            if self._first_s is None:
                self._first_s = now
                self._series.time_to_first_token.observe(now - self._arrived_s)
            else:
                self._series.inter_token_latency.observe(now - self._last_s)
            self._last_s = now
            self.tokens += len(answer.committed.token_ids)
            self._series.tokens.inc(len(answer.committed.token_ids))
        elif answer.HasField("summary"):
            self._series.e2e_request_latency.observe(now - self._arrived_s)
            if self._first_s is not None and answer.summary.tokens > 1:
                tpot_s = (self._last_s - self._first_s) / (answer.summary.tokens - 1)
                self._series.time_per_output_token.observe(tpot_s)


def _label(preset: str) -> str:
    """The preset that a request names, where it is one of ours."""
    preset = preset or DEFAULT_PRESET
    return preset if preset in PRESETS else OTHER


async def _answers(call: Any) -> AsyncIterator[drafter_pb2.GenerateResponse]:
    try:
        while isinstance(answer := await call.read(), drafter_pb2.GenerateResponse):
            yield answer
        code, details = await call.code(), await call.details()
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), error.details()
    if code is not grpc.StatusCode.OK:
        raise Rejected(code, details or "the drafter ended the call")


async def _pass_cancel(context: Context, call: Any) -> None:
    try:
        message = await context.read()
        if not isinstance(message, pb.GenerateRequest):
            return  # a half-closed caller may still be listening
        if not message.HasField("cancel"):
            raise InvalidArgument("cancel", "is all that may follow the start")
    except (DecodeError, InvalidArgument):
        call.cancel()
        raise
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it ended meanwhile
        await call.write(drafter_pb2.GenerateRequest(cancel=drafter_pb2.Cancel()))


async def _raise_bad_message(cancelling: asyncio.Task[None]) -> None:
    """The caller's own fault, if that ended the request."""
    (error,) = await asyncio.gather(cancelling, return_exceptions=True)
    if isinstance(error, DecodeError | InvalidArgument):
        raise error


def _translated(answer: drafter_pb2.GenerateResponse) -> pb.GenerateResponse:
    match answer.WhichOneof("message"):
        case "started":
            started = answer.started
            return pb.GenerateResponse(
                started=pb.Started(
                    session=started.session,
                    preset=started.preset,
                    prompt_tokens=started.prompt_tokens,
                    max_tokens=started.max_tokens,
                )
            )
        case "committed":
            return pb.GenerateResponse(committed=answer.committed)
    return pb.GenerateResponse(summary=answer.summary)
