"""The engine thread: every model pass of one engine, packed over all jobs that are ready.

A job asks for one forward pass or several in a row (a draft of n tokens); jobs join and leave
between passes, which is continuous batching. Invariant: the engine and its sessions are touched by
this thread alone; the event loop only hands jobs over and gets results back. Must not import grpc.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from tandem.core.errors import Unavailable
from tandem.engine.base import Engine, ForwardCancelled, Logits, Segment, Session
from tandem.engine.postings import Postings

PATIENCE, LEAST_PATIENCE_S = 0.02, 100e-6
"""Of a pass's time, how much the next one may wait for what the event loop makes of its results: a
job that comes too late for a pass loses a whole one. Shorter waits than the least bring nobody."""

Result = TypeVar("Result")
ResultOut = TypeVar("ResultOut", covariant=True)


class Job(Protocol[ResultOut]):
    """One or more passes over one session. Every method runs on the engine thread."""

    def segment(self) -> Segment:
        """What to feed in the next pass."""

    def take(self, logits: Logits) -> bool:
        """Take the pass's logits [wanted, vocabulary]; True when the job is done."""

    def result(self) -> ResultOut:
        """The outcome of a job that is done."""


class GroupJob(Protocol[ResultOut]):
    """As `Job`, over several sessions that are fed in the same pass."""

    def segments(self) -> Sequence[Segment]:
        """What to feed in the next pass, at least one."""

    def take_all(self, logits: Sequence[Logits]) -> bool:
        """Take the logits of each segment; True when the job is done."""

    def result(self) -> ResultOut:
        """The outcome of a job that is done."""


class _Single(Generic[Result]):
    """A job as a group of one."""

    def __init__(self, job: Job[Result]) -> None:
        self._job = job
        self.result = job.result

    def segments(self) -> tuple[Segment]:
        return (self._job.segment(),)

    def take_all(self, logits: Sequence[Logits]) -> bool:
        return self._job.take(logits[0])


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds a job waited, then took from its first pass's start to its last one's end, and the
    largest number of jobs it shared a pass with."""

    queue_s: float
    model_s: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """A finished job's result and what it cost."""

    value: Result
    cost: Cost


class Ticket(Generic[Result]):
    """A job handed over: await its `future`, or `cancel` it (between layers at the latest)."""

    def __init__(
        self, job: GroupJob[Result], loop: asyncio.AbstractEventLoop, aside: bool = False
    ) -> None:
        self.future: asyncio.Future[Done[Result]] = loop.create_future()
        self.loop = loop
        self.aside = aside
        self.cancelled = False
        self.job = job
        self.submitted_s = time.perf_counter()
        self.started_s = 0.0
        self.batch_size = 0

    def cancel(self) -> None:
        """Give the job up; the future is cancelled at once, the pass ends soon after."""
        self.cancelled = True
        self.future.cancel()

    def done(self) -> Done[Result]:
        ended_s = time.perf_counter()
        queue_s = self.started_s - self.submitted_s
        cost = Cost(queue_s, ended_s - self.started_s, self.batch_size)
        return Done(self.job.result(), cost)

    def post(self, outcome: Done[Result] | Exception, postings: Postings) -> None:
        """Have whoever waits woken with this."""
        postings.add(self.loop, lambda: _settle(self.future, outcome))


@dataclass(frozen=True, slots=True)
class _Reacted:
    """The event loop has handled the results of this pass."""

    pass_number: int


class EngineThread:
    """Runs one engine. `on_pass(seconds, jobs)` is called on the thread after every pass."""

    def __init__(
        self, engine: Engine, name: str, on_pass: Callable[[float, int], None] = lambda s, n: None
    ) -> None:
        self.engine = engine
        self._on_pass = on_pass
        self._inbox: SimpleQueue[Ticket[object] | Callable[[], None] | _Reacted | None] = (
            SimpleQueue()
        )
        self._active: list[Ticket[object]] = []
        self._postings = Postings()
        self._pass_number = 0
        self._patience_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopped = False
        self._handover = threading.Lock()
        self._thread.start()

    @property
    def waiting(self) -> int:
        """What was handed over and not looked at yet."""
        return self._inbox.qsize()

    def submit(self, job: Job[Result], aside: bool = False) -> Ticket[Result]:
        """Hand a job over; its ticket's future brings the result, or the job's own error. Jobs that
        run `aside` take their logits after the others, whose results have been told by then."""
        return self.submit_group(_Single(job), aside)

    def submit_group(self, job: GroupJob[Result], aside: bool = False) -> Ticket[Result]:
        """As `submit`; all segments of the job are in the same pass."""
        ticket = Ticket(job, asyncio.get_running_loop(), aside)
        self._put(ticket)  # type: ignore[arg-type]  # the thread never looks at the result's type
        return ticket

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a short function on the engine thread, between passes. Once handed over it runs, even
        if nobody waits for the future any more; functions run in the order of the calls."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            outcome: Result | Exception
            try:
                outcome = function()
            except Exception as error:
                outcome = error
            loop.call_soon_threadsafe(_settle, future, outcome)

        self._put(run)
        return future

    def report(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """For jobs, on the engine thread: have `call` run on `loop` once the pass is over."""
        self._postings.add(loop, call)

    @asynccontextmanager
    async def session(self, capacity: int, spare: int = 0) -> AsyncIterator[Session]:
        """A KV session of the engine; freed on every way out, cancellation included."""
        opened: list[Session] = []

        def close() -> None:
            for session in opened:
                session.close()

        try:
            await self.call(lambda: opened.append(self.engine.open(capacity, spare)))
            yield opened[0]
        finally:
            # Runs after the opening, whether or not that was waited for; shielded, because a
            # cancelled call must free its keys and values all the same.
            await asyncio.shield(self.call(close))

    def stop(self) -> None:
        """End the thread after what was handed over before; jobs under way fail. Blocks."""
        with self._handover:
            if self._stopped:
                return
            self._stopped = True
            self._inbox.put(None)
        self._thread.join()

    def _put(self, item: Ticket[object] | Callable[[], None]) -> None:
        with self._handover:
            if self._stopped:
                raise Unavailable("the engine has stopped")
            self._inbox.put(item)

    def _run(self) -> None:
        while self._receive():
            self._active = [ticket for ticket in self._active if not ticket.cancelled]
            if self._active:
                self._pass(list(self._active))
        for ticket in self._active:
            ticket.post(Unavailable("the engine stopped under the job"), self._postings)
        self._postings.send()

    def _receive(self) -> bool:
        """Take what was handed over. With nothing to do, wait for it; with jobs under way, at most
        until the event loop has handled what the last pass brought."""
        until_s = time.perf_counter() + self._patience_s
        wait = not self._active or self._patience_s > 0
        while True:
            left_s = until_s - time.perf_counter() if self._active else None
            try:
                item = self._inbox.get(wait and (left_s is None or left_s > 0), left_s)
            except Empty:
                return True
            if item is None:
                return False
            if isinstance(item, _Reacted):
                wait = wait and item.pass_number != self._pass_number
            elif isinstance(item, Ticket):
                self._active.append(item)
            else:
                item()

    def _pass(self, tickets: list[Ticket[object]]) -> None:
        """One packed forward. If it fails for several jobs, each gets its own, so that one job's
        error is not another's."""
        started_s = time.perf_counter()
        self._patience_s = 0.0
        try:
            passed = self._forward(tickets)
        except ForwardCancelled:
            return
        except Exception as error:
            if len(tickets) > 1:
                for ticket in tickets:
                    self._pass([ticket])
                return
            self._end(tickets[0], error)
            self._postings.send()
            return
        for ticket in tickets:
            ticket.started_s = ticket.started_s or started_s
            ticket.batch_size = max(ticket.batch_size, len(tickets))
        self._take([taken for taken in passed if not taken[0].aside])
        aside = [taken for taken in passed if taken[0].aside]
        if aside:
            self._postings.send()
            self._take(aside)
        pass_s = time.perf_counter() - started_s
        self._on_pass(pass_s, len(tickets))
        self._await_reactions(tickets[0].loop, PATIENCE * pass_s)
        # Last: a loop that is awake waits for the interpreter as long as this thread has it.
        self._postings.send()

    def _forward(self, tickets: list[Ticket[object]]) -> list[tuple[Ticket[object], list[Logits]]]:
        """Each job with the logits of its segments."""
        segments = [tuple(ticket.job.segments()) for ticket in tickets]
        logits = iter(
            self.engine.forward(
                [segment for some in segments for segment in some],
                cancelled=lambda: all(ticket.cancelled for ticket in tickets),
            )
        )
        return [
            (ticket, list(islice(logits, len(some))))
            for ticket, some in zip(tickets, segments, strict=True)
        ]

    def _take(self, passed: list[tuple[Ticket[object], list[Logits]]]) -> None:
        """Have the jobs take their logits, and end those that are done."""
        for ticket, logits in passed:
            try:
                if ticket.job.take_all(logits):
                    self._end(ticket, ticket.done())
            except Exception as error:  # the job's own; its neighbours' passes stand
                self._end(ticket, error)

    def _end(self, ticket: Ticket[object], outcome: Done[object] | Exception) -> None:
        self._active.remove(ticket)
        ticket.post(outcome, self._postings)

    def _await_reactions(self, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        """Have the next pass wait for what follows from this one, if that is worth a wait."""
        if not self._active or patience_s < LEAST_PATIENCE_S:
            return
        self._patience_s = patience_s
        self._pass_number += 1
        reacted = _Reacted(self._pass_number)
        self._postings.add_after(loop, lambda: self._inbox.put(reacted))


def _settle(future: asyncio.Future[Any], outcome: object) -> None:
    """On the event loop: bring an outcome to whoever still waits for it."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
