"""The status that a caller is told."""

import grpc
import pytest

from tandem.generation.conversation import answers_to
from tandem.net.status import Rejected
from tandem_api.common.v1.generation_pb2 import GenerateRequest


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
