"""A file of keys that changes while its service runs: each line counts by itself, and at once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tandem.net.access_keys import KEY_BYTES, key_line, new_key
from tandem.net.keys_file import UNREADABLE_S, KeysFile, KeysFileState
from tandem.net.reloaded import BadFile
from tandem.net.scopes import Scope
from tandem.telemetry.metrics import Metrics, new_registry

KEYS_WARNING = "malformed lines of the keys file"
ONE, TWO, THREE = (new_key(bytes([number]) * KEY_BYTES) for number in range(3))
MALFORMED = (
    f"three {THREE} scopes=verify",
    "three sha256:12 scopes=verify",
    f"three sha256:{'0' * 64} scopes={THREE}",
    f"three sha256:{'0' * 64} scopes=verify sessions={THREE}",
    f"three sha256:{'0' * 64}",
    "\udcff\udcfe",
)


def line(holder: str, key: str) -> str:
    return key_line(holder, key, {Scope.VERIFY})


def write(path: Path, *lines: str) -> None:
    path.write_bytes("".join(f"{each}\n" for each in lines).encode(errors="surrogateescape"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    write(path, line("one", ONE), line("two", TWO))
    return path


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What was logged, without what logging adds by itself: times and numbers of processes, which
    may hold any digits."""
    added = vars(logging.makeLogRecord({}))
    return {name: value for name, value in vars(record).items() if name not in added}


def holders(keys: KeysFile) -> list[str | None]:
    ring = keys.current()
    return [ring.holder(key) for key in (ONE, TWO, THREE)]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_key_taken_out_goes_at_once_whatever_another_line_is(
    path: Path, malformed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It went on to work for as long as any other line of the file was malformed."""
    caplog.set_level(logging.WARNING)
    keys = KeysFile(path)
    assert holders(keys) == ["one", "two", None]
    write(path, "# a comment", malformed, line("two", TWO))
    assert holders(keys) == [None, "two", None]
    assert keys.state() == KeysFileState(malformed_lines=(2,))
    assert keys.state().warning == "malformed lines of the keys file are ignored: 2"
    (told,) = [each for each in caplog.records if each.getMessage() == KEYS_WARNING]
    shown = f"{told.getMessage()} {fields_of(told)}"
    assert "'lines': [2]" in shown
    assert not any(word in shown for word in (THREE, THREE[:40], "sha256:", "0000"))
    write(path, line("two", TWO))
    assert keys.state() == KeysFileState()
    assert holders(keys) == [None, "two", None]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_line_is_named_at_the_start(path: Path, malformed: str) -> None:
    write(path, line("one", ONE), "", malformed)
    with pytest.raises(BadFile, match=f"^{path}: line 3"):
        KeysFile(path)


def test_a_key_taken_out_in_place_within_the_same_time_and_size_goes_at_once(path: Path) -> None:
    keys, ns = KeysFile(path), path.stat().st_mtime_ns
    assert holders(keys) == ["one", "two", None]
    write(path, line("one", THREE), line("two", TWO))
    os.utime(path, ns=(ns, ns))
    assert holders(keys) == [None, "two", "one"]


@pytest.mark.parametrize("how", ["gone", "a folder", "too large"])
def test_nobody_is_let_in_by_a_file_that_stays_unreadable(path: Path, how: str) -> None:
    now = 1000.0
    keys = KeysFile(path, lambda: now)
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "too large":
        write(path, line("one", ONE), "#" * 2**20)
    assert holders(keys) == ["one", "two", None]
    assert "are still used" in keys.state().warning
    now += UNREADABLE_S - 1
    assert holders(keys) == ["one", "two", None]
    assert not keys.state().closed
    now += 1
    assert holders(keys) == [None, None, None]
    assert keys.state() == KeysFileState(unreadable_s=UNREADABLE_S)
    assert keys.state().closed
    assert str(path) not in keys.state().warning
    if path.is_dir():
        path.rmdir()
    write(path, line("two", TWO))
    assert holders(keys) == [None, "two", None]
    assert keys.state() == KeysFileState()


def test_a_scrape_tells_of_both(path: Path) -> None:
    now = 1000.0
    keys, metrics = KeysFile(path, lambda: now), Metrics(new_registry(), "cloud")
    metrics.access().follow_keys_file("keys_file", keys.state)

    def told() -> list[float | None]:
        names = ("malformed_lines", "unreadable_seconds")
        labels = {"side": "cloud", "file": "keys_file"}
        return [
            metrics.registry.get_sample_value(f"tandem_keys_file_{name}", labels) for name in names
        ]

    assert told() == [0, 0]
    write(path, MALFORMED[0], line("two", TWO), MALFORMED[1])
    assert told() == [2, 0]
    path.unlink()
    told()
    now += 5.0
    assert told() == [2, 5]


def test_many_malformed_lines_are_told_by_the_first_and_how_many(path: Path) -> None:
    keys = KeysFile(path)
    write(path, *MALFORMED[:2] * 6)
    assert keys.state().warning.endswith("ignored: 1, 2, 3, 4, 5, 6, 7, 8 and 4 more")
