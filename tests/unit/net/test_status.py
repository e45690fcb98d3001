"""The status that a caller is told."""

import grpc
import pytest

from tandem.gateway.errors import api_error
from tandem.generation.client import AggregatorClient
from tandem.generation.conversation import answers_to
from tandem.net.status import Rejected, retry_after_s
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


FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


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
