"""A retriever is asked for its embedding model as seldom as its answers allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tandem.net.access import ClientAccess
from tandem.net.channels import server_options
from tandem.net.connection import Connection
from tandem.services.aggregator.retrieval import (
    DESCRIBE_TIMEOUT_S,
    NO_EMBEDDING_AGE_S,
    Retrieval,
)
from tandem_api.retriever.v1 import retriever_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc as pb_grpc

MAX_MESSAGE_BYTES = 2**20


class Described(pb_grpc.RetrieverServiceServicer):
    """Counts how often it is asked; hangs while `hangs`."""

    def __init__(self, embedding: str = "", dimension: int = 0) -> None:
        self.times = 0
        self.hangs = False
        self.answer = pb.DescribeResponse(embedding=embedding, dimension=dimension)

    async def Describe(self, request: Any, context: Any) -> pb.DescribeResponse:  # noqa: N802
        self.times += 1
        if self.hangs:
            await asyncio.Event().wait()
        return self.answer


@asynccontextmanager
async def asking(peer: Described) -> AsyncIterator[tuple[Retrieval, list[float]]]:
    """With the time, which the test moves."""
    server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES))
    pb_grpc.add_RetrieverServiceServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    now_s = [0.0]
    connection = Connection(f"127.0.0.1:{port}", MAX_MESSAGE_BYTES, ClientAccess())
    retrieval = Retrieval(connection, clock=lambda: now_s[0])
    try:
        yield retrieval, now_s
    finally:
        await retrieval.close()
        await server.stop(0)


async def test_one_that_finds_by_words_alone_is_not_asked_each_time() -> None:
    peer = Described()  # type: ignore[abstract]  # the rest is not asked for
    async with asking(peer) as (retrieval, now_s):
        assert [await retrieval.embedding() for _ in range(5)] == [("", 0)] * 5
        assert peer.times == 1
        peer.answer = pb.DescribeResponse(embedding="words:1", dimension=4)
        now_s[0] = NO_EMBEDDING_AGE_S
        assert await retrieval.embedding() == ("words", 4)


async def test_one_that_hangs_holds_up_a_single_caller() -> None:
    peer = Described("words:1", 4)  # type: ignore[abstract]  # the rest is not asked for
    peer.hangs = True
    loop = asyncio.get_running_loop()
    async with asking(peer) as (retrieval, now_s):
        assert await retrieval.embedding() == ("", 0)
        began_s = loop.time()
        assert await retrieval.embedding() == ("", 0)
        assert loop.time() - began_s < DESCRIBE_TIMEOUT_S / 2
        assert peer.times == 1
        peer.hangs = False
        now_s[0] = NO_EMBEDDING_AGE_S
        assert await retrieval.embedding() == ("words", 4)


async def test_one_that_is_not_there_yet_is_asked_again_at_once() -> None:
    peer = Described("words:1", 4)  # type: ignore[abstract]  # the rest is not asked for
    async with asking(peer) as (retrieval, _):
        connection = Connection("127.0.0.1:1", MAX_MESSAGE_BYTES, ClientAccess())
        missing = Retrieval(connection)
        assert await missing.embedding() == ("", 0)
        await connection.close()
        missing._connection = retrieval._connection
        assert await missing.embedding() == ("words", 4)
