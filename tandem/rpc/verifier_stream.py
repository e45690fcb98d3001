"""The edge's long stream to a verifier: the `FrameStream` of one request's session there.

Must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.protocol.messages import CloudMessage, EdgeMessage
from tandem.rpc.connection import Connection
from tandem.rpc.convert_verifier import EdgeCodec
from tandem.rpc.frame_stream import FrameStream, Traffic
from tandem.telemetry.tracing import Sent
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc

VerifierStream = FrameStream[EdgeMessage, CloudMessage]


def open_verifier_stream(
    connection: Connection,
    codec: EdgeCodec,
    traffic: Traffic,
    on_frame: Callable[[CloudMessage, int], None],
    on_end: Callable[[BaseException | None], None],
    deadline_s: float,
    headers: Sent = None,
) -> VerifierStream:
    """`headers` is metadata for the cloud: the trace that this stream is part of."""
    return FrameStream(
        connection,
        lambda channel: pb_grpc.VerifierServiceStub(channel).Verify(
            timeout=deadline_s, wait_for_ready=True, metadata=headers
        ),
        codec,
        traffic,
        on_frame,
        on_end,
    )
