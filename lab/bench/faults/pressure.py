"""`python -m lab.bench.faults.pressure --kind KIND …`: somebody who takes all that he can get.

A process of its own, with the key of one tenant, so that it does not slow down whoever measures.
Runs until it is killed; says `listening -` once it presses.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.bench.faults.expensive_calls import Served, expensive_calls, press
from lab.bench.faults.fleet import HOST
from lab.bench.faults.http_caller import request_bytes
from lab.bench.faults.suite_members import access_with
from tandem.generation.client import MAX_MESSAGE_BYTES, AggregatorClient
from tandem.generation.request import GenerationRequest, request_to_proto
from tandem.net.channels import open_channel
from tandem.net.process import run_loop
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.specdec.messages import GenerationParams
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.common.v1 import generation_pb2 as pb
from tandem_api.retriever.v1 import retriever_pb2_grpc

GREEDY_AT_ONCE = 64
UNREAD_AT_ONCE = 24
IDLE_AT_ONCE = 64
LONG_TOKENS = 2000
AGAIN_S = 0.1


class Presser:
    """One tenant; the methods run until they are cancelled."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._key = Path(options.certs, options.key).read_text().strip()
        self._access = access_with(Path(options.certs), "edge", options.key)

    async def greedy(self, number: int) -> None:
        """Ask for one of many long answers at once; every eighth caller first sends a flood of
        documents."""
        if number % 8 == 0:
            await self._ingest()
        async with AggregatorClient(self._options.aggregator, access=self._access) as client:
            async for _ in client.stream(_request(number, 200)):
                pass

    async def slow_reader(self, number: int) -> None:
        """Ask for a long answer and never read it; every third caller asks over HTTP."""
        if number % 3 == 0:
            await self._unread_http(number)
        channel = open_channel(self._options.aggregator, MAX_MESSAGE_BYTES, self._access)
        async with channel:
            call = pb_grpc.AggregatorServiceStub(channel).Generate()
            start = request_to_proto(_request(number, LONG_TOKENS, logprobs=True))
            await call.write(pb.GenerateRequest(start=start))
            await call.code()  # until it is ended for us

    async def idle(self, number: int) -> None:
        """Open a stream of answers or documents without sending a message, or a connection without
        sending a request."""
        if number % 4 == 3:
            host, port = self._options.aggregator.rsplit(":", 1)
            port = self._options.http if number % 8 == 3 else port
            reader, writer = await asyncio.open_connection(host, int(port))
            await reader.read()
            writer.close()
            return
        retriever = number % 4 == 2
        target = self._options.retriever if retriever else self._options.aggregator
        async with open_channel(target, MAX_MESSAGE_BYTES, self._access) as channel:
            call: Any
            if retriever:
                call = retriever_pb2_grpc.RetrieverServiceStub(channel).Ingest()
            else:
                call = pb_grpc.AggregatorServiceStub(channel).Generate()
            await call.code()

    async def _unread_http(self, number: int) -> None:
        body = {
            "model": "demo-target",
            "prompt": "A",
            "max_tokens": LONG_TOKENS,
            "seed": number,
            "logprobs": 5,
            "stream": True,
        }
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(connection, (HOST, self._options.http))
            request = request_bytes(HOST, self._options.http, body, self._key)
            await loop.sock_sendall(connection, request)
            await asyncio.sleep(3600)
        finally:
            connection.close()

    async def _ingest(self) -> None:
        async with RetrieverClient(self._options.retriever, self._access) as client:
            words = " ".join(f"w{random.randrange(500)}" for _ in range(2000))
            uploads = [
                Upload(f"greedy{number}", f"{number} {words}".encode()) for number in range(50)
            ]
            async for _ in client.ingest(uploads, 60.0):
                pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("kind", "aggregator", "retriever", "certs", "key", "log-level"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--http", type=int)
    for name in ("model", "embedding"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    calls = expensive_calls(Served(options.model, options.embedding))
    if (call := calls.get(options.kind)) is not None:
        key = Path(options.certs, options.key).read_text().strip()
        print("listening -", flush=True)
        run_loop(press(call, HOST, options.http, key))
    presser = Presser(options)
    kinds: dict[str, tuple[Callable[[int], Coroutine[Any, Any, None]], int]] = {
        "greedy": (presser.greedy, GREEDY_AT_ONCE),
        "slow-readers": (presser.slow_reader, UNREAD_AT_ONCE),
        "idle": (presser.idle, IDLE_AT_ONCE),
    }
    run_loop(_press(*kinds[options.kind]))


async def _press(press: Callable[[int], Coroutine[Any, Any, None]], at_once: int) -> None:
    print("listening -", flush=True)
    await asyncio.gather(*(_again(press, number) for number in range(at_once)))


async def _again(press: Callable[[int], Coroutine[Any, Any, None]], number: int) -> None:
    """Press again and again. A refusal is no reason to stop."""
    while True:
        with suppress(Rejected, OSError, ValueError):
            await press(number)
        await asyncio.sleep(AGAIN_S)


def _request(seed: int, max_tokens: int, logprobs: bool = False) -> GenerationRequest:
    return GenerationRequest(
        prompt="A list of things",
        params=GenerationParams(
            max_tokens=max_tokens,
            seed=seed,
            ignore_eos=True,
            logprobs=logprobs,
            top_logprobs=5 if logprobs else 0,
        ),
    )


if __name__ == "__main__":
    main()
