"""Export and import of documents' keys and values, as the bytes of a document's file, which is
checked on import. Still, only computing them again would show that they belong to a text: an import
serves nobody but its importer, and what is exported was computed here."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from tandem.backends.interface import KvFileRefused, KvFiles, KvOrigin
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.two_sided.decoding.document_files import document_hash, document_origin
from tandem.two_sided.decoding.document_store import (
    DocumentStore,
    StoredText,
    joined_ids,
    stored_text,
)
from tandem.two_sided.protocol.messages import ContextDocument, KvModel

HEADER_BYTES = 2**20
"""What a file may have beside its tensors."""

ReadSequence = Callable[[Sequence[ContextDocument]], Awaitable[list[tuple[int, ...]]]]
"""The token ids of each of the documents that stand in one sequence, checked: raises
InvalidArgument naming the field."""


class KvTransfer:
    """The transfer of keys and values of one decoder; used on the event loop only."""

    def __init__(
        self,
        thread: EngineThread,
        store: DocumentStore,
        read: ReadSequence,
        weights: Callable[[], str] | None,
    ) -> None:
        """Prepare to export and import. `weights` reads the content hash of the model, which takes
        time; None if it is not known."""
        self._thread = thread
        self._store = store
        self._read = read
        self._weights = weights
        self._model: KvModel | None = None
        self._naming = asyncio.Lock()

    async def model(self) -> KvModel:
        """Return what makes keys and values here. Raises FailedPrecondition where they are this
        process's."""
        self._kept()
        async with self._naming:
            if self._model is None:
                engine = self._thread.engine
                weights = self._weights
                assert weights is not None, "checked before"
                weights_hash = await asyncio.to_thread(weights)
                self._model = KvModel(weights_hash, engine.vocabulary_hash, engine.model_name)
        return self._model

    async def cached(
        self, sequences: Sequence[Sequence[ContextDocument]], caller: str
    ) -> list[bool]:
        """Return whether each sequence of documents is probably cached, imports of `caller`
        included for those that may be imported. Raises InvalidArgument."""
        return [
            self._store.has(stored_text(await self._joined(sequence), sequence[0], caller))
            for sequence in sequences
        ]

    async def size_bytes(self, sequence: Sequence[ContextDocument]) -> int:
        """Return the most bytes that a sequence of documents takes in transfer. Raises
        InvalidArgument."""
        tokens = len(await self._joined(sequence))
        return tokens * self._thread.engine.kv_bytes_per_token + HEADER_BYTES

    async def exported(self, sequence: Sequence[ContextDocument]) -> bytes:
        """Return the keys and values of documents in one sequence, computed where they are not
        cached. Raises FailedPrecondition, ResourceExhausted, or InvalidArgument naming the
        field."""
        kept = self._kept()
        documents = zip(await self._read(sequence), sequence, strict=True)
        texts = [StoredText(token_ids, owner=document.owner) for token_ids, document in documents]
        origin = await self._origin(joined_ids(texts))
        async with self._store.joined(texts) as session:
            tensors = await self._thread.call(lambda: kept.export(session))
            return await asyncio.to_thread(kept.pack, tensors, origin)

    @asynccontextmanager
    async def importing(
        self, sequence: Sequence[ContextDocument], size_bytes: int, caller: str
    ) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
        """Hold room for a sequence of documents, cached for `caller` and whom it is imported for
        once what is yielded was called with its bytes. Raises FailedPrecondition,
        ResourceExhausted, or InvalidArgument naming the field; the call raises InvalidArgument for
        anything but what this model computes of this text, as far as that can be told."""
        kept = self._kept()
        token_ids = await self._joined(sequence)
        most = await self.size_bytes(sequence)
        if not most - HEADER_BYTES <= size_bytes <= most:
            why = f"{size_bytes} is not in {most - HEADER_BYTES}…{most}"
            raise InvalidArgument("size_bytes", why)
        origin = await self._origin(token_ids)
        importer = Tenant(caller, sequence[0].imported_for)
        # By these it is forgotten. What is imported is nobody's own here, whoever owns it there.
        parts = frozenset([document_hash(await self._joined([each])) for each in sequence])
        async with self._store.room(StoredText(token_ids, importer, parts=parts)) as take_in:

            async def received(packed: bytes) -> None:
                try:
                    tensors = await asyncio.to_thread(kept.unpack, packed, origin)
                except KvFileRefused as error:
                    raise InvalidArgument("chunk", str(error)) from error
                await take_in(tensors)

            yield received

    async def _origin(self, token_ids: tuple[int, ...]) -> KvOrigin:
        model = await self.model()
        return document_origin(model.weights, model.vocabulary_hash, token_ids)

    async def _joined(self, sequence: Sequence[ContextDocument]) -> tuple[int, ...]:
        return tuple(chain.from_iterable(await self._read(sequence)))

    def _kept(self) -> KvFiles:
        kept = self._thread.engine.kv_files
        if kept is None or self._weights is None:
            raise FailedPrecondition(
                f"document_kv: {self._thread.engine.model_name} keeps documents' keys and values in"
                " its own memory; fetch the documents' text instead (drcg-text)"
            )
        return kept
