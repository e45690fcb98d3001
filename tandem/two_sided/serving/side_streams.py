"""The device's streams to all other sides of one answer. Invariant: they begin and end together, as
an answer needs every side: the first that ends is the end of all."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.net.session_runner import OpenedStream, OpenStream
from tandem.two_sided.protocol.messages import CloudSideMessage, DeviceMessage, ToPeer

OpenSideStream = OpenStream[CloudSideMessage, DeviceMessage]


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A frame, and the link that it came by: 0 is the cloud's."""

    message: CloudSideMessage
    link: int


OpenSideStreams = OpenStream[FromPeer, ToPeer]


class SideStreams:
    """Opens one stream a side, in the order of the links."""

    def __init__(
        self,
        openers: Sequence[OpenSideStream],
        closing_tasks: set[asyncio.Task[None]],
        on_frame: Callable[[FromPeer, int], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """`closing_tasks` holds the closing of those that had been opened before one could not
        be."""

        def received(link: int, message: CloudSideMessage, size_bytes: int) -> None:
            on_frame(FromPeer(message, link), size_bytes)

        self._streams: list[OpenedStream[DeviceMessage]] = []
        try:
            for link, opener in enumerate(openers):
                self._streams.append(opener(partial(received, link), on_end))
        except BaseException:
            self.close_in_background(closing_tasks)
            raise

    def send(self, message: ToPeer) -> int:
        """Queue a frame for one side and return its size in bytes."""
        # What the device's machine sends is the device's own.
        return self._streams[message.link].send(message.message)  # type: ignore[arg-type]

    def close_in_background(
        self, closing_tasks: set[asyncio.Task[None]], flush_s: float = 0.0, lost: bool = False
    ) -> None:
        """End all; see `FrameStream.close`."""
        for stream in self._streams:
            stream.close_in_background(closing_tasks, flush_s, lost)
