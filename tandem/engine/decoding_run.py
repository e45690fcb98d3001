"""One session of decoding after documents: a `DecoderMachine` between engine and stream.

Invariants: the machine is used on the event loop only, keys and values on the engine's thread only;
however a run ends, its job is cancelled and its KV freed, but for the documents, which stay for the
next one. Must not import torch or grpc.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tandem.core.chance import SeededChance
from tandem.core.laws import Array
from tandem.engine.answer_text import AnswerText
from tandem.engine.base import Session
from tandem.engine.document_group import DocumentGroup, group_kv_tokens
from tandem.engine.document_jobs import DecodeJob
from tandem.engine.document_store import DocumentStore
from tandem.engine.jobs import EngineThread, Ticket
from tandem.policy.local_laws import local_draft
from tandem.protocol.decoder import (
    DecoderMachine,
    DecoderPhase,
    DecodeWork,
    LocalDraft,
)
from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingCost,
    DecodingDraft,
    DecodingOpened,
    DecodingTarget,
    DecodingText,
)
from tandem.protocol.document_shares import Estimate
from tandem.protocol.messages import GoingAway

Send = Callable[[DecodingDraft], None]
EstimateRelevances = Callable[[DecoderMachine, Estimate], Sequence[float]]


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
    ) -> None:
        self.machine = machine
        self._estimate = estimate
        self._thread = thread
        self._store = store
        self._documents = documents
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
    def drafted_tokens(self) -> int:
        return self.machine.drafted_tokens

    @property
    def accepted_tokens(self) -> int:
        return self.machine.accepted_tokens

    @property
    def ended(self) -> bool:
        return self.machine.phase is DecoderPhase.ENDED

    def opened(self) -> DecodingOpened:
        """The first frame."""
        return self.machine.opened([self._store.has(document) for document in self._documents])

    def going_away(self, grace_s: float) -> GoingAway:
        return self.machine.going_away(grace_s)

    def stale(self, draft: DecodingDraft) -> bool:
        """Whether a draft has become void before it was sent."""
        return draft.epoch != self.machine.epoch

    def receive(self, message: DecodeRequestMessage) -> list[DecodeResponseMessage]:
        """Take a frame after `open`; what is to be answered. Raises InvalidArgument, ProtocolError
        or PrefixMismatch."""
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
                self._store.held(self._documents) as held,
                self._grouped([document.session for document in held]) as group,
            ):
                self._group = group
                while True:
                    self._submit_due()
                    await self._next()
        finally:
            self._group = self._send = None

    async def _next(self) -> None:
        """Wait for the job under way, estimate the relevances it needs, or wait for a reason to
        begin one."""
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
        await asyncio.wait([running.ticket.future])
        if running is self._running:
            self._drafted(running.work, *running.ticket.future.result().value)
            self._running = None

    def _submit_due(self) -> None:
        """Stop a job whose work has become void, and hand the one that is due to the engine."""
        running, machine = self._running, self.machine
        if running is not None and machine.running is not running.work:
            running.ticket.cancel()
            self._running = running = None
        self._wake.set()
        if self._group is None or running is not None:
            return
        work = machine.work()
        if work is not None:
            self._running = _Running(work, self._submitted(work, self._group))

    def _submitted(self, work: DecodeWork, group: DocumentGroup) -> DecodeTicket:
        opening, loop = self.machine.opening, asyncio.get_running_loop()
        chance = SeededChance(opening.seed)

        def draw(law: Array, position: int) -> tuple[int, Array | None]:
            return local_draft(law, opening.law, chance, position, opening.side)

        def hear(draft: LocalDraft, took_s: float) -> None:  # on the engine's thread
            self._thread.report(loop, lambda: self._drafted(work, draft, took_s))

        job = DecodeJob(group, work, self.machine.sampling, draw, hear)
        return self._thread.submit_group(job)

    def _drafted(self, work: DecodeWork, draft: LocalDraft, took_s: float) -> None:
        """Take the next draft, unless its work has become void meanwhile."""
        running = self._running
        if running is None or running.work is not work or self._send is None:
            return
        ticket = running.ticket
        queue_s = 0.0 if running.heard else max(0.0, ticket.started_s - ticket.submitted_s)
        running.heard = True
        cost = DecodingCost(took_s, queue_s, ticket.batch_size)
        frame = self.machine.drafted(work, draft, cost)
        if frame is not None:
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
        head = target.session, self.machine.epoch, target.base, target.prefix
        return DecodingText(*head, text=found, tokens=count, stopped=self._stopped)

    @asynccontextmanager
    async def _grouped(self, documents: Sequence[Session]) -> AsyncIterator[DocumentGroup]:
        """The sequences of this session; freed on every way out, cancellation included."""
        engine, machine = self._thread.engine, self.machine
        opened: list[DocumentGroup] = []

        def open_group() -> None:
            opened.append(DocumentGroup(engine, documents, machine.capacity, machine.lead))

        def close() -> None:
            for group in opened:
                group.close()

        try:
            await self._thread.call(open_group)
            yield opened[0]
        finally:
            if self._running is not None:
                self._running.ticket.cancel()
            # Shielded: a session that is given up must free its keys and values all the same.
            await asyncio.shield(self._thread.call(close))


DecodeTicket = Ticket[tuple[LocalDraft, float]]


@dataclass(slots=True, eq=False)
class _Running:
    """A work and its job; `heard`: a draft of it has come."""

    work: DecodeWork
    ticket: DecodeTicket
    heard: bool = False


def _resumed(text: AnswerText | None, committed_ids: Sequence[int]) -> AnswerText | None:
    """The text as it was after the tokens of the resume point, which was given out before."""
    if text is not None:
        for token_id in committed_ids:
            text.completes_stop(token_id)
        text.take(len(committed_ids))
    return text
