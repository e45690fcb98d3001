"""A request that states its length in two ways: whoever stands between may have read the other."""

from __future__ import annotations

import asyncio
import re

from tests.gateway.http_suite import HttpSuite, one_loop

NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def answers_to(url: str, headers: bytes) -> bytes:
    """All that comes on the connection, for a request of this length and one after it."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    begin = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    headers += b"Content-Type: application/json\r\n"
    writer.write(begin + headers + b"\r\n" + b"2\r\n{}\r\n0\r\n\r\n" + NEXT)
    answered = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answered


@one_loop
async def test_it_is_the_last_of_its_connection(served: HttpSuite) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n"
    two = await answers_to(served.url, b"Content-Length: 12\r\n" + chunked)
    one = await answers_to(served.url, chunked)
    assert two.count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 400" in two
    assert b"\r\nconnection: close\r\n" in two
    assert re.findall(rb"HTTP/1.1 (\d+)", one) == [b"400", b"200"]
