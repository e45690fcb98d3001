"""Vectors in a folder: the nearest of all that are stored, and of no others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document, Vectors
from tandem.index.sqlite_store import SqliteStore
from tandem.index.vectors import VectorIndex
from tests.unit.index.word_vectors import WordVectors

SIZE = 16
NONE = np.empty(0, np.int64)


def unit(count: int, seed: int) -> Vectors:
    rows = np.random.default_rng(seed).standard_normal((count, SIZE))
    stored: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    return stored.astype(np.float32)


def test_all_are_compared_through_additions_and_removals() -> None:
    index, vectors = VectorIndex(SIZE), unit(2000, 1)
    assert index.search(vectors[0], 5) == []
    index.change(np.arange(1500), vectors[:1500], NONE)
    index.change(np.arange(1500, 2000), vectors[1500:], np.arange(100, 140))
    left = [*range(100), *range(140, 2000)]
    for query in unit(20, 2):
        products = vectors[left] @ query
        nearest = [left[place] for place in np.argsort(-products)[:10]]
        assert index.search(query, 10) == nearest
    assert len(index.search(query, 5000)) == len(index) == len(left)


def test_a_tenant_s_first_search_waits_for_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = DocumentIndex(tmp_path, WordVectors(SIZE), Chunking())
    index.add([Document("a", "heron", owner="ann")])
    index.close()
    index = DocumentIndex(tmp_path, WordVectors(SIZE), Chunking())
    begun, searched = threading.Event(), threading.Event()
    insert = SqliteStore._insert

    def slow(*arguments: Any) -> None:
        begun.set()
        assert searched.wait(20)
        insert(*arguments)

    monkeypatch.setattr(SqliteStore, "_insert", slow)
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(index.add, [Document("b", "heron nest", owner="ann")])
        assert begun.wait(20)
        assert [hit.document_id for hit in index.search("heron", tenant="ann")] == ["a"]
        searched.set()
        added.result()
    assert {hit.document_id for hit in index.search("heron", tenant="ann")} == {"a", "b"}
    index.remove(["a"], "ann")
    assert {hit.document_id for hit in index.search("heron", tenant="ann")} == {"b"}
    index.close()


def texts(owner: str, count: int) -> list[Document]:
    source = np.random.default_rng(len(owner))
    words = [f"{owner}{number}" for number in range(200)] + ["heron"] * 20
    return [
        Document(f"{number}.md", " ".join(source.choice(words, 6)) + f" n{number}", owner=owner)
        for number in range(count)
    ]


def test_documents_of_many_chunks_survive_a_restart_and_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.index.sqlite_store.VECTORS_AT_ONCE", 64)
    first = DocumentIndex(tmp_path, WordVectors(SIZE), Chunking())
    ann, bob = texts("ann", 300), texts("bob", 300)
    for documents in (ann, bob):
        first.add(documents)
    asked = [f"{document.text} heron" for document in ann[:20]]
    before = [first.search(query, 5, tenant="ann") for query in asked]
    assert {hit.owner for hits in before for hit in hits} == {"ann"}
    first.close()
    again = DocumentIndex(tmp_path, WordVectors(SIZE), Chunking())
    assert [again.search(query, 5, tenant="ann") for query in asked] == before
    again.remove([document.id for document in bob], "bob")
    assert again.search(bob[0].text, 5, tenant="bob") == []
    again.close()
    last = DocumentIndex(tmp_path, WordVectors(SIZE), Chunking())
    assert last.search(bob[0].text, 5, tenant="bob") == []
    assert [last.search(query, 5, tenant="ann") for query in asked] == before
    last.close()
