"""Short documents among long ones."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tandem.index.records import Vectors
from tandem.net.retriever_client import Upload
from tandem.services.retriever.servicer import EMBEDDING_NICENESS, SHORT_LETTERS
from tests.services.two_sided_suite import retriever
from tests.unit.index.word_vectors import WordVectors


class Watched(WordVectors):
    """Notes how far the threads give way that it is used on."""

    def __init__(self) -> None:
        super().__init__()
        self.niceness: set[int] = set()

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return super().embed(texts)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
async def test_who_stores_a_note_does_not_wait_as_for_a_long_document(tmp_path: Path) -> None:
    """Embedding a note took twenty times as long on a thread that gives way, on busy cores."""
    own, embedder = os.getpriority(os.PRIO_PROCESS, 0), Watched()
    async with retriever(tmp_path, embedder=embedder) as served:
        await served.ingest(Upload("note", b"Buy bread."))
        assert embedder.niceness == {own}
        embedder.niceness.clear()
        await served.ingest(Upload("book", b"bread " * SHORT_LETTERS))
        assert embedder.niceness == {min(19, own + EMBEDDING_NICENESS)}
