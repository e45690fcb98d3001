"""Folders of the format before SQLite. `old_folders` was made by the program that wrote it:
`vectors` has a snapshot and logs, `brace` a snapshot whose first frame begins with `{`."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tandem.core.errors import InvalidArgument
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.folder import FolderLock
from tandem.index.old_format import import_folder
from tandem.index.records import FolderDamaged, FolderInUse, FolderMismatch
from tests.unit.index.word_vectors import WordVectors

FOLDERS = Path(__file__).parent / "old_folders"
TEXTS = {"copy of b": "four five", "c": "six seven eight nine " * 8, "a": "ten"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / "vectors", tmp_path / "old"))


def imported(old: Path, new: Path) -> dict[str, str]:
    import_folder(old, new)
    with closing(DocumentIndex(new, WordVectors(8), Chunking(16, 4))) as index:
        return index.texts()


def test_an_old_folder_is_refused_with_the_command_that_imports_it(old: Path) -> None:
    before = sorted(path.name for path in old.iterdir())
    for embedding in ("lexical", "auto"):
        with pytest.raises(FolderMismatch) as caught:
            open_index(old, embedding)
        assert str(caught.value) == (
            f"{old}: has the format of an earlier version; make a new folder of it with "
            f"'tandem ingest --import-folder {old} --folder NEW'"
        )
    assert sorted(path.name for path in old.iterdir()) == before


def test_documents_vectors_and_their_order_are_imported(old: Path, tmp_path: Path) -> None:
    assert imported(old, tmp_path / "new") == TEXTS
    embedder = WordVectors(8)
    with closing(DocumentIndex(tmp_path / "new", embedder, Chunking(16, 4))) as index:
        assert list(index.texts()) == list(TEXTS)
        for content in index.contents():
            chunks = [content.indexed_chunk(number) for number in range(len(content.spans))]
            assert (content.vectors == embedder.embed(chunks)).all()
        assert [hit.document_id for hit in index.search("ten", 1)] == ["a"]
    with pytest.raises(InvalidArgument, match="is an index already"):
        import_folder(old, tmp_path / "new")
    with pytest.raises(InvalidArgument, match="is no folder of the old format"):
        import_folder(tmp_path / "new", tmp_path / "newer")


def test_a_snapshot_that_the_old_program_could_not_read_is_imported(tmp_path: Path) -> None:
    old = Path(shutil.copytree(FOLDERS / "brace", tmp_path / "old"))
    (old / "log-00000000").unlink()
    import_folder(old, tmp_path / "new")
    with closing(open_index(tmp_path / "new", "lexical")) as index:
        assert index.texts() == {"a": "x" * 253}


def test_writes_that_went_on_in_the_log_before_a_snapshot_are_imported(
    old: Path, tmp_path: Path
) -> None:
    later = old / "log-00000001"  # could not be made, so the old program wrote on in log 0
    with (old / "log-00000000").open("ab") as log:
        log.write(later.read_bytes())
    later.unlink()
    assert imported(old, tmp_path / "new") == TEXTS


def test_a_torn_record_is_left_out_and_a_damaged_one_refused(old: Path, tmp_path: Path) -> None:
    log = old / "log-00000001"
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    assert imported(old, tmp_path / "torn") == TEXTS | {"b": "four five"}
    for at in (0, 9, 30, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        log.write_bytes(damaged)
        (old / "log-00000000").unlink(missing_ok=True)
        with pytest.raises(FolderDamaged, match=r"log-00000001: the record at byte \d+ is damaged"):
            import_folder(old, tmp_path / f"new{at}")
        assert not (tmp_path / f"new{at}").exists()
    log.unlink()
    with pytest.raises(FolderDamaged, match="log-00000001: is missing"):
        import_folder(old, tmp_path / "missing")


def test_a_folder_in_use_is_not_imported(old: Path, tmp_path: Path) -> None:
    with closing(FolderLock(old)), pytest.raises(FolderInUse):
        import_folder(old, tmp_path / "new")
