"""What happens to a connection that others use when one session leaves its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.net.access import ClientAccess
from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream, Traffic
from tandem.net.session_runner import SessionRunner
from tandem.specdec.events import Reconnect
from tandem.specdec.liveness import Phase
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc

NOBODY = "127.0.0.1:1"


class Whole:
    def encode(self, message: pb.VerifyRequest) -> pb.VerifyRequest:
        return message

    def decode(self, frame: pb.VerifyResponse) -> pb.VerifyResponse:
        return frame


class Machine:
    phase = Phase.CONNECTING
    goes_on_alone = False

    def connect(self, now: float) -> list[Any]:
        self.phase = Phase.RUNNING
        return []

    def lost(self, now: float, stuck_s: float = 0.0) -> list[Any]:
        return []

    def tick(self, now: float) -> list[Any]:
        return []


class Session(SessionRunner[Any, Any, Any]):
    def __init__(self, connection: Connection, closing_tasks: set[asyncio.Task[None]]) -> None:
        def open_stream(on_frame: Any, on_end: Any) -> FrameStream[Any, Any]:
            return FrameStream(
                connection,
                lambda channel: verifier_pb2_grpc.VerifierServiceStub(channel).Verify(
                    wait_for_ready=True
                ),
                Whole(),
                Traffic(),
                on_frame,
                on_end,
            )

        super().__init__(open_stream, pb.Opened, closing_tasks, self._why_silent, spread=1)
        self._machine = Machine()

    @property
    def machine(self) -> Machine:
        return self._machine

    def receive(self, message: Any, size_bytes: int, now: float) -> Sequence[Any]:
        return []

    def perform(self, output: Any) -> None: ...

    def cancel_machine(self) -> Sequence[Any]:
        return []

    async def _why_silent(self) -> str:
        return ""


@pytest.mark.parametrize("lost", [False, True])
async def test_only_a_lost_stream_takes_its_channel_from_new_calls(lost: bool) -> None:
    """A session that moves to a better cloud, or is asked to go, leaves a channel that works."""
    connection = Connection(NOBODY, 2**16, ClientAccess())
    closing_tasks: set[asyncio.Task[None]] = set()
    channel = connection.acquire()  # another session's
    leaving = Session(connection, closing_tasks)
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
