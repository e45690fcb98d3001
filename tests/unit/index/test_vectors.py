"""Many vectors in a folder: found again after a restart, and only those that are stored."""

from __future__ import annotations

import errno
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document, Vectors
from tandem.index.sqlite_store import SqliteStore
from tandem.index.vectors import Keys, VectorIndex, _keys_in, keys_of, numbers_of
from tests.unit.index.word_vectors import WordVectors

SIZE = 16
LIMIT = 600


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.index.vectors.FLAT_LIMIT", LIMIT)
    monkeypatch.setattr("tandem.index.vectors.PROBED_SHARE", 4)


class Stored:
    """A database, as an index sees it."""

    def __init__(self, vectors: dict[int, Vectors]) -> None:
        self.vectors = vectors

    def keys(self) -> Keys:
        rows = [
            (number, zlib.crc32(vector.tobytes()))
            for number, vector in sorted(self.vectors.items())
        ]
        return keys_of(np.array(rows, np.int64).reshape(-1, 2))

    def rows(self, keys: Keys) -> Vectors:
        none = np.zeros(SIZE, np.float32)
        rows = [self.vectors.get(number, none) for number in numbers_of(keys).tolist()]
        return np.stack([*rows, none])[:-1]


def clustered(count: int, seed: int) -> Vectors:
    source = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((40, SIZE))
    noise = 0.6 * source.standard_normal((count, SIZE))
    rows = centres[source.integers(len(centres), size=count)] + noise
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def stored(count: int, seed: int = 1) -> Stored:
    return Stored(dict(enumerate(clustered(count, seed))))


def opened(folder: Path | None, database: Stored) -> VectorIndex:
    index = VectorIndex(database, SIZE, folder, "ann")
    index.wait_until_built()
    return index


def change(index: VectorIndex, database: Stored, new: dict[int, Vectors], gone: list[int]) -> None:
    """What a commit does: the database first."""
    left = Stored({number: database.vectors.pop(number) for number in gone})
    database.vectors |= new
    added = Stored(new)
    keys = added.keys()
    index.change(keys, added.rows(keys), left.keys())
    index.wait_until_built()


def exact(database: Stored, query: Vectors, count: int) -> list[int]:
    products = {number: float(vector @ query) for number, vector in database.vectors.items()}
    return sorted(products, key=lambda number: -products[number])[:count]


def found(index: VectorIndex, database: Stored, query: Vectors, count: int = 10) -> list[int]:
    """As a store does: what the index proposes is compared exactly."""
    proposed = index.search(query, count)
    assert len({*proposed}) == len(proposed)
    assert database.vectors.keys() >= {*proposed}, "nothing is found that is not stored"
    return exact(Stored({number: database.vectors[number] for number in proposed}), query, count)


def recall(index: VectorIndex, database: Stored, queries: Vectors) -> float:
    shares = [
        len({*found(index, database, query)} & {*exact(database, query, 10)}) / 10
        for query in queries
    ]
    return float(np.mean(shares))


def test_few_are_all_compared_through_additions_and_removals() -> None:
    database, more = stored(250), clustered(150, 9)
    index = opened(None, database)
    change(index, database, {}, [*range(100, 140)])
    change(index, database, dict(enumerate(more, 250)), [])
    assert (index.kind, len(index)) == ("flat", 360)
    for query in clustered(20, 2):
        assert index.search(query, 10) == exact(database, query, 10)
    assert opened(None, Stored({})).search(more[0], 5) == []


def test_many_are_indexed_in_the_background_and_follow_changes(tmp_path: Path) -> None:
    database, queries = stored(500), clustered(40, 2)
    index = opened(tmp_path, database)
    assert index.kind == "flat"
    change(index, database, dict(enumerate(clustered(1500, 3), 500)), [*range(50)])
    change(index, database, dict(enumerate(clustered(100, 4), 3000)), [*range(1900, 1950)])
    assert (index.kind, len(index)) == ("ivf", 2000)
    assert recall(index, database, queries) >= 0.95
    index.close()


def test_an_inverted_file_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, queries = stored(2000), clustered(40, 2)
    first = opened(tmp_path, database)
    before = [first.search(query, 10) for query in queries]
    first.close()
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600

    def read(keys: Keys) -> Vectors:
        raise AssertionError("no vector is read")

    monkeypatch.setattr(database, "rows", read)
    again = opened(tmp_path, database)
    assert (len(again), again.kind) == (2000, "ivf")
    assert [again.search(query, 10) for query in queries] == before
    again.close()
    assert [*tmp_path.iterdir()] == [kept]


def test_a_file_that_is_older_than_the_database_is_brought_up_to_date(tmp_path: Path) -> None:
    """As a crash leaves it, or a restored copy of either: numbers of other vectors, too."""
    database = stored(2000)
    opened(tmp_path, database).close()
    for number in range(500):
        del database.vectors[number]
    database.vectors |= dict(enumerate(clustered(1000, 9), 1000))  # the same numbers
    database.vectors |= dict(enumerate(clustered(100, 10), 5000))
    index = opened(tmp_path, database)
    assert len(index) == len(database.vectors) == 1600
    for number in (500, 999, 1000, 1999, 5050):
        assert found(index, database, database.vectors[number], 1) == [number]
    assert recall(index, database, clustered(40, 2)) >= 0.95
    index.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "another size"])
def test_a_damaged_file_costs_time_and_no_result(tmp_path: Path, damage: str) -> None:
    database = stored(2000)
    opened(tmp_path, database).close()
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    flipped = bytes(content)
    damaged = {"flip": flipped, "cut": flipped[:-9], "empty": b"", "another size": b"x" * 99}
    path.write_bytes(damaged[damage])
    index = opened(tmp_path, database)
    assert len(index) == 2000
    assert recall(index, database, clustered(40, 2)) >= 0.95
    index.close()
    assert len([*tmp_path.iterdir()]) == 1


def test_codes_of_deleted_vectors_leave_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.index.vectors.SAVED_AFTER_S", 0.05)
    database = stored(2000)
    index = opened(tmp_path, database)
    while not (before := [*tmp_path.glob("*.faiss")]):
        threading.Event().wait(0.01)
    change(index, database, {}, [*range(100, 140)])
    while (after := [*tmp_path.glob("*.faiss")]) == before or len(after) != 1:
        threading.Event().wait(0.01)
    assert len(_keys_in(index._read())) == 1960
    index.close()


def test_codes_of_deleted_vectors_leave_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.index.vectors.SAVED_AFTER_S", 0.05)
    monkeypatch.setattr("tandem.index.vectors.RETRIED_AFTER_S", 0.05)
    database = stored(2 * LIMIT)
    index = opened(tmp_path, database)
    while not (before := [*tmp_path.glob("*.faiss")]):
        threading.Event().wait(0.01)
    with monkeypatch.context() as full:

        def refuse(path: Path) -> None:
            raise OSError(errno.ENOSPC, "no room")

        full.setattr("tandem.index.vectors.new_private_file", refuse)
        change(index, database, {}, [3])
        while before[0].exists():  # until the test's time is up
            threading.Event().wait(0.01)
    while not [*tmp_path.glob("*.faiss")]:  # there is room again
        threading.Event().wait(0.01)
    index.close()


@pytest.mark.parametrize("removed", [2 * LIMIT, 40])
def test_codes_of_a_tenant_s_deleted_vectors_do_not_outlive_a_kill(
    tmp_path: Path, removed: int
) -> None:
    def folder() -> DocumentIndex:
        return DocumentIndex(tmp_path, WordVectors(), Chunking(16, 0))

    index = folder()
    index.add(texts("ann", 2 * LIMIT))
    index.wait_until_built()
    index.close()
    (kept,) = (tmp_path / "vectors").glob("*.faiss")
    raw = kept.read_bytes()
    index = folder()
    index.remove([*index.names("ann")][:removed], "ann")
    index.close()
    for path in (tmp_path / "vectors").iterdir():
        path.unlink()
    kept.write_bytes(raw)  # as a kill leaves it
    index = folder()  # nobody asks for the tenant
    index.wait_until_built()
    index.close()
    left = [faiss.deserialize_index(np.fromfile(path, np.uint8)) for path in _faiss_in(tmp_path)]
    assert [each.ntotal for each in left] == ([2 * LIMIT - removed] if removed == 40 else [])
    assert not kept.exists()


def _faiss_in(folder: Path) -> list[Path]:
    return [*(folder / "vectors").iterdir()]


def test_what_is_kept_of_a_tenant_is_opened_when_it_is_read(tmp_path: Path) -> None:
    index = DocumentIndex(tmp_path, WordVectors(), Chunking(16, 0))
    index.add(texts("ann", 2 * LIMIT))
    index.wait_until_built()
    index.close()
    store = SqliteStore(tmp_path, index.manifest)
    assert not store._vectors
    store.close()


def test_a_build_that_is_due_waits_for_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.index.vectors.SAVED_AFTER_S", 600.0)
    database = stored(1000)
    index = opened(tmp_path, database)
    cells = index._index.nlist
    change(index, database, {}, [3])  # to be saved after a while
    many = dict(enumerate(clustered(4500, 5), 2000))
    database.vectors |= many
    added = Stored(many)
    index.change(added.keys(), added.rows(added.keys()), Stored({}).keys())
    waiting = threading.Thread(target=index.wait_until_built, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()
    assert index._index.nlist > cells
    index.close()


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


def test_it_is_trained_anew_at_four_times_the_vectors(tmp_path: Path) -> None:
    vectors, queries = clustered(6000, 1), clustered(40, 2)
    database = Stored(dict(enumerate(vectors[:1000])))
    index = opened(tmp_path, database)
    cells = []
    for begin, end in ((1000, 2500), (2500, 6000)):
        change(index, database, dict(enumerate(vectors[begin:end], begin)), [])
        assert recall(index, database, queries) >= 0.95, end
        cells.append(index._index.nlist)
    assert cells == [63, 154]
    index.close()


def test_few_vectors_are_compared_exactly_again(tmp_path: Path) -> None:
    database = stored(2000)
    index = opened(tmp_path, database)
    change(index, database, {}, [*range(250, 2000)])
    assert (index.kind, len(index)) == ("flat", 250)
    for query in clustered(20, 2):
        assert index.search(query, 10) == exact(database, query, 10)
    index.close()
    assert not [*tmp_path.iterdir()]


def test_what_changes_while_it_is_built_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stored(2000)
    rows, building, changed = database.rows, threading.Event(), threading.Event()

    def slow(keys: Keys) -> Vectors:
        if threading.current_thread() is not threading.main_thread():
            building.set()
            assert changed.wait(20)
        return rows(keys)

    monkeypatch.setattr(database, "rows", slow)
    index = VectorIndex(database, SIZE, tmp_path, "ann")
    assert building.wait(20)
    assert index.kind == "flat", "search stays exact meanwhile"
    left = Stored({number: database.vectors.pop(number) for number in range(40)})
    new = Stored(dict(enumerate(clustered(50, 5), 7000)))
    database.vectors |= new.vectors
    index.change(new.keys(), new.rows(new.keys()), left.keys())
    changed.set()
    index.wait_until_built()
    assert (index.kind, len(index)) == ("ivf", 2010)
    for number in (7000, 7049, 40):
        assert found(index, database, database.vectors[number], 1) == [number]
    index.close()


def test_a_full_disk_costs_a_build_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    database = stored(1000)
    index = opened(tmp_path / "file" / "below", database)
    assert recall(index, database, clustered(40, 2)) >= 0.95
    index.close()


def texts(owner: str, count: int) -> list[Document]:
    source = np.random.default_rng(len(owner))
    words = [f"{owner}{number}" for number in range(200)] + ["heron"] * 20
    return [
        Document(f"{number}.md", " ".join(source.choice(words, 6)) + f" n{number}", owner=owner)
        for number in range(count)
    ]


def test_documents_of_many_chunks_survive_a_restart_and_stay_apart(tmp_path: Path) -> None:
    place = tmp_path / "index"
    first = DocumentIndex(place, WordVectors(SIZE), Chunking())
    ann, bob = texts("ann", 700), texts("bob", 700)
    for documents in (ann, bob):
        first.add(documents)
    first.wait_until_built()
    assert first.stats().dense == "ivf"
    asked = [f"{document.text} heron" for document in ann[:20]]
    before = [first.search(query, 5, tenant="ann") for query in asked]
    assert {hit.owner for hits in before for hit in hits} == {"ann"}
    first.close()
    assert len(list((place / "vectors").iterdir())) == 2
    again = DocumentIndex(place, WordVectors(SIZE), Chunking())
    assert [again.search(query, 5, tenant="ann") for query in asked] == before
    again.remove([document.id for document in bob], "bob")
    again.close()
    last = DocumentIndex(place, WordVectors(SIZE), Chunking())
    assert last.search(bob[0].text, 5, tenant="bob") == []
    assert [last.search(query, 5, tenant="ann") for query in asked] == before
    assert len(list((place / "vectors").iterdir())) == 1, "nothing is left of bob's"
    last.close()
