"""Learning beside the answers of one draft engine: when it runs, and what it may take.

Training runs on the engine's own thread, a step over some 100 tokens at a time, and only while no
request is open: the next request ends the step between two layers. After each step the thread rests
for as long as the step took. Invariants: an answer keeps the adapter that it began with; what
belongs to one tenant is learned from and used for that tenant alone; whatever fails here, answers
go on.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tandem.backends.interface import ForwardCancelled
from tandem.core.errors import Unavailable
from tandem.learning.evaluation import Outcome
from tandem.learning.examples import Example
from tandem.learning.series import LearningSeries
from tandem.learning.store import open_folder
from tandem.learning.tenant import Adapter, LearningSetup, TenantLearning
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

IDLE_S = 0.5
"""Without an open request, before anything is trained."""
POLL_S = 0.1
KEEP_EVERY_S = 3.0
"""How often at most the state of training is kept: what a killed process may lose of it."""
REST = 1.0
"""Of the time of each step: other programs of a device get at least as much."""
MAX_OPEN_TENANTS = 8
"""Whose texts are in memory."""
MAX_UNRECORDED = 64
"""Answers that wait to be kept; what comes then is not learned from."""


class Learner:
    """Used on the event loop, beneath the folder `root`. `busy`: whether a request is open; asked
    on both threads. `idle_s`: how long none must have been; `rest`: see `REST`."""

    def __init__(
        self,
        thread: EngineThread,
        setup: LearningSetup,
        root: Path,
        series: LearningSeries,
        busy: Callable[[], bool],
        idle_s: float = IDLE_S,
        rest: float = REST,
    ) -> None:
        self._rest = rest
        self._thread = thread
        self._setup = setup
        self._root = root
        self._series = series
        self._busy = busy
        self._idle_s = idle_s
        self._open: OrderedDict[Tenant, TenantLearning | None] = OrderedDict()
        self._lock = asyncio.Lock()
        """Files are read and written, and steps are taken, one at a time."""
        self._recording: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._busy_s = time.monotonic()
        self._kept_s = time.monotonic()
        self._closing = False
        self.failed = False
        """True once learning has stopped for this process."""

    def start(self) -> None:
        """Begin to learn, on the running loop."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; texts that wait are kept, and what is in training."""
        self._closing = True
        if self._recording:
            await asyncio.wait(self._recording)
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            with suppress(Unavailable):  # a step may be under way still
                await self._thread.call(lambda: None)
        for learning in self._open.values():
            await self._keep_training(learning)

    async def adapter_for(self, tenant: Tenant) -> Adapter | None:
        """Return the adapter for an answer that begins now; None for none."""
        learning = self._open.get(tenant)
        if not self.failed:
            try:
                learning = await self._learning_of(tenant)
            except Exception as error:  # whatever it is, answers go on
                self._stop(error)
        return None if learning is None else learning.chosen

    def record(self, tenant: Tenant, text: Example) -> None:
        """Keep a text of an answer that has ended, soon, to learn from it."""
        if self.failed or len(self._recording) >= MAX_UNRECORDED or text.target_tokens < 1:
            return
        task = asyncio.create_task(self._record(tenant, text))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)

    @property
    def recording(self) -> int:
        """Number of texts that are being recorded."""
        return len(self._recording)

    async def settled(self) -> None:
        """Wait until nothing is left to learn; for tests and measurements."""
        while self._recording or (not self.failed and self._due() is not None):
            await asyncio.sleep(POLL_S / 10)

    async def _record(self, tenant: Tenant, text: Example) -> None:
        try:
            learning = await self._learning_of(tenant)
            if learning is None:
                return
            async with self._lock:
                await asyncio.to_thread(learning.record, text)
            self._show(learning)
        except Exception as error:  # likewise
            self._stop(error)
        self._woken.set()  # there may be enough to learn from now

    async def _learning_of(self, tenant: Tenant) -> TenantLearning | None:
        """Return a tenant's learning as it is on disk; None where there is no room for it."""
        known = self._open.get(tenant)
        if known is not None and not known.outdated:  # without waiting for a step
            self._open.move_to_end(tenant)
            return known
        async with self._lock:
            if tenant not in self._open:
                folder = await asyncio.to_thread(open_folder, self._root, tenant)
                opened = None if folder is None else TenantLearning(folder, self._setup)
                self._open[tenant] = opened
                if len(self._open) > MAX_OPEN_TENANTS:
                    _, displaced = self._open.popitem(last=False)
                    if displaced is not None:
                        await asyncio.to_thread(displaced.keep_training)
            self._open.move_to_end(tenant)
            learning = self._open[tenant]
            if learning is not None and learning.outdated:
                await asyncio.to_thread(learning.read)
        self._woken.set()
        return learning

    async def _run(self) -> None:
        while not self.failed:
            learning = self._due()
            if learning is None:
                self._woken.clear()
                for each in list(self._open.values()):
                    await self._keep_training(each)
                if self._due() is None:
                    await self._woken.wait()
            elif not self._is_idle():
                await self._keep_training(learning)
                await asyncio.sleep(POLL_S)
            else:
                await asyncio.sleep(self._rest * await self._work(learning))

    def _due(self) -> TenantLearning | None:
        """Return the tenant that asked last, of those with something to learn."""
        open_ones = (learning for learning in reversed(self._open.values()) if learning)
        return next((learning for learning in open_ones if learning.due), None)

    def _is_idle(self) -> bool:
        now = time.monotonic()
        if self._busy():
            self._busy_s = now
            return False
        return now >= self._busy_s + self._idle_s

    def interrupted(self) -> bool:
        """Return whether a step must end now; on the engine thread."""
        return self._closing or self._busy() or self._thread.waiting > 0

    async def _work(self, learning: TenantLearning) -> float:
        """Take a step and what follows from it; returns the seconds that it took."""
        began_s = time.monotonic()
        try:
            async with self._lock:
                await self._step(learning)
                if learning.evaluated:
                    await self._conclude(learning)
            if time.monotonic() >= self._kept_s + KEEP_EVERY_S:
                await self._keep_training(learning)
        except ForwardCancelled:
            self._series.interrupted.inc()
            self._busy_s = time.monotonic()
        except Unavailable:  # answers fail as well, and say why
            self._busy_s = time.monotonic()
            return POLL_S
        except Exception as error:  # whatever it is, answers go on
            self._stop(error)
        self._show(learning)
        return time.monotonic() - began_s

    async def _step(self, learning: TenantLearning) -> None:
        def step() -> bool:
            began_s, cpu_s = time.monotonic(), time.thread_time()
            try:
                return learning.work(self.interrupted)
            finally:
                took_s, took_cpu_s = time.monotonic() - began_s, time.thread_time() - cpu_s
                learning.seconds += took_s
                learning.cpu_seconds += took_cpu_s
                self._series.seconds.inc(took_s)
                self._series.cpu_seconds.inc(took_cpu_s)

        if await self._thread.call(step):
            self._series.steps.inc()

    async def _conclude(self, learning: TenantLearning) -> None:
        evaluation = await asyncio.to_thread(learning.conclude)
        after = {
            Outcome.ADOPTED: evaluation.after,
            Outcome.REJECTED: evaluation.before,
            Outcome.ROLLED_BACK: evaluation.base,
        }
        self._series.evaluated(evaluation.outcome, evaluation.base, after[evaluation.outcome])
        log.info(
            "a new adapter was evaluated",
            outcome=str(evaluation.outcome),
            without=round(evaluation.base, 4),
            before=round(evaluation.before, 4),
            after=round(evaluation.after, 4),
        )

    async def _keep_training(self, learning: TenantLearning | None) -> None:
        if learning is None or not learning.unsaved or self.failed:
            return
        self._kept_s = time.monotonic()
        try:
            async with self._lock:
                await asyncio.to_thread(learning.keep_training)
        except Exception as error:  # likewise
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        """Learn no more in this process; adapters that are in use stay in use."""
        if not self.failed:
            log.warning("the draft model stops learning", error=str(error) or repr(error))
        self.failed = True
        self._woken.set()

    def _show(self, learning: TenantLearning) -> None:
        self._series.backlog_tokens.set(learning.schedule.backlog if learning.due else 0)
        self._series.stored_bytes.set(learning.stored_bytes)
