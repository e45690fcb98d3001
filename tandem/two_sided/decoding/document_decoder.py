"""Decoding after documents: what one service has for it (`DocumentDecoder`: engine, tokenizer,
store of documents), and one session (`DecodingRun`: a `DecoderMachine` between engine and stream).

The machine is used on the event loop only, keys and values on the engine's thread only; a run holds
nothing before it is entered, and however it ends, its job is cancelled and its KV freed, except for
the documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, cached_property

from tandem.backends.interface import Session
from tandem.backends.model_source import LoadedModel
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.probs import Array
from tandem.core.processors import LogitsProcessor, logits_processor
from tandem.core.prompt import Prompt, Turn
from tandem.core.randomness import SeededRandom
from tandem.grammar.compiler import NOBODY, GrammarCompiler
from tandem.net.tenant import Tenant
from tandem.runtime.engine_jobs import JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.settings import ModelSettings
from tandem.specdec.cloud_checks import CloudModel
from tandem.telemetry.engine_series import EngineSeries
from tandem.text import ConversationTokenizer, Tokenizer
from tandem.text.answer_text import AnswerText
from tandem.text.chat_rendering import continued_tokens, read_variables
from tandem.text.document_place import document_head, with_system_turn
from tandem.text.prompt_reading import (
    MAX_CHARACTERS_PER_TOKEN,
    characters_of,
    check_characters,
    prompt_ids,
)
from tandem.two_sided.decoding.document_files import DocumentFiles, open_document_files
from tandem.two_sided.decoding.document_jobs import DecodeJob, DocumentGroup, group_kv_tokens
from tandem.two_sided.decoding.document_store import DocumentStore, joined_ids, stored_text
from tandem.two_sided.decoding.kv_transfer import KvTransfer
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
    DecoderPhase,
    DecodeTask,
    LocalDraft,
)
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodeRequestMessage,
    DecodeResponseMessage,
    DecodingOpen,
    DecodingTarget,
    DecodingText,
    SideDraftFrame,
)

SEPARATOR = "\n\n"
"""What stands between a document and the prompt."""

MAX_OWNER_CHARACTERS = 64

QUERY_TOKENS = 256
"""How much of the end of prompt and answer is the query when relevances are estimated again."""

Rescore = Callable[[str, Sequence[str]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Documents:
    """The parts of a service that decode documents. Without a tokenizer there are only token ids;
    without files documents stay in memory, without `weights` (reads the model's content hash) in
    this process; `rescore` judges how relevant texts are to a query, slowly, on any thread;
    `only_drafts`: the model proposes tokens to another one, and can answer from no documents."""

    tokenizer: Tokenizer | None = None
    budget_bytes: int = 2**29
    files: DocumentFiles | None = None
    rescore: Rescore | None = None
    weights: Callable[[], str] | None = None
    only_drafts: bool = False

    @classmethod
    def from_settings(
        cls,
        settings: ModelSettings,
        model: LoadedModel,
        rescore: Rescore | None,
        *,
        only_drafts: bool = False,
    ) -> Documents:
        """Return what a service's settings say of decoding documents. Raises InvalidArgument for a
        folder that cannot be used."""
        weights = cache(model.content_hash)  # it reads all of them
        return cls(
            tokenizer=model.tokenizer,
            budget_bytes=settings.document_kv_budget_bytes,
            files=open_document_files(
                model.engine,
                settings.document_kv_folder,
                weights,
                budget_bytes=settings.document_kv_disk_bytes,
            ),
            rescore=rescore,
            weights=weights,
            only_drafts=only_drafts,
        )


class DocumentDecoder:
    """Decodes documents for one service, on the thread of its engine."""

    def __init__(
        self,
        thread: EngineThread,
        documents: Documents,
        series: EngineSeries,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Set up the decoder on an engine's thread. `grammars` are of the same model, where its
        service has some."""
        engine = thread.engine
        self._grammars = grammars or GrammarCompiler(
            documents.tokenizer, engine.vocabulary_size, engine.eos_token_ids
        )
        self.model = CloudModel(
            model_name=engine.model_name,
            vocabulary_hash=engine.vocabulary_hash,
            vocabulary_size=engine.vocabulary_size,
            context_length=engine.context_length,
            eos_token_ids=engine.eos_token_ids,
        )
        self._thread = thread
        self._tokenizer = documents.tokenizer
        self._rescore = documents.rescore
        self._only_drafts = documents.only_drafts
        self._store = store = DocumentStore(
            thread, documents.budget_bytes, documents.files, series.document_found
        )
        self.kv_transfer = KvTransfer(thread, store, self._sequence_ids, documents.weights)
        series.document_kv_budget_bytes.set(documents.budget_bytes)
        series.document_kv_bytes.set_function(lambda: store.bytes_in_use)

    async def close(self) -> None:
        """Free the documents; after the last run, before the engine stops."""
        await self._store.close()

    async def prepare(
        self,
        opening: DecodingOpen,
        caller: str,
        tenant: Tenant = NOBODY,
        spend_grammar: Callable[[Tenant, float], None] = lambda tenant, seconds: None,
    ) -> DecodingRun:
        """Check everything, tokenise the texts and compile the grammar, for a caller who was
        admitted; it may use what it imported. `tenant`, `spend_grammar`: as of
        `GrammarCompiler.session_mask`. Raises InvalidArgument or FailedPrecondition."""
        tokenizer = self._tokenizer
        if tokenizer is None and (opening.documents or opening.wants_text):
            field = "documents" if opening.documents else "wants_text"
            raise InvalidArgument(field, "this model has no tokenizer")
        if opening.documents and not self._thread.engine.capabilities.forks:
            raise FailedPrecondition(
                f"documents need forks, which {self.model.model_name} does not have"
            )
        if opening.documents and self._only_drafts:
            raise FailedPrecondition(
                f"{self.model.model_name} can only draft, and not answer from documents; start the"
                " drafter with a model that answers, such as the target's own"
            )
        if opening.reweigh_every and self._rescore is None:
            raise InvalidArgument("reweigh_every", "this service has no re-ranker")
        check_characters(characters_of(opening.prompt), self.model.context_length, "prompt")
        self._check_sizes(opening.documents)
        # A tokenizer takes milliseconds for a long text, which other streams would wait for.
        prompt_ids, leading, documents = await asyncio.to_thread(self._opened, opening)
        machine = DecoderMachine(
            opening,
            prompt_ids=prompt_ids,
            documents=documents,
            model=self.model,
            leading_length=len(leading),
        )
        text = None
        if tokenizer and opening.wants_text:
            least = opening.processors.min_tokens
            after = continued_tokens(opening.prompt, opening.chat_template_kwargs, prompt_ids)
            text = AnswerText(tokenizer, opening.stop, min_tokens=least, after=after)
        processor = await self._processor(opening, prompt_ids, tenant, spend_grammar)
        store = self._store
        estimate = self._estimate
        return DecodingRun(
            machine,
            thread=self._thread,
            store=store,
            documents=documents,
            text=text,
            estimate=estimate,
            caller=caller,
            processor=processor,
        )

    async def _processor(
        self,
        opening: DecodingOpen,
        prompt_ids: tuple[int, ...],
        tenant: Tenant,
        spend: Callable[[Tenant, float], None],
    ) -> LogitsProcessor | None:
        processors = opening.processors
        ends = frozenset(opening.end_ids)
        mask = None
        if processors.grammar is not None:
            mask = await self._grammars.session_mask(processors.grammar, tenant, spend, ends)
        return logits_processor(
            processors, prompt_ids, mask, eos_token_ids=ends or self.model.eos_token_ids
        )

    async def forget(self, texts: Sequence[str], owner: str = "") -> int:
        """Keep nothing of these documents of an owner's; how many there were. Raises
        Unavailable."""
        return await self._store.forget(await asyncio.to_thread(self._known, texts), owner)

    def _known(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        if self._tokenizer is None:
            return []
        most = MAX_CHARACTERS_PER_TOKEN * self.model.context_length
        fitting = [text for text in texts if text.strip() and len(text) <= most]
        leadings = {(), self._head}
        return [self._read("texts", text, leading) for text in fitting for leading in leadings]

    async def _sequence_ids(self, documents: Sequence[ContextDocument]) -> list[tuple[int, ...]]:
        """Return documents one after another, as the model reads them before any prompt."""
        if self._tokenizer is None:
            raise InvalidArgument("documents", "this model has no tokenizer")
        self._check_sizes(documents)
        leading = self._head if documents[0].in_conversation else ()
        context = self.model.context_length
        read = await asyncio.to_thread(self._read_documents, documents, leading, joined=True)
        if (tokens := sum(map(len, read))) >= context:
            why = f"{tokens} tokens leave nothing of a context of {context}"
            raise InvalidArgument("documents", why)
        return read

    def _check_sizes(self, documents: Sequence[ContextDocument]) -> None:
        for index, document in enumerate(documents):
            field = f"documents[{index}]"
            check_characters(len(document.text), self.model.context_length, field)
            if len(document.owner) > MAX_OWNER_CHARACTERS:
                why = f"has {len(document.owner)} characters; at most {MAX_OWNER_CHARACTERS}"
                raise InvalidArgument(f"{field}.owner", why)

    def _estimate(self, machine: DecoderMachine, answer_ids: tuple[int, ...]) -> Sequence[float]:
        """Return the relevances of a session's documents to the end of its text (DRAGON's R(d,
        x<t)), the same words on both sides, whichever got the prompt as text."""
        assert self._rescore is not None, "checked as the session was prepared"
        assert self._tokenizer is not None, "there are documents"
        token_ids = (*machine.prompt_ids, *answer_ids)[machine.leading_length :]
        text = self._tokenizer.detokenizer()
        query = text.push(token_ids[-QUERY_TOKENS:]) + text.finish()
        return self._rescore(query, [document.text for document in machine.opening.documents])

    def _opened(
        self, opening: DecodingOpen
    ) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]]]:
        """Return the prompt, the beginning of it that documents follow, and the documents."""
        prompt_ids = self._prompt_ids(opening.prompt, opening.chat_template_kwargs)
        if self._tokenizer is None or not opening.documents:
            return prompt_ids, (), []
        leading = self._leading(prompt_ids)
        documents = self._read_documents(opening.documents, leading, joined=opening.joined)
        return prompt_ids, leading, documents

    def _read_documents(
        self, documents: Sequence[ContextDocument], leading: tuple[int, ...], *, joined: bool
    ) -> list[tuple[int, ...]]:
        """Return documents as they stand in their sequences, or `joined` in one: what begins a text
        or a conversation is not repeated then."""
        assert self._tokenizer is not None, "there are documents"
        read = [
            self._read(f"documents[{index}]", document.text, leading)
            for index, document in enumerate(documents)
        ]
        begin = leading or tuple(self._tokenizer.encode(""))
        if joined:
            read[1:] = [each[len(begin) * (each[: len(begin)] == begin) :] for each in read[1:]]
        return read

    def _leading(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the beginning of the prompt that stands before its documents and is not repeated
        after them: what opens a conversation, else the token that begins every text of this model,
        of which a second one would cut the document off."""
        assert self._tokenizer is not None, "there are documents"
        for leading in (self._head, tuple(self._tokenizer.encode(""))):
            length = len(leading)
            if leading and len(prompt_ids) > length and prompt_ids[:length] == leading:
                return leading
        return ()

    def _read(self, field: str, text: str, leading: tuple[int, ...]) -> tuple[int, ...]:
        """Return a document as the model reads it after the beginning of its prompt."""
        tokenizer = self._tokenizer
        assert tokenizer is not None, "there are documents"
        if not text.strip():
            raise InvalidArgument(field, "is empty")
        whole = text.rstrip() + SEPARATOR
        if leading and leading == self._head:
            assert isinstance(tokenizer, ConversationTokenizer), "only these have a head"
            return (*leading, *tokenizer.encode_piece(whole))
        return tuple(tokenizer.encode(whole))

    @cached_property
    def _head(self) -> tuple[int, ...]:
        return () if self._tokenizer is None else document_head(self._tokenizer)

    def _prompt_ids(self, prompt: Prompt, chat_template_kwargs: str) -> tuple[int, ...]:
        if not prompt:
            return ()
        turns = [turn for turn in prompt if isinstance(turn, Turn)]
        if turns and self._head:
            prompt = tuple(with_system_turn(turns))
        variables = read_variables(chat_template_kwargs)
        return prompt_ids(self._tokenizer, prompt, variables=variables)


Send = Callable[[SideDraftFrame, float], None]
"""Given a draft, and the seconds that it waited for the engine."""
DecodeHandle = JobHandle[tuple[LocalDraft | None, float]]
EstimateRelevances = Callable[[DecoderMachine, tuple[int, ...]], Sequence[float]]


class DecodingRun:
    """One session. `receive` takes the aggregator's frames, `run` drafts until it is cancelled."""

    def __init__(
        self,
        machine: DecoderMachine,
        *,
        thread: EngineThread,
        store: DocumentStore,
        documents: Sequence[tuple[int, ...]],
        text: AnswerText | None,
        estimate: EstimateRelevances,
        caller: str,
        processor: LogitsProcessor | None = None,
    ) -> None:
        """Prepare one session. `caller` is the one whose imports may stand in for the documents
        that say so."""
        self._processor = processor
        self.machine = machine
        self._estimate = estimate
        self._thread = thread
        self._store = store
        pairs = zip(documents, machine.opening.documents, strict=True)
        self._documents = [stored_text(ids, document, caller) for ids, document in pairs]
        self._joined = machine.opening.joined and len(documents) > 1
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
        if self._joined:
            # Once as the context that all drafts follow, once in the sequence that they are in.
            context = len(joined_ids(self._documents))
            return (2 * context + self.machine.capacity) * self._thread.engine.kv_bytes_per_token
        tokens = group_kv_tokens(len(self._documents), self.machine.capacity)
        return tokens * self._thread.engine.kv_bytes_per_token

    @property
    def ended(self) -> bool:
        return self.machine.phase is DecoderPhase.ENDED

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
                self._contexts() as contexts,
                self._grouped(contexts) as group,
            ):
                self._group = group
                while True:
                    self._submit_due()
                    await self._next()
        finally:
            self._group = self._send = None

    @asynccontextmanager
    async def _contexts(self) -> AsyncIterator[list[Session]]:
        """Hold what the drafts follow: each document, or one sequence of all."""
        if not self._joined:
            async with self._store.held(self._documents) as held:
                yield held
            return
        async with self._store.joined(self._documents) as session:
            yield [session]

    async def _next(self) -> None:
        """Wait for the running job, estimate missing relevances, or wait until a job can start."""
        running = self._running
        if running is None:
            self._wake.clear()
            if (answer_ids := self.machine.estimate()) is None:
                await self._wake.wait()
                return
            scores = await asyncio.to_thread(self._estimate, self.machine, answer_ids)
            self.machine.estimated(answer_ids, scores)
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
        running = self._running
        machine = self.machine
        if running is not None and machine.running is not running.work:
            running.handle.cancel()
            self._running = running = None
        self._wake.set()
        if self._group is None or running is not None:
            return
        work = machine.work()
        if work is not None:
            self._running = _Running(work, self._submitted(work, self._group))

    def _submitted(self, work: DecodeTask, group: DocumentGroup) -> DecodeHandle:
        opening = self.machine.opening
        loop = asyncio.get_running_loop()
        rng = SeededRandom(opening.seed)

        def draw(probs: Array, position: int) -> tuple[int, DraftProbs | None]:
            return local_draft(probs, opening.probs, rng=rng, position=position, side=opening.side)

        def on_draft(draft: LocalDraft, took_s: float) -> None:  # on the engine's thread
            self._thread.report(loop, lambda: self._drafted(work, draft, took_s))

        job = DecodeJob(
            group,
            work=work,
            sampling=self.machine.sampling,
            draw=draw,
            on_draft=on_draft,
            processor=self._processor,
        )
        return self._thread.submit(job)

    def _drafted(self, work: DecodeTask, draft: LocalDraft, took_s: float) -> None:
        """Take the next draft, unless its work has become void."""
        running = self._running
        if running is None or running.work is not work or self._send is None:
            return
        handle = running.handle
        queue_s = 0.0 if running.started else max(0.0, handle.started_s - handle.submitted_s)
        running.started = True
        if (frame := self.machine.drafted(work, draft, took_s)) is not None:
            self._send(frame, queue_s)

    def _text_of(self, target: DecodingTarget, text: AnswerText) -> DecodingText:
        """Return the text that became final with a target, and how many of its tokens count: none
        once a stop string is complete, of which targets under way did not know."""
        count = 0
        for token_id in () if self._stopped else target.token_ids:
            count += 1
            if text.completes_stop(token_id):
                self._stopped = True
                self.machine.text_ended()
                break
        final_text = text.take(count)
        if target.last and not self._stopped:
            final_text += text.rest()
        spelt: list[str] = []
        if self.machine.opening.wants_token_texts:
            spelt = [each.text for each in text.spelt(target.token_ids[:count])[0]]
        return DecodingText(
            session=target.session,
            base=target.base,
            prefix_hash=target.prefix_hash,
            text=final_text,
            tokens=count,
            stopped=self._stopped,
            token_texts=tuple(spelt),
        )

    @asynccontextmanager
    async def _grouped(self, documents: Sequence[Session]) -> AsyncIterator[DocumentGroup]:
        """Yield the sequences of this session, which are freed however the context ends, even if it
        is cancelled."""
        thread = self._thread
        capacity = self.machine.capacity
        leading_length = self.machine.leading_length
        group = await thread.opened(
            lambda: DocumentGroup(thread.engine, documents, capacity, leading_length)
        )
        try:
            yield group
        finally:
            if self._running is not None:
                self._running.handle.cancel()
            await thread.close(group.close)


@dataclass(slots=True, eq=False)
class _Running:
    """A work and its job; `started`: its first draft is there."""

    work: DecodeTask
    handle: DecodeHandle
    started: bool = False


def _resumed(text: AnswerText | None, committed_ids: Sequence[int]) -> AnswerText | None:
    """Return the text after the tokens of the resume point, which the caller has already."""
    if text is not None:
        for token_id in committed_ids:
            text.completes_stop(token_id)
        text.take(len(committed_ids))
        text.spelt(committed_ids)
    return text
