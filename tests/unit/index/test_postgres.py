"""Documents on a PostgreSQL server: the behaviour of a folder, shared by several processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.records import Document, FolderDamaged, FolderMismatch, Outcome
from tandem.index.searcher import SearchMode
from tests.unit.index.postgres_server import plain_binaries, running_server, server_with_vectors
from tests.unit.index.word_vectors import WordVectors

psycopg = pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
from tandem.index.postgres_store import _NEAREST  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with server_with_vectors() as dsn:
        yield dsn


@pytest.fixture
def dsn(server: str) -> str:
    """Of an empty database."""
    with psycopg.connect(server, autocommit=True) as database:
        database.execute("DROP DATABASE IF EXISTS documents WITH (FORCE)")
        database.execute("CREATE DATABASE documents")
    return server.replace("/postgres?", "/documents?")


def opened(dsn: str, dimension: int = 16) -> DocumentIndex:
    return DocumentIndex(dsn, WordVectors(dimension), Chunking(16, 4))


def test_documents_are_found_updated_deleted_and_there_after_a_restart(
    dsn: str, tmp_path: Path
) -> None:
    with closing(opened(dsn)) as index:
        assert index.search("anything", 5) == []
        documents = [
            Document("a", "alpha beta. " * 20, "Title"),
            Document("b", "needle in the hay"),
            Document("copy", "needle in the hay"),
            Document("empty", ""),
        ]
        assert index.add(documents) == [Outcome.ADDED] * 4
        assert index.add(documents) == [Outcome.UNCHANGED] * 4
        best = index.search("needle", 3)[0]
        assert (best.document_id, best.text, best.lexical_rank) == ("b", "needle in the hay", 1)
        covered = index.search("beta needle unicorn", 9, SearchMode.LEXICAL)
        with closing(DocumentIndex(tmp_path, WordVectors(16), Chunking(16, 4))) as folder:
            folder.add(documents)
            of_folder = folder.search("beta needle unicorn", 9, SearchMode.LEXICAL)
        assert {hit.text: hit.coverage for hit in covered} == {
            hit.text: pytest.approx(hit.coverage) for hit in of_folder
        }
        assert index.remove(["b", "none"]) == [True, False]
        assert index.search("needle", 1)[0].document_id == "copy"
        assert index.add([Document("copy", "other words")]) == [Outcome.UPDATED]
        assert index.search("needle", 5, SearchMode.LEXICAL) == []
        assert index.search("beta title", 5, SearchMode.LEXICAL)[0].title == "Title"
        stats = index.stats()
        assert (stats.documents, stats.texts, stats.dense) == (3, 3, "hnsw")
        index.compact()
    with closing(opened(dsn)) as index:
        assert list(index.texts()) == ["a", "empty", "copy"]
        assert index.stats().chunks == stats.chunks
        assert index.search("other words", 1)[0].document_id == "copy"
        assert index.chunks_of(["copy"]) == ["other words"]
        assert index.outdated([Document("copy", "x"), Document("new", "x")]) == ["copy"]


def test_what_a_replica_changes_the_others_find_at_once(dsn: str) -> None:
    with closing(opened(dsn)) as first, closing(opened(dsn)) as second:
        first.add([Document("a", "alpha"), Document("b", "beta")])
        assert len(second.search("alpha", 5, SearchMode.DENSE)) == 2
        second.remove(["a"])
        second.add([Document("c", "gamma")])
        for index in (first, second):
            hits = index.search("gamma", 5, SearchMode.DENSE)
            assert sorted(hit.document_id for hit in hits) == ["b", "c"]
            assert hits[0].document_id == "c"
            assert (index.stats().chunks, index.stats().generation) == (2, 3)
        assert first.add([Document("c", "gamma")]) == [Outcome.UNCHANGED]


def test_a_process_that_opens_a_million_reads_none_of_them(dsn: str) -> None:
    """What it asks for when it opens does not grow with what is stored."""
    with closing(opened(dsn)) as index:
        index.add([Document(str(number), f"word{number} text") for number in range(300)])
    with psycopg.connect(dsn, autocommit=True) as database:
        read = "SELECT sum(idx_tup_fetch + seq_tup_read) FROM pg_stat_user_tables"
        read += " WHERE relname IN ('tandem_content', 'tandem_document', 'tandem_chunk')"
        database.execute("SELECT pg_stat_force_next_flush()")
        before = database.execute(read).fetchall()
        with closing(opened(dsn)) as index:
            assert index.stats().chunks == 300
        database.execute("SELECT pg_stat_clear_snapshot()")
        assert database.execute(read).fetchall() == before


def test_many_vectors_are_found_by_the_graph(dsn: str) -> None:
    source = np.random.default_rng(3)
    with closing(opened(dsn)) as index:
        words = [f"w{number}" for number in range(60)]
        texts = [" ".join(source.choice(words, 8)) for _ in range(1500)]
        for start in range(0, len(texts), 100):
            part = range(start, start + 100)
            index.add([Document(str(number), texts[number]) for number in part])
        with psycopg.connect(dsn, autocommit=True) as database:
            database.execute("ANALYZE tandem_chunk")
        vectors = WordVectors(16).embed(texts)
        recalls = []
        for query in texts[:40]:
            truth = np.argsort(-(vectors @ WordVectors(16).embed([query])[0]))[:10]
            found = {int(hit.document_id) for hit in index.search(query, 10, SearchMode.DENSE)}
            recalls.append(len(found & {*truth.tolist()}) / 10)
        assert np.mean(recalls) >= 0.95
        plan = index._store._select(f"EXPLAIN {_NEAREST}", _plan_values(vectors[0]))  # type: ignore[attr-defined]
        assert any("tandem_chunk_vectors" in line for (line,) in plan)


def _plan_values(vector: Any) -> dict[str, Any]:
    return {"vector": vector.tolist(), "visible": [""], "count": 50}


def test_a_server_without_pgvector_is_refused_and_serves_words(tmp_path: Path) -> None:
    if (binaries := plain_binaries()) is None:
        pytest.skip("the distribution has no PostgreSQL server (apt-get install postgresql)")
    with running_server(binaries) as dsn:
        with psycopg.connect(dsn) as database:
            known = "SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"
            if database.execute(known).fetchall():
                pytest.skip("the distribution's server has pgvector")
        with pytest.raises(FailedPrecondition, match=r"lacks the extension 'vector' \(pgvector\)"):
            opened(dsn)
        with closing(DocumentIndex(dsn, None, Chunking(16, 4))) as index:
            index.add([Document("a", "a heron"), Document("b", "an otter")])
            assert [hit.document_id for hit in index.search("heron", 5)] == ["a"]
            assert index.stats().dense == "none"


def test_a_replica_reads_its_own_writes_and_numbers_never_meet(dsn: str) -> None:
    source = random.Random(5)
    replicas = [opened(dsn) for _ in range(3)]
    texts: dict[str, str] = {}
    for step in range(40):
        replica = replicas[step % 3]
        document = Document(f"d{source.randrange(6)}", " ".join(source.choices("abcdefgh", k=30)))
        replica.add([document])
        texts[document.id] = document.text
        found = replica.search(document.text, 1, SearchMode.DENSE)[0]
        assert found.similarity == pytest.approx(1, abs=0.2)
        if step % 4 == 0:
            gone = f"d{source.randrange(6)}"
            assert replicas[(step + 1) % 3].remove([gone]) == [gone in texts]
            texts.pop(gone, None)
    assert len({replica.stats().generation for replica in replicas}) == 1
    for query in ("a b", "c d e"):
        hits = [
            sorted((h.document_id, h.chunk, h.similarity) for h in replica.search(query, 200))
            for replica in replicas
        ]
        assert hits[0] == hits[1] == hits[2]
    for replica in replicas:
        assert replica.texts() == texts
        replica.close()


def test_writers_at_the_same_time_lose_nothing(dsn: str) -> None:
    replicas = [opened(dsn) for _ in range(3)]

    def write(replica: DocumentIndex, name: str) -> None:
        for number in range(15):
            replica.add([Document(f"{name}{number}", f"text {number}"), Document("same", name)])
            if number % 3 == 2:
                replica.remove([f"{name}{number - 1}"])

    threads = [
        threading.Thread(target=write, args=(replica, f"r{at}-"))
        for at, replica in enumerate(replicas)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"r{at}-{n}": f"text {n}" for at in range(3) for n in range(15) if n % 3 != 1}
    for replica in replicas:
        held = replica.texts()
        assert held.pop("same") in {"r0-", "r1-", "r2-"}
        assert held == expected
        replica.close()


def test_a_flipped_bit_is_reported(dsn: str) -> None:
    with closing(opened(dsn)) as index:
        index.add([Document("a", "one two three"), Document("b", "four five")])
        with psycopg.connect(dsn, autocommit=True) as database:
            flip = "text = set_bit(text, 9, 1 - get_bit(text, 9))"
            database.execute(f"UPDATE tandem_content SET {flip} WHERE first = 0")
            with pytest.raises(FolderDamaged, match="damaged"):
                index.search("one", 1, SearchMode.LEXICAL)
            database.execute(f"UPDATE tandem_content SET {flip} WHERE first = 0")
            database.execute("UPDATE tandem_document SET id = 'c' WHERE id = 'b'")
            with pytest.raises(FolderDamaged, match="the document 'c' is damaged"):
                index.texts()


def test_another_model_a_newer_version_and_a_wrong_address_are_refused(
    dsn: str, server: str
) -> None:
    opened(dsn).close()
    with pytest.raises(FolderMismatch, match=r"has vectors of words \(dimension 16\)"):
        opened(dsn, 8)
    with pytest.raises(FolderMismatch, match="not of lexical"):
        open_index(dsn, "lexical")
    with psycopg.connect(dsn, autocommit=True) as database:
        database.execute("UPDATE tandem_meta SET value = '9' WHERE key = 'version'")
        with pytest.raises(FolderDamaged, match="its version is damaged"):
            opened(dsn)
    with pytest.raises(InvalidArgument, match="dsn: is not a valid connection string"):
        open_index("nonsense", "lexical")
    with pytest.raises(Unavailable) as caught:
        open_index(server.replace("tandem@", "tandem:secret@").replace("/pg", "/no"), "lexical")
    assert "secret" not in str(caught.value)


def test_a_server_that_restarts_is_found_again(dsn: str) -> None:
    with closing(opened(dsn)) as index:
        index.add([Document("a", "alpha")])
        with psycopg.connect(dsn, autocommit=True) as database:
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = 'documents' AND pid <> pg_backend_pid()"
            )
        assert index.search("alpha", 1)[0].document_id == "a"
        with closing(opened(dsn)) as other:
            other.add([Document("b", "beta")])
        assert index.stats().documents == 2


def test_zero_bytes_are_kept_in_texts_and_refused_in_ids(dsn: str) -> None:
    with closing(opened(dsn)) as index:
        index.add([Document("a", "one\0two", "ti\0tle")])
        assert index.texts() == {"a": "one\0two"}
        assert index.search("two", 1)[0].title == "ti\0tle"
        with pytest.raises(InvalidArgument, match="id: contains a zero byte"):
            index.add([Document("a\0", "x")])
        assert index.remove(["a\0"]) == [False]
