"""Errors say what was wrong, in words and in attributes."""

import pytest

from tandem.core.errors import (
    InvalidArgument,
    ProtocolError,
    TandemError,
    Unavailable,
    check_count,
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
    assert str(ProtocolError("open", "verdict", "epoch 3 > 2")).endswith(": epoch 3 > 2")
    assert (error.state, error.message) == ("closed", "draft")


def test_as_many_as_are_taken_are_no_error() -> None:
    check_count(3, 3, "draft")
    with pytest.raises(InvalidArgument, match="draft: has 4 entries; the maximum is 3"):
        check_count(4, 3, "draft")


def test_what_is_not_said_to_be_stuck_was_not() -> None:
    assert Unavailable("stopping").silent_s == 0
