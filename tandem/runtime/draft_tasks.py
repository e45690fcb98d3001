"""The draft tasks of one request as jobs of the engine thread: one on the request's own keys and
values, branches beside it on forks of them. Invariant: a fork is closed before the next task on its
parent runs, so that the parent need not copy what the fork still reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tandem.backends.interface import Session
from tandem.core.frozen import frozen
from tandem.core.processors import LogitsProcessor, RowsAfter
from tandem.runtime.engine_jobs import JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.forced_drafts import forced_drafts
from tandem.runtime.session_jobs import BranchJob, DraftJob, DraftRequest
from tandem.runtime.tree_jobs import TreeDraftJob
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask

DraftHandle = JobHandle[tuple[list[Drafted], int]]
OnDrafted = Callable[["DraftsReady"], None]


@frozen
class DraftsReady:
    """The next tokens of a task; `handle`, where given, has them or the error that ended it."""

    task: DraftTask
    drafts: list[Drafted]
    kv_length: int
    draft_s: float
    ended: DraftJob | None = None
    handle: DraftHandle | None = None

    def outcome(self) -> tuple[list[Drafted], int, float]:
        """Return drafts, length of the draft KV and seconds; raise what ended the job, if it
        failed."""
        if self.handle is None or self.ended is None:
            return self.drafts, self.kv_length, self.draft_s
        done = self.handle.future.result()
        drafts, kv_length = done.value
        return drafts, kv_length, max(0.0, done.cost.model_s - self.ended.handed_s)


class DraftTaskRunner:
    """Starts and interrupts tasks; `on_drafted` is called on the event loop, in order."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        on_drafted: OnDrafted,
        processor: LogitsProcessor | None = None,
        on_broken: Callable[[], None] | None = None,
    ) -> None:
        """Start with nothing under way. `on_broken`: see `DraftRequest`."""
        self._machine = machine
        self._thread = thread
        self._kv = kv
        self._on_drafted = on_drafted
        self._processor = processor
        self._on_broken = on_broken
        self._running: dict[int, tuple[DraftTask, DraftHandle | None]] = {}

    @property
    def idle(self) -> bool:
        """True if nothing is being drafted."""
        return not self._running

    def start(self, task: DraftTask) -> None:
        edge_request = self._machine.request
        request = DraftRequest(
            task,
            sampling=edge_request.params.sampling,
            rule=self._machine.rule,
            preset=edge_request.preset,
            on_draft=self._reporter(task),
            rows=self._rows(task),
            texts=self._machine.texts(task),
            on_broken=self._on_broken,
        )
        if self._start_forced(request):
            return
        job: DraftJob
        if task.branch:
            job = BranchJob(self._thread.engine, self._kv, request)
        elif task.expansion:
            job = TreeDraftJob(self._kv, request)
        else:
            job = DraftJob(self._kv, request)
        handle = self._thread.submit(job, low_priority=task.branch)
        self._running[id(task)] = (task, handle)
        handle.future.add_done_callback(lambda _: self._done(task, job, handle))

    def _start_forced(self, request: DraftRequest) -> bool:
        """Start a task that a grammar or texts determine completely, without the model. Returns
        whether it did."""
        began_s = time.perf_counter()
        task = request.task
        drafts = forced_drafts(
            task,
            request.rows,
            most=task.count + task.spare,
            by_token=request.by_token,
            texts=request.texts,
        )
        if not drafts:
            return False
        ended = drafts[-1].ends_chunk or drafts[-1].token_id in task.ends
        if len(drafts) < task.count and not ended:
            return False
        self._running[id(task)] = (task, None)
        ready = DraftsReady(task, drafts, task.keep, time.perf_counter() - began_s)
        asyncio.get_running_loop().call_soon(self._forced, ready)
        return True

    def _forced(self, ready: DraftsReady) -> None:
        if self._running.pop(id(ready.task), None) is not None:
            self._on_drafted(ready)

    def _rows(self, task: DraftTask) -> RowsAfter | None:
        if (processor := self._processor) is None:
            return None
        return RowsAfter(processor, self._machine.context(task, processor.prompt_length))

    def interrupt(self, task: DraftTask) -> None:
        """Stop a task between two layers; its tokens are not reported any more."""
        if (running := self._running.pop(id(task), None)) is None:
            return
        _, handle = running
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Stop everything."""
        for task, _ in list(self._running.values()):
            self.interrupt(task)

    def _reporter(self, task: DraftTask) -> Callable[[Drafted, int, float], None] | None:
        if not task.stepwise:
            return None
        loop = asyncio.get_running_loop()

        def on_draft(drafted: Drafted, kv_length: int, draft_s: float) -> None:
            ready = DraftsReady(task, [drafted], kv_length, draft_s)
            self._thread.report(loop, lambda: self._report(ready))

        return on_draft

    def _report(self, ready: DraftsReady) -> None:
        task = ready.task
        if id(task) not in self._running:
            return
        if not (task.branch and self._machine.predrafted(task, ready.drafts)):
            self._on_drafted(ready)

    def _done(self, task: DraftTask, job: DraftJob, handle: DraftHandle) -> None:
        if self._running.pop(id(task), None) is not None and not handle.future.cancelled():
            nothing = DraftsReady(task, [], kv_length=0, draft_s=0.0, ended=job, handle=handle)
            self._on_drafted(nothing)
