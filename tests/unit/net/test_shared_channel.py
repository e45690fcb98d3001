"""What happens to a connection that others use when one session leaves its stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.net import connection as connections
from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.specdec.events import Reconnect
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc
from tests.unit.net.session_without_models import SessionWithoutModels

NOBODY = "127.0.0.1:1"


class Whole:
    def encode(self, message: pb.VerifyRequest) -> pb.VerifyRequest:
        return message

    def decode(self, frame: pb.VerifyResponse) -> pb.VerifyResponse:
        return frame


def session_on(
    connection: Connection, closing_tasks: set[asyncio.Task[None]]
) -> SessionWithoutModels:
    """Its streams are calls over the connection, which nobody answers."""

    def open_stream(on_frame: Any, on_end: Any) -> FrameStream[Any, Any]:
        return FrameStream(
            connection,
            begin=lambda channel: verifier_pb2_grpc.VerifierServiceStub(channel).Verify(
                wait_for_ready=True
            ),
            codec=Whole(),
            traffic=Traffic(),
            on_frame=on_frame,
            on_end=on_end,
        )

    return SessionWithoutModels(open_stream, pb.Opened, closing_tasks)


@pytest.mark.parametrize("lost", [False, True])
async def test_only_a_lost_stream_takes_its_channel_from_new_calls(lost: bool) -> None:
    """A session that is asked to go leaves a channel that works."""
    connection = Connection(NOBODY, 2**16, ClientAccess())
    closing_tasks: set[asyncio.Task[None]] = set()
    channel = connection.acquire()  # another session's
    leaving = session_on(connection, closing_tasks)
    leaving.connect()
    leaving.apply([Reconnect(lost=lost)])
    try:
        new_call = connection.acquire()
        assert (new_call is channel) is not lost
        await connection.release(new_call)
    finally:
        leaving.close()
        await asyncio.wait(closing_tasks)
        await connection.release(channel)
        await connection.close()


@pytest.mark.parametrize(("kept_for_s", "is_kept"), [(60.0, True), (0.0, False)])
async def test_who_is_refused_again_and_again_costs_others_no_connection_each_time(
    kept_for_s: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one takes round trips, for which everybody's next call would wait. After a while it is
    taken all the same: behind one address there may be replicas with room."""
    monkeypatch.setattr(connections, "KEPT_FOR_S", kept_for_s)
    connection = Connection(NOBODY, 2**16, ClientAccess())
    refused = connection.acquire()
    connection.refused(refused)
    others = connection.acquire()
    assert (others is refused) is is_kept
    for channel in (refused, others):
        await connection.release(channel)
    await connection.close()
