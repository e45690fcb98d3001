"""Errors say what was wrong, in words and in attributes."""

import errno
import os

from tandem.core.errors import (
    listen_words,
    os_words,
    unknown_name,
)


def test_an_unknown_name_is_answered_with_the_most_similar_and_all_that_are_known() -> None:
    error = unknown_name("preset", "cuopled", ["ar", "coupled", "stream"])
    assert error.field == "preset"
    assert error.why == "unknown: 'cuopled'; did you mean 'coupled'? Known: ar, coupled, stream"
    assert unknown_name("preset", "zzz", ["ar"]).why == "unknown: 'zzz'; known: ar"


def test_a_name_of_several_parts_is_also_known_by_its_last() -> None:
    names = ["schedule.window", "payload_top"]
    error = unknown_name("overrides", "windw", names)
    assert "did you mean 'window'? Known: schedule.window, payload_top" in error.why
    assert "did you mean 'payload_top'" in unknown_name("overrides", "payload_tap", names).why


def test_a_file_that_cannot_be_read_is_named() -> None:
    assert os_words(FileNotFoundError(2, "No such file", "a.txt")) == "a.txt: No such file"
    assert os_words(OSError(5, "Input/output error")) == "Input/output error"
    assert os_words(OSError("broken")) == "broken"


def test_why_an_address_cannot_be_listened_on() -> None:
    taken = OSError(errno.EADDRINUSE, "error while attempting to bind on address ('::1', 80)")
    words = "port 80 is in use: another process listens on ::1:80"
    assert listen_words(taken, "::1", 80) == words
    for error, why in (
        (OSError(errno.EACCES, "bind on address ('::1', 80)"), os.strerror(errno.EACCES)),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (OSError(0, "nothing"), "nothing"),
        (OSError("broken"), "broken"),
    ):
        assert listen_words(error, "h", 80) == f"h:80 cannot be listened on: {why}"
