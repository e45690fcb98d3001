"""Servers, clients and emulated links for the emulator's tests."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import Address, TcpLinkEmulator

LOCALHOST = "127.0.0.1"
INSTANT = LinkSettings()
MEGABYTE = random.Random(1).randbytes(1_000_000)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Address]:
    """A TCP server on localhost whose connections `handler` serves; ends them with the test."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await handler(reader, writer)

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(serve(reader, writer)))

    server = await asyncio.start_server(accepted, LOCALHOST, 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, and its end."""
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()


@contextlib.asynccontextmanager
async def emulated(
    target: Address, up: LinkSettings = INSTANT, down: LinkSettings = INSTANT, seed: int = 0
) -> AsyncIterator[TcpLinkEmulator]:
    """A link to `target` on a free port."""
    async with TcpLinkEmulator((LOCALHOST, 0), target, up, down, seed=seed) as emulator:
        yield emulator


class EchoClient:
    """One connection through an emulator to an echo server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def round_trip(self) -> float:
        """Duration of a small message there and back."""
        start = time.monotonic()
        self.writer.write(b"ping")
        await self.reader.readexactly(4)
        return time.monotonic() - start


@contextlib.asynccontextmanager
async def echo_client(emulator: TcpLinkEmulator) -> AsyncIterator[EchoClient]:
    reader, writer = await asyncio.open_connection(*emulator.address)
    with contextlib.closing(writer):
        yield EchoClient(reader, writer)
