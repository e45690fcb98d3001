"""`python -m tests.gateway.few_files LIMIT`: an HTTP server in a process that may open few files.
It prints its port, and runs until its input ends."""

from __future__ import annotations

import asyncio
import resource
import sys

from starlette.types import Receive, Scope, Send

from tandem.gateway.caller_connection import ConnectionLimits
from tandem.gateway.server import HttpServer
from tandem.net.process import run_loop
from tandem.services.aggregator.http import connection_limit


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def _serve() -> None:
    limits = ConnectionLimits(connection_limit(512), idle_s=60.0)
    async with HttpServer(_hello, "127.0.0.1", 0, limits=limits) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    most = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run_loop(_serve())
