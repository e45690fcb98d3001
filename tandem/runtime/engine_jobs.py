"""Jobs of the engine thread: what they are asked, what they cost, and how they are waited for.
Invariant: a job is used by the engine thread alone, and closed by it however it ends."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tandem.backends.interface import ForwardRequest, Logits
from tandem.core.frozen import frozen
from tandem.core.processors import Pending
from tandem.runtime.chunked_prefill import CHUNK_ROWS, ChunkedPrefill, is_long
from tandem.runtime.loop_notifier import LoopNotifier
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")


BLOCKED_TIMEOUT_S = 5.0
"""What a job is blocked by has to be done in that time, or the job fails."""


class GroupJob(ABC, Generic[Result]):
    """One or more passes over several sessions, which are fed in the same pass. Every method runs
    on the engine thread."""

    awaits: Pending | None = None
    """What must be done before `take_all`, besides the pass; read once that is over. While it is
    not done, the job's logits are kept for it, and the passes of others go on."""
    read_rows: Callable[[int, Logits], None] | None = None
    """Of a job over one session that needs the logits of every token that it feeds, not of the last
    ones alone: takes the logits of a chunk, from the fed token of this index on, in order, before
    `take_all`. So never more than a chunk's are in memory."""

    @abstractmethod
    def requests(self) -> Sequence[ForwardRequest]:
        """Return the requests for the next pass, at least one."""

    @abstractmethod
    def take_all(self, logits: Sequence[Logits]) -> bool:
        """Take the logits of each request; True when the job is done."""

    @abstractmethod
    def result(self) -> Result:
        """Return the outcome of a job that is done."""

    def timeout_error(self) -> Exception:
        """Return the error of the job if what it `awaits` takes too long."""
        return TimeoutError("what a job needs is late")

    def close(self) -> None:
        """Free what the job opened and did not give away as its result. Called once, when the job
        ends in any way: done, failed, cancelled, or with the engine."""


class Job(GroupJob[Result]):
    """One or more passes over one session."""

    @abstractmethod
    def request(self) -> ForwardRequest:
        """Return the request for the next pass."""

    @abstractmethod
    def take(self, logits: Logits) -> bool:
        """Take the pass's logits [logits_to_keep, vocabulary]; True when the job is done."""

    def requests(self) -> Sequence[ForwardRequest]:
        return (self.request(),)

    def take_all(self, logits: Sequence[Logits]) -> bool:
        return self.take(logits[0])


@frozen
class Cost:
    """Seconds a job waited, then took from its first pass's start to its last one's end, and the
    largest number of jobs it shared a pass with."""

    queue_s: float
    model_s: float
    batch_size: int


@frozen
class Done(Generic[Result]):
    """A finished job's result and what it cost."""

    value: Result
    cost: Cost


class JobHandle(Generic[Result]):
    """A job handed over: await its `future`, or `cancel` it (between layers at the latest)."""

    def __init__(
        self,
        job: GroupJob[Result],
        loop: asyncio.AbstractEventLoop,
        low_priority: bool = False,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        """Prepare a job. `chunk_rows`: how the engine's prompts are cut."""
        self.future: asyncio.Future[Done[Result]] = loop.create_future()
        self.loop = loop
        self.low_priority = low_priority
        self._chunk_rows = chunk_rows
        self.job = job
        self.submitted_s = time.perf_counter()
        self.started_s = 0.0
        self.batch_size = 0
        self.prefill: ChunkedPrefill | None = None

    def requests(self) -> Sequence[ForwardRequest]:
        """Return the requests of the job for the next pass; none yet while a long prompt is fed in
        chunks."""
        if self.prefill is None:
            requests = self.job.requests()
            reader = self.job.read_rows
            if reader is None and not is_long(requests, self._chunk_rows):
                return requests
            self.prefill = ChunkedPrefill(requests, reader, self._chunk_rows)
        return self.prefill.rest() if self.prefill.is_fed else ()

    @property
    def feeds_chunk(self) -> bool:
        """True if the job feeds a chunk of a prompt, and not the last."""
        return self.prefill is not None and not self.prefill.is_fed

    @property
    def awaits(self) -> Pending | None:
        """Unfinished work that the job needs in addition to the pass."""
        pending = self.job.awaits
        if pending is None or self.feeds_chunk or pending.done():
            return None
        return pending

    def take(self, logits: Sequence[Logits]) -> bool:
        """Take what a pass brought. Return whether the job is done."""
        prefill = self.prefill
        if prefill is not None and not prefill.is_fed:
            prefill.done(logits)
            return False
        self.prefill = None
        return self.job.take_all(logits if prefill is None else prefill.last(logits))

    @property
    def cancelled(self) -> bool:
        """True if nobody waits for the job any more, and it has not ended."""
        return self.future.done()

    def cancel(self) -> None:
        """Give the job up; the future is cancelled at once, the pass ends soon after."""
        self.future.cancel()

    def done(self) -> Done[Result]:
        ended_s = time.perf_counter()
        queue_s = self.started_s - self.submitted_s
        cost = Cost(queue_s, ended_s - self.started_s, self.batch_size)
        return Done(self.job.result(), cost)

    def close(self) -> None:
        """Free, on the engine thread, what is the job's own."""
        try:
            self.job.close()
        except Exception as error:  # the job's own; the thread goes on
            log.error("a job could not be closed", error=repr(error))

    def post(self, outcome: Done[Result] | Exception, notifier: LoopNotifier) -> None:
        """Wake the waiting coroutine with the outcome."""
        notifier.add(self.loop, lambda: settle(self.future, outcome))


def settle(future: asyncio.Future[Any], outcome: object) -> None:
    """Resolve the future, on the event loop, unless it is cancelled."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
