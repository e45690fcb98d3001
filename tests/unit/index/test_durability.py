"""What was acknowledged is there after a crash, a torn write, a damaged file or a full disk; and
what cannot be read in full is refused, not served in part."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.retriever_kill import kill_trial
from tandem.core.errors import ResourceExhausted
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.documents import Document
from tandem.index.errors import FolderDamaged, FolderInUse, FolderMismatch
from tests.unit.index.word_vectors import WordVectors

TEXTS = {"a": "one two three", "b": "four five", "c": "six seven eight nine"}


def opened(folder: Path, dimension: int = 8) -> DocumentIndex:
    return DocumentIndex(folder, WordVectors(dimension), Chunking())


def texts_of(folder: Path) -> dict[str, str]:
    index = opened(folder)
    try:
        return index.texts()
    finally:
        index.close()


def filled(folder: Path, snapshots: tuple[str, ...] = ()) -> Path:
    """A folder with all TEXTS, each durable by itself; a snapshot after those named."""
    index = opened(folder)
    for name, text in TEXTS.items():
        index.add([Document(name, text)])
        if name in snapshots:
            index.snapshot()
    index.close()
    return folder


def test_a_log_torn_at_any_byte_of_its_last_record_loses_that_record_only(tmp_path: Path) -> None:
    log = filled(tmp_path) / "log-00000000"
    whole = log.read_bytes()
    last = whole.rindex(whole[:8])
    before = {name: TEXTS[name] for name in "ab"}
    for end in range(last, len(whole)):  # about 200 of them
        log.write_bytes(whole[:end])
        assert texts_of(tmp_path) == before, end
        assert log.stat().st_size == last
    for junk in (bytes(40), whole[last : last + 30] + bytes(30), b"\xff" * 9):
        log.write_bytes(whole + junk)
        assert texts_of(tmp_path) == TEXTS
    # After the torn tail was cut, what is added next is found again.
    log.write_bytes(whole[:-1])
    index = opened(tmp_path)
    index.add([Document("d", "new")])
    index.close()
    assert texts_of(tmp_path) == before | {"d": "new"}


def test_damage_in_the_middle_of_a_log_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    log = filled(tmp_path) / "log-00000000"
    whole = log.read_bytes()
    last = whole.rindex(whole[:8])
    for at in range(0, last, 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        log.write_bytes(damaged)
        with pytest.raises(FolderDamaged, match=r"log-00000000: the record at byte \d+ is damaged"):
            opened(tmp_path)
        assert log.read_bytes() == damaged
    log.write_bytes(whole)
    assert texts_of(tmp_path) == TEXTS


@pytest.mark.parametrize("snapshots", [("b",), ("a", "b"), ("a", "b", "c")])
def test_a_damaged_snapshot_costs_nothing(tmp_path: Path, snapshots: tuple[str, ...]) -> None:
    filled(tmp_path, snapshots)
    newest = max(tmp_path.glob("snapshot-*"))
    whole = newest.read_bytes()
    for content in (b"", whole[:-1], whole[: len(whole) // 2], whole[:50] + b"x" + whole[51:]):
        newest.write_bytes(content)
        assert texts_of(tmp_path) == TEXTS
        assert newest.with_suffix(".damaged").read_bytes() == content
    index = opened(tmp_path)  # and life goes on
    index.snapshot()
    index.add([Document("d", "new")])
    index.close()
    assert texts_of(tmp_path) == TEXTS | {"d": "new"}


def test_without_any_good_snapshot_the_folder_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, ("a", "b", "c"))
    for snapshot in tmp_path.glob("snapshot-*"):
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    for _ in range(2):
        with pytest.raises(FolderDamaged, match="snapshot-00000003: is damaged"):
            opened(tmp_path)


def test_a_missing_log_or_manifest_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, ("a", "b"))
    (tmp_path / "snapshot-00000002").write_bytes(b"")
    log = tmp_path / "log-00000001"
    content = log.read_bytes()
    log.unlink()
    with pytest.raises(FolderDamaged, match="log-00000001: is missing"):
        opened(tmp_path)
    log.write_bytes(content)
    assert texts_of(tmp_path) == TEXTS
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(FolderMismatch, match=r"has no manifest\.json, so it is no index"):
        opened(tmp_path)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_refuses_the_change_and_keeps_what_there_was(tmp_path: Path, room: int) -> None:
    filled(tmp_path, ("a",))
    index = opened(tmp_path)
    size = index.stats().log_bytes
    with full_disk(size + room), pytest.raises(ResourceExhausted, match="no room"):
        index.add([Document("d", "much " * 400)])
    with full_disk(50), pytest.raises(ResourceExhausted, match="no room"):
        index.snapshot()
    assert index.texts() == TEXTS
    assert index.stats().log_bytes == size
    assert not list(tmp_path.glob("*.tmp"))
    index.add([Document("d", "small")])  # there is room again
    index.close()
    assert texts_of(tmp_path) == TEXTS | {"d": "small"}


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
        f"{tmp_path}: holds vectors of words (dimension 8), not of words (dimension 9); "
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "notes.txt"]


@pytest.mark.parametrize(("seed", "after"), [(1, 1), (2, 9), (3, 60)])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    tmp_path: Path, seed: int, after: int
) -> None:
    assert kill_trial(tmp_path, seed, after) >= after


def test_lexical_search_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tandem.index.document_index import open_index;"
        "index = open_index(Path(sys.argv[1]), 'lexical'); index.close();"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
