"""One session of decoding after documents: a `DecoderMachine` between engine and stream. The
machine is used on the event loop only, keys and values on the engine's thread only; however a run
ends, its job is cancelled and its KV freed, except for the documents."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tandem.backends.interface import Session
from tandem.core.probs import Array
from tandem.core.processors import LogitsProcessor
from tandem.core.randomness import SeededRandom
from tandem.runtime.engine_jobs import JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.text.answer_text import AnswerText
from tandem.two_sided.decoding.document_jobs import DecodeJob, DocumentGroup, group_kv_tokens
from tandem.two_sided.decoding.document_store import DocumentStore, importer_of
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
    DecoderPhase,
    DecodeWork,
    LocalDraft,
)
from tandem.two_sided.protocol.decoder_messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingCost,
    DecodingDraft,
    DecodingOpened,
    DecodingTarget,
    DecodingText,
)
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.local_mixtures import RelevanceEstimate

Send = Callable[[DecodingDraft], None]
DecodeHandle = JobHandle[tuple[LocalDraft | None, float]]
EstimateRelevances = Callable[[DecoderMachine, RelevanceEstimate], Sequence[float]]


class DecodingRun:
    """One session. `receive` takes the aggregator's frames, `run` drafts until it is cancelled."""

    def __init__(
        self,
        machine: DecoderMachine,
        thread: EngineThread,
        store: DocumentStore,
        documents: Sequence[tuple[int, ...]],
        text: AnswerText | None,
        estimate: EstimateRelevances,
        caller: str,
        processor: LogitsProcessor | None = None,
    ) -> None:
        """`caller`: whose imports may stand in for the documents that say so."""
        self._processor = processor
        self.machine, self._estimate, self._thread, self._store = machine, estimate, thread, store
        self._documents = documents
        self._importers = [importer_of(each, caller) for each in machine.opening.documents]
        self._owners = [document.owner for document in machine.opening.documents]
        self._text = _resumed(text, machine.opening.committed_ids)
        self._group: DocumentGroup | None = None
        self._running: _Running | None = None
        self._send: Send | None = None
        self._wake = asyncio.Event()
        self._stopped = False

    @property
    def kv_bytes(self) -> int:
        """Keys and values of the session itself; documents are within a budget of their own."""
        if not self.machine.opening.ahead:
            return 0
        tokens = group_kv_tokens(len(self._documents), self.machine.capacity)
        return tokens * self._thread.engine.kv_bytes_per_token

    @property
    def ended(self) -> bool:
        return self.machine.phase is DecoderPhase.ENDED

    def opened(self) -> DecodingOpened:
        """The first frame."""
        wanted = zip(self._documents, self._importers, self._owners, strict=True)
        return self.machine.opened(
            [self._store.has(ids, importer, owner) for ids, importer, owner in wanted]
        )

    def stale(self, draft: DecodingDraft) -> bool:
        """Whether a draft has become void before it was sent."""
        return draft.epoch != self.machine.epoch

    def receive(self, message: DecodeRequestMessage) -> list[DecodeResponseMessage]:
        """Take a frame after `open`; returns the answers. Raises as `DecoderMachine.receive`."""
        answers: list[DecodeResponseMessage] = list(self.machine.receive(message))
        if isinstance(message, DecodingTarget) and self._text is not None:
            answers.append(self._text_of(message, self._text))
        self._submit_due()
        return answers

    async def run(self, send: Send) -> None:
        """Draft, handing each draft to `send`, until this is cancelled."""
        self._send = send
        if not self.machine.opening.ahead:
            await asyncio.Event().wait()
        try:
            async with (
                self._store.held(self._documents, self._importers, self._owners) as held,
                self._grouped([document.session for document in held]) as group,
            ):
                self._group = group
                while True:
                    self._submit_due()
                    await self._next()
        finally:
            self._group = self._send = None

    async def _next(self) -> None:
        """Wait for the running job, estimate missing relevances, or wait until a job can start."""
        running = self._running
        if running is None:
            self._wake.clear()
            if (estimate := self.machine.estimate()) is None:
                await self._wake.wait()
                return
            found = await asyncio.to_thread(self._estimate, self.machine, estimate)
            self.machine.estimated(estimate, found)
            return
        # Not for the future's result: a job is cancelled when its work has become void.
        await asyncio.wait([running.handle.future])
        if running is self._running:
            draft, took_s = running.handle.future.result().value
            if draft is None:
                self.machine.ended_dead(running.work)
            else:
                self._drafted(running.work, draft, took_s)
            self._running = None

    def _submit_due(self) -> None:
        running, machine = self._running, self.machine
        if running is not None and machine.running is not running.work:
            running.handle.cancel()
            self._running = running = None
        self._wake.set()
        if self._group is None or running is not None:
            return
        work = machine.work()
        if work is not None:
            self._running = _Running(work, self._submitted(work, self._group))

    def _submitted(self, work: DecodeWork, group: DocumentGroup) -> DecodeHandle:
        opening, loop = self.machine.opening, asyncio.get_running_loop()
        rng = SeededRandom(opening.seed)

        def draw(probs: Array, position: int) -> tuple[int, Array | None]:
            return local_draft(probs, opening.probs, rng, position, opening.side)

        def on_draft(draft: LocalDraft, took_s: float) -> None:  # on the engine's thread
            self._thread.report(loop, lambda: self._drafted(work, draft, took_s))

        job = DecodeJob(group, work, self.machine.sampling, draw, on_draft, self._processor)
        return self._thread.submit_group(job)

    def _drafted(self, work: DecodeWork, draft: LocalDraft, took_s: float) -> None:
        """Take the next draft, unless its work has become void."""
        running = self._running
        if running is None or running.work is not work or self._send is None:
            return
        handle = running.handle
        queue_s = 0.0 if running.started else max(0.0, handle.started_s - handle.submitted_s)
        running.started = True
        cost = DecodingCost(took_s, queue_s, handle.batch_size)
        if (frame := self.machine.drafted(work, draft, cost)) is not None:
            self._send(frame)

    def _text_of(self, target: DecodingTarget, text: AnswerText) -> DecodingText:
        """The text that became final with a target, and how many of its tokens count: none once a
        stop string is complete, of which targets under way did not know."""
        count = 0
        for token_id in () if self._stopped else target.token_ids:
            count += 1
            if text.completes_stop(token_id):
                self._stopped = True
                self.machine.text_ended()
                break
        found = text.take(count)
        if target.last and not self._stopped:
            found += text.rest()
        head = target.session, self.machine.epoch, target.base, target.prefix_hash
        spelt: list[str] = []
        if self.machine.opening.wants_token_texts:
            spelt, _ = text.spelt(target.token_ids[:count])
        return DecodingText(*head, found, count, self._stopped, tuple(spelt))

    @asynccontextmanager
    async def _grouped(self, documents: Sequence[Session]) -> AsyncIterator[DocumentGroup]:
        """The sequences of this session; freed on every way out, cancellation included."""
        thread, machine = self._thread, self.machine
        sizes = machine.capacity, machine.bos_length
        group = await thread.opened(lambda: DocumentGroup(thread.engine, documents, *sizes))
        try:
            yield group
        finally:
            if self._running is not None:
                self._running.handle.cancel()
            await thread.close(group.close)


@dataclass(slots=True, eq=False)
class _Running:
    """A work and its job; `started`: its first draft is there."""

    work: DecodeWork
    handle: DecodeHandle
    started: bool = False


def _resumed(text: AnswerText | None, committed_ids: Sequence[int]) -> AnswerText | None:
    """The text after the tokens of the resume point, which the caller has already."""
    if text is not None:
        for token_id in committed_ids:
            text.completes_stop(token_id)
        text.take(len(committed_ids))
        text.spelt(committed_ids)
    return text
