"""Many vectors in a folder: found again after a restart, and only those that are stored."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tandem.index.cell_quantizer import exact_neighbours
from tandem.index.chunking import Chunking
from tandem.index.dense import DenseIndex, Numbers, Vectors, recall
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document
from tests.unit.index.word_vectors import WordVectors

SIZE = 16
LIMIT = 600


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.index.dense.FLAT_LIMIT", LIMIT)


def clustered(count: int, seed: int) -> Vectors:
    source = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((40, SIZE))
    noise = 0.6 * source.standard_normal((count, SIZE))
    rows = centres[source.integers(len(centres), size=count)] + noise
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def opened(folder: Path | None, numbers: Numbers, vectors: Vectors) -> DenseIndex:
    """An index of a store that has these."""
    index = DenseIndex(SIZE, folder, loading=True)
    for begin in range(0, len(numbers), 300):
        index.add(numbers[begin : begin + 300], vectors[begin : begin + 300])
    index.settle()
    return index


def built(folder: Path | None, numbers: Numbers, vectors: Vectors) -> DenseIndex:
    index = opened(folder, numbers, vectors)
    index.wait_until_built()
    return index


def found(index: DenseIndex, queries: Vectors, count: int = 10) -> Numbers:
    return np.array([[number for number, _ in index.search(each, count)] for each in queries])


def state(folder: Path) -> dict[str, int | str]:
    fields: dict[str, int | str] = json.loads((folder / "state.json").read_text())
    return fields


def stored_rows(folder: Path) -> Vectors:
    return np.fromfile(folder / str(state(folder)["vectors"]), np.float32).reshape(-1, SIZE)


def test_cells_are_built_once(tmp_path: Path) -> None:
    numbers, vectors, queries = np.arange(5, 2005), clustered(2000, 1), clustered(40, 2)
    first = built(tmp_path, numbers, vectors)
    before = found(first, queries)
    truth = numbers[exact_neighbours(vectors, queries, 10)]
    assert recall(before, truth) >= 0.95
    query = queries[0]
    assert dict(first.search(query, 3)) == pytest.approx(
        first.similarities(before[0][:3].tolist(), query), abs=1e-6
    )
    first.close()
    written = state(tmp_path)
    again = opened(tmp_path, numbers, vectors)
    assert again._builder is None, "nothing is to be built"
    assert (len(again), again.kind) == (2000, "ivf")
    assert np.array_equal(found(again, queries), before)
    assert state(tmp_path) == written
    again.close()


def test_nothing_is_found_that_the_store_has_not(tmp_path: Path) -> None:
    """What was deleted or changed while the index was closed, and a number that is used again."""
    numbers, vectors = np.arange(2000), clustered(2000, 1)
    built(tmp_path, numbers, vectors).close()
    kept = numbers[500:]
    changed = np.concatenate([vectors[:1000], clustered(1000, 9)])[500:]
    index = built(tmp_path, kept, changed)
    assert len(index) == 1500
    assert found(index, vectors[:200], 5).min() >= 500
    for number in (500, 999, 1000, 1999):
        ((hit, score),) = index.search(changed[number - 500], 1)
        assert hit == number
        assert score == pytest.approx(1, abs=1e-5)
    assert index.similarities([10, 1500], changed[1000]) == {1500: pytest.approx(1, abs=1e-5)}
    on_disk = {row.tobytes() for row in stored_rows(tmp_path)}
    gone = {row.tobytes() for row in (*vectors[:500], *vectors[1000:])}
    assert not on_disk & gone, "deleted vectors are overwritten"
    index.close()


@pytest.mark.parametrize("name", ["codes", "numbers", "vectors"])
def test_a_damaged_file_costs_time_and_no_result(tmp_path: Path, name: str) -> None:
    numbers, vectors, queries = np.arange(2000), clustered(2000, 1), clustered(40, 2)
    built(tmp_path, numbers, vectors).close()
    path = tmp_path / str(state(tmp_path)[name])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    index = built(tmp_path, numbers, vectors)
    assert len(index) == 2000
    assert recall(found(index, queries), exact_neighbours(vectors, queries, 10)) >= 0.95
    assert dict(index.search(vectors[1000], 1)) == {1000: pytest.approx(1, abs=1e-5)}
    index.close()


def test_deleted_vectors_leave_the_disk(tmp_path: Path) -> None:
    numbers, vectors = np.arange(2000), clustered(2000, 1)
    index = built(tmp_path, numbers, vectors)
    index._erased_s = time.monotonic()  # codes were written anew a moment ago
    index.remove(np.arange(100, 140))
    assert not stored_rows(tmp_path)[100:140].any(), "at once"
    assert not np.isin(found(index, vectors[100:140]), np.arange(100, 140)).any()
    assert state(tmp_path)["coded"] == 2000
    index.close()  # does not wait until the codes may be written again
    assert state(tmp_path)["coded"] == 1960


def test_what_is_added_is_taken_in_without_training_until_there_is_twice_as_much(
    tmp_path: Path,
) -> None:
    vectors, queries = clustered(5000, 1), clustered(40, 2)
    index = built(tmp_path, np.arange(1000), vectors[:1000])
    kinds = []
    for end in (1500, 1700, 3000, 5000):
        index.add(np.arange(len(index), end), vectors[len(index) : end])
        index.wait_until_built()
        written = state(tmp_path)
        kinds.append((written["count"], written["trained_for"]))
        truth = exact_neighbours(vectors[:end], queries, 10)
        assert recall(found(index, queries), truth) >= 0.95, end
    # 500 are compared exactly; 700 are taken in; at twice as many the cells are trained anew.
    assert kinds == [(1000, 1000), (1700, 1000), (3000, 3000), (5000, 3000)]
    index.remove(np.arange(0, 5000, 2))
    index.wait_until_built()
    assert state(tmp_path)["count"] == 2500, "rows that are mostly deleted are written anew"
    assert (found(index, queries) % 2 == 1).all()
    index.close()
    assert len(list(tmp_path.iterdir())) == 4, "nothing is left of what was replaced"


def test_few_vectors_are_compared_exactly_again(tmp_path: Path) -> None:
    vectors, queries = clustered(2000, 1), clustered(40, 2)
    index = built(tmp_path, np.arange(2000), vectors)
    index.remove(np.arange(250, 2000))
    index.wait_until_built()
    assert (index.kind, len(index)) == ("flat", 250)
    assert np.array_equal(found(index, queries), exact_neighbours(vectors[:250], queries, 10))
    assert not list(tmp_path.iterdir())
    index.close()


def test_without_a_folder_cells_are_in_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for documents on a server."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    index = built(None, np.arange(1000), clustered(1000, 1))
    assert index.kind == "ivf"
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    index.close()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_search_exact(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    vectors, queries = clustered(1000, 1), clustered(40, 2)
    index = built(tmp_path / "file" / "below", np.arange(1000), vectors)
    assert index.kind == "flat"
    assert np.array_equal(found(index, queries), exact_neighbours(vectors, queries, 10))
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
