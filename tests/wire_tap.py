"""What a side really sends: a TCP relay that keeps every byte, and the messages in those bytes.

Reads HTTP/2 (RFC 9113 §4.1, §6.1) and gRPC's length-prefixed messages just far enough to decode
what is inside; headers stay as bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA = 0
PADDED = 0x8


class WireTap:
    """`sent` are the bytes of each connection from the near side to the far one."""

    def __init__(self) -> None:
        self.address = ""
        self.sent: list[bytearray] = []

    @property
    def everything(self) -> bytes:
        return b"\0".join(bytes(one) for one in self.sent)

    def messages(self, kind: type[Message]) -> list[Any]:
        """All messages of that kind; those of another kind, as health checks, are left out."""
        found = []
        for connection in self.sent:
            for content in filter(None, grpc_messages(bytes(connection))):
                message = kind()
                with suppress(DecodeError):
                    message.ParseFromString(content)
                    found.append(message)
        return found


@asynccontextmanager
async def wire_tap(target: str) -> AsyncIterator[WireTap]:
    """A relay to `target`, host:port."""
    tap = WireTap()
    host, _, port = target.rpartition(":")
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        kept = bytearray()
        tap.sent.append(kept)
        try:
            await asyncio.gather(_relay(reader, far_writer, kept), _relay(far_reader, writer, None))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            far_writer.close()
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    tap.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None
) -> None:
    while piece := await reader.read(65536):
        if kept is not None:
            kept += piece
        writer.write(piece)
        await writer.drain()
    writer.close()


def grpc_messages(connection: bytes) -> Iterator[bytes]:
    """The uncompressed messages of all calls of a connection, in the order of their streams."""
    assert connection.startswith(PREFACE), "the client speaks first"
    streams: dict[int, bytearray] = {}
    at = len(PREFACE)
    while at + 9 <= len(connection):
        length = int.from_bytes(connection[at : at + 3], "big")
        kind, flags = connection[at + 3], connection[at + 4]
        stream = int.from_bytes(connection[at + 5 : at + 9], "big") & 0x7FFFFFFF
        payload = connection[at + 9 : at + 9 + length]
        if kind == DATA:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            streams.setdefault(stream, bytearray()).extend(payload)
        at += 9 + length
    for content in streams.values():
        yield from _messages(bytes(content))


def _messages(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + 5 <= len(content):
        compressed, length = struct.unpack(">BI", content[at : at + 5])
        assert not compressed, "nothing is compressed, so that it can be read here"
        yield content[at + 5 : at + 5 + length]
        at += 5 + length


def texts_in(message: Message) -> Iterator[bytes]:
    """Every string and bytes field, however deep."""
    for field, value in message.ListFields():
        for one in value if field.is_repeated else (value,):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                yield from texts_in(one)
            elif field.type == FieldDescriptor.TYPE_STRING:
                yield one.encode()
            elif field.type == FieldDescriptor.TYPE_BYTES:
                yield one


def id_lists_in(message: Message) -> Iterator[tuple[str, Sequence[int]]]:
    """Every repeated list of whole numbers, and every field called token_id, by name."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in value if field.is_repeated else (value,):
                yield from id_lists_in(one)
        elif field.cpp_type in _WHOLE:
            if field.is_repeated:
                yield field.name, list(value)
            elif field.name == "token_id":
                yield field.name, [value]


_WHOLE = frozenset(
    {
        *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32),
        *(FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64),
    }
)


def leaked(secrets: Sequence[bytes], seen: bytes, allowed: Sequence[bytes], length: int) -> bytes:
    """The first `length` bytes in a row of a secret that stand in `seen` and in none of `allowed`;
    empty if there are none."""
    for secret in secrets:
        for start in range(len(secret) - length + 1):
            piece = secret[start : start + length]
            if piece in seen and not any(piece in text for text in allowed):
                return piece
    return b""
