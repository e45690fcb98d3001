"""Documents' keys and values that leave a decoder, and those that come to one.

They leave as the bytes that a document's file has, and are checked like a file where they come in:
the same model, the same text, the same tensors. What was sent is nevertheless as good as whoever
sent it: that keys and values belong to a text could only be told by computing them again.
Must not import torch or grpc.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.engine.base import KvFileRefused, KvFiles, kv_files_of
from tandem.engine.document_files import document_hash, document_origin
from tandem.engine.document_store import DocumentStore
from tandem.engine.jobs import EngineThread
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import DocumentKv, KvModel, KvUnavailable

HEADER_BYTES = 2**20
"""What a file may have beside its tensors."""

ReadDocument = Callable[[Document], Awaitable[tuple[int, ...]]]
"""A document as the model's token ids, checked: raises InvalidArgument naming the field."""


@dataclass(frozen=True, slots=True)
class ExportedDocument:
    """A description, and the bytes that it describes."""

    kv: DocumentKv
    packed: bytes


class DocumentExchange:
    """Of one decoder; used on the event loop only."""

    def __init__(
        self,
        thread: EngineThread,
        store: DocumentStore,
        read: ReadDocument,
        weights: Callable[[], str] | None,
    ) -> None:
        """`weights` reads the content hash of the model, which takes time; None: not known."""
        self._thread, self._store, self._read = thread, store, read
        self._weights = weights
        self._model: KvModel | None = None
        self._naming = asyncio.Lock()

    async def model(self) -> KvModel:
        """What makes keys and values here. Raises KvUnavailable where they are this process's."""
        self._kept()
        async with self._naming:
            if self._model is None:
                engine, weights = self._thread.engine, self._weights
                assert weights is not None, "checked before"
                found = await asyncio.to_thread(weights)
                self._model = KvModel(found, engine.vocabulary_hash, engine.model_name)
        return self._model

    async def at_hand(self, documents: Sequence[Document]) -> list[bool]:
        """Whether each need probably not be computed. Raises InvalidArgument."""
        return [self._store.has(await self._read(document)) for document in documents]

    async def token_count(self, document: Document) -> int:
        """How many tokens a document has here. Raises InvalidArgument."""
        return len(await self._read(document))

    def size_bytes(self, tokens: int) -> int:
        """The most that so many tokens' keys and values take on their way."""
        return tokens * self._thread.engine.kv_bytes_per_token + HEADER_BYTES

    async def exported(self, document: Document, user: KvModel) -> ExportedDocument:
        """The keys and values of a document, computed where they are not at hand.

        Raises KvModelMismatch, KvUnavailable, InvalidArgument naming the field, or
        ResourceExhausted."""
        kept, model = self._kept(), await self.model()
        model.check_used_by(user)
        token_ids = await self._read(document)
        origin = document_origin(model.weights, model.vocabulary_hash, token_ids)
        async with self._store.held([token_ids]) as (held,):
            session = held.session
            tensors = await self._thread.call(lambda: kept.export(session))
            packed = await asyncio.to_thread(kept.pack, tensors, origin)
        digest = await asyncio.to_thread(hashlib.sha256, packed)
        kv = DocumentKv(model, origin.document, origin.tokens, len(packed), digest.digest())
        return ExportedDocument(kv, packed)

    @asynccontextmanager
    async def importing(
        self, document: Document, kv: DocumentKv
    ) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
        """Room for a document, which is at hand once what is yielded was called with its bytes.

        Raises KvModelMismatch, KvUnavailable, InvalidArgument naming the field, or
        ResourceExhausted; the call raises InvalidArgument."""
        kept, model = self._kept(), await self.model()
        kv.model.check_used_by(model)
        token_ids = await self._read(document)
        self._check(kv, token_ids)
        origin = document_origin(model.weights, model.vocabulary_hash, token_ids)
        async with self._store.room(token_ids) as take_in:

            async def received(packed: bytes) -> None:
                digest = await asyncio.to_thread(hashlib.sha256, packed)
                if digest.digest() != kv.sha256:
                    raise InvalidArgument("sha256", "is not that of the chunks")
                try:
                    tensors = await asyncio.to_thread(kept.unpack, packed, origin)
                except KvFileRefused as error:
                    raise InvalidArgument("chunk", str(error)) from error
                await take_in(tensors)

            yield received

    def _check(self, kv: DocumentKv, token_ids: tuple[int, ...]) -> None:
        """That what is announced can be this document's."""
        if kv.tokens != len(token_ids):
            raise InvalidArgument("tokens", f"{kv.tokens}; the document has {len(token_ids)}")
        if kv.document != document_hash(token_ids):
            raise InvalidArgument("kv", "is of another text, or of other tokens for it")
        most = self.size_bytes(kv.tokens)
        if not most - HEADER_BYTES <= kv.size_bytes <= most:
            least = most - HEADER_BYTES
            raise InvalidArgument("size_bytes", f"{kv.size_bytes} is not in {least}…{most}")

    def _kept(self) -> KvFiles:
        kept = kv_files_of(self._thread.engine)
        if kept is None or self._weights is None:
            raise KvUnavailable(
                f"document_kv: {self._thread.engine.model_name} keeps documents' keys and values in"
                " its own memory; fetch the documents' text instead (drcg-text)"
            )
        return kept
