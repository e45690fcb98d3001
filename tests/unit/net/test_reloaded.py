"""A value that follows its files, and stays when they become bad."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tandem.net.reloaded import BadFile, Reloaded, ReloadFailure, read_file


def numbers(*paths: Path) -> Reloaded[int]:
    """The sum of the numbers in the files."""

    def read() -> int:
        try:
            return sum(int(read_file(path)) for path in paths)
        except ValueError:
            raise BadFile(paths[0], "must hold a number") from None

    return Reloaded(paths, read)


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
