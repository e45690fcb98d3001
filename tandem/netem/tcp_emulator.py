"""A TCP proxy that makes the path between two processes slow, narrow or dead.

Each direction is one `link_model.Link`, shared by all connections as by the users of one access
line; `delay_line` moves the bytes.

Invariant: per connection and direction, bytes and the end of the stream come out in the order they
went in, none twice, none missing, unless the connection is reset.

Limits: connecting takes no emulated round trip; the kernel's socket buffers lie in front of the
emulated sender; and since at most `MAX_IN_FLIGHT_BYTES` are under way in a direction, its
throughput is at most that many bytes per propagation delay.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from tandem.core.errors import listen_words
from tandem.netem.delay_line import DelayLine, Endpoint
from tandem.netem.link_model import LinkPair, LinkSettings

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LinkStats:
    """Bytes delivered each way since the start, bytes under way now, and connections."""

    up_bytes: int
    down_bytes: int
    up_in_flight_bytes: int
    down_in_flight_bytes: int
    connections: int
    open_connections: int
    cut: bool


class TcpLinkEmulator:
    """Forwards every connection to `listen` on to `target` over an emulated link. *Up* is what
    travels from the connecting side to the target, *down* what comes back. Use as an asynchronous
    context manager, or `start` and `close`. All methods belong to the loop's thread."""

    def __init__(
        self,
        listen: Address,
        target: Address,
        up: LinkSettings,
        down: LinkSettings,
        *,
        further: Sequence[tuple[Address, Address]] = (),
        seed: int = 0,
    ) -> None:
        """Set up the link; connections are accepted later.

        Args:
            listen: where to listen; port 0 takes a free port, see `address`.
            further: more pairs of where to listen and where to forward to, over the same link."""
        self._ways = ((listen, target), *further)
        self._links = LinkPair.of(up, down, seed)
        self._up = DelayLine(self._links.up)
        self._down = DelayLine(self._links.down)
        self._servers: list[asyncio.Server] = []
        self._passable = asyncio.Event()
        self._passable.set()
        self._open: set[Endpoint] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._connections = 0

    async def start(self) -> None:
        """Begin to listen. Raises OSError naming the address if that is not possible."""
        try:
            for listen, target in self._ways:
                self._servers.append(await self._listen(listen, target))
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and reset what is open. Idempotent."""
        servers, self._servers = self._servers, []
        if not servers:
            return
        for server in servers:
            server.close()
        for opening in self._openings:
            opening.cancel()
        await asyncio.gather(*self._openings, return_exceptions=True)
        self.drop()
        self._up.close()
        self._down.close()
        for server in servers:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> Address:
        """Host and port that are really listened on. Only while started."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The same, and those of `further`."""
        if not self._servers:
            raise RuntimeError("the emulator is not started")
        names = (server.sockets[0].getsockname()[:2] for server in self._servers)
        return tuple((host, port) for host, port in names)

    @property
    def settings(self) -> tuple[LinkSettings, LinkSettings]:
        """Settings in force, up and down."""
        return self._links.up.settings, self._links.down.settings

    def cut(self) -> None:
        """Let nothing through, as a dead radio does: bytes are held and connections stay open. New
        connections are accepted but reach the target only after `restore`."""
        self._passable.clear()
        self._up.hold()
        self._down.hold()

    def restore(self) -> None:
        """Let held bytes go on; those whose time has come go at once."""
        self._passable.set()
        self._up.release()
        self._down.release()

    def drop(self) -> None:
        """Reset every connection at both ends and throw away what is under way."""
        self._up.empty()
        self._down.empty()
        for end in tuple(self._open):
            end.reset()

    def configure(self, up: LinkSettings | None = None, down: LinkSettings | None = None) -> None:
        """Use other settings for bytes that come from now on; None keeps a direction's settings.
        Bytes under way keep their arrival times and are never overtaken."""
        if up is not None:
            self._up.change(up)
        if down is not None:
            self._down.change(down)

    def stats(self) -> LinkStats:
        """Return the counters at this moment."""
        return LinkStats(
            up_bytes=self._up.delivered_bytes,
            down_bytes=self._down.delivered_bytes,
            up_in_flight_bytes=self._up.in_flight_bytes,
            down_in_flight_bytes=self._down.in_flight_bytes,
            connections=self._connections,
            open_connections=sum(end.line is self._up for end in self._open),
            cut=not self._passable.is_set(),
        )

    async def _listen(self, listen: Address, target: Address) -> asyncio.Server:
        host, port = listen
        try:
            return await asyncio.get_running_loop().create_server(
                lambda: Endpoint(self._up, partial(self._accepted, target), self._open.discard),
                host,
                port,
            )
        except OSError as error:
            raise OSError(error.errno, listen_words(error, host, port)) from error

    def _accepted(self, target: Address, near: Endpoint) -> None:
        self._connections += 1
        self._open.add(near)
        opening = asyncio.get_running_loop().create_task(self._reach(target, near))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)

    async def _reach(self, target: Address, near: Endpoint) -> None:
        """Join an accepted connection to `target`, once the link is not cut."""
        await self._passable.wait()
        if near.transport.is_closing():
            return
        try:
            _, far = await asyncio.get_running_loop().create_connection(
                lambda: Endpoint(self._down, self._open.add, self._open.discard), *target
            )
        except OSError:
            near.reset()
            return
        if near.transport.is_closing():
            far.reset()
            return
        near.connect_to(far)
        far.connect_to(near)
