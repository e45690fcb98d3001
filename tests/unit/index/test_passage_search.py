"""Passages in memory are found as documents are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.passage_search import PassageSearch, open_passages
from tandem.index.records import Document
from tests.unit.index.word_vectors import WordVectors

PASSAGES = ["a heron fishes", "the reed", "a fish in the reed", "a grey heron", "the heron in reed"]
QUERY = "grey heron in the reed"


@pytest.mark.parametrize("embedder", [WordVectors(), None])
def test_passages_are_ranked_as_documents(tmp_path: Path, embedder: WordVectors | None) -> None:
    search = PassageSearch(PASSAGES, embedder)
    ranked = search.search(QUERY, 4)
    search.close()
    index = DocumentIndex(tmp_path, embedder, Chunking())
    index.add([Document(str(place), text) for place, text in enumerate(PASSAGES)])
    hits = index.search(QUERY, 4)
    index.close()
    assert [str(each.place) for each in ranked] == [hit.document_id for hit in hits]
    assert [each.score for each in ranked] == [hit.score for hit in hits]
    assert [each.similarity for each in ranked] == [hit.similarity for hit in hits]
    assert [each.coverage for each in ranked] == [hit.coverage for hit in hits]


def test_the_default_is_by_embeddings() -> None:
    search = open_passages(["Interest rates rose.", "A kitten naps on a couch."])
    best, *_ = search.search("cats asleep", 2)
    search.close()
    assert best.place == 1
    assert best.similarity is not None
    assert best.similarity > 0.3
