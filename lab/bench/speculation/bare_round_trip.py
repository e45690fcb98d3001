"""The floor of the round overhead: a bare stream between two pinned processes that idle as a pair
does.

The client reads through as many bytes as a draft's weights, sends a small message, the server reads
through the target's and answers; the round overhead is what the round took beside the two. The
reading is done on a thread of its own, as model work must be. So the floor pays for cold caches,
sleeping cores and handovers between threads as a real round does, and for gRPC and the event loop,
but for no code of ours. `python -m lab.bench.speculation.bare_round_trip BYTES` is the server.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import grpc
import numpy as np

from lab.bench.harness.suite import PinnedProcess
from lab.bench.harness.weights import parameters_in
from lab.machine import pinned, usable_cores
from tandem.net.process import run_loop

METHOD = "/bench.Bare/Round"
MESSAGE_BYTES = 48
WARM_UP_ROUNDS = 20


def weight_bytes(folder: str) -> int | None:
    """Return the bytes of a folder's weights in float32; None without files."""
    return 4 * parameters_in(Path(folder)) or None


def measure_bare_round_trip(draft_bytes: int, target_bytes: int, drafts: int, rounds: int) -> float:
    """Return the median seconds of a bare round without the reading: `drafts` times the draft's
    bytes on one core, the target's once on the other."""
    server = PinnedProcess(
        "lab.bench.speculation.bare_round_trip", (str(target_bytes),), usable_cores()[-1]
    )
    with server, pinned(usable_cores()[0]):
        round_overheads_s: list[float] = run_loop(
            _rounds(server.address, draft_bytes, drafts, rounds)
        )
    return median(round_overheads_s[WARM_UP_ROUNDS:])


async def _rounds(address: str, draft_bytes: int, drafts: int, rounds: int) -> list[float]:
    engine = _ReadingThread(draft_bytes)
    round_overheads_s = []
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(METHOD)()
        for _ in range(rounds + WARM_UP_ROUNDS):
            started_s = time.perf_counter()
            drafting_s = await engine.read_through(drafts)
            await call.write(bytes(MESSAGE_BYTES))
            answer = await call.read()
            ended_s = time.perf_counter()
            assert isinstance(answer, bytes), "the server answers every message"
            round_overheads_s.append(
                ended_s - started_s - drafting_s - struct.unpack_from("d", answer)[0]
            )
        call.cancel()
    return round_overheads_s


async def _serve(target_bytes: int) -> None:
    engine = _ReadingThread(target_bytes)

    async def answer(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(await context.read(), bytes):
            took_s = await engine.read_through(1)
            await context.write(struct.pack("d", took_s).ljust(MESSAGE_BYTES, b"\0"))

    handlers: dict[str, Any] = {"Round": grpc.stream_stream_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


class _ReadingThread:
    """Reads through `size_bytes` of weights as passes over one token do, on a thread of its own."""

    def __init__(self, size_bytes: int) -> None:
        self._weights = np.ones(max(1, size_bytes // 4), np.float32)
        self._inbox: SimpleQueue[tuple[int, asyncio.Future[float]]] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def read_through(self, times: int) -> asyncio.Future[float]:
        """Read every byte `times` times, and return a future with the seconds that it took."""
        future: asyncio.Future[float] = self._loop.create_future()
        self._inbox.put((times, future))
        return future

    def _run(self) -> None:
        while True:
            times, future = self._inbox.get()
            started_s = time.perf_counter()
            for _ in range(times):
                self._weights.sum()
            took_s = time.perf_counter() - started_s
            self._loop.call_soon_threadsafe(future.set_result, took_s)


if __name__ == "__main__":
    run_loop(_serve(int(sys.argv[1])))
