"""What a caller is told after its cloud refused, and the status of a later stream was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from grpc import StatusCode

from tandem.core.errors import Unavailable
from tandem.core.stopping import FinishReason
from tandem.net.frame_stream import StreamEnded
from tandem.net.session_runner import MAX_RESYNCS
from tandem.net.status import STATUS_LOST, Rejected
from tandem.specdec.events import Commit
from tests.unit.net.session_without_models import SessionWithoutModels

End = Callable[[BaseException | None], None]


class Stream:
    def send(self, message: Any) -> int:
        return 0

    def close_in_background(self, *rest: Any) -> None: ...


class Session(SessionWithoutModels):
    """Its streams end as the test says; "admitted" is the frame that admits one."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.frames: list[Callable[[Any, int], None]] = []

        def open_stream(on_frame: Any, on_end: Any) -> Any:
            self.frames.append(on_frame)
            self.ends.append(on_end)
            return Stream()

        super().__init__(open_stream, str, set())

    def stream_ends(self, code: StatusCode, details: str, admitted: bool = False) -> None:
        self._stream = None
        self.connect()
        if admitted:
            self.frames[-1]("admitted", 1)
        self.ends[-1](StreamEnded(code, details))


FULL = StatusCode.RESOURCE_EXHAUSTED, "200 bytes of KV cache needed"
SILENT = StatusCode.UNAVAILABLE, STATUS_LOST


async def test_an_end_without_a_status_leaves_the_refusal_before_it() -> None:
    """On a busy machine the last of several refusals often loses its status: callers were told
    that the cloud gives no sign of life."""
    session = Session()
    session.stream_ends(*FULL)
    session.stream_ends(*SILENT)
    with pytest.raises(Rejected, match="KV cache") as refused:
        await session.raise_failure(FinishReason.ERROR)
    assert refused.value.code is StatusCode.RESOURCE_EXHAUSTED
    session.close()
    await asyncio.sleep(0)


BROKEN = StatusCode.UNAVAILABLE, "the model computes NaN"


@pytest.mark.parametrize("admitted", [False, True])
async def test_an_end_without_a_status_leaves_the_fault_before_it(admitted: bool) -> None:
    session = Session()
    session.stream_ends(*BROKEN, admitted=admitted)
    session.stream_ends(*SILENT, admitted=admitted)
    with pytest.raises(Unavailable, match="the cloud is lost: the model computes NaN"):
        await session.raise_failure(FinishReason.ERROR)
    session.close()
    await asyncio.sleep(0)


async def test_a_fault_is_forgotten_once_something_was_committed() -> None:
    session = Session()
    session.stream_ends(*BROKEN, admitted=True)
    session.apply([Commit((1,))])
    session.stream_ends(*SILENT)
    with pytest.raises(Unavailable, match="the cloud is lost: no response"):
        await session.raise_failure(FinishReason.ERROR)
    session.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("between", [("UNAVAILABLE", "it is stopping"), "admitted"])
async def test_a_refusal_is_forgotten_once_something_else_is_known(between: Any) -> None:
    session = Session()
    session.stream_ends(*FULL)
    if between == "admitted":
        session.stream_ends(*SILENT, admitted=True)
    else:
        session.stream_ends(StatusCode[between[0]], between[1])
        session.stream_ends(*SILENT)
    why = "no response" if between == "admitted" else "it is stopping"
    with pytest.raises(Unavailable, match=f"the cloud is lost: {why}"):
        await session.raise_failure(FinishReason.ERROR)
    session.close()
    await asyncio.sleep(0)


async def test_peers_that_take_a_request_and_refuse_it_in_turn_end_it() -> None:
    """Each that takes it ends the outage, so that no silence would."""

    class Moving(Session):
        def peer_failed(self, code: StatusCode) -> bool:
            return True

    session = Moving()
    for tries in range(MAX_RESYNCS + 1):
        assert session.failure is None, tries
        session.stream_ends(*FULL, admitted=True)
        session.stream_ends(*SILENT)
    with pytest.raises(Rejected, match="KV cache"):
        await session.raise_failure(None)
    session.close()
    await asyncio.sleep(0)
