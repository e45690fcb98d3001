"""Documents of several owners: what each finds, lists, replaces and deletes, in a folder and on a
PostgreSQL server; what none can tell of the others; quotas."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.owners import (
    Collection,
    DocumentQuota,
    DocumentQuotaExceeded,
    ListedDocument,
    OwnerUsage,
)
from tandem.index.records import Document, FolderDamaged, Outcome
from tandem.index.searcher import SearchMode
from tandem.index.sqlite_store import DATABASE, SqliteStore, verify_folder
from tandem.index.store import document_checksum
from tests.unit.index.postgres_server import server_with_vectors
from tests.unit.index.word_vectors import WordVectors

Open = Callable[[], DocumentIndex]
CHUNKING = Chunking(16, 4)
MODES = tuple(SearchMode)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with server_with_vectors() as dsn:
        yield dsn


@pytest.fixture(params=["folder", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same documents each time."""
    if request.param == "folder":
        return lambda: DocumentIndex(tmp_path / "index", WordVectors(16), CHUNKING)
    server = request.getfixturevalue("server")
    import psycopg

    with psycopg.connect(server, autocommit=True) as database:
        database.execute("DROP DATABASE IF EXISTS documents WITH (FORCE)")
        database.execute("CREATE DATABASE documents")
    dsn = server.replace("/postgres?", "/documents?")
    return lambda: DocumentIndex(dsn, WordVectors(16), CHUNKING)


def filled(index: DocumentIndex) -> None:
    """Everybody has an `a.md`, and each its own secret."""
    index.add([Document("a.md", "the heron of the operator"), Document("b.md", "open otter")])
    index.add([Document("a.md", "the heron of ann, secretly violet", owner="ann")])
    index.add([Document("a.md", "the heron of bob, secretly orange", owner="bob")])
    index.add([Document("to all.md", "the heron that bob shares", owner="bob", shared=True)])


def seen_by(index: DocumentIndex, tenant: str, query: str, mode: SearchMode) -> set[str]:
    return {hit.text for hit in index.search(query, 50, mode, tenant=tenant)}


def test_a_search_finds_the_operator_s_documents_one_s_own_and_what_is_shared(opened: Open) -> None:
    everybodys = {"the heron of the operator", "open otter", "the heron that bob shares"}
    with closing(opened()) as index:
        filled(index)
    for _ in range(2):  # and after a restart
        with closing(opened()) as index:
            for mode in MODES:
                query = "heron otter secretly"
                ann, bob = (seen_by(index, tenant, query, mode) for tenant in ("ann", "bob"))
                assert ann == everybodys | {"the heron of ann, secretly violet"}, mode
                assert bob == everybodys | {"the heron of bob, secretly orange"}, mode
                for stranger in ("", "eve", "an", "anna", "ann.x"):
                    assert seen_by(index, stranger, query, mode) == everybodys, (stranger, mode)
            assert index.search("violet", 5, SearchMode.LEXICAL, tenant="bob") == []
            (hit,) = index.search("violet", 5, SearchMode.LEXICAL, tenant="ann")
            assert (hit.owner, hit.document_id) == ("ann", "a.md")


def test_a_name_is_replaced_and_deleted_for_its_owner_alone(opened: Open) -> None:
    with closing(opened()) as index:
        filled(index)
        assert index.add([Document("a.md", "ann's new heron", owner="ann")]) == [Outcome.UPDATED]
        assert index.texts("ann") == {"a.md": "ann's new heron"}
        assert index.texts()["a.md"] == "the heron of the operator"
        assert index.texts("bob")["a.md"] == "the heron of bob, secretly orange"
        assert index.remove(["a.md", "b.md"], "ann") == [True, False]
        assert index.remove(["a.md"], "eve") == [False]
        assert index.texts("ann") == {}
        assert {*index.texts()} == {"a.md", "b.md"}
        changed = [Document("a.md", "x", owner="bob"), Document("b.md", "x", owner="bob")]
        assert index.outdated(changed, "bob") == ["a.md"]
        assert index.chunks_of(["a.md"], "bob") == ["the heron of bob, secretly orange"]
        assert index.chunks_of(["b.md"], "bob") == []


def test_a_shared_document_is_private_again_when_it_is_put_so(opened: Open) -> None:
    document = Document("a.md", "a violet heron", owner="ann", shared=True)
    with closing(opened()) as index:
        index.add([document])
        assert index.add([document]) == [Outcome.UNCHANGED]
        assert seen_by(index, "bob", "violet", SearchMode.HYBRID) == {"a violet heron"}
        assert index.add([replace(document, shared=False)]) == [Outcome.UPDATED]
        for mode in MODES:
            assert seen_by(index, "bob", "violet", mode) == set()
            assert seen_by(index, "ann", "violet", mode) == {"a violet heron"}
        assert index.listed("ann") == [ListedDocument("a.md", 14, shared=False)]
        assert index.stats().texts == 1


def test_the_same_text_of_two_owners_is_found_under_each_one_s_own_name(opened: Open) -> None:
    with closing(opened()) as index:
        index.add([Document("anns.md", "one heron", owner="ann")])
        index.add([Document("bobs.md", "one heron", owner="bob")])
        for mode in MODES:
            for tenant in ("ann", "bob"):
                found = index.search("heron", 9, mode, tenant=tenant)
                assert [hit.document_id for hit in found] == [f"{tenant}s.md"]
        index.remove(["anns.md"], "ann")
        assert seen_by(index, "bob", "heron", SearchMode.HYBRID) == {"one heron"}
        assert seen_by(index, "ann", "heron", SearchMode.HYBRID) == set()


def test_others_documents_change_nothing_of_what_a_search_says(opened: Open) -> None:
    """Neither places among the best nor scores, coverage or the weight of a word."""
    with closing(opened()) as index:
        filled(index)

        def answers() -> list[Any]:
            return [
                index.search(query, count, mode, tenant="ann")
                for query in ("heron", "the secretly violet otter", "unicorn heron", "of the")
                for mode in MODES
                for count in (1, 5)
            ]

        before = answers()
        many = [Document(f"{n}.md", f"heron unicorn {n} " * 3, owner="bob") for n in range(120)]
        index.add(many)
        assert answers() == before
        assert seen_by(index, "bob", "unicorn", SearchMode.LEXICAL) > set()
        index.remove([document.id for document in many], "bob")
        assert answers() == before


def test_an_owner_s_documents_are_listed_by_name_in_parts(opened: Open) -> None:
    with closing(opened()) as index:
        filled(index)
        index.add([Document(f"{n:02}.md", "é" * n, "t", owner="ann") for n in range(1, 6)])
        index.add([Document("Z", "z", owner="ann", shared=True)])
        first = index.listed("ann", "", 3)
        assert first == [ListedDocument(f"{n:02}.md", 2 * n + 1, shared=False) for n in (1, 2, 3)]
        names = [each.name for each in index.listed("ann", first[-1].name, 9)]
        assert names == ["04.md", "05.md", "Z", "a.md"]
        assert index.listed("eve") == []
        assert index.usage("ann") == OwnerUsage(7, 2 * 15 + 5 + 1 + 33)
        assert index.usage("eve") == OwnerUsage(0, 0)
        for count in (0, 1001):
            with pytest.raises(InvalidArgument, match="count"):
                index.listed("ann", "", count)


def test_a_quota_counts_the_difference_and_says_what_is_left(opened: Open) -> None:
    quota = DocumentQuota(documents=3, bytes=100)

    def put(name: str, size: int, owner: str = "ann") -> list[Outcome]:
        return index.add([Document(name, "x" * size, owner=owner)], quota)

    with closing(opened()) as index:
        assert put("a", 60) + put("b", 30) == [Outcome.ADDED] * 2
        with pytest.raises(
            DocumentQuotaExceeded, match=r"11 bytes more needed, '.*' has 10 of 100 left"
        ):
            put("c", 11)
        assert put("a", 70) == [Outcome.UPDATED]
        with pytest.raises(
            DocumentQuotaExceeded, match=r"1 bytes more needed, '.*' has 0 of 100 left"
        ):
            put("a", 71)
        assert index.texts("ann")["a"] == "x" * 70
        assert put("a", 10) + put("c", 10) == [Outcome.UPDATED, Outcome.ADDED]
        with pytest.raises(
            DocumentQuotaExceeded, match=r"1 documents more needed, '.*' has 0 of 3 left"
        ):
            put("d", 1)
        assert put("c", 10) == [Outcome.UNCHANGED]
        assert put("a", 90, owner="bob") == [Outcome.ADDED]  # another one's is not counted
        assert index.add([Document("big", "x" * 999)], quota) == [Outcome.ADDED]  # the operator's
        index.remove(["b"], "ann")
        assert put("d", 80) == [Outcome.ADDED]
        lowered = DocumentQuota(documents=1, bytes=5)
        assert index.add([Document("d", "x" * 40, owner="ann")], lowered) == [Outcome.UPDATED]
        assert index.usage("ann") == OwnerUsage(3, 60)


def test_uploads_at_once_do_not_exceed_a_quota(opened: Open) -> None:
    """On a server the writers are processes of their own, which no lock of one joins."""
    writers = 4
    with closing(opened()) as first:
        on_a_server = not isinstance(first._store, SqliteStore)
        indexes = [first, *([opened() for _ in range(writers - 1)] if on_a_server else [])]
        refused: list[str] = []
        together = threading.Barrier(writers)

        def upload(writer: int) -> None:
            index = indexes[writer % len(indexes)]
            together.wait()
            for n in range(5):
                document = Document(f"{writer}-{n}", f"{writer} {n}" * 10, owner="ann")
                try:
                    index.add([document], DocumentQuota(documents=7))
                except DocumentQuotaExceeded as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=upload, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert first.usage("ann").documents == 7
        assert len(refused) == 5 * writers - 7
        for index in indexes[1:]:
            index.close()


def test_the_store_itself_refuses_what_another_writer_made_too_much(tmp_path: Path) -> None:
    """What `add` saw before it embedded may be outdated when it commits."""
    with closing(DocumentIndex(tmp_path, WordVectors(16), CHUNKING)) as index:
        quota, index._check_quota = DocumentQuota(documents=1), lambda *_: None  # type: ignore[method-assign]
        index.add([Document("a", "one", owner="ann")], quota)
        generation = index.stats().generation
        with pytest.raises(DocumentQuotaExceeded):
            index.add([Document("b", "two", owner="ann")], quota)
        assert index.texts("ann") == {"a": "one"}
        assert (index.stats().generation, index.stats().texts) == (generation, 1)
        assert index.search("two", 5, SearchMode.LEXICAL, tenant="ann") == []
        assert index.add([Document("a", "two", owner="ann")], quota) == [Outcome.UPDATED]


def test_owners_and_their_names_are_checked(opened: Open) -> None:
    with closing(opened()) as index:
        for owner in ("a:b", "ann:private", " ann", "-", "é", "a" * 65, "a\0"):
            with pytest.raises(InvalidArgument, match="owner"):
                index.add([Document("a", "x", owner=owner)])
            with pytest.raises(InvalidArgument, match="owner"):
                index.search("x", tenant=owner)
        for name in ("../a.md", "a\x1b[31m", "\u202egpj.exe"):
            with pytest.raises(InvalidArgument, match="name"):
                index.add([Document(name, "x", owner="ann")])
            assert index.add([Document(name, "x")]) == [Outcome.ADDED]  # the operator's
        with pytest.raises(InvalidArgument, match="same owner"):
            index.add([Document("a", "x", owner="ann"), Document("b", "x", owner="bob")])
        index.add([Document("Re\u0301sume\u0301.md ", "x", owner="ann")])
        assert {*index.texts("ann")} == {"Résumé.md"}


def test_a_document_with_another_s_owner_is_damaged(tmp_path: Path) -> None:
    """A flipped owner would show one tenant's text to another."""
    for forged in (False, True):
        folder = tmp_path / str(forged)
        with closing(DocumentIndex(folder, WordVectors(16), CHUNKING)) as index:
            filled(index)
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            database.execute("UPDATE document SET owner = 'eve' WHERE owner = 'ann'")
            if forged:
                ((first,),) = database.execute(
                    "SELECT content FROM document WHERE owner = 'eve'"
                ).fetchall()
                database.execute(
                    "UPDATE document SET checksum = ? WHERE owner = 'eve'",
                    (document_checksum("eve", "a.md", first),),
                )
            database.commit()
        with pytest.raises(FolderDamaged):
            verify_folder(folder)
        with closing(DocumentIndex(folder, WordVectors(16), CHUNKING)) as index:
            for read in (
                lambda: index.search("heron", 50, tenant="ann"),
                lambda: index.texts("eve"),
            ):
                with pytest.raises(FolderDamaged):
                    read()


def test_who_finds_a_collection() -> None:
    assert Collection.of("", shared=True) == Collection()
    for collection in (Collection(), Collection("ann"), Collection("ann", shared=True)):
        assert Collection.named(collection.name) == collection
    assert not Collection("ann").visible_to("")
    assert not Collection("ann").visible_to("bob")
    assert Collection("ann", shared=True).visible_to("")
