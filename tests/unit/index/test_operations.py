"""Any corpus and any sequence of operations, against a dictionary: what is stored, what is found,
and the same after each reopening. Words alone, so that an example takes milliseconds."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document, Outcome
from tandem.index.searcher import SearchMode
from tandem.index.sqlite_store import verify_folder
from tests.properties import share

WORDS = ("heron", "bridge", "river", "a", "Ärger", "水", "年假")
MEMORY = Path("/dev/shm")

ids = st.sampled_from(["1", "2", "3", "a/b", "é"])
texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
documents = st.builds(Document, ids, texts, st.sampled_from(["", "a title"]))
added = st.tuples(st.just("add"), st.lists(documents, max_size=4))
removed = st.tuples(st.just("remove"), st.lists(ids, max_size=3))
others: st.SearchStrategy[tuple[str, list[object]]] = st.tuples(
    st.sampled_from(["reopen", "compact"]), st.just([])
)
operations = st.lists(st.one_of(added, added, removed, others), min_size=1, max_size=8)


def opened(folder: Path) -> DocumentIndex:
    return DocumentIndex(folder, None, Chunking(8, 2))


@share(0.75)
@given(operations)
def test_an_index_is_a_dictionary_of_documents(steps: list[tuple[str, list[object]]]) -> None:
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None)) / "index"
    known: dict[str, Document] = {}
    index = opened(folder)
    try:
        for name, arguments in steps:
            match name:
                case "add":
                    new = [each for each in arguments if isinstance(each, Document)]
                    outcomes = index.add(new)
                    assert outcomes == [_added(document, known) for document in new]
                case "remove":
                    gone = [str(each) for each in arguments]
                    there = index.remove(gone)
                    assert there == [document_id in known for document_id in gone]
                    for document_id in gone:
                        known.pop(document_id, None)
                case "compact":
                    index.compact()
                case "reopen":
                    index.close()
                    index = opened(folder)
            check(index, known)
        index.close()
        assert verify_folder(folder).documents == len(known)
        with closing(opened(folder)) as again:
            check(again, known)
    finally:
        index.close()
        shutil.rmtree(folder.parent)


def _added(document: Document, known: dict[str, Document]) -> Outcome:
    """What becomes of it; the model takes it in."""
    before = known.get(document.id)
    if before is not None and before.content_hash == document.content_hash:
        return Outcome.UNCHANGED
    known[document.id] = document
    return Outcome.ADDED if before is None else Outcome.UPDATED


def check(index: DocumentIndex, known: dict[str, Document]) -> None:
    """Everything that can be asked of the index, by the model."""
    assert index.texts() == {document.id: document.text for document in known.values()}
    contents = {document.content_hash: document for document in known.values()}
    stats = index.stats()
    assert (stats.documents, stats.texts) == (len(known), len(contents))
    for word in ("heron", "bridge", "水", "年假"):
        hits = index.search(word, 50, SearchMode.LEXICAL)
        assert all(word in hit.text or word in hit.title for hit in hits)
        found = {(hit.title, known[hit.document_id].text) for hit in hits}
        holding = {
            (each.title, each.text)
            for each in known.values()
            if word in (each.text.split() if word.isascii() else each.text)
        }
        assert found == holding
