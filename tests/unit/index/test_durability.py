"""What was acknowledged is there after a crash, a torn write or a full disk; what cannot be read in
full is refused, not served in part; and nobody else can read it."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.index import lexical, sqlite_database, words
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.records import Document, FolderDamaged, FolderInUse, FolderMismatch, Outcome
from tandem.index.searcher import SearchMode
from tandem.index.sqlite_store import DATABASE, verify_folder
from tests.unit.index.word_vectors import WordVectors

TEXTS = {"a": "one two three", "b": "four five", "c": "six seven eight nine"}


def opened(folder: Path, dimension: int = 8) -> DocumentIndex:
    return DocumentIndex(folder, WordVectors(dimension), Chunking())


def texts_of(folder: Path) -> dict[str, str]:
    with closing(opened(folder)) as index:
        return index.texts()


def filled(folder: Path) -> Path:
    """A folder with all TEXTS, each durable by itself."""
    with closing(opened(folder)) as index:
        for name, text in TEXTS.items():
            index.add([Document(name, text)])
    return folder


def crashed(index: DocumentIndex, folder: Path, copy: Path) -> Path:
    """What a process that has `index` open in `folder` would leave if it ended now."""
    shutil.copytree(folder, copy)
    return copy


def flip(file: Path, at: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def test_a_flipped_bit_in_the_last_acknowledged_record_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    with closing(opened(folder)) as index:
        index.add([Document("a", "one two three")])
        index.add([Document("b", "the last words")])
        copy = crashed(index, folder, tmp_path / "copy")
    (holder,) = [file for file in copy.iterdir() if b"the last words" in file.read_bytes()]
    flip(holder, holder.read_bytes().index(b"the last words") + 4, 3)
    with pytest.raises(FolderDamaged, match="is damaged; restore it from a copy"):
        texts_of(copy)


def test_a_flipped_bit_anywhere_is_reported_or_was_in_no_use(tmp_path: Path) -> None:
    database = filled(tmp_path) / DATABASE
    whole = database.read_bytes()
    refused = 0
    for at in range(0, len(whole), 193):
        database.write_bytes(whole)
        flip(database, at, at % 8)
        try:
            assert texts_of(tmp_path) == TEXTS, at
        except (FolderDamaged, FolderMismatch):
            refused += 1
        for rest in ("-wal", "-shm"):
            database.with_name(database.name + rest).unlink(missing_ok=True)
    assert refused > 10, "of some 200"


def test_text_and_vectors_are_compared_whenever_they_are_read(tmp_path: Path) -> None:
    reads: list[tuple[str, Callable[[DocumentIndex], object]]] = [
        ("content.text", lambda index: index.search("four", 1)),
        ("content.title", lambda index: index.search("four", 1)),
        ("content.spans", lambda index: index.chunks_of(["b"])),
        ("vector.vector", lambda index: index.search("four", 1, SearchMode.DENSE)),
    ]
    for place, read in reads:
        folder = tmp_path / place
        filled(folder)
        with closing(opened(folder)) as index:
            assert read(index)
            table, column = place.split(".")
            change = f"UPDATE {table} SET {column} = {column} || x'00' WHERE rowid = 1"
            with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
                database.execute(change)
            with pytest.raises(FolderDamaged, match="damaged"):
                read(index)
        with pytest.raises(FolderDamaged, match="damaged"):
            verify_folder(folder)


def test_words_that_were_lost_are_noticed_when_the_folder_is_verified(tmp_path: Path) -> None:
    """FTS5 has no checksums: a flipped bit makes another word of one, which nobody asks for."""
    filled(tmp_path)
    whole = (tmp_path / DATABASE).read_bytes()
    assert whole.count(b"1:eight") == 1
    (tmp_path / DATABASE).write_bytes(whole.replace(b"1:eight", b"1:eighu"))
    with pytest.raises(FolderDamaged, match="the index of words is damaged"):
        verify_folder(tmp_path)
    assert texts_of(tmp_path) == TEXTS, "no text is lost with it"


def test_words_and_vectors_of_a_text_that_was_not_stored_are_not_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of one transaction."""
    folder = filled(tmp_path / "index")
    with closing(opened(folder)) as index:

        def fails(*given: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("tandem.index.sqlite_store.set_meta", fails)
        with pytest.raises(ResourceExhausted):
            index.add([Document("d", "ten"), Document("a", "eleven")])
        monkeypatch.undo()
        for mode in SearchMode:
            found = {hit.text for hit in index.search("ten eleven one", 9, mode)}
            assert found.isdisjoint({"ten", "eleven"})
            assert "one two three" in found
    assert texts_of(folder) == TEXTS
    verify_folder(folder)


def test_a_log_torn_at_any_byte_loses_only_what_was_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path / "index")
    index = opened(folder)
    monkeypatch.setattr("tandem.index.sqlite_store.fold_log", lambda database: True)
    index.add([Document("d", "new")])  # killed before it was folded in
    copy = crashed(index, folder, tmp_path / "copy")
    monkeypatch.undo()
    index.close()
    log = (copy / f"{DATABASE}-wal").read_bytes()
    assert b"new" in log
    for end in [*range(0, len(log), 499), len(log)]:
        shutil.rmtree(tmp_path / "torn", ignore_errors=True)
        torn = Path(shutil.copytree(copy, tmp_path / "torn"))
        (torn / f"{DATABASE}-wal").write_bytes(log[:end])
        expected = TEXTS | {"d": "new"} if end == len(log) else TEXTS
        assert texts_of(torn) == expected, end


def test_a_text_of_253_letters_can_be_opened_again(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as index:
        index.add([Document("a", "x" * 253)])  # made a header of 123 bytes modulo 256
        index.compact()
    assert texts_of(tmp_path) == {"a": "x" * 253}


def test_what_is_acknowledged_after_a_failed_compaction_is_kept(tmp_path: Path) -> None:
    obstacle = filled(tmp_path) / "log-00000001"
    with closing(opened(tmp_path)) as index:
        obstacle.mkdir()  # where the old format began a new log once the snapshot was there
        with suppress(OSError):
            index.compact()
        index.add([Document("d", "new")])
    obstacle.rmdir()
    assert texts_of(tmp_path) == TEXTS | {"d": "new"}


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    before = os.umask(0)
    try:
        with closing(opened(folder)) as index:
            index.add([Document("a", "private")])
            index.compact()
            modes = {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) == {"lock", DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"}
    assert set(modes.values()) == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    (folder / DATABASE).chmod(0o644)
    opened(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / DATABASE).stat().st_mode & 0o777 == 0o600


def test_a_deleted_text_is_in_no_file_once_that_is_acknowledged(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as index:
        index.add([Document("a", "a secret word. " * 900), Document("b", "other")])
        assert any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())
        index.remove(["a"])
        assert not any(b"secret" in file.read_bytes() for file in tmp_path.iterdir())
        size = index.stats().snapshot_bytes
        index.compact()
        assert index.stats().snapshot_bytes < size


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 5000])
def test_a_full_disk_has_no_room_for_a_new_folder(tmp_path: Path, room: int) -> None:
    with full_disk(room), pytest.raises(ResourceExhausted, match="no room"):
        opened(tmp_path / "new")
    assert texts_of(tmp_path / "new") == {}, "it is made once there is room"


def test_a_disk_without_room_for_a_folder_is_said_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ResourceExhausted, match="new: no room: No space left on device"):
        opened(tmp_path / "new")


@pytest.mark.parametrize("room", [0, 1, 5000])
def test_a_full_disk_refuses_the_change_and_keeps_what_there_was(tmp_path: Path, room: int) -> None:
    filled(tmp_path)
    with closing(opened(tmp_path)) as index:
        with full_disk(room), pytest.raises(ResourceExhausted, match="no room"):
            index.add([Document("d", "much " * 4000)])
        assert index.texts() == TEXTS
        assert index.search("much", mode=SearchMode.LEXICAL) == []
        index.add([Document("d", "small")])  # there is room again
    assert texts_of(tmp_path) == TEXTS | {"d": "small"}


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_CANTOPEN]
)
def test_a_call_that_the_system_refuses_does_not_make_the_folder_a_damaged_one(
    tmp_path: Path, code: int
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    with (
        pytest.raises(Unavailable, match="the operating system refused"),
        sqlite_database.errors_of(tmp_path),
    ):
        raise error


def test_a_disk_that_fills_up_after_the_commit_loses_nothing(tmp_path: Path) -> None:
    index = opened(tmp_path / "index")
    texts = {"large": "large " * 20_000, "d": "much " * 4000}
    index.add([Document("large", texts["large"])])
    with full_disk(index.stats().snapshot_bytes):  # room for the log, none in the database
        assert index.add([Document("d", texts["d"])]) == [Outcome.ADDED]
        assert index.stats().log_bytes > 0
    copy = crashed(index, tmp_path / "index", tmp_path / "copy")
    index.add([Document("e", "small")])
    assert index.stats().log_bytes == 0
    index.close()
    assert texts_of(copy) == texts
    assert texts_of(tmp_path / "index") == texts | {"e": "small"}


@pytest.mark.parametrize("room", [0, 10])
def test_a_folder_is_read_on_a_full_disk_and_changed_once_there_is_room(
    tmp_path: Path, room: int
) -> None:
    filled(tmp_path)
    with full_disk(room):
        index = opened(tmp_path)
        with pytest.raises(ResourceExhausted, match=r"no room.*this change was not made"):
            index.add([Document("d", "small")])
        with pytest.raises(ResourceExhausted, match="no room"):
            index.compact()
        assert index.texts() == TEXTS
        assert index.search("small", mode=SearchMode.LEXICAL) == []
    with closing(index):
        index.add([Document("d", "small")])
        assert len(index.search("small", mode=SearchMode.LEXICAL)) == 1
    with full_disk(room):
        assert texts_of(tmp_path) == TEXTS | {"d": "small"}
        assert verify_folder(tmp_path).documents == len(TEXTS) + 1


def test_what_only_the_log_holds_is_read_on_a_full_disk(tmp_path: Path) -> None:
    index = opened(tmp_path / "index")
    index.add([Document("large", "large " * 20_000)])
    with full_disk(index.stats().snapshot_bytes):
        index.add([Document("d", "much " * 4000)])
    copy = crashed(index, tmp_path / "index", tmp_path / "copy")
    index.close()
    for left in copy.glob("*-shm"):
        left.unlink()
    with full_disk(0):
        assert texts_of(copy).keys() == {"large", "d"}
    assert texts_of(copy)["d"] == "much " * 4000


@pytest.mark.parametrize("version", [1, 2, 9])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    filled(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    why = f"is of version {version}, this program reads version {sqlite_database.VERSION}"
    with pytest.raises(FolderMismatch, match=why):
        opened(tmp_path)


def test_words_that_another_version_split_are_indexed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FTS5 removes a text's words by splitting it again, so all must be of one version."""
    with monkeypatch.context() as other:
        other.setattr(words, "VERSION", "another")
        other.setattr(lexical, "words_of", lambda text: [text, *text.split(" ")][:3])
        filled(tmp_path)
    with closing(opened(tmp_path)) as index:
        assert [hit.document_id for hit in index.search("three", mode=SearchMode.LEXICAL)] == ["a"]
        index.remove(["a"])
        assert index.search("three", mode=SearchMode.LEXICAL) == []
        index.add([Document("a", "nine ten")])
        found = [hit.document_id for hit in index.search("nine", mode=SearchMode.LEXICAL)]
        assert sorted(found) == ["a", "c"]
    verify_folder(tmp_path)
    rebuilt: list[object] = []
    monkeypatch.setattr(lexical, "rebuild", lambda *given: rebuilt.append(given))
    opened(tmp_path).close()
    assert not rebuilt


def test_a_folder_is_verified_in_one_call(tmp_path: Path) -> None:
    size = verify_folder(filled(tmp_path))
    assert (size.documents, size.texts, size.log_bytes) == (3, 3, 0)
    with closing(opened(tmp_path)), pytest.raises(FolderInUse):
        verify_folder(tmp_path)
    (tmp_path / DATABASE).write_bytes(b"")
    with pytest.raises(FolderDamaged, match="has no tables"):
        verify_folder(tmp_path)
    with pytest.raises(FolderMismatch, match="is not an index"):
        verify_folder(tmp_path / "none")


def test_a_second_opener_is_refused_and_learns_who_has_it(tmp_path: Path) -> None:
    index = opened(tmp_path)
    with pytest.raises(FolderInUse, match=f"is open in process {os.getpid()}"):
        opened(tmp_path)
    index.close()
    opened(tmp_path).close()


def test_another_model_dimension_or_chunking_is_refused_in_words(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(FolderMismatch) as caught:
        opened(tmp_path, dimension=9)
    assert str(caught.value) == (
        f"{tmp_path}: has vectors of words (dimension 8), not of words (dimension 9); "
        "use the same embedding or another folder"
    )
    with pytest.raises(FolderMismatch, match=r"not of other \(dimension 8\)"):
        DocumentIndex(tmp_path, WordVectors(8, "other"), Chunking())
    with pytest.raises(FolderMismatch, match=r"not of lexical \(dimension 0\)"):
        open_index(tmp_path, "lexical")
    with pytest.raises(FolderMismatch, match="not of 100 with 20"):
        DocumentIndex(tmp_path, WordVectors(8), Chunking(100, 20))
    assert texts_of(tmp_path) == TEXTS


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FolderMismatch, match=r"is not empty \(notes\.txt\)"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_lexical_search_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tandem.index.document_index import open_index;"
        "index = open_index(Path(sys.argv[1]), 'lexical'); index.close();"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
