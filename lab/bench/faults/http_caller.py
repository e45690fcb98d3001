"""A caller of the HTTP API, as small as it can be: one answer a connection."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

LINE_BYTES = 1 << 20


async def streamed(
    host: str,
    port: int,
    body: Mapping[str, Any],
    key: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a streamed completion, until [DONE]. Leaving early drops the connection.
    Raises OSError for a connection that fails, and ValueError for an answer that is no stream."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=LINE_BYTES)
    try:
        writer.write(request_bytes(host, port, body, key))
        status = await reader.readline()
        if b" 200 " not in status:
            raise ValueError(status.decode(errors="replace").strip() or "no answer")
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: "):
                yield json.loads(line[len(b"data: ") :])
        raise ConnectionError("the stream ended before its end")
    finally:
        writer.close()


async def answered(
    host: str, port: int, path: str, content: bytes, key: str | None = None
) -> tuple[int, bytes]:
    """Send a POST of JSON, and return the status and body of the answer. Raises OSError for a
    connection that fails, and ValueError for an answer that is not HTTP."""
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES)
    try:
        writer.write(posted_bytes(host, port, path, content, key))
        status = await reader.readline()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        del head
        return int(status.split()[1]) if status else 0, body
    except IndexError:
        raise ValueError("no answer of HTTP") from None
    finally:
        writer.close()


def request_bytes(host: str, port: int, body: Mapping[str, Any], key: str | None) -> bytes:
    """Return a request for a streamed completion as bytes."""
    content = json.dumps({**body, "stream": True}).encode()
    return posted_bytes(host, port, "/v1/completions", content, key)


def posted_bytes(host: str, port: int, path: str, content: bytes, key: str | None) -> bytes:
    """Return a POST of JSON as bytes; the connection is closed after its answer."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content
