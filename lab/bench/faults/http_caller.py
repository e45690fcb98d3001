"""A caller of the HTTP API, as small as it can be: one streamed answer a connection."""

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
    """The events of a streamed completion, until [DONE]. Leaving early drops the connection.
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


def request_bytes(host: str, port: int, body: Mapping[str, Any], key: str | None) -> bytes:
    """A request for a streamed completion."""
    content = json.dumps({**body, "stream": True}).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content
