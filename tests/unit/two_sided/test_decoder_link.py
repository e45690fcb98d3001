"""An aggregator's stream to its decoder that is lost again and again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.specdec.messages import Cancel, GoingAway
from tandem.two_sided.protocol.messages import (
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    SideDraftFrame,
)
from tandem.two_sided.serving import decoder_link
from tandem.two_sided.serving.decoder_link import DecoderLink
from tests.unit.two_sided.decoder_frames import SESSION, opening

OPENED = DecodingOpened(SESSION, 0, 0, "m", "", 8, 64, frozenset(), (1, 2), 0.0, 9)

DRAFT = SideDraftFrame(SESSION, 2, 0, 5, probs=None, log_mass=0.0, committed=2)


class Stream:
    """In the place of a `FrameStream`; `all` has them in the order of their opening."""

    all: list[Stream]

    def __init__(self, *given: Any, on_frame: Any, on_end: Any, **more: Any) -> None:
        self.on_frame = on_frame
        self.on_end = on_end
        self.sent: list[Any] = []
        self.closed_as_lost: bool | None = None
        self.opened_s = asyncio.get_running_loop().time()
        self.all.append(self)

    def send(self, message: Any) -> int:
        self.sent.append(message)
        return 0

    def close_in_background(self, *how: Any, lost: bool = False, **more: Any) -> None:
        self.closed_as_lost = lost


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    monkeypatch.setattr(decoder_link, "FrameStream", Stream)
    monkeypatch.setattr(Stream, "all", [], raising=False)
    return Stream.all


def link(failures: list[Exception]) -> DecoderLink:
    nowhere: Any = None

    def ignored(*given: object) -> None:
        pass

    return DecoderLink(
        nowhere,
        opening(wants_text=True),
        on_answer=ignored,
        on_restart=ignored,
        on_failure=failures.append,
        deadline_s=9.0,
        closing_tasks=set(),
    )


async def until(streams: list[Stream], count: int) -> None:
    async with asyncio.timeout(10.0):
        while len(streams) < count:
            await asyncio.sleep(0.001)


async def test_each_new_stream_to_a_decoder_comes_later_than_the_one_before(
    streams: list[Stream],
) -> None:
    """Three were opened in the same moment: one that restarts had no time for it."""
    failures: list[Exception] = []
    decoder = link(failures)
    streams[0].on_frame(OPENED, 0)
    lost_s = []
    for count in (2, 3, 4):
        lost_s.append(asyncio.get_running_loop().time())
        streams[-1].on_end(None)
        if count == 3:  # while there is no stream
            decoder.send_target(DecodingTarget(SESSION, 2, 0, (5,)))
        await until(streams, count)
    waits_s = [stream.opened_s - at for stream, at in zip(streams[1:], lost_s, strict=True)]
    assert waits_s[1] >= 0.05
    assert waits_s[2] >= 0.1
    for stream in streams[2:]:
        assert [type(each) for each in stream.sent] == [DecodingOpen, DecodingTarget]
    streams[-1].on_end(None)
    assert "lost 4 times" in str(failures[0])
    assert len(streams) == 4


async def test_any_number_of_decoders_may_stop_gracefully_under_an_answer(
    streams: list[Stream],
) -> None:
    """As in a rolling update: the channel is shared by other answers, and no loss is counted."""
    failures: list[Exception] = []
    link(failures)
    for count in range(1, 9):
        streams[-1].on_frame(OPENED, 0)
        streams[-1].on_frame(DRAFT, 0)
        streams[-1].on_frame(GoingAway(SESSION, 2, 0), 0)
        assert streams[-1].closed_as_lost is False
        await until(streams, count + 1)
    assert not failures


async def test_a_decoder_that_is_about_to_stop_again_and_again_is_not_hammered(
    streams: list[Stream],
) -> None:
    link([])
    for count in range(1, 4):
        left_s = asyncio.get_running_loop().time()
        streams[-1].on_frame(OPENED, 0)
        streams[-1].on_frame(GoingAway(SESSION, 2, 0), 0)
        await until(streams, count + 1)
    assert streams[-1].opened_s - left_s >= 0.1


async def test_losses_with_drafts_between_them_are_not_added_up(streams: list[Stream]) -> None:
    failures: list[Exception] = []
    link(failures)
    for count in range(1, 9):
        streams[-1].on_frame(OPENED, 0)
        streams[-1].on_frame(DRAFT, 0)
        streams[-1].on_end(None)
        await until(streams, count + 1)
    assert not failures


async def test_a_link_that_is_closed_opens_no_further_stream(streams: list[Stream]) -> None:
    decoder = link([])
    streams[0].on_frame(OPENED, 0)
    streams[0].on_end(None)
    decoder.close()
    await asyncio.sleep(0.01)
    assert len(streams) == 1
    assert Cancel(SESSION, 0, 0) not in streams[0].sent, "it is gone"
