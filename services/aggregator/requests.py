"""Requests on their way through one drafter, whichever door they came in by.

Invariant: every request ends in exactly one status, counted once; all doors share the slots; times
are of this process's own clock. Must not import torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from typing import Any

import grpc

from services.aggregator.config import AggregatorSettings
from services.aggregator.device_side import DeviceSide
from services.aggregator.request_series import RequestSeries
from services.aggregator.slots import Slots
from tandem.core.errors import Unavailable
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS
from tandem.policy.presets import PRESETS
from tandem.rpc.access import ClientAccess
from tandem.rpc.aggregator_client import Generated
from tandem.rpc.connection import Connection
from tandem.rpc.generation import (
    DEFAULT_PRESET,
    GenerationRequest,
    request_from_proto,
    request_to_proto,
)
from tandem.rpc.status import Rejected, advised, details_of, refusal, refused_below, status_of
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.metrics import MethodSeries, Metrics
from tandem.telemetry.tracing import NO_TRACING, Headers, Span, Tracing
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.common.v1 import generation_pb2
from tandem_api.drafter.v1 import drafter_pb2, drafter_pb2_grpc

log = get_logger(__name__)

DESCRIBE_TIMEOUT_S = 5.0


class Requests:
    """Serves requests through one drafter; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._settings = settings
        self._series = RequestSeries(metrics, self.describe)
        self._tracing = tracing
        self._slots = Slots(settings.max_running, settings.max_waiting)
        self._connection = Connection(settings.drafter, settings.max_message_bytes, access)
        self._two_sides = DeviceSide(settings, metrics, access, lambda: self._series.target_name)
        self._leaving = False

    @property
    def leaving(self) -> bool:
        """Whether new requests are refused because the process is stopping."""
        return self._leaving

    @property
    def open_requests(self) -> int:
        return self._slots.running + self._slots.waiting

    def going_away(self) -> None:
        """Requests under way run to their end; new ones are refused."""
        self._leaving = True

    async def close(self) -> None:
        await self._series.close()
        await self._two_sides.close()
        await self._connection.close()
        await asyncio.to_thread(self._tracing.close)

    async def describe(self, timeout_s: float = DESCRIBE_TIMEOUT_S) -> pb.DescribeResponse:
        """What the suite can do. Raises Rejected with the status."""
        try:
            async with self._connection.channel() as channel:
                described = await drafter_pb2_grpc.DrafterServiceStub(channel).Describe(
                    drafter_pb2.DescribeRequest(), timeout=timeout_s
                )
        except grpc.aio.AioRpcError as error:
            raise refused_below(error.code(), details_of(error)) from None
        answer = pb.DescribeResponse(
            draft=described.draft,
            cloud_error=described.cloud_error,
            presets=[*described.presets, *AGGREGATION_PRESETS],
        )
        if described.HasField("target"):
            answer.target.CopyFrom(described.target)
            self._series.learned(described.target.model_name)
        return answer

    async def stream(
        self, request: GenerationRequest, timeout_s: float
    ) -> AsyncGenerator[Generated]:
        """As `AggregatorClient.stream`, within this process: the growing result, after each
        message. Raises InvalidArgument, ResourceExhausted, Unavailable or Rejected."""
        began_s = time.perf_counter()
        result = Generated()
        async with aclosing(self.answers(request_to_proto(request), timeout_s)) as answers:
            async for answer in answers:
                result.observe(answer, time.perf_counter() - began_s)
                yield result

    async def answers(
        self,
        start: generation_pb2.Generation,
        timeout_s: float | None = None,
        cancel: Callable[[], Awaitable[None]] | None = None,
        headers: Headers | None = None,
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """What the caller is told, once there is a slot; closing the generator cancels the request.

        A `cancel` that returns ends the answer with a summary; what it raises ends the request.
        `headers`, the caller's, may name the trace that the request is part of.
        """
        arrived_s, limit_s = time.monotonic(), self._settings.request_timeout_s
        ends_s = arrived_s + min(timeout_s or limit_s, limit_s)
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        self._series.learn()
        label = _label(start.preset)
        series = self._series.now(label)
        status = "CANCELLED"
        try:
            request = request_from_proto(start)
            timing = _Timing(lambda: self._series.now(label), arrived_s)
            waits = series.requests_waiting.track_inprogress()
            with self._tracing.span("request", headers, preset=_label(start.preset)) as span:
                async with self._slots.slot(waits, ends_s - arrived_s):
                    span.record("wait for a slot", timing.elapsed_s())
                    with series.requests_running.track_inprogress():
                        if request.from_two_sides:
                            relay = self._from_two_sides(request, ends_s, cancel, timing, span)
                        else:
                            relay = self._relay(start, ends_s, cancel, timing, span)
                        async with aclosing(relay) as answers:
                            async for answer in answers:
                                yield answer
            status = "OK"
        except TimeoutError:
            status = grpc.StatusCode.DEADLINE_EXCEEDED.name
            why = "no slot came free in the time that the request had"
            raise Rejected(grpc.StatusCode.DEADLINE_EXCEEDED, why) from None
        except Exception as error:
            code = status_of(error)[0]
            if code is grpc.StatusCode.UNAVAILABLE and time.monotonic() >= ends_s:
                # Whichever end of a call first noticed that its time was over.
                code = grpc.StatusCode.DEADLINE_EXCEEDED
                error = Rejected(code, "no complete answer in the time that the request had")
            status = code.name
            raise error
        finally:
            self._series.now(label).request_ended(status)

    async def _from_two_sides(
        self,
        request: GenerationRequest,
        ends_s: float,
        cancel: Callable[[], Awaitable[None]] | None,
        timing: _Timing,
        span: Span,
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """This side's part of an answer from documents on two sides."""
        timeout_s = max(0.0, ends_s - time.monotonic())
        relay = self._two_sides.answers(request, timeout_s, cancel, span.headers())
        async with aclosing(relay) as answers:
            async for answer in answers:
                timing.observe(answer)
                yield answer
        span.note(tokens=timing.tokens)

    async def _relay(
        self,
        start: generation_pb2.Generation,
        ends_s: float,
        cancel: Callable[[], Awaitable[None]] | None,
        timing: _Timing,
        span: Span,
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Pass the request to the drafter and its answer back; leaving cancels both."""
        async with self._connection.channel() as channel:
            drafter = drafter_pb2_grpc.DrafterServiceStub(channel)
            timeout_s = max(0.0, ends_s - time.monotonic())
            call = drafter.Generate(timeout=timeout_s, metadata=span.headers())
            cancelling = None if cancel is None else asyncio.create_task(_pass_cancel(cancel, call))
            with ExitStack() as naming:
                try:
                    async for answer in self._drafter_answers(call, start):
                        if answer.HasField("started"):
                            session, preset = answer.started.session, answer.started.preset
                            naming.enter_context(log_context(session=session, preset=preset))
                            log.info("request started")
                        timing.observe(answer)
                        yield _translated(answer)
                finally:
                    call.cancel()
                    if cancelling is not None:
                        cancelling.cancel()
                        await _raise_fault(cancelling)
                    span.note(tokens=timing.tokens)
                    log.info("request ended", tokens=timing.tokens, duration_s=timing.elapsed_s())

    async def _drafter_answers(
        self, call: Any, start: generation_pb2.Generation
    ) -> AsyncIterator[drafter_pb2.GenerateResponse]:
        try:
            await call.write(drafter_pb2.GenerateRequest(start=start))
            while isinstance(answer := await call.read(), drafter_pb2.GenerateResponse):
                yield answer
            code = await call.code()
            details = advised(code, await call.details() or "")
        except grpc.aio.AioRpcError as error:
            refused = await refusal(error, self.describe)
            code, details = refused.code, str(refused)
        if code is not grpc.StatusCode.OK:
            raise refused_below(code, details or "the drafter ended the call")


class _Timing:
    """TTFT, ITL, TPOT and end-to-end latency of one request, as its commits pass by."""

    def __init__(self, series: Callable[[], MethodSeries], arrived_s: float) -> None:
        self._series = series
        self._arrived_s = arrived_s
        self._first_s: float | None = None
        self._last_s = arrived_s
        self.tokens = 0

    def elapsed_s(self) -> float:
        return time.monotonic() - self._arrived_s

    def observe(self, answer: drafter_pb2.GenerateResponse | pb.GenerateResponse) -> None:
        now, series = time.monotonic(), self._series()
        if answer.HasField("committed") and answer.committed.token_ids:
            if self._first_s is None:
                self._first_s = now
                series.time_to_first_token.observe(now - self._arrived_s)
            else:
                series.inter_token_latency.observe(now - self._last_s)
            self._last_s = now
            self.tokens += len(answer.committed.token_ids)
            series.tokens.inc(len(answer.committed.token_ids))
        elif answer.HasField("summary"):
            series.e2e_request_latency.observe(now - self._arrived_s)
            if self._first_s is not None and answer.summary.tokens > 1:
                tpot_s = (self._last_s - self._first_s) / (answer.summary.tokens - 1)
                series.time_per_output_token.observe(tpot_s)


def _label(preset: str) -> str:
    """The preset that a request names, where it is one of ours."""
    preset = preset or DEFAULT_PRESET
    return preset if preset in PRESETS or preset in AGGREGATION_PRESETS else OTHER


async def _pass_cancel(cancel: Callable[[], Awaitable[None]], call: Any) -> None:
    try:
        await cancel()
    except Exception:
        call.cancel()
        raise
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # it ended meanwhile
        await call.write(drafter_pb2.GenerateRequest(cancel=drafter_pb2.Cancel()))


async def _raise_fault(cancelling: asyncio.Task[None]) -> None:
    """The caller's own fault, if that ended the request."""
    (error,) = await asyncio.gather(cancelling, return_exceptions=True)
    if isinstance(error, Exception):
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
