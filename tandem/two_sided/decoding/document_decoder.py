"""What one service decodes documents with: its engine, tokenizer and store of documents. `prepare`
makes of an opening a `DecodingRun`, checked, which holds nothing before it is entered."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tandem.backends.model_source import LoadedModel
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.processors import LogitsProcessor, logits_processor
from tandem.core.prompt import Prompt, Turn
from tandem.grammar.compiler import NOBODY, GrammarCompiler
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.settings import ModelSettings
from tandem.telemetry.engine_series import EngineSeries
from tandem.text import Tokenizer
from tandem.text.answer_text import AnswerText
from tandem.two_sided.decoding.decoding_run import DecodingRun
from tandem.two_sided.decoding.document_files import DocumentFiles, open_document_files
from tandem.two_sided.decoding.document_store import DocumentStore
from tandem.two_sided.decoding.kv_transfer import KvTransfer
from tandem.two_sided.protocol.decoder_machine import DecoderMachine, DecoderModel
from tandem.two_sided.protocol.decoder_messages import ContextDocument, DecodingOpen
from tandem.two_sided.protocol.local_mixtures import RelevanceEstimate

SEPARATOR = "\n\n"
"""What stands between a document and the prompt."""

MAX_CHARACTERS_PER_TOKEN = 64
"""A text longer than this many for each token of the context is refused unread: reading it would
take the tokenizer seconds. Runs of spaces are the longest tokens there are."""

MAX_OWNER_CHARACTERS = 64

QUERY_TOKENS = 256
"""How much of the end of prompt and answer is the query when relevances are estimated again."""

Rescore = Callable[[str, Sequence[str]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Documents:
    """What a service brings for decoding documents. Without a tokenizer there are only token ids;
    without files documents stay in memory, without `weights` (reads the model's content hash) in
    this process; `rescore` judges how relevant texts are to a query, slowly, on any thread."""

    tokenizer: Tokenizer | None = None
    budget_bytes: int = 2**29
    files: DocumentFiles | None = None
    rescore: Rescore | None = None
    weights: Callable[[], str] | None = None


def documents_of(settings: ModelSettings, model: LoadedModel, rescore: Rescore | None) -> Documents:
    """What a service's settings say of decoding documents. Raises InvalidArgument for a folder that
    cannot be used."""
    weights = cache(model.content_hash)  # it reads all of them
    files = open_document_files(
        model.engine, settings.document_kv_folder, weights, settings.document_kv_disk_bytes
    )
    return Documents(model.tokenizer, settings.document_kv_budget_bytes, files, rescore, weights)


class DocumentDecoder:
    """What one service decodes documents with, on the thread of its engine."""

    def __init__(
        self,
        thread: EngineThread,
        documents: Documents,
        series: EngineSeries,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`grammars`: of the same model, where its service has some."""
        engine = thread.engine
        self._grammars = grammars or GrammarCompiler(
            documents.tokenizer, engine.vocabulary_size, engine.eos_token_ids
        )
        self.model = DecoderModel(
            engine.model_name,
            engine.vocabulary_hash,
            engine.vocabulary_size,
            engine.context_length,
            engine.eos_token_ids,
        )
        self.model_name, self.vocabulary_size = engine.model_name, engine.vocabulary_size
        self._thread, self._tokenizer = thread, documents.tokenizer
        self._rescore = documents.rescore
        self._store = store = DocumentStore(
            thread, documents.budget_bytes, documents.files, series.document_found
        )
        self.kv_transfer = KvTransfer(thread, store, self._document_ids, documents.weights)
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
        `GrammarCompiler.session_mask`. Raises InvalidArgument or VocabularyMismatch."""
        tokenizer = self._tokenizer
        if tokenizer is None and (opening.documents or opening.wants_text):
            field = "documents" if opening.documents else "wants_text"
            raise InvalidArgument(field, "this model has no tokenizer")
        if opening.documents and not self._thread.engine.capabilities.forks:
            raise FailedPrecondition(f"documents need forks, which {self.model_name} does not have")
        if opening.reweigh_every and self._rescore is None:
            raise InvalidArgument("reweigh_every", "this service has no re-ranker")
        self._check_sizes(opening)
        # A tokenizer takes milliseconds for a long text, which other streams would wait for.
        prompt_ids, documents = await asyncio.to_thread(self._read, opening)
        bos_length = self._bos_length(prompt_ids) if documents else 0
        machine = DecoderMachine(opening, prompt_ids, documents, self.model, bos_length)
        text = AnswerText(tokenizer, opening.stop) if tokenizer and opening.wants_text else None
        processor = await self._processor(opening, prompt_ids, tenant, spend_grammar)
        store, estimate = self._store, self._estimate
        return DecodingRun(
            machine, self._thread, store, documents, text, estimate, caller, processor
        )

    async def _processor(
        self,
        opening: DecodingOpen,
        prompt_ids: tuple[int, ...],
        tenant: Tenant,
        spend: Callable[[Tenant, float], None],
    ) -> LogitsProcessor | None:
        asked, mask = opening.processors, None
        if asked.grammar is not None:
            ends = frozenset(opening.end_ids)
            mask = await self._grammars.session_mask(asked.grammar, tenant, spend, ends)
        return logits_processor(asked, prompt_ids, mask)

    async def forget(self, texts: Sequence[str], owner: str = "") -> int:
        """Keep nothing of these documents of an owner's; how many there were. Raises
        Unavailable."""
        return await self._store.forget(await asyncio.to_thread(self._known, texts), owner)

    def _known(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        if self._tokenizer is None:
            return []
        most = MAX_CHARACTERS_PER_TOKEN * self.model.context_length
        fitting = [text for text in texts if text.strip() and len(text) <= most]
        return [tuple(self._tokenizer.encode(_whole("texts", text))) for text in fitting]

    async def _document_ids(self, document: ContextDocument) -> tuple[int, ...]:
        """A document by itself, as the model reads it."""
        if self._tokenizer is None:
            raise InvalidArgument("document", "this model has no tokenizer")
        self._check_lengths({"document": len(document.text)})
        text, context = _whole("document", document.text), self.model.context_length
        found = tuple(await asyncio.to_thread(self._tokenizer.encode, text))
        if len(found) >= context:
            why = f"{len(found)} tokens leave nothing of a context of {context}"
            raise InvalidArgument("document", why)
        return found

    def _check_sizes(self, opening: DecodingOpen) -> None:
        prompt = opening.prompt
        texts = {"prompt": len(prompt) if isinstance(prompt, str) else _said(prompt)}
        for index, document in enumerate(opening.documents):
            texts[f"documents[{index}]"] = len(document.text)
            if len(document.owner) > MAX_OWNER_CHARACTERS:
                why = f"has {len(document.owner)} characters; at most {MAX_OWNER_CHARACTERS}"
                raise InvalidArgument(f"documents[{index}].owner", why)
        self._check_lengths(texts)

    def _check_lengths(self, texts: Mapping[str, int]) -> None:
        """Refuse what is too long to be read; `texts`: characters by field."""
        most = MAX_CHARACTERS_PER_TOKEN * self.model.context_length
        for field, length in texts.items():
            if length > most:
                why = f"{length} characters; the context holds {self.model.context_length} tokens"
                raise InvalidArgument(field, why)

    def _estimate(self, machine: DecoderMachine, estimate: RelevanceEstimate) -> Sequence[float]:
        """The relevances of a session's documents to the end of its text (DRAGON's R(d, x<t)), the
        same words on both sides, whichever got the prompt as text."""
        assert self._rescore is not None, "checked as the session was prepared"
        assert self._tokenizer is not None, "there are documents"
        token_ids = (*machine.prompt_ids, *estimate.answer_ids)[machine.bos_length :][
            -QUERY_TOKENS:
        ]
        text = self._tokenizer.detokenizer()
        query = text.push(token_ids[-QUERY_TOKENS:]) + text.finish()
        return self._rescore(query, [document.text for document in machine.opening.documents])

    def _bos_length(self, prompt_ids: tuple[int, ...]) -> int:
        """How many tokens begin every text of this model: they stand before the document only,
        since a second one would cut the document off."""
        assert self._tokenizer is not None, "there are documents"
        bos_length = tuple(self._tokenizer.encode(""))
        shares = len(prompt_ids) > len(bos_length) and prompt_ids[: len(bos_length)] == bos_length
        return len(bos_length) if shares else 0

    def _read(self, opening: DecodingOpen) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        texts = [_whole(f"documents[{i}]", it.text) for i, it in enumerate(opening.documents)]
        prompt_ids = self._prompt_ids(opening.prompt)
        if self._tokenizer is None:
            return prompt_ids, []
        return prompt_ids, [tuple(self._tokenizer.encode(text)) for text in texts]

    def _prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        ids = tuple(item for item in prompt if isinstance(item, int))
        if ids or not prompt:
            return ids
        if self._tokenizer is None:
            raise InvalidArgument("prompt", "this model has no tokenizer; send token ids")
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt))
        turns = [turn for turn in prompt if isinstance(turn, Turn)]
        return tuple(
            self._tokenizer.chat([{"role": turn.role, "content": turn.content} for turn in turns])
        )


def _said(prompt: Sequence[object]) -> int:
    """Characters of a conversation; none of token ids."""
    return sum(len(turn.content) for turn in prompt if isinstance(turn, Turn))


def _whole(field: str, text: str) -> str:
    if not text.strip():
        raise InvalidArgument(field, "is empty")
    return text.rstrip() + SEPARATOR
