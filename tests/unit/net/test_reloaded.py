"""A value that follows its files, and stays when they become bad."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tandem.net.reloaded import BadFile, Reloaded, read_file


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
