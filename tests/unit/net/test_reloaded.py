"""A value that follows its files, and stays when they become bad."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.net.reloaded import COMPARE_EVERY_S, BadFile, Reloaded, ReloadFailure, read_file


def numbers(*paths: Path) -> Reloaded[int]:
    """The sum of the numbers in the files."""

    def read() -> int:
        try:
            return sum(int(read_file(path)) for path in paths)
        except ValueError:
            raise BadFile(paths[0], "must hold a number") from None

    return Reloaded(paths, read)


def test_it_is_read_again_only_when_a_file_changed(tmp_path: Path) -> None:
    path, times = tmp_path / "number", 0

    def read() -> int:
        nonlocal times
        times += 1
        return int(read_file(path))

    path.write_text("1")
    value = Reloaded((path,), read)
    assert [value.current() for _ in range(3)] == [1, 1, 1]
    assert times == 1
    path.write_text("22")
    assert [value.current() for _ in range(3)] == [22, 22, 22]
    assert times == 2
    # As Kubernetes does it: another file in its place, of the same size and age.
    age = path.stat().st_mtime_ns
    other = tmp_path / "other"
    other.write_text("33")
    os.utime(other, ns=(age, age))
    other.replace(path)
    assert value.current() == 33


def test_a_bad_change_is_said_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    value = numbers(one, two)
    one.write_text("nonsense")
    assert [value.current() for _ in range(3)] == [3, 3, 3]
    two.unlink()
    assert value.current() == 3
    assert [record.getMessage() for record in caplog.records] == [
        "changed files not taken over"
    ] * 2
    one.write_text("10")
    two.write_text("20")
    assert value.current() == 30


def test_what_is_bad_from_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "number"
    with pytest.raises(BadFile, match="number: cannot be read: No such file"):
        numbers(path)
    path.write_text("x")
    with pytest.raises(BadFile, match="must hold a number"):
        numbers(path)
    path.write_bytes(b"1" * 11)
    with pytest.raises(BadFile, match="is larger than 10 bytes"):
        read_file(path, longest=10)
    with pytest.raises(BadFile, match="cannot be read: Is a directory"):
        read_file(tmp_path)


def rewrite(path: Path, content: str, ns: int) -> None:
    """In place: the file's number and size stay, and its time becomes what it is said to be."""
    with path.open("r+") as file:
        file.write(content)
    os.utime(path, ns=(ns, ns))


def test_a_file_rewritten_in_place_within_its_time_and_size_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("11")
    ns = path.stat().st_mtime_ns
    value = numbers(path)
    for number in (22, 33, 44):
        rewrite(path, str(number), ns)
        assert value.current() == number


def test_where_no_time_tells_a_change_it_is_noticed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that keeps no time of changes, and times of writing in whole seconds."""
    path, now = tmp_path / "number", 100.0
    path.write_text("11")
    real = Path.stat

    def stat(self: Path, **options: Any) -> Any:
        found = real(self, **options)
        return SimpleNamespace(
            st_mtime_ns=10**18, st_ctime_ns=10**18, st_size=found.st_size, st_ino=found.st_ino
        )

    monkeypatch.setattr(Path, "stat", stat)
    value = Reloaded((path,), lambda: int(read_file(path)), lambda: now)
    path.write_text("22")
    now += COMPARE_EVERY_S / 2
    assert value.current() == 11
    now += COMPARE_EVERY_S / 2
    assert value.current() == 22


def test_a_failure_lasts_until_the_files_can_be_used(tmp_path: Path) -> None:
    path, now = tmp_path / "number", 100.0
    path.write_text("1")
    value = Reloaded((path,), lambda: int(read_file(path)), lambda: now)
    assert value.current_and_failure() == (1, None)
    path.unlink()
    why = f"{path}: cannot be read: No such file or directory"
    assert value.current_and_failure() == (1, ReloadFailure(why, 0.0))
    now += 7.0
    assert value.current_and_failure() == (1, ReloadFailure(why, 7.0))
    path.write_text("1")
    assert value.current_and_failure() == (1, None)
