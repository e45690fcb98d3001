"""What the tests of documents share: an engine on its thread, and texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from tandem.backends.interface import Engine, Session
from tandem.core.probs import Array
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.two_sided.decoding.document_files import DocumentFiles
from tandem.two_sided.decoding.document_jobs import DocumentGroup
from tandem.two_sided.decoding.document_store import DocumentStore, StoredText

DOCUMENTS = [(5, 6, 7, 8, 9), (11, 12, 13), (5, 6, 7, 8)]
PROMPT = (20, 21, 22)
ROOM = 16


@asynccontextmanager
async def engine_thread(engine: Engine) -> AsyncIterator[EngineThread]:
    thread = EngineThread(engine, "test-engine")
    try:
        yield thread
    finally:
        thread.stop()


def files_in(folder: Path, engine: Engine, model: str = "m", budget: int = 2**30) -> DocumentFiles:
    kept = engine.kv_files
    assert kept is not None
    return DocumentFiles(
        kept, folder, model=model, vocabulary=engine.vocabulary_hash, budget_bytes=budget
    )


async def logits_after(
    store: DocumentStore, documents: Sequence[tuple[int, ...]], importer: Tenant | None = None
) -> Array:
    """[documents, vocabulary]: what follows PROMPT after each of the documents."""
    thread = store._thread
    async with store.held([StoredText(ids, importer) for ids in documents]) as sessions:
        return await thread.call(lambda: _forward(thread.engine, sessions))


async def logits_after_joined(store: DocumentStore, documents: Sequence[tuple[int, ...]]) -> Array:
    """[1, vocabulary]: what follows PROMPT after the documents one after another."""
    thread = store._thread
    async with store.joined([StoredText(ids) for ids in documents]) as session:
        return await thread.call(lambda: _forward(thread.engine, [session]))


def _forward(engine: Engine, documents: Sequence[Session]) -> Array:
    group = DocumentGroup(engine, documents, ROOM)
    try:
        return np.concatenate(engine.forward(group.requests(PROMPT)))
    finally:
        group.close()
