"""The conversation of one request, at both of its ends: a service and its caller. The aggregator
has it with its callers, and in the same messages with the drafter."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc

from tandem.core.errors import InvalidArgument
from tandem.net.status import (
    STATUS_LOST,
    Rejected,
    actual_status,
    details_of,
    plain_details,
    refusal,
    retry_after_s,
)
from tandem.net.stream_limits import ServedStream
from tandem.net.uncancelled import uncancelled
from tandem_api.common.v1 import generation_pb2 as pb

Stream = ServedStream[pb.GenerateRequest, pb.GenerateResponse]


async def read_start(stream: Stream) -> pb.GenerateRequest:
    """Return the caller's first message, which has `start`. Raises InvalidArgument if it does
    not."""
    first = await stream.first(pb.GenerateRequest, "start")
    if not first.HasField("start"):
        raise InvalidArgument("start", "must be the first message of a stream")
    return first


async def cancelled(stream: Stream) -> None:
    """Wait until the caller cancels; a caller that closed its half of the stream may still be
    listening. Raises InvalidArgument for any other message."""
    message = await stream.read_in_its_time()
    if not isinstance(message, pb.GenerateRequest):
        await asyncio.Event().wait()
    elif not message.HasField("cancel"):
        raise InvalidArgument("cancel", "is all that may follow the start")


async def answers_to(
    call: Any, start: pb.GenerateRequest, describe: Callable[[], Awaitable[object]]
) -> AsyncGenerator[pb.GenerateResponse]:
    """Yield what the service answers on a fresh `call`. Raises Rejected. If gRPC lost the status,
    `describe`, another call to the same service, may meet it again."""
    try:
        await call.write(start)
        while isinstance(answer := await uncancelled(call.read()), pb.GenerateResponse):
            yield answer
        code = await call.code()
        details = plain_details(code, await call.details() or "")
        again_s = retry_after_s(await call.trailing_metadata())
    except grpc.aio.AioRpcError as error:
        raise await _late_or_refused(call, error, describe) from None
    if code is not grpc.StatusCode.OK:
        raise Rejected(code, details or "the service ended the call", again_s)


async def _late_or_refused(
    call: Any, error: grpc.aio.AioRpcError, describe: Callable[[], Awaitable[object]]
) -> Rejected:
    """Return the status behind an error. If a deadline passes while a message is written, the error
    only says that the write failed. So does the call until its own status comes, which cannot be
    waited for."""
    late = grpc.StatusCode.DEADLINE_EXCEEDED
    lost = actual_status(error.code(), details_of(error))[1] == STATUS_LOST
    if call.done() and await call.code() is late:
        return Rejected(late, await call.details() or "")
    if lost and call.time_remaining() == 0:
        return Rejected(late, "Deadline Exceeded")
    return await refusal(error, describe)
