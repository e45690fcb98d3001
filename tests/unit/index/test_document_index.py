"""Documents in, hits out: idempotence, updates, deletion, limits, and agreement of all parts."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.index.chunking import Chunking
from tandem.index.document_index import MAX_HITS, DocumentIndex, open_index
from tandem.index.records import Document, Outcome
from tandem.index.searcher import SearchMode
from tests.unit.index.word_vectors import WordVectors

ADDED = Outcome.ADDED
UPDATED = Outcome.UPDATED
UNCHANGED = Outcome.UNCHANGED
TEXT = "cats purr. " * 60


@pytest.fixture
def index(tmp_path: Path) -> Iterator[DocumentIndex]:
    opened = DocumentIndex(tmp_path / "index", WordVectors(), Chunking(32, 8))
    yield opened
    opened.close()


def test_the_same_again_is_unchanged_and_another_text_is_an_update(index: DocumentIndex) -> None:
    first, second = Document("a", "cats purr"), Document("a", "dogs bark")
    assert index.add([first]) == [ADDED]
    before = index.stats()
    assert index.add([first, first]) == [UNCHANGED, UNCHANGED]
    assert index.stats() == before
    assert index.add([second]) == [UPDATED]
    assert [hit.text for hit in index.search("cats purr dogs", 5)] == ["dogs bark"]
    assert index.add([first, second, first]) == [UPDATED, UPDATED, UPDATED]
    assert index.texts() == {"a": "cats purr"}


def test_equal_texts_are_stored_once_and_live_as_long_as_any_name(index: DocumentIndex) -> None:
    assert index.add([Document("a", TEXT), Document("b", TEXT)]) == [ADDED, ADDED]
    stats = index.stats()
    assert (stats.documents, stats.texts) == (2, 1)
    assert index.remove(["a", "a", "x"]) == [True, True, False]
    assert {hit.document_id for hit in index.search("cats", 50)} == {"b"}
    assert index.remove(["b"]) == [True]
    assert index.search("cats", 5) == []
    assert index.stats().chunks == 0


def test_a_search_between_a_commit_and_its_ranking_finds_the_new_text(
    index: DocumentIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found neither the old text nor the new one."""
    index.add([Document("a", "cats purr")])
    commit = index._store.commit
    found: list[list[str]] = []

    def searched_at_once(**change: Any) -> bool:
        done = commit(**change)
        for mode in (SearchMode.LEXICAL, SearchMode.HYBRID):
            found.append([hit.text for hit in index.search("cats", mode=mode)])
        return done

    monkeypatch.setattr(index._store, "commit", searched_at_once)
    index.add([Document("a", "cats sleep")])
    index.remove(["a"])
    assert found == [["cats sleep"], ["cats sleep"], [], []]


def test_two_documents_may_swap_their_texts_in_one_step(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path, WordVectors(), Chunking())
    index.add([Document("a", "one"), Document("b", "two")])
    assert index.add([Document("a", "two"), Document("b", "one")]) == [UPDATED, UPDATED]
    index.close()
    reopened = DocumentIndex(tmp_path, WordVectors(), Chunking())
    assert reopened.texts() == {"a": "two", "b": "one"}
    assert [hit.document_id for hit in reopened.search("two", 1)] == ["a"]
    reopened.close()


def test_hits_say_where_the_chunk_is_and_how_it_was_found(index: DocumentIndex) -> None:
    text = "alpha beta. " * 20 + "\n\nneedle in the hay. " + "gamma delta. " * 20
    index.add([Document("doc", text.strip(), "Title"), Document("other", "something else")])
    best = index.search("needle hay", 3)[0]
    assert (best.document_id, best.title) == ("doc", "Title")
    assert "needle in the hay" in best.text
    assert text[best.start :].startswith(best.text)
    assert best.lexical_rank == 1
    assert best.similarity is not None
    assert -1 <= best.similarity <= 1
    dense = index.search("needle hay", 3, SearchMode.DENSE)
    assert [hit.dense_rank for hit in dense] == [1, 2, 3]
    similarities = [hit.similarity for hit in dense if hit.similarity is not None]
    assert similarities == sorted(similarities, reverse=True)
    lexical = index.search("needle", 5, SearchMode.LEXICAL)
    assert [hit.chunk for hit in lexical] == [best.chunk]


def test_bad_arguments_are_refused_by_name_and_change_nothing(tmp_path: Path) -> None:
    index = open_index(tmp_path, "lexical")
    bad_searches = [
        ("query", (" ", 5, SearchMode.HYBRID, False)),
        ("query", ("x" * 9000, 5, SearchMode.HYBRID, False)),
        ("count", ("x", 0, SearchMode.HYBRID, False)),
        ("count", ("x", MAX_HITS + 1, SearchMode.HYBRID, False)),
        ("mode", ("x", 5, SearchMode.DENSE, False)),
        ("rerank", ("x", 5, SearchMode.HYBRID, True)),
    ]
    for field, (query, count, mode, rerank) in bad_searches:
        with pytest.raises(InvalidArgument) as caught:
            index.search(query, count, mode, rerank=rerank)
        assert caught.value.field == field
    for field, bad in (
        ("id", Document("", "x")),
        ("id", Document("x" * 2000, "x")),
        ("title", Document("x", "x", "t" * 2000)),
        ("text", Document("x", "\ud800")),
    ):
        with pytest.raises(InvalidArgument) as caught:
            index.add([Document("good", "x"), bad])
        assert caught.value.field == field
    assert index.texts() == {}
    index.close()


class ShortestFirst:
    """A re-ranker whose judgement is easy to check."""

    name = "shortest"

    def score(self, query: str, texts: list[str]) -> list[float]:
        return [-float(len(text)) for text in texts]


def test_a_re_ranker_has_the_last_word(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path, None, Chunking(), ShortestFirst())  # type: ignore[arg-type]
    index.add([Document(f"d{n}", "cat " + "mouse " * n) for n in range(9)])
    hits = index.search("cat mouse", 3, rerank=True)
    assert [hit.document_id for hit in hits] == ["d0", "d1", "d2"]
    assert [hit.score for hit in hits] == [-3.0, -9.0, -15.0]
    index.close()


def test_any_order_of_changes_ends_like_the_documents_that_are_left(tmp_path: Path) -> None:
    source = random.Random(11)
    index = DocumentIndex(tmp_path / "a", WordVectors(), Chunking(16, 4))
    texts: dict[str, str] = {}
    for step in range(60):
        batch = [
            Document(f"d{source.randrange(8)}", " ".join(source.choices("abcdefgh", k=30)))
            for _ in range(source.randrange(4))
        ]
        index.add(batch)
        texts |= {document.id: document.text for document in batch}
        if step % 3 == 0:
            gone = f"d{source.randrange(8)}"
            assert index.remove([gone]) == [gone in texts]
            texts.pop(gone, None)
        if step % 10 == 9:
            index.close()
            index = DocumentIndex(tmp_path / "a", WordVectors(), Chunking(16, 4))
            assert index.texts() == texts
    fresh = DocumentIndex(tmp_path / "b", WordVectors(), Chunking(16, 4))
    fresh.add([Document(name, text) for name, text in texts.items()])
    for query in ("a b", "c d e", "h"):
        for mode in SearchMode:
            scores = [
                sorted((h.document_id, h.chunk, h.similarity) for h in i.search(query, 200, mode))
                for i in (index, fresh)
            ]
            assert scores[0] == scores[1]
    assert index.stats().generation > 60
    index.close()
    fresh.close()


def test_searches_go_on_while_documents_come_and_go(index: DocumentIndex) -> None:
    texts = {f"d{n}": f"word{n} " + "filler " * n for n in range(20)}
    index.add([Document("always", "always there")])
    ended = threading.Event()

    def search() -> int:
        searches = 0
        while not ended.is_set() or not searches:
            hits = index.search("always there word7 filler", 10)
            assert "always" in {hit.document_id for hit in hits}
            for hit in hits:
                assert hit.text in texts.get(hit.document_id, "always there")
            searches += 1
        return searches

    with ThreadPoolExecutor(3) as threads:
        searching = [threads.submit(search) for _ in range(3)]
        try:
            for _ in range(3):
                index.add([Document(name, text.strip()) for name, text in texts.items()])
                index.remove(list(texts))
        finally:
            ended.set()
        assert all(each.result() > 0 for each in searching)
    assert index.stats().chunks == 1
    assert index.stats().log_bytes == 0
