"""How a stream to another service ended, and what that says about the next one.

Must not import torch.
"""

from __future__ import annotations

import grpc

from tandem.rpc.status import details_of, known_status

FATAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses that another stream would meet again."""

BROKEN = frozenset(
    {
        grpc.StatusCode.OK,  # this end had not said that it is done
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Ends of a stream that are a fault of the conversation, not of the link."""


class StreamEnded(Exception):
    """A stream ended with another status than OK."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


def end_status(error: BaseException | None) -> tuple[grpc.StatusCode, str]:
    """Code and details of a stream's end; `error` is what its `on_end` was called with."""
    if error is None:
        return grpc.StatusCode.OK, ""
    if isinstance(error, StreamEnded):
        return known_status(error.code, str(error))
    if isinstance(error, grpc.aio.AioRpcError):
        return known_status(error.code(), details_of(error))
    return grpc.StatusCode.INTERNAL, str(error)
