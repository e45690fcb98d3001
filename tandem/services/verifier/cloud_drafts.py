"""The drafts that a verifier makes itself: its draft model, an engine with a thread, and the runner
of one session. (Drafts by lookup need neither: the session's machine makes them.)

Drafts only save time, so nothing fails for the lack of them: a session whose draft model breaks
goes on without. Invariants: a draft model is used by its thread alone; a session's draft KV is
freed with the session, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.backends.interface import Engine, Session
from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.errors import FailedPrecondition, TandemError, Unavailable
from tandem.core.processors import LogitsProcessor, RowsAfter
from tandem.runtime.engine_jobs import Done, Job, JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.expected_jobs import ExpectedJob, ExpectedJobs
from tandem.runtime.pass_times import PassTimes
from tandem.runtime.prefill_job import PrefillJob
from tandem.runtime.session_jobs import DraftJob, DraftRequest
from tandem.runtime.watchdog import STUCK_AFTER_S
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_drafting import cloud_draft_preset
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.messages import Open
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CloudDrafter:
    """The draft model for all sessions of a verifier."""

    thread: EngineThread

    @property
    def engine(self) -> Engine:
        return self.thread.engine

    def capacity(self, capacity: int) -> int:
        """Return how many tokens of a session of `capacity` tokens it reads."""
        return min(capacity, self.engine.context_length)

    def kv_bytes(self, capacity: int) -> int:
        """Return the bytes that its keys and values of such a session take."""
        return self.capacity(capacity) * self.engine.kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class CloudDraftModel:
    """A draft model for a verifier: its name, and what loads it for the first session that needs
    it. `loaded`: it is there, so that a session may use it that only may have drafts. `pass_times`:
    what its passes take, if that was measured."""

    name: str
    load: Callable[[], Engine]
    loaded: bool = False
    pass_times: PassTimes | None = None


class CloudDrafters:
    """What drafts in the cloud, beside a verifier's target. The draft model is loaded for the first
    session that needs it."""

    def __init__(
        self,
        target: Engine,
        model: CloudDraftModel | None,
        passes: PassBudget,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        """Remember what may be asked for.

        Args:
            target: the engine that judges the drafts.
            model: a draft model of the same vocabulary; None where there is none.
            passes: the budget of the target's passes.
            stuck_after_s: see `Watchdog`."""
        self._target = target
        self._model = model
        self._stuck_after_s = stuck_after_s
        self.budget = CloudDraftBudget(passes)
        """What says how many drafts are worth their time."""
        self._drafter: CloudDrafter | None = None
        self._loading = asyncio.Lock()

    @property
    def model_name(self) -> str:
        """The name of the draft model; empty where there is none."""
        return "" if self._model is None else self._model.name

    @property
    def kinds(self) -> tuple[CloudDrafts, ...]:
        """The drafts that sessions may ask for."""
        model = () if self._model is None else (CloudDrafts.MODEL,)
        return (*model, CloudDrafts.LOOKUP)

    async def drafter_for(self, opening: Open) -> CloudDrafter | None:
        """Return what computes a session's drafts; None where no model does. A session that only
        may have drafts waits for no model to be loaded, and its images need none with vision.

        Raises:
            FailedPrecondition: it asks for a draft model, and there is none that fits."""
        kind = opening.settings.cloud_drafts
        if kind is CloudDrafts.ANY and not opening.params.images and self._at_hand:
            return await self._loaded()
        if kind is not CloudDrafts.MODEL:
            return None
        if self._model is None:
            raise FailedPrecondition(
                f"preset {opening.settings.preset_name!r} needs a draft model in the cloud: start"
                " the verifier with --cloud-draft MODEL (TANDEM_CLOUD_DRAFT), or use the preset"
                " auto"
            )
        return await self._loaded()

    @property
    def _at_hand(self) -> bool:
        """True if there is a draft model that need not be loaded first."""
        return self._drafter is not None or (self._model is not None and self._model.loaded)

    async def _loaded(self) -> CloudDrafter:
        """Return the draft model, which is loaded once."""
        assert self._model is not None, "there is one"
        async with self._loading:
            if self._drafter is None:
                engine = await asyncio.to_thread(self._model.load)
                self._drafter = self._started(engine, self._model.pass_times)
        return self._drafter

    def _started(self, engine: Engine, pass_times: PassTimes | None) -> CloudDrafter:
        check_vocabulary(engine, self._target)
        budget = self.budget
        if pass_times is not None:
            budget.knows(pass_times.first_s, pass_times.prompt_row_s)

        def passed(pass_s: float, jobs: int, tokens: int) -> None:
            budget.drafted(pass_s, tokens, jobs)

        thread = EngineThread(
            engine,
            "cloud-draft-engine",
            passed,
            self._stuck_after_s,
            pass_times=pass_times,
        )
        return CloudDrafter(thread)

    def stop(self) -> None:
        """End the draft model's thread; blocks."""
        if self._drafter is not None:
            self._drafter.thread.stop()


def check_vocabulary(draft: Engine, target: Engine) -> None:
    """Raise FailedPrecondition naming the setting unless both models have one vocabulary."""
    ours = draft.vocabulary_hash, draft.vocabulary_size
    if ours != (target.vocabulary_hash, target.vocabulary_size):
        raise FailedPrecondition(
            f"cloud_draft: {draft.model_name} and the target do not share a vocabulary"
            f" ({draft.vocabulary_size} and {target.vocabulary_size} entries)"
        )


class CloudDraftRunner:
    """Makes the drafts of one session, as its machine asks for them."""

    def __init__(
        self,
        machine: CloudMachine,
        drafter: CloudDrafter,
        begin: Callable[[Session], Awaitable[None]],
        expected_jobs: ExpectedJobs,
        processor: LogitsProcessor | None = None,
    ) -> None:
        """Prepare to draft.

        Args:
            machine: of the session.
            drafter: the draft model.
            begin: awaited with the fresh draft KV, before its first pass.
            expected_jobs: of the target's thread, which may wait for the drafts.
            processor: what changes the draft model's logits."""
        self._machine = machine
        self._drafter = drafter
        self._begin = begin
        self._expected_jobs = expected_jobs
        self._processor = processor
        self._kv: Session | None = None
        self._task: DraftTask | None = None
        self._handle: JobHandle[Any] | None = None
        self._expected: ExpectedJob | None = None
        self._on_drafted: Callable[[], None] = lambda: None
        self._on_step: Callable[[float], None] = lambda step_s: None

    @asynccontextmanager
    async def opened(
        self,
        capacity: int,
        on_drafted: Callable[[], None],
        on_step: Callable[[float], None],
    ) -> AsyncIterator[None]:
        """Hold the session's draft KV, while the machine may be asked for drafts.

        Args:
            capacity: of the session, in tokens.
            on_drafted: called on the event loop once the machine has drafts, or can have none; to
                submit the session's job.
            on_step: called with the seconds that a draft took."""
        self._on_drafted = on_drafted
        self._on_step = on_step
        self._kv = await self._open(self._drafter.capacity(capacity))
        try:
            yield
        finally:
            self._cancel()
            kv, self._kv = self._kv, None
            if kv is not None:
                await self._drafter.thread.close(kv.close)

    async def _open(self, length: int) -> Session | None:
        """Return the draft KV, for a text of so many tokens; None where the session has to go
        without."""
        self._machine.limit_cloud_drafts(length)
        if len(self._machine.committed) >= length:
            self._machine.go_without_cloud_drafts()
            return None
        thread = self._drafter.thread
        try:
            kv = await thread.opened(lambda: thread.engine.open(length))
        except TandemError as error:
            self._give_up(error)
            return None
        try:
            await self._begin(kv)
        except BaseException as error:
            await thread.close(kv.close)
            if not isinstance(error, TandemError):
                raise
            self._give_up(error)
            return None
        return kv

    def follow(self) -> None:
        """Start what the machine asks for now, and stop what it does not ask for any more."""
        if self._kv is None:
            return
        task = self._machine.draft_task()
        if task is self._task:
            return
        self._cancel()
        if task is not None:
            self._start(task, self._kv)

    def _start(self, task: DraftTask, kv: Session) -> None:
        machine = self._machine
        self._task = task
        if not task.count:
            prefill = PrefillJob(kv, task.keep, task.token_ids)
            self._submit(task, prefill, lambda done: machine.drafted(task, [], done.value))
            return
        rows = None
        if self._processor is not None:
            rows = RowsAfter.text(self._processor, machine.committed, len(machine.committed))
        request = DraftRequest(
            task,
            sampling=machine.sampling,
            rule=machine.rule,
            preset=cloud_draft_preset(machine.settings),
            rows=rows,
        )

        def take(done: Done[tuple[list[Drafted], int]]) -> None:
            drafts, kv_length = done.value
            machine.drafted(task, drafts, kv_length)
            self._on_step(done.cost.model_s / len(drafts))

        self._expected = self._expected_jobs.expect()
        self._submit(task, DraftJob(kv, request), take)

    def _submit(
        self, task: DraftTask, job: Job[Result], take: Callable[[Done[Result]], None]
    ) -> None:
        """Run a job; have `take` give the machine what it brings, unless it fails."""
        try:
            handle = self._drafter.thread.submit(job)
        except Unavailable as error:  # its thread has stopped
            self._give_up(error)
            return
        self._handle = handle

        def done(_: object) -> None:
            if self._task is not task or handle.future.cancelled():
                return
            expected, self._expected = self._expected, None
            self._task = self._handle = None
            if (error := handle.future.exception()) is None:
                take(handle.future.result())
            else:
                self._give_up(error)
            self._on_drafted()
            if expected is not None:
                self._expected_jobs.arrived(expected)

        handle.future.add_done_callback(done)

    def _give_up(self, error: BaseException) -> None:
        log.warning("a session goes on without drafts of the cloud", error=repr(error))
        self._cancel()
        self._machine.go_without_cloud_drafts()

    def _cancel(self) -> None:
        handle, self._handle, self._task = self._handle, None, None
        expected, self._expected = self._expected, None
        if handle is not None:
            handle.cancel()
        if expected is not None:
            self._expected_jobs.cancelled(expected)
