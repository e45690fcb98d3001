"""Streams to several sides, of which one cannot be opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tandem.two_sided.many_sides import SideStreams


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
