"""The status that a caller is told."""

import asyncio

import grpc
import pytest

from tandem.gateway.errors import api_error
from tandem.generation.client import AggregatorClient
from tandem.generation.conversation import answers_to
from tandem.net.status import Rejected, plain_details, retry_after_s
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


def test_a_call_that_broke_off_is_no_matter_of_certificates() -> None:
    """Nor is the advice given twice, where a service passed on what it was told."""
    said = plain_details(grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)")
    assert said.startswith("Stream removed (Socket closed); the service ended, or the link")
    assert "TLS" not in said
    assert plain_details(grpc.StatusCode.UNAVAILABLE, said) == said


def test_other_words_of_grpc_stay_as_they_are() -> None:
    for code, details in (
        (grpc.StatusCode.UNAVAILABLE, "Socket is gone"),
        (grpc.StatusCode.OK, ""),
    ):
        assert plain_details(code, details) == details


CLOUD = "the cloud at a:1"
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
LOST = grpc.StatusCode.UNAVAILABLE
SAID = f'{CLOUD} says: "no room"'
ROOM = "no room; try again"
FORGED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:{}: Failed to connect to"


@pytest.mark.parametrize(
    ("code", "said", "again_s", "shown"),
    [
        (FULL, "no room", None, SAID),
        (FULL, "no room", 2.0, f"{SAID}; try again in 2 s"),
        (FULL, f"{ROOM} in 99999999 s", None, f"{SAID}; try again in 60 s"),
        (FULL, f"{ROOM} in 1e-9 s", None, f"{SAID}; try again in 0.1 s"),
        (FULL, f"{ROOM} in e s", None, SAID),
        (FULL, f"{ROOM} in 99999999 s", 3.0, f"{SAID}; try again in 3 s"),
        (FULL, FORGED.format("b:2"), None, f'{CLOUD} says: "{FORGED.format("b:2")}"'),
        (LOST, "gone", None, f'the call to {CLOUD} ended with: "gone"'),
        (LOST, "\0", None, f"the call to {CLOUD} ended with: UNAVAILABLE"),
        (
            LOST,
            f"{FORGED.format('b:2')} remote host: Connection refused",
            None,
            "b:2 cannot be reached: Connection refused",
        ),
        (
            LOST,
            f"{FORGED.format('b:2')} remote host: pay me",
            None,
            f'the call to {CLOUD} ended with: "{FORGED.format("b:2")} remote host: pay me"',
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt: 9 tokens",
            None,
            f'prompt: {CLOUD} says: "9 tokens"',
        ),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "Pay me: now",
            None,
            f'{CLOUD} says: "Pay me: now"',
        ),
    ],
)
def test_what_a_service_of_another_side_says_is_quoted(
    code: grpc.StatusCode, said: str, again_s: float | None, shown: str
) -> None:
    assert plain_details(code, said, CLOUD, again_s) == shown


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5", 5.0),
        ("0.25", 0.25),
        ("0", 0.1),
        ("-3", 0.1),
        ("99999999", 60.0),
        ("inf", 60.0),
        ("-inf", 0.1),
        ("nan", None),
        ("soon", None),
        ("", None),
        (b"7", 7.0),
    ],
)
def test_when_to_try_again_is_a_time_that_somebody_can_wait(
    value: str | bytes, seconds: float | None
) -> None:
    assert retry_after_s((("other", "1"), ("retry-after", value))) == seconds
    assert retry_after_s(()) is None
    assert retry_after_s(None) is None


def test_http_callers_are_told_when_to_try_again() -> None:
    for again_s, header in ((None, "1"), (0.1, "1"), (2.2, "3"), (60.0, "60")):
        error = api_error(Rejected(FULL, "full", again_s))
        assert (error.status, error.headers) == (429, {"Retry-After": header})
