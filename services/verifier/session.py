"""One session at the verifier: frames in, engine jobs, frames out, around a `CloudMachine`.

Invariant: the machine and the stream are used on the event loop only, the KV session on the engine
thread only; however the session ends, its job is cancelled and its KV freed. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import grpc

from tandem.core.errors import InvalidArgument
from tandem.engine.base import Session
from tandem.engine.jobs import EngineThread, Ticket
from tandem.engine.session_jobs import VerifyJob
from tandem.protocol.cloud import CloudMachine
from tandem.protocol.messages import CloudMessage, EarlyVerdict, Work
from tandem.protocol.verify_work import VerifyWork
from tandem.rpc.convert_verifier import CloudCodec
from tandem.telemetry.metrics import MethodSeries
from tandem.telemetry.tracing import Span
from tandem_api.verifier.v1 import verifier_pb2 as pb

Context = grpc.aio.ServicerContext[pb.VerifyRequest, pb.VerifyResponse]
LAST_WRITE_S = 1.0


class VerifierSession:
    """The conversation after `open`."""

    def __init__(
        self,
        machine: CloudMachine,
        codec: CloudCodec,
        thread: EngineThread,
        context: Context,
        series: MethodSeries,
        begin: Callable[[Session], Awaitable[None]],
        span: Span,
    ) -> None:
        """`begin` is awaited with the fresh KV session, before its first pass."""
        self._machine = machine
        self._codec = codec
        self._thread = thread
        self._context = context
        self._series = series
        self._begin = begin
        self._span = span
        self._wake = asyncio.Event()
        self._early = asyncio.Event()
        self._writing = asyncio.Lock()
        self._kv: Session | None = None
        self._ticket: Ticket[Any] | None = None

    async def run(
        self, read: Callable[[], Awaitable[pb.VerifyRequest | None]], capacity: int
    ) -> None:
        """Serve until the edge cancels or half-closes; frees everything on every way out.

        Frames are heard from the start: while the engine is busy with others' passes, and a session
        cannot be opened in it yet, this one's pings are answered all the same.
        """
        await self._send([self._machine.opened()])
        tasks = (
            asyncio.create_task(self._listen(read)),
            asyncio.create_task(self._work(capacity)),
            asyncio.create_task(self._send_early()),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._end_writing()
            for task in done:
                task.result()
        finally:
            if self._ticket:
                self._ticket.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_writing(self) -> None:
        """Let the frame that is being written leave, and none after it: cancelled in the middle, it
        would take the place of the call's status, which then never reaches the edge."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._writing.acquire(), LAST_WRITE_S)

    def going_away(self, grace_s: float) -> asyncio.Task[None]:
        """Ask the edge to leave after its round."""
        return asyncio.create_task(self._say_goodbye(grace_s))

    async def _say_goodbye(self, grace_s: float) -> None:
        with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # it left by itself
            await self._send([self._machine.going_away(grace_s)])

    async def _listen(self, read: Callable[[], Awaitable[pb.VerifyRequest | None]]) -> None:
        while not self._machine.ended:
            frame = await read()
            if frame is None:
                return
            answers = self._machine.receive(self._codec.decode(frame))
            self._submit_due()
            self._wake.set()
            if answers:
                await self._send(answers)

    async def _work(self, capacity: int) -> None:
        async with self._thread.session(capacity, self._machine.preset.tree_nodes) as kv:
            await self._begin(kv)
            self._kv = kv
            await self._pass_after_pass()

    def _submit_due(self) -> None:
        """Hand the pass that is due to the engine; one at a time."""
        if self._kv is None or self._ticket is not None:
            return
        work = self._machine.work()
        if work is not None:
            hear = self._early_listener(work)
            job = VerifyJob(self._kv, work, self._machine.sampling, self._machine.rule, hear)
            self._ticket = self._thread.submit(job)

    async def _pass_after_pass(self) -> NoReturn:
        while True:
            self._submit_due()
            if self._ticket is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            done = await self._ticket.future
            self._ticket = None
            cost = done.cost
            answers = self._machine.complete(
                done.value, Work(cost.model_s, cost.queue_s, cost.batch_size)
            )
            await self._send(answers)
            self._series.verify_step.observe(cost.model_s)
            self._span.record(
                "verify pass",
                cost.queue_s + cost.model_s,
                queue_s=cost.queue_s,
                verify_s=cost.model_s,
                batch_size=cost.batch_size,
            )

    def _early_listener(self, work: VerifyWork) -> Callable[[EarlyVerdict], None]:
        """What the engine thread calls with each early verdict of `work`, as the pass runs."""
        loop = asyncio.get_running_loop()

        def hear(verdict: EarlyVerdict) -> None:
            loop.call_soon_threadsafe(self._hear_early, work, verdict)

        return hear

    def _hear_early(self, work: VerifyWork, verdict: EarlyVerdict) -> None:
        self._machine.hear_early(work, verdict)
        self._early.set()

    async def _send_early(self) -> NoReturn:
        """Early verdicts leave one by one, in the preset's order. The next one is chosen when the
        stream is free: it may be void by then."""
        waiting = self._machine.early_verdicts
        while True:
            await self._early.wait()
            self._early.clear()
            while waiting:
                async with self._writing:
                    if waiting:
                        await self._context.write(self._codec.encode(waiting.pop()))

    async def _send(self, messages: Sequence[CloudMessage]) -> None:
        async with self._writing:
            for message in messages:
                await self._context.write(self._codec.encode(message))


async def first_frame(
    read: Callable[[], Awaitable[pb.VerifyRequest | None]], timeout_s: float
) -> pb.VerifyRequest:
    """The opening frame, or InvalidArgument if the edge says nothing or hangs up."""
    try:
        frame = await asyncio.wait_for(read(), timeout_s)
    except TimeoutError:
        raise InvalidArgument("open", f"no frame within {timeout_s:g} s") from None
    if frame is None:
        raise InvalidArgument("open", "the stream ended before it")
    return frame
