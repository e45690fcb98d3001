"""The draft works of one request as jobs of the engine thread: one on the request's own keys and
values, branches beside it on forks of them. Invariant: a fork is closed before the next work on its
parent runs, so that the parent need not copy what the fork still reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandem.backends.interface import Session
from tandem.core.processors import LogitsProcessor, RowsAfter
from tandem.runtime.engine_jobs import JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.forced_drafts import forced_drafts
from tandem.runtime.session_jobs import BranchJob, DraftJob
from tandem.runtime.tree_jobs import TreeDraftJob
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask

DraftHandle = JobHandle[tuple[list[Drafted], int]]
OnDrafted = Callable[["DraftsReady"], None]


@dataclass(frozen=True, slots=True)
class DraftsReady:
    """The next tokens of a work; `handle`, where given, has them or the error that ended it."""

    work: DraftTask
    drafts: list[Drafted]
    kv_length: int
    draft_s: float
    ended: DraftJob | None = None
    handle: DraftHandle | None = None

    def outcome(self) -> tuple[list[Drafted], int, float]:
        """Drafts, length of the draft KV and seconds; raises what ended the job, if it failed."""
        if self.handle is None or self.ended is None:
            return self.drafts, self.kv_length, self.draft_s
        done = self.handle.future.result()
        drafts, kv_length = done.value
        return drafts, kv_length, max(0.0, done.cost.model_s - self.ended.handed_s)


class DraftWorks:
    """Starts and interrupts works; `on_drafted` is called on the event loop, in order."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        on_drafted: OnDrafted,
        processor: LogitsProcessor | None = None,
    ) -> None:
        self._machine = machine
        self._thread = thread
        self._kv = kv
        self._on_drafted = on_drafted
        self._processor = processor
        self._running: dict[int, tuple[DraftTask, DraftHandle | None]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is being drafted."""
        return not self._running

    def start(self, work: DraftTask) -> None:
        request = self._machine.request
        rule, report, rows = self._machine.rule, self._reporter(work), self._rows(work)
        if rows is not None and self._start_forced(work, rows):
            return
        settings = (work, request.params.sampling, rule, request.preset, report, rows)
        job: DraftJob
        if work.branch:
            job = BranchJob(self._thread.engine, self._kv, *settings)
        else:
            job = (TreeDraftJob if work.expansion else DraftJob)(self._kv, *settings)
        handle = self._thread.submit(job, low_priority=work.branch)
        self._running[id(work)] = (work, handle)
        handle.future.add_done_callback(lambda _: self._done(work, job, handle))

    def _start_forced(self, work: DraftTask, rows: RowsAfter) -> bool:
        """Whether a grammar alone decides all of the work, which is then done without the model."""
        began_s, preset = time.perf_counter(), self._machine.request.preset
        by_token = self._machine.rule.drafter_invariant and preset.sends_ids_alone
        drafts = forced_drafts(rows, work, (), work.count + work.spare, by_token)
        if not drafts or (len(drafts) < work.count and drafts[-1].token_id not in work.ends):
            return False
        self._running[id(work)] = (work, None)
        ready = DraftsReady(work, drafts, work.keep, time.perf_counter() - began_s)
        asyncio.get_running_loop().call_soon(self._forced, ready)
        return True

    def _forced(self, ready: DraftsReady) -> None:
        if self._running.pop(id(ready.work), None) is not None:
            self._on_drafted(ready)

    def _rows(self, work: DraftTask) -> RowsAfter | None:
        if (processor := self._processor) is None:
            return None
        return RowsAfter(processor, self._machine.context(work)[processor.prompt_length :])

    def interrupt(self, work: DraftTask) -> None:
        """Stop a work between two layers; its tokens are not reported any more."""
        if (running := self._running.pop(id(work), None)) is None:
            return
        _, handle = running
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Stop everything."""
        for work, _ in list(self._running.values()):
            self.interrupt(work)

    def _reporter(self, work: DraftTask) -> Callable[[Drafted, int, float], None] | None:
        if not work.stepwise:
            return None
        loop = asyncio.get_running_loop()

        def on_draft(drafted: Drafted, kv_length: int, draft_s: float) -> None:
            ready = DraftsReady(work, [drafted], kv_length, draft_s)
            self._thread.report(loop, lambda: self._report(ready))

        return on_draft

    def _report(self, ready: DraftsReady) -> None:
        if id(ready.work) in self._running:
            self._on_drafted(ready)

    def _done(self, work: DraftTask, job: DraftJob, handle: DraftHandle) -> None:
        if self._running.pop(id(work), None) is not None and not handle.future.cancelled():
            self._on_drafted(DraftsReady(work, [], 0, 0.0, job, handle))
