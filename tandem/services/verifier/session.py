"""One session at the verifier: frames in, engine jobs, frames out, around a `CloudMachine`.
Invariant: the machine and the stream are used on the event loop only, the KV session on the engine
thread only; however the session ends, its job is cancelled and its KV freed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import grpc

from tandem.backends.interface import Session
from tandem.backends.requirements import row_check
from tandem.core.errors import InvalidArgument, Unavailable
from tandem.core.processors import LogitsProcessor, RowsAfter
from tandem.net.fair_shares import NOBODY
from tandem.net.served_sessions import LAST_WRITE_S, converse
from tandem.net.stream_limits import ServedStream
from tandem.net.tenant import Tenant
from tandem.runtime.engine_jobs import BLOCKED_TIMEOUT_S, JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.session_jobs import VerifyJob
from tandem.services.verifier.cloud_drafts import CloudDraftRunner
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.messages import CloudMessage, Committed, Work
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.verify_task import VerifyTask
from tandem.telemetry.metrics import MethodSeries
from tandem.telemetry.tracing import Span
from tandem.wire.verifier_codec import CloudCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb

Stream = ServedStream[pb.VerifyRequest, pb.VerifyResponse]


MAX_FORCED = 256
"""Tokens that a grammar forces, committed at once; those that follow need a pass."""


class VerifierSession:
    """The conversation after `open`."""

    def __init__(
        self,
        machine: CloudMachine,
        *,
        codec: CloudCodec,
        thread: EngineThread,
        stream: Stream,
        series: MethodSeries,
        begin: Callable[[Session], Awaitable[None]],
        leave: Callable[[Session, Sequence[int], bool], None],
        span: Span,
        processor: LogitsProcessor | None = None,
        logprobs: bool = False,
        tenant: Tenant | None = None,
        payer: Tenant = NOBODY,
        cloud_drafts: CloudDraftRunner | None = None,
    ) -> None:
        """Set up the session. `begin` is awaited with the new KV session, before its first pass.
        `leave` is called after that pass, and again before the KV session closes: with the KV
        session, the tokens whose keys and values it holds, and whether it closes now. `logprobs`:
        whether the caller asks for some. `tenant`: whose text it is, for engines that themselves
        keep what sessions begin with. `payer`: who takes turns with others. `cloud_drafts`: what
        drafts in the cloud."""
        self._machine = machine
        self._tenant = tenant
        self._payer = payer
        self._cloud_drafts = cloud_drafts
        self._codec = codec
        self._thread = thread
        self._stream = stream
        self._series = series
        self._begin = begin
        self._leave = leave
        self._span = span
        self._processor = processor
        self._check_row = row_check(thread.engine, machine.sampling)
        self._wake = asyncio.Event()
        self._early = asyncio.Event()
        self._writing = asyncio.Lock()
        self._kv: Session | None = None
        self._handle: JobHandle[Any] | None = None

    async def run(self, capacity: int) -> None:
        """Serve until the edge cancels or half-closes; frees everything on every way out. Pings are
        answered even while the engine is busy and cannot open a session yet."""
        await self._send([self._machine.opened()])
        work = (self._listen(), self._work(capacity), self._send_early())
        await converse(work, self._end_writing)

    async def _end_writing(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._writing.acquire(), LAST_WRITE_S)

    @property
    def text_length(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self._machine.committed)

    def going_away(self, after_s: float) -> asyncio.Task[None]:
        """Ask the edge to leave after the round that it is in `after_s` from now."""
        return asyncio.create_task(self._say_goodbye(after_s))

    async def _say_goodbye(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # it left by itself
            await self._send([self._machine.going_away()])

    async def _listen(self) -> None:
        while not self._machine.ended:
            frame = await self._stream.read()
            if not isinstance(frame, pb.VerifyRequest):  # EOF
                return
            answers = self._machine.receive(self._codec.decode(frame))
            self._submit_due()
            self._wake.set()
            if answers:
                await self._send(answers)

    async def _work(self, capacity: int) -> None:
        spare = self._machine.settings.tree_nodes
        async with (
            self._thread.session(capacity, spare, self._tenant, self._payer) as kv,
            self._drafting(capacity),
        ):
            await self._begin(kv)
            self._kv = kv
            try:
                await self._pass_after_pass(kv)
            finally:
                self._kv = None
                if self._handle:
                    self._handle.cancel()
                self._leave_text(kv, ends=True)

    def _drafting(self, capacity: int) -> AbstractAsyncContextManager[None]:
        """Hold what drafting in the cloud needs, if it does that."""
        if self._cloud_drafts is None:
            return nullcontext()
        return self._cloud_drafts.opened(
            capacity, on_drafted=self._drafted, on_step=self._series.draft_step.observe
        )

    def _drafted(self) -> None:
        """Submit the pass over the cloud's drafts at once: the engine waits for it."""
        with suppress(Unavailable):  # whoever is woken meets it again
            self._submit_due()
        self._wake.set()

    def _leave_text(self, kv: Session, ends: bool) -> None:
        held = self._machine.kv_length
        if not self._machine.target_passes and not self._thread.fault:
            # It is left in the midst of its prompt. Whoever resumes it goes on after the chunks
            # that are computed; only the engine thread changes a length, and never to less.
            held = max(held, kv.length)
        self._leave(kv, self._machine.committed.since(0)[:held], ends)

    def _submit_due(self) -> None:
        """Hand the pass that is due to the engine, one at a time, and drafts that are due to the
        draft model in the cloud."""
        if self._kv is None:
            return
        if self._handle is None:
            self._submit_pass(self._kv)
        if self._cloud_drafts is not None:  # after the pass, which may wait for what is drafted
            self._cloud_drafts.follow()

    def _submit_pass(self, kv: Session) -> None:
        work = self._machine.work()
        if work is not None:
            job = VerifyJob(
                kv,
                work,
                self._machine.sampling,
                on_early=self._early_listener(work),
                rows=self._rows(work),
                check_row=self._check_row,
            )
            self._handle = self._thread.submit(job)

    def _rows(self, work: VerifyTask) -> RowsAfter | None:
        if self._processor is None:
            return None
        rows = RowsAfter.text(self._processor, self._machine.committed, work.kept)
        return replace(rows, answer=(*rows.answer, *work.prepared))

    async def _forced(self) -> Iterator[int]:
        """Return the tokens that alone may follow the committed text, one after the other, where a
        grammar says so and nobody drafts them. Its masks are computed elsewhere, as all wait for
        the loop."""
        forced = list[int]()
        if self._processor is None or self._machine.settings.drafts:
            return iter(forced)
        committed = self._machine.committed
        rows = RowsAfter.text(self._processor, committed, len(committed))
        while len(forced) < MAX_FORCED and not self._machine.finished:
            await masks_there(rows, tuple(forced))
            if (token_id := rows.forced(tuple(forced))) is None:
                break
            forced.append(token_id)
        return iter(forced)

    async def _pass_after_pass(self, kv: Session) -> NoReturn:
        begun = False
        while True:
            self._submit_due()
            if self._handle is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            done = await self._handle.future
            self._handle = None
            cost = done.cost
            work = Work(cost.model_s, cost.queue_s, cost.batch_size)
            messages = self._machine.complete(done.value, work)
            forced = await self._forced()
            messages += self._machine.commit_forced_tokens(partial(next, forced, None))
            if not begun:  # before its caller can ask for the like of it
                begun = True
                self._leave_text(kv, ends=False)
            if not self._machine.exits:  # whose early verdicts must not overtake this one
                self._submit_due()  # a write takes turns of the loop: too late for the next pass
                self._thread.let_begin()
            await self._send(messages)
            self._count_cloud_drafts(messages)
            if self._machine.target_passes > 1:
                self._series.verify_step.observe(cost.model_s)
            self._series.queue.observe(cost.queue_s)
            self._span.record(
                "verify pass",
                cost.queue_s + cost.model_s,
                queue_s=work.queue_s,
                verify_s=work.verify_s,
                batch_size=cost.batch_size,
            )

    def _count_cloud_drafts(self, messages: Sequence[CloudMessage]) -> None:
        for message in messages:
            if isinstance(message, Committed) and (judged := message.work.cloud_drafts):
                self._series.cloud_draft_tokens.inc(judged)
                self._series.cloud_accepted_tokens.inc(message.cloud_accepted)

    def _early_listener(self, work: VerifyTask) -> Callable[[EarlyVerdict], None]:
        """Return the function that the engine thread calls with each early verdict of `work`, as
        the pass runs."""
        loop = asyncio.get_running_loop()

        def on_early(verdict: EarlyVerdict) -> None:
            loop.call_soon_threadsafe(self._hear_early, work, verdict)

        return on_early

    def _hear_early(self, work: VerifyTask, verdict: EarlyVerdict) -> None:
        self._machine.push_early_verdict(work, verdict)
        self._early.set()

    async def _send_early(self) -> NoReturn:
        """Send early verdicts one by one, each chosen only when the stream is free: by then it may
        be void."""
        waiting = self._machine.early_verdicts
        while True:
            await self._early.wait()
            self._early.clear()
            while waiting:
                async with self._writing:
                    if waiting:
                        await self._stream.write(self._codec.encode(waiting.pop()))

    async def _send(self, messages: Sequence[CloudMessage]) -> None:
        async with self._writing:
            for message in messages:
                await self._stream.write(self._codec.encode(message))


async def masks_there(rows: RowsAfter, fed: tuple[int, ...]) -> None:
    """Wait for the mask of the row that follows `fed`. Raises InvalidArgument("grammar") where it
    takes too long."""
    if (pending := rows.prepare([fed])) is None or pending.done():
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    pending.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    try:
        async with asyncio.timeout(BLOCKED_TIMEOUT_S):
            await done.wait()
    except TimeoutError:
        raise InvalidArgument(
            "grammar", f"computing a mask took more than {BLOCKED_TIMEOUT_S:g} s"
        ) from None
