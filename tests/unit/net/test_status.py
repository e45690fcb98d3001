"""The status that a caller is told."""

import asyncio

import grpc
import pytest

from tandem.generation.client import AggregatorClient
from tandem.generation.conversation import answers_to
from tandem.net.status import Rejected, plain_details
from tandem_api.common.v1.generation_pb2 import GenerateRequest
from tests.process.service_process import free_port


@pytest.mark.parametrize("told", ["DEADLINE_EXCEEDED", "INTERNAL"])
async def test_a_deadline_that_passes_while_a_message_is_written_is_told_as_one(told: str) -> None:
    """The write's own error says INTERNAL, as the call may, and another call would meet nothing."""

    class LateCall:
        async def write(self, message: object) -> None:
            nothing = grpc.aio.Metadata()
            code = grpc.StatusCode.INTERNAL
            raise grpc.aio.AioRpcError(code, nothing, nothing, "Internal error from Core")

        def done(self) -> bool:
            return True

        async def code(self) -> grpc.StatusCode:
            return grpc.StatusCode[told]

        async def details(self) -> str:
            return "Deadline Exceeded"

        def time_remaining(self) -> float:
            return 0.0

    async def describe() -> None:
        raise AssertionError("nobody needs to be asked")

    with pytest.raises(Rejected) as late:
        await anext(answers_to(LateCall(), GenerateRequest(), describe))
    assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_port_that_nobody_listens_on_is_named() -> None:
    port = free_port()
    async with AggregatorClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(Rejected) as refused:
            await client.describe()
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    assert str(refused.value) == f"127.0.0.1:{port} cannot be reached: Connection refused"


async def test_a_port_of_http_is_told_from_one_of_grpc() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with (
        server,
        AggregatorClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as client,
    ):
        with pytest.raises(Rejected, match="that port is one of HTTP: give that of gRPC"):
            await client.describe()


def test_other_words_of_grpc_stay_as_they_are() -> None:
    for code, details in (
        (grpc.StatusCode.UNAVAILABLE, "Socket is gone"),
        (grpc.StatusCode.OK, ""),
    ):
        assert plain_details(code, details) == details
