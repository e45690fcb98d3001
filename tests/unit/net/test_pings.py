"""A server takes the pings that our clients send, and closes the connection of one that floods."""

from __future__ import annotations

import asyncio
import struct

import grpc

from tandem.net.channels import server_options

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING = 6
GO_AWAY = 7
ENHANCE_YOUR_CALM = 11
TIMEOUT_S = 20.0


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """An HTTP/2 frame of the connection itself (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags, 0, 0, 0, 0]) + payload


async def received_frames(reader: asyncio.StreamReader) -> list[tuple[int, bytes]]:
    """Kind and payload of all frames until the server closes the connection."""
    frames = list[tuple[int, bytes]]()
    while True:
        try:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return frames
        frames.append((head[3], payload))


async def test_a_flood_of_pings_ends_its_connection() -> None:
    server = grpc.aio.server(options=server_options(2**20))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(PREFACE + frame(4) + frame(4, flags=1))
        writer.write(frame(PING, bytes(8)) * 1000)
        async with asyncio.timeout(TIMEOUT_S):
            frames = await received_frames(reader)
    finally:
        writer.close()
        await server.stop(0)
    (farewell,) = [payload for kind, payload in frames if kind == GO_AWAY]
    assert int.from_bytes(farewell[4:8], "big") == ENHANCE_YOUR_CALM
