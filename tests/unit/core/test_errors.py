"""Errors say what was wrong, in words and in attributes."""

import errno
import os

import pytest

from tandem.core.errors import (
    InvalidArgument,
    ProtocolError,
    TandemError,
    Unavailable,
    check_count,
    listen_words,
    os_words,
    unknown_name,
)


def test_invalid_argument_names_its_field() -> None:
    error = InvalidArgument("top_p", "2.0 is not in (0, 1]")
    assert isinstance(error, TandemError)
    assert str(error) == "top_p: 2.0 is not in (0, 1]"
    assert (error.field, error.why) == ("top_p", "2.0 is not in (0, 1]")


def test_protocol_error_names_state_and_message() -> None:
    error = ProtocolError("closed", "draft")
    assert isinstance(error, TandemError)
    assert str(error) == "draft in state closed"
    assert str(ProtocolError("open", "verdict", "base 3 > 2")).endswith(": base 3 > 2")
    assert (error.state, error.message) == ("closed", "draft")


def test_as_many_as_are_taken_are_no_error() -> None:
    check_count(3, 3, "draft")
    with pytest.raises(InvalidArgument, match="draft: has 4 entries; the maximum is 3"):
        check_count(4, 3, "draft")


def test_what_is_not_said_to_be_stuck_was_not() -> None:
    assert Unavailable("stopping").silent_s == 0


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


def test_an_engine_that_was_stuck_says_for_how_long() -> None:
    assert Unavailable("the engine is stuck", silent_s=3.5).silent_s == 3.5
    assert str(Unavailable("the engine is stuck", 3.5)) == "the engine is stuck"
