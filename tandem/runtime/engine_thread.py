"""The engine thread: every model pass of one engine, packed over all jobs that are ready.

A job asks for one forward pass or several in a row (a draft of n tokens); jobs join and leave
between passes, which is continuous batching; long prompts go through in chunks. A job that needs
more than its logits, as the masks of a grammar, is blocked until that is there. Invariants: the
engine and its sessions are touched by this thread alone; the event loop only hands jobs over and
gets results back. Nobody waits for an engine that is stuck: a second thread watches it, and fails
what waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np

from tandem.backends.interface import (
    BegunPass,
    DefersPasses,
    Engine,
    EngineFailed,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    open_session,
)
from tandem.core.errors import TandemError, Unavailable
from tandem.core.processors import Pending
from tandem.net.fair_shares import NOBODY
from tandem.net.tenant import Tenant
from tandem.runtime.batching_delay import BatchingDelay
from tandem.runtime.chunked_prefill import CHUNKS_ALONE, ChunkRows, PrefillTurns
from tandem.runtime.engine_jobs import (
    BLOCKED_TIMEOUT_S,
    Done,
    GroupJob,
    JobHandle,
    settle,
)
from tandem.runtime.expected_jobs import ExpectedJobs
from tandem.runtime.loop_notifier import LoopNotifier
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.watchdog import STUCK_AFTER_S, TICK_S, EngineState, Watchdog
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")


class Closing(Protocol):
    """What is opened on the engine's thread."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closing)


GRACE_S = 0.002
"""What a pass waits for all its jobs together before any is blocked: a usual mask is nearly
ready, and a job that is blocked may miss the next pass."""

FOLLOW_S = 0.02
"""What a chunk of a prompt waits at most for a loop to react to what was done between passes: who
opens a session has a job for it, which would else wait for one chunk more."""

BEGIN_S = 0.0005
"""What a loop waits at most for a pass to begin: some four times as long as it takes."""


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A job whose logits wait until `pending` is done."""

    handle: JobHandle[Any]
    logits: list[Logits]
    pending: Pending
    due_s: float


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """The pass of one job, which is computed elsewhere."""

    handle: JobHandle[Any]
    begun: BegunPass
    tokens: int
    started_s: float


class _Batch:
    """The jobs of one pass, and their requests. `chunk_rows`: those of a long prompt among them."""

    def __init__(
        self,
        jobs: list[tuple[JobHandle[object], Sequence[ForwardRequest]]],
        chunk_rows: int = 0,
    ) -> None:
        self.jobs = jobs
        self.chunk_rows = chunk_rows
        self.requests = [request for _, requests in jobs for request in requests]
        self.tokens = sum(len(request.token_ids) for request in self.requests)


class EngineThread:
    """Runs one engine. `on_pass(seconds, jobs, tokens)` is called on the thread after every pass;
    for `stuck_after_s` see `Watchdog`."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        on_pass: Callable[[float, int, int], None] = lambda seconds, jobs, tokens: None,
        stuck_after_s: float = STUCK_AFTER_S,
        blocked_timeout_s: float = BLOCKED_TIMEOUT_S,
        pass_times: PassTimes | None = None,
    ) -> None:
        """Start the engine's thread and its watchdog. `blocked_timeout_s`: how long a job may be
        blocked before it fails. `pass_times`: what the engine's passes take, if it is known."""
        self._blocked_timeout_s = blocked_timeout_s
        self.engine = engine
        self._on_pass = on_pass
        self._telling_failed = False
        # What the thread is to do between passes; None: end.
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._active: list[JobHandle[object]] = []
        self._blocked: list[_Blocked] = []
        self._elsewhere: list[_Elsewhere] = []
        self._woken = False
        self._notifier = LoopNotifier()
        self._delay = BatchingDelay()
        self.expected_jobs = ExpectedJobs(self._delay.drafted, self._all_came)
        self._submitted = self._pass_number = self._awaited = self._called = 0
        self._ended_s = self._wait_until_s = self._chunk_from_s = 0.0
        # Whether the last pass was over one job alone that ended with it, whether one is under way,
        # and whether one has begun since the last job was submitted.
        self._was_alone = self._passing = False
        self._begun = threading.Event()
        self._prefill_turns = PrefillTurns()
        # Those that are served, and who pays for each.
        self._sessions: dict[Session, Tenant] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopped = False
        self._handover = threading.Lock()
        self._chunks = ChunkRows(pass_times, engine.capabilities)
        self._watchdog = Watchdog(stuck_after_s)
        if pass_times is not None:
            self._watchdog.knows(1, pass_times.first_s)
            self._watchdog.knows(pass_times.longest_rows, pass_times.longest_s)
        self._state = EngineState()
        self._waiting_for: set[asyncio.Future[Any]] = set()
        self._thread.start()
        threading.Thread(target=self._watch, name=f"{name}-watchdog", daemon=True).start()

    @property
    def fault(self) -> str:
        """The reason why the engine does not work; empty while it works."""
        return self._state.fault

    def check(self) -> None:
        """Raise Unavailable while the engine does not work."""
        if self._state.fault:
            raise _unavailable(self._state)

    @property
    def waiting(self) -> int:
        """Submitted jobs that have not been read yet."""
        return self._inbox.qsize()

    def submit(self, job: GroupJob[Result], low_priority: bool = False) -> JobHandle[Result]:
        """Hand a job over; its handle's future brings the result, or the job's own error. Jobs of
        `low_priority` take their logits once the others' results are delivered."""
        handle = JobHandle(job, asyncio.get_running_loop(), low_priority, self._chunks.rows)
        self._submitted += 1
        self._begun.clear()
        if isinstance(self.engine, DefersPasses):
            handle.future.add_done_callback(self._given_up)
        # The thread never looks at the result's type.
        self._put(partial(self._admit, handle))  # type: ignore[arg-type]
        self._watch_for(handle.future)
        return handle

    def _given_up(self, future: asyncio.Future[Any]) -> None:
        """Have a pass that is computed elsewhere end, if nobody waits for it any more."""
        if future.cancelled():
            self._inbox.put(self._wake)

    def let_begin(self) -> None:
        """Let the pass over what was just submitted begin before this loop goes on, where only one
        job is about: wait for it, `BEGIN_S` at most. What the loop does next, and the processes
        that it wakes, would take the interpreter and the cores that the thread needs to begin."""
        if self._was_alone and not self._passing and not len(self.expected_jobs):
            self._begun.wait(BEGIN_S)

    def call(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Run a short function on the engine thread, between passes. Once handed over it runs, even
        if nobody waits for the future any more; functions run in the order of the calls. While the
        engine is stuck the future fails, and the function runs when the engine goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            outcome: Result | Exception
            self._watchdog.called(time.monotonic())
            try:
                outcome = function()
            except Exception as error:
                outcome = error
            self._watchdog.ended()
            self._notifier.add(loop, partial(settle, future, outcome))
            if self._active:
                self._await_follower(loop)
            self._notifier.send()

        self._put(run)
        self._watch_for(future)
        return future

    def report(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Run `call` on `loop` once the pass is over; for jobs, on the engine thread."""
        self._notifier.add(loop, call)

    async def opened(self, opening: Callable[[], Opened]) -> Opened:
        """Run `opening` on the engine thread and return its session; closed there if the caller
        stops waiting. Raises Unavailable at once while the engine does not work."""
        self.check()
        opened: list[Opened] = []
        try:
            await self.call(lambda: opened.append(opening()))
        except BaseException:
            # Runs after the opening; shielded, because a cancelled call must free its keys and
            # values all the same.
            await self.close(lambda: [session.close() for session in opened])
            raise
        return opened[0]

    @asynccontextmanager
    async def session(
        self,
        capacity: int,
        spare: int = 0,
        tenant: Tenant | None = None,
        payer: Tenant = NOBODY,
    ) -> AsyncIterator[Session]:
        """Yield a KV session of the engine; freed on every way out, cancellation included.
        `tenant`: whose text it will have, where an engine keeps what sessions begin with itself;
        `payer`: who takes turns with others, where it has a long prompt."""
        session = await self.opened(lambda: self._open(capacity, spare, tenant))
        self._sessions[session] = payer
        try:
            yield session
        finally:
            del self._sessions[session]
            await self.close(session.close)

    def _open(self, capacity: int, spare: int, tenant: Tenant | None) -> Session:
        if tenant is None:
            return self.engine.open(capacity, spare)
        return open_session(self.engine, f"{tenant.caller} {tenant.id.hex()}", capacity, spare)

    async def close(self, close: Callable[[], object]) -> None:
        """Run `close`, a function that frees something, on the engine thread."""
        with suppress(Unavailable):  # stopped, or stuck: freed with it, or when it goes on
            await asyncio.shield(self.call(close))

    def stop(self) -> None:
        """End the thread after what was handed over before; jobs under way fail. Blocks, but not
        for an engine that is stuck: its thread ends with the process."""
        with self._handover:
            if self._stopped:
                return
            self._stopped = True
            self._inbox.put(None)
        while self._thread.is_alive() and not self._state.stuck:
            self._thread.join(TICK_S)

    def _put(self, item: Callable[[], None]) -> None:
        with self._handover:
            if self._stopped:
                raise Unavailable("the engine has stopped")
            self._inbox.put(item)

    def _watch_for(self, future: asyncio.Future[Any]) -> None:
        """Have the watchdog fail `future` if the engine is stuck."""
        self._waiting_for.add(future)
        future.add_done_callback(self._waiting_for.discard)
        if self._state.stuck:
            _fail(future, _unavailable(self._state))

    def _watch(self) -> None:
        """Watch the engine, on a thread of its own, until the engine's thread ends."""
        while self._thread.is_alive():
            self._state = state = self._watchdog.tick(time.monotonic())
            if state.stuck:
                self._fail_waiting(_unavailable(state))
            if state.probe:
                self._inbox.put(self._probe)
            self._thread.join(TICK_S)
        if not self._stopped:
            self._state = EngineState("the engine's thread has ended", stuck=True)
        self._fail_waiting(Unavailable("the engine has stopped"))

    def _fail_waiting(self, why: Unavailable) -> None:
        for future in self._waiting_for.copy():
            with suppress(RuntimeError):  # its loop is closed
                future.get_loop().call_soon_threadsafe(_fail, future, why)

    def _probe(self) -> None:
        """Run a pass of the engine's own, over one token."""
        watchdog = self._watchdog
        watchdog.began(1, time.monotonic())
        try:
            session = self.engine.open(1)
            try:
                self.engine.forward([ForwardRequest(session, (0,), 1)], self._goes_on)
            finally:
                session.close()
            watchdog.passed(time.monotonic())
        except Exception as error:
            log.warning("the engine fails without a job", error=repr(error))
            watchdog.failed(_words_of(error), probe=True)
        watchdog.ended()

    def _goes_on(self) -> bool:
        """Report progress, as the `cancelled` of a probe, which is never cancelled."""
        self._watchdog.progressed(time.monotonic())
        return False

    def _run(self) -> None:
        engine = self.engine
        while self._receive():
            self._drop_cancelled()
            self._resume_blocked()
            self._collect()
            if self._active and isinstance(engine, DefersPasses):
                for handle in list(self._active):
                    self._begin(engine, handle)
            elif self._active:
                self._pass(list(self._active))
        blocked = [one.handle for one in self._blocked]
        elsewhere = [one.handle for one in self._elsewhere]
        for handle in [*self._active, *blocked, *elsewhere]:
            self._end(handle, Unavailable("the engine stopped during the job"))
        self._notifier.send()

    def _drop_cancelled(self) -> None:
        for handle in [handle for handle in self._active if handle.cancelled]:
            handle.close()
            self._active.remove(handle)
        for blocked in [blocked for blocked in self._blocked if blocked.handle.cancelled]:
            blocked.handle.close()
            self._blocked.remove(blocked)
        for one in [one for one in self._elsewhere if one.handle.cancelled]:
            one.begun.cancel()
            one.handle.close()
            self._elsewhere.remove(one)

    def _receive(self) -> bool:
        """Take what was handed over; False once the thread is to end. With nothing to do, wait for
        it; with jobs at hand, at most until those that follow from the last pass are there, or one
        that was blocked goes on."""
        while True:
            left_s = self._wait_s()
            try:
                item = self._inbox.get(left_s is None or left_s > 0, left_s)
            except Empty:
                return True
            if item is None:
                return False
            item()

    def _admit(self, handle: JobHandle[object]) -> None:
        """Admit a job that was handed over."""
        self._active.append(handle)
        if handle.submitted_s >= self._ended_s:
            self._awaited -= 1
        if self._awaited <= 0:  # as many as had ended: nobody else follows
            self._wait_until_s = 0.0

    def _reacted(self, pass_number: int) -> None:
        """Note that the event loop has handled the results of this pass."""
        if pass_number == self._pass_number:
            self._wait_until_s = 0.0

    def _wait_s(self) -> float | None:
        """Return how long to wait for what is handed over; None: as long as it takes."""
        now = time.perf_counter()
        if self._woken:
            return 0.0
        if self._active:
            if all(handle.prefill is not None for handle in self._active):
                return max(self._wait_until_s, self._chunk_from_s) - now
            return self._wait_until_s - now
        return min((blocked.due_s - now for blocked in self._blocked), default=None)

    def _pass(self, handles: list[JobHandle[object]]) -> None:
        """Run one packed forward pass; if it fails, each job gets a pass of its own, and only its
        own error."""
        started_s = time.perf_counter()
        self._wait_until_s = 0.0
        try:
            batch = self._select(handles)
            if not batch.jobs:
                return
            logits = self._forward(batch)
        except ForwardCancelled:
            self._watchdog.ended()
        except Exception as error:
            self._failed(handles, error)
        else:
            ended = self._deliver(batch, logits, started_s)
            self._account(batch, started_s, ended)

    def _select(self, handles: list[JobHandle[object]]) -> _Batch:
        """Select the requests of each job. Of long prompts one goes on, its last chunk too, and
        beside others only if it is time for that. Sessions that are between two passes will be back
        soon: they count as others, though a chunk does not wait for them."""
        feeding = [(handle, handle.requests()) for handle in handles]
        jobs = [(handle, requests) for handle, requests in feeding if handle.prefill is None]
        prompts = [(handle, handle.prefill) for handle in handles if handle.prefill is not None]
        now = time.perf_counter()
        rests = bool(jobs) and not self._prefill_turns.is_due(now)
        if not prompts or rests or now < self._chunk_from_s:
            return _Batch(jobs)
        served = [self._sessions.get(prefill.session) for _, prefill in prompts]
        turn = self._prefill_turns.next([each or NOBODY for each in served], now)
        handle, prefill = prompts[turn]
        # Of those that are served here, as some are open for what is kept.
        others = bool(jobs) or len(self._sessions) > sum(each is not None for each in served)
        if not others and len(prompts) == 1 and self._chunks.may_join:
            prefill.join(CHUNKS_ALONE)
        if prefill.is_fed:
            chunk = prefill.rest()
        elif jobs:
            chunk = prefill.next_chunk()
        else:
            chunk = prefill.next_chunk(self._chunks.in_a_row if others else CHUNKS_ALONE)
        rows = sum(len(request.token_ids) for request in chunk)
        return _Batch([*jobs, (handle, chunk)], chunk_rows=rows)

    def _forward(self, batch: _Batch) -> list[Logits]:
        """Return the logits of each request."""
        watchdog = self._watchdog
        handles = [handle for handle, _ in batch.jobs]

        def cancelled() -> bool:  # asked with every layer, and mostly of one job alone
            watchdog.progressed(time.monotonic())
            return handles[0].cancelled and all(handle.cancelled for handle in handles)

        watchdog.began(batch.tokens, time.monotonic())
        self._passing = True
        self._begun.set()
        try:
            logits = self.engine.forward(batch.requests, cancelled)
        finally:
            self._passing = False
        watchdog.passed(time.monotonic())
        return logits

    def _failed(self, handles: list[JobHandle[object]], error: Exception) -> None:
        """Try each job of a failed pass alone, or end the only one."""
        self._watchdog.ended()
        # Other errors of ours are the jobs' own faults.
        if isinstance(error, EngineFailed) or not isinstance(error, TandemError):
            self._watchdog.failed(_words_of(error))
        if len(handles) > 1:
            for handle in handles:
                self._pass([handle])
            return
        self._end(handles[0], error)
        self._notifier.send()

    def _deliver(self, batch: _Batch, logits: list[Logits], started_s: float) -> int:
        """Give each job the logits of its requests, those of low priority once the others' results
        are on their way. Returns how many jobs ended."""
        active = len(self._active)
        blocked = len(self._blocked)
        rows = iter(logits)
        fed = [(handle, list(islice(rows, len(requests)))) for handle, requests in batch.jobs]
        for handle, _ in fed:
            handle.started_s = handle.started_s or started_s
            handle.batch_size = max(handle.batch_size, len(fed))
        self._take([job for job in fed if not job[0].low_priority])
        if low_priority := [job for job in fed if job[0].low_priority]:
            self._notifier.send()
            self._take(low_priority)
        newly_blocked = len(self._blocked) - blocked
        return active - len(self._active) - newly_blocked

    def _account(self, batch: _Batch, started_s: float, ended: int) -> None:
        """Count the pass, decide how long the next one waits, and wake the event loops."""
        ended_s = time.perf_counter()
        pass_s = ended_s - started_s
        if batch.chunk_rows:
            self._prefill_turns.fed(ended_s, pass_s, batch.chunk_rows)
        jobs = len(batch.jobs)
        tokens = batch.tokens
        self._tell(pass_s, jobs, tokens)
        self._watchdog.ended()
        self._delay.passed(pass_s, tokens, jobs)
        self._chunks.passed(tokens, pass_s)
        self._was_alone = jobs == ended == 1 and not self._active
        self._await_reactions(batch.jobs[0][0].loop, ended)
        # Last: a loop that is awake waits for the interpreter as long as this thread has it.
        self._notifier.send()

    def _tell(self, pass_s: float, jobs: int, tokens: int) -> None:
        """Tell whoever counts passes of this one; if that fails, the sessions go on."""
        try:
            self._on_pass(pass_s, jobs, tokens)
        except Exception as error:
            if not self._telling_failed:  # it may fail with every pass
                log.error("a pass could not be counted", error=repr(error))
            self._telling_failed = True

    def _take(self, passed: list[tuple[JobHandle[object], list[Logits]]]) -> None:
        """Have the jobs take their logits, and end those that are done; block those that await
        more for longer than a moment."""
        grace_ends_s = time.perf_counter() + GRACE_S
        for handle, logits in passed:
            if (pending := handle.awaits) is not None and not _done_by(pending, grace_ends_s):
                self._block(handle, logits, pending)
            else:
                self._take_one(handle, logits)

    def _take_one(self, handle: JobHandle[object], logits: list[Logits]) -> None:
        try:
            if handle.take(logits):
                self._end(handle, handle.done())
        except Exception as error:  # the job's own; its neighbours' passes stand
            self._end(handle, error)

    def _begin(self, engine: DefersPasses, handle: JobHandle[object]) -> None:
        """Ask for the pass of one job, or for the next part of a long prompt."""
        started_s = time.perf_counter()
        try:
            requests = handle.requests()
            if not requests:
                assert handle.prefill is not None, "only a long prompt feeds nothing by itself"
                requests = handle.prefill.next_chunk()
            begun = engine.begin(requests)
        except Exception as error:  # the job's own
            self._end(handle, error)
            self._notifier.send()
            return
        handle.started_s = handle.started_s or started_s
        handle.batch_size = max(handle.batch_size, 1)
        self._active.remove(handle)
        tokens = sum(len(request.token_ids) for request in requests)
        self._elsewhere.append(_Elsewhere(handle, begun, tokens, started_s))
        begun.add_done_callback(lambda _: self._inbox.put(self._wake))

    def _collect(self) -> None:
        """Give the jobs whose passes are done elsewhere their logits."""
        for one in [one for one in self._elsewhere if one.begun.done()]:
            self._elsewhere.remove(one)
            self._active.append(one.handle)
            try:
                logits = one.begun.collect()
            except Exception as error:
                if isinstance(error, EngineFailed) or not isinstance(error, TandemError):
                    self._watchdog.failed(_words_of(error))
                self._end(one.handle, error)
            else:
                self._watchdog.works()
                self._tell(time.perf_counter() - one.started_s, 1, one.tokens)
                self._take([(one.handle, logits)])
            self._notifier.send()

    def _block(self, handle: JobHandle[object], logits: list[Logits], pending: Pending) -> None:
        # An engine may write the next pass's logits where these are.
        kept = [np.array(rows) for rows in logits]
        self._active.remove(handle)
        due_s = time.perf_counter() + self._blocked_timeout_s
        self._blocked.append(_Blocked(handle, kept, pending, due_s))
        pending.add_done_callback(lambda done: self._inbox.put(self._wake))

    def _wake(self) -> None:
        self._woken = True

    def _resume_blocked(self) -> None:
        """Go on with the jobs that have what they awaited; fail those that have waited too long."""
        self._woken = False
        now = time.perf_counter()
        for blocked in list(self._blocked):
            if blocked.pending.done():
                self._blocked.remove(blocked)
                self._active.append(blocked.handle)
                self._take_one(blocked.handle, blocked.logits)
            elif now >= blocked.due_s:
                self._end(blocked.handle, blocked.handle.job.timeout_error())
            else:
                continue
            self._notifier.send()

    def _end(self, handle: JobHandle[object], outcome: Done[object] | Exception) -> None:
        if handle in self._active:
            self._active.remove(handle)
        self._blocked = [blocked for blocked in self._blocked if blocked.handle is not handle]
        handle.close()
        handle.post(outcome, self._notifier)

    def _await_reactions(self, loop: asyncio.AbstractEventLoop, ended: int) -> None:
        """Have the next pass wait for what follows from the jobs that ended with this one, if that
        is worth a wait. Record what does follow."""
        if not ended:
            return
        self._pass_number += 1
        number = self._pass_number
        submitted = self._submitted
        delay = self._delay
        ended_s = time.perf_counter()
        wait_s = delay.wait_s(ended, len(self._active) + self._inbox.qsize())
        self._ended_s = ended_s
        self._awaited = ended
        self._wait_until_s = ended_s + wait_s

        def reacted() -> None:
            drafting = len(self.expected_jobs)
            follow = self._submitted - submitted + drafting
            delay.reacted(time.perf_counter() - ended_s, ended, follow)
            if drafting:
                self._inbox.put(partial(self._await_drafts, number, drafting))
            elif wait_s:
                self._inbox.put(partial(self._reacted, number))

        self._notifier.add_after(loop, reacted)

    def _await_follower(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the next chunk of a prompt wait until the loop has reacted to a call."""
        self._called += 1
        called = self._called
        self._chunk_from_s = time.perf_counter() + FOLLOW_S

        def followed() -> None:
            if called == self._called:
                self._chunk_from_s = 0.0

        self._notifier.add_after(loop, partial(self._inbox.put, followed))

    def _await_drafts(self, pass_number: int, drafting: int) -> None:
        """Have the next pass wait for sessions that draft, if that is worth a wait."""
        if pass_number == self._pass_number:
            waiting = len(self._active) + self._inbox.qsize()
            wait_s = self._delay.drafts_wait_s(waiting, drafting)
            self._wait_until_s = self._ended_s + wait_s if wait_s else 0.0

    def _all_came(self) -> None:
        """Have the next pass begin: nobody drafts any more. Called on the event loop."""
        self._inbox.put(partial(self._reacted, self._pass_number))


def _done_by(pending: Pending, moment_s: float) -> bool:
    """Wait for it, until that moment of `time.perf_counter` at most."""
    if pending.done():
        return True
    if (left_s := moment_s - time.perf_counter()) <= 0:
        return False
    done = threading.Event()
    pending.add_done_callback(lambda _: done.set())
    return done.wait(left_s)


def _unavailable(state: EngineState) -> Unavailable:
    return Unavailable(state.fault, state.silent_s)


def _fail(future: asyncio.Future[Any], why: Unavailable) -> None:
    """Fail a future, on the event loop; no warning is logged if nobody waits for it."""
    if not future.done():
        future.set_exception(Unavailable(str(why), why.silent_s))
        future.exception()


def _words_of(error: Exception) -> str:
    """Return what callers may read of a failed pass: an engine's own words, and of a stranger's
    error no more than its kind."""
    return str(error) if isinstance(error, EngineFailed) else type(error).__name__
