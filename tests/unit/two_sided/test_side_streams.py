"""Streams to several sides: one cannot be opened, and the last to open admits all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandem.two_sided.many_sides import FromLink, LastOpened, SideStreams
from tandem.two_sided.protocol.messages import CollaborationOpened


class Opened:
    """A stream that knows whether it was closed."""

    closed = False

    def send(self, message: Any) -> int:
        return 0

    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None:
        self.closed = True


def test_what_was_open_is_closed_where_another_side_cannot_be_reached() -> None:
    first = Opened()

    def fails(on_frame: Callable[..., None], on_end: Callable[..., None]) -> Opened:
        raise OSError("no certificate")

    openers: list[Any] = [lambda on_frame, on_end: first, fails]
    with pytest.raises(OSError, match="no certificate"):
        SideStreams(openers, set(), lambda frame, size_bytes: None, lambda error: None)
    assert first.closed


def test_the_frame_with_which_the_last_side_opens_says_so() -> None:
    heard: list[FromLink] = []
    receivers: list[Callable[..., None]] = []

    def opens(on_frame: Callable[..., None], on_end: Callable[..., None]) -> Opened:
        receivers.append(on_frame)
        return Opened()

    openers: list[Any] = [opens, opens]
    SideStreams(openers, set(), lambda frame, size_bytes: heard.append(frame), lambda error: None)
    opened = CollaborationOpened(1, 0, 2, 0, log_mass=0.0, max_tokens=4)
    for link in (1, 1, 0, 0):
        receivers[link](opened, 8)
    assert [(type(frame), frame.link) for frame in heard] == [
        (FromLink, 1),
        (FromLink, 1),
        (LastOpened, 0),
        (FromLink, 0),
    ]
