"""Files of remembered texts: private, whole after a kill, gone when deleted."""

from __future__ import annotations

import multiprocessing
import os
import signal
from array import array
from pathlib import Path

import pytest

from tandem.runtime.memory_files import (
    MemoryFile,
    MemoryFolder,
    clear,
    default_memory_folder,
    figures_of,
    files_in,
)
from tandem.specdec.text_memory import Text

MOST = 2**20
TEXTS = [
    Text(array("i", range(10)), 4),
    Text(array("i", (7, 2**17, 0)), 200, 96, 2**64 - 3),
    Text(array("i", range(500)), 500),
]


def file_in(folder: Path, tenant: bytes = b"alice", fingerprint: str = "vocabulary") -> MemoryFile:
    return MemoryFile(folder, tenant, fingerprint)


def written(folder: Path, texts: list[Text] = TEXTS) -> MemoryFile:
    file = file_in(folder)
    for text in texts:
        file.append(text)
    return file


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    written(tmp_path)
    again = file_in(tmp_path)
    assert again.read(MOST) == TEXTS
    again.append(TEXTS[0])
    assert file_in(tmp_path).read(MOST) == [*TEXTS, TEXTS[0]]
    again.write(TEXTS[1:])
    assert file_in(tmp_path).read(MOST) == TEXTS[1:]


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    before = os.umask(0)
    try:
        MemoryFolder(folder).close()
        file = written(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.write(TEXTS)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert "alice" not in file.path.name
    file.path.chmod(0o644)
    file_in(folder).read(MOST)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_tenants_and_vocabularies_have_files_of_their_own(tmp_path: Path) -> None:
    written(tmp_path)
    assert file_in(tmp_path, b"bob").read(MOST) == []
    assert file_in(tmp_path, fingerprint="another").read(MOST) == []
    moved = file_in(tmp_path, fingerprint="another")
    file_in(tmp_path).path.rename(moved.path)
    assert moved.read(MOST) == [], "the file itself says what its ids are of"
    moved.append(TEXTS[0])
    assert file_in(tmp_path, fingerprint="another").read(MOST) == TEXTS[:1]


@pytest.mark.parametrize("cut", [1, 8, 9, 30, 2000])
def test_a_record_that_is_cut_short_is_passed_over(tmp_path: Path, cut: int) -> None:
    file = written(tmp_path)
    content = file.path.read_bytes()
    file.path.write_bytes(content[:-cut])
    again = file_in(tmp_path)
    assert again.read(MOST) == TEXTS[:2]
    again.append(TEXTS[0])
    assert file_in(tmp_path).read(MOST) == [*TEXTS[:2], TEXTS[0]], "nothing hides what follows"


def test_a_damaged_record_ends_the_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    content = bytearray(file.path.read_bytes())
    content[-1500] ^= 1
    file.path.write_bytes(bytes(content))
    assert file_in(tmp_path).read(MOST) == TEXTS[:2]
    file.path.write_bytes(b"something else altogether")
    assert file_in(tmp_path).read(MOST) == []
    file.path.write_bytes(b"")
    assert file_in(tmp_path).read(MOST) == []


def append_until_killed(folder: Path, ready: object) -> None:
    file = file_in(folder)
    count = 0
    while True:
        file.append(Text(array("i", [count] * 2000), 0))
        count += 1
        if count == 50:
            ready.set()  # type: ignore[attr-defined]


def test_a_process_that_is_killed_loses_the_last_text_at_most(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=append_until_killed, args=(tmp_path, ready))
    process.start()
    assert ready.wait(30)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    texts = file_in(tmp_path).read(2**30)
    assert len(texts) >= 50
    assert [text.token_ids[0] for text in texts] == [*range(len(texts))]
    assert all(len(text) == 2000 for text in texts)


def test_a_full_disk_leaves_no_half_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    real = os.write

    def half(handle: int, content: memoryview) -> int:
        real(handle, bytes(content[: len(content) // 2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        file.append(TEXTS[0])
    monkeypatch.undo()
    file.append(TEXTS[1])
    assert file_in(tmp_path).read(MOST) == [*TEXTS, TEXTS[1]]


def test_one_command_deletes_all(tmp_path: Path) -> None:
    files = [written(tmp_path), file_in(tmp_path, b"bob")]
    files[1].append(TEXTS[0])
    (tmp_path / "notes.txt").write_text("not ours")
    assert [each.deleted for each in files] == [False, False]
    assert clear(tmp_path) == 2
    assert [each.deleted for each in files] == [True, True]
    assert files_in(tmp_path) == []
    assert (tmp_path / "notes.txt").exists()
    assert clear(tmp_path / "nowhere") == 0


def test_one_process_writes_in_a_folder(tmp_path: Path) -> None:
    first = MemoryFolder(tmp_path)
    second = MemoryFolder(tmp_path)
    assert (first.writable, second.writable) == (True, False)
    written(tmp_path)
    content = file_in(tmp_path).path.read_bytes()
    file_in(tmp_path).path.write_bytes(content[:-1])
    assert file_in(tmp_path).read(MOST, repair=False) == TEXTS[:2]
    assert len(file_in(tmp_path).path.read_bytes()) == len(content) - 1
    first.close()
    second.close()
    assert MemoryFolder(tmp_path).writable


def test_files_that_were_longest_not_written_go_first(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path)
    for number, tenant in enumerate((b"a", b"b", b"c")):
        file = file_in(tmp_path, tenant)
        file.append(TEXTS[2])
        os.utime(file.path, (number, number))
    size = files_in(tmp_path)[0].stat().st_size
    folder.remove_oldest(2 * size)
    assert [file_in(tmp_path, name).path.exists() for name in (b"a", b"b", b"c")] == [
        False,
        True,
        True,
    ]
    folder.close()


def test_figures_of_a_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    figures = figures_of(file.path)
    assert (figures.texts, figures.tokens) == (3, 513)
    assert figures.size_bytes == file.path.stat().st_size


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    written(tmp_path)
    assert file_in(tmp_path).read(100) == []


def test_the_default_folder_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_memory_folder() == Path("/state/tandem/memory")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/alice")
    assert default_memory_folder() == Path("/home/alice/.local/state/tandem/memory")


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path, b"alice", "words")
    file.write([])
    left = tmp_path / f".{file.path.name}.0badf00d"
    left.write_bytes(b"half a text")
    MemoryFolder(tmp_path).close()
    assert not left.exists()
    left.write_bytes(b"half a text")
    assert clear(tmp_path) == 1
    assert not left.exists()
